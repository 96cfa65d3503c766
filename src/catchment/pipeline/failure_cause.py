"""Whose fault it is that a task failed: its input's, or the machine's it ran on.

An input that is to blame is left out for good: a file is reported, rows of the queue become dead letters. What memory,
disk or time were too little for is tried again.
"""

import errno

import duckdb
import pyarrow as pa

from catchment.errors import DiskFullError

_KINDS = (
    duckdb.OutOfMemoryException,
    duckdb.InterruptException,
    # They make DuckDB give up its instance, so that nothing which fails after them tells anything.
    duckdb.InternalException,
    duckdb.FatalException,
    pa.ArrowMemoryError,
    MemoryError,
    DiskFullError,
)
_NUMBERS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS, errno.EAGAIN}
)
# How DuckDB words the same.
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
    """Return whether the error says nothing about the input: the same may succeed later, or elsewhere."""
    if isinstance(error, _KINDS):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NUMBERS
    return any(words in str(error) for words in _WORDS)
