"""Keeping the WAL of a SQLite catalog in its place while many threads use it.

Whoever is the last to close a SQLite database takes it for itself, writes its WAL back and removes it; whoever is the
first to open it again recovers the WAL's index. DuckDB opens and closes the catalog for every transaction and scan, so
in a server both happen all the time. Who comes in that moment is told that the database is busy, and the SQLite in
DuckDB's extension, built without `usleep`, then sleeps for a second.

A database that another process has open too is never closed last. Here we hold what such a process would hold: a shared
lock on the byte that comes before an exclusive lock, and one on the byte that says that the index is in use. They are
locks of an open file, not of a process, so they count against this process's own SQLite as well. The bytes are part of
SQLite's file format. Where the system has no such locks, nothing is held, and all is as it was.
"""

import threading
from pathlib import Path

from catchment.foundation.files import SharedFile

_PENDING_BYTE = 0x4000_0000
# In the file of the WAL's index.
_IN_USE_BYTE = 128
# Where the header says how the file is to be written and read: 2 is with a WAL.
_VERSIONS = slice(18, 20)
_WITH_WAL = b"\x02\x02"


class OpenWal:
    """The WAL of a catalog that stays open."""

    def __init__(self, catalog: Path) -> None:
        self._catalog = catalog
        self._held: list[SharedFile] = []
        self._mutex = threading.Lock()

    def hold(self) -> bool:
        """Keep the catalog from being closed last; False where it has no WAL: then commits need what is held here."""
        with self._mutex:
            if self._held:
                return False
            file = SharedFile(self._catalog)
            self._held.append(file)
        return file.head(_VERSIONS.stop)[_VERSIONS] == _WITH_WAL and file.share(_PENDING_BYTE)

    def hold_index(self) -> None:
        """Keep the WAL's index, which is there once somebody has used the catalog since `hold`."""
        index = SharedFile(self._catalog.with_name(f"{self._catalog.name}-shm"))
        self._held.append(index)
        index.share(_IN_USE_BYTE)

    def release(self) -> None:
        """Leave it to whoever closes the catalog next, last of all, to tidy up. Nothing else is under way any more."""
        for file in self._held:
            file.close()
        self._held.clear()
