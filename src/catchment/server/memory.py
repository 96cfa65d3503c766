"""Return unused memory to the operating system.

Each thread allocates from one of glibc's arenas, of which there are up to eight per core, and
leaves it fragmented: within minutes of small statements a server would be several times the size of
the memory it uses. One arena per core is enough for DuckDB, and free memory in the arenas is
returned periodically. On systems without glibc there is nothing to do.
"""

import ctypes
from functools import cache

from catchment.foundation import process

_ARENAS_MIN = 2
# glibc's parameter number for the maximum number of arenas.
_M_ARENA_MAX = -8


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def bound_arenas() -> None:
    """Limit the number of arenas. Existing arenas stay, so call this before threads are started."""
    glibc = _glibc()
    if glibc is not None:
        glibc.mallopt(_M_ARENA_MAX, max(_ARENAS_MIN, process.cpu_count()))


def give_back() -> None:
    """Return free memory to the system. Takes some milliseconds and blocks concurrent allocations."""
    glibc = _glibc()
    if glibc is not None:
        glibc.malloc_trim(0)
