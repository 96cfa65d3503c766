"""Memory that nothing uses goes back to the system.

Every thread takes memory from an arena of glibc's, of which there are up to eight for each core, and leaves it full of
holes: within minutes of small statements a server would be several times the size of what it uses. One arena for each
core is enough for DuckDB, and what is free in them is given back now and then. Elsewhere there is nothing to do.
"""

import ctypes
from functools import cache

from catchment.foundation import settings

_ARENAS_MIN = 2
# glibc's number for the most arenas that it makes.
_M_ARENA_MAX = -8


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def bound_arenas() -> None:
    """Have few arenas; those that are there stay, so this comes before threads do."""
    glibc = _glibc()
    if glibc is not None:
        glibc.mallopt(_M_ARENA_MAX, max(_ARENAS_MIN, settings.cpu_count()))


def give_back() -> None:
    """Give back what is free; takes some milliseconds, and holds up those who allocate meanwhile."""
    glibc = _glibc()
    if glibc is not None:
        glibc.malloc_trim(0)
