"""Request ids: the id that the client sent, or a generated one.

The id is in every log line of the request and in the error that the client gets, so a reported
error can be found in the log. Calls to other shards on behalf of the request carry the same id.
"""

import re
import secrets
from collections.abc import Iterable
from itertools import count

from catchment.foundation import events

REQUEST_HEADER = "x-request-id"
# An id that is longer, or that could be misread in the log, is not adopted.
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
# An id need not be hard to guess; it has to be cheap, and different in every process.
_PROCESS = secrets.token_hex(4)
_numbers = count(1)


def request_id(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the id of the request that has these headers."""
    for key, value in headers:
        if key == REQUEST_HEADER and isinstance(value, str) and _SANE.fullmatch(value):
            return value
    return f"{_PROCESS}-{next(_numbers):x}"


def request_id_headers() -> tuple[tuple[str, str], ...]:
    """Return the header for a call on behalf of this thread's request; none if there is no request."""
    request = events.current("request")
    return () if request is None else ((REQUEST_HEADER, str(request)),)
