"""Classifies why a task failed: because of its input, or because of the machine it ran on.

An input at fault is not retried: a file is reported, rows of the queue become dead letters. Work
that ran out of memory, disk or time is tried again.
"""

import errno

import duckdb
import pyarrow as pa

from catchment.errors import DiskFullError

_KINDS = (
    duckdb.OutOfMemoryException,
    duckdb.InterruptException,
    # These make DuckDB invalidate its instance, so that errors after them are meaningless.
    duckdb.InternalException,
    duckdb.FatalException,
    pa.ArrowMemoryError,
    MemoryError,
    DiskFullError,
)
_NUMBERS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS, errno.EAGAIN}
)
# DuckDB's wording of the same errors.
_WORDS = (
    "No space left",
    "Disk quota exceeded",
    "File too large",
    "Too many open files",
    "Cannot allocate memory",
    "Read-only file system",
    "database has been invalidated",
)


def is_of_the_machine(error: BaseException) -> bool:
    """Return whether the machine caused the error: the same work may succeed later or elsewhere."""
    if isinstance(error, _KINDS):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NUMBERS
    return any(words in str(error) for words in _WORDS)
