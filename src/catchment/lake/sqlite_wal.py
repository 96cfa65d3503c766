"""Keeps the WAL of a SQLite catalog in place while many threads use it.

The last connection that closes a SQLite database locks it exclusively, writes its WAL back and
removes it; the first one that opens it again recovers the WAL's index. DuckDB opens and closes the
catalog for every transaction and scan, so in a server both happen all the time. A connection that
comes at that moment finds the database busy, and the SQLite in DuckDB's extension, built without
`usleep`, then sleeps for a second.

A database that another process has open too is never closed last. This module holds the locks that
such a process would hold: a shared lock on the pending byte, which an exclusive lock needs, and one
on the byte that marks the index as in use. They are locks of an open file, not of a process, so
they also exclude this process's own SQLite. The bytes are part of SQLite's file format. If the
system has no such locks, nothing is held, and SQLite behaves as usual.
"""

import threading
from pathlib import Path

from catchment.foundation.files import SharedFile

_PENDING_BYTE = 0x4000_0000
# Offset in the file of the WAL's index.
_IN_USE_BYTE = 128
# Write and read version in the file's header: 2 is WAL.
_VERSIONS = slice(18, 20)
_WITH_WAL = b"\x02\x02"


class OpenWal:
    """A catalog's WAL that is kept open."""

    def __init__(self, catalog: Path) -> None:
        self._catalog = catalog
        self._held: list[SharedFile] = []
        self._mutex = threading.Lock()

    def hold(self) -> bool:
        """Keep the catalog from being closed last; return whether `hold_index` should follow.

        False if it was called before, or if the catalog has no WAL: then commits need this lock.
        """
        with self._mutex:
            if self._held:
                return False
            file = SharedFile(self._catalog)
            self._held.append(file)
        return file.head(_VERSIONS.stop)[_VERSIONS] == _WITH_WAL and file.share(_PENDING_BYTE)

    def hold_index(self) -> None:
        """Keep the WAL's index, which exists once the catalog was used after `hold`."""
        index = SharedFile(self._catalog.with_name(f"{self._catalog.name}-shm"))
        self._held.append(index)
        index.share(_IN_USE_BYTE)

    def release(self) -> None:
        """Release the locks: the last connection to close the catalog removes the WAL.

        No other method may run at the same time.
        """
        for file in self._held:
            file.close()
        self._held.clear()
