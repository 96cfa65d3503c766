"""Which request a call is: by the id that its client gave it, or by one that is made for it.

The id is in every line that the log has of the request, and in the error that the client gets: whoever complains can
be found. Calls to other shards that are made for the request carry it on.
"""

import re
import secrets
from collections.abc import Iterable
from itertools import count

from catchment.foundation import events

REQUEST_HEADER = "x-request-id"
# What is longer, or could be taken for something else where the log is read, is not taken over.
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
# An id need not be hard to guess; it has to be another one in every process, and cheap.
_PROCESS = secrets.token_hex(4)
_numbers = count(1)


def request_id(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """The id of the request that came with these headers."""
    for key, value in headers:
        if key == REQUEST_HEADER and isinstance(value, str) and _SANE.fullmatch(value):
            return value
    return f"{_PROCESS}-{next(_numbers):x}"


def carried_on() -> tuple[tuple[str, str], ...]:
    """The header of a call that is made for the request of this thread; none where there is no request."""
    request = events.current("request")
    return () if request is None else ((REQUEST_HEADER, str(request)),)
