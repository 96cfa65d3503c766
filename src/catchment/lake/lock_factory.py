"""The kinds of commit lock, by the lake's catalog."""

from typing import assert_never

from catchment.foundation.clock import Clock
from catchment.lake.attach import Catalog, DuckDbCatalog, PostgresCatalog, SqliteCatalog
from catchment.lake.locks import CommitLock, SharedFileLock


def lock_for(catalog: Catalog, *, clock: Clock) -> CommitLock:
    """Return the lock that fits the catalog."""
    match catalog:
        case DuckDbCatalog():
            # No other process can have the file open.
            return CommitLock(clock=clock)
        case SqliteCatalog(path=path):
            return SharedFileLock(path.with_name(path.name + ".lock"), clock=clock)
        case PostgresCatalog(conninfo=conninfo):
            # Imported here, because it imports the PostgreSQL client.
            from catchment.lake.advisory import AdvisoryLock

            return AdvisoryLock(conninfo, clock=clock)
        case _ as unreachable:
            assert_never(unreachable)
