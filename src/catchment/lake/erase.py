"""Erasing: deletes files of a schema's dropped tables before their snapshots expire.

Dropped tables keep their files for older snapshots. Expiring these snapshots would also remove the
history of every other table. So the files are deleted and the snapshots stay: reading a dropped
table at such a snapshot fails because of a missing file, and maintenance skips missing files. The
catalog's own facts about the tables (names, row counts, minimum and maximum of columns) are removed
when the snapshots expire.
"""

from dataclasses import dataclass

from catchment.foundation import events, files, sql
from catchment.lake.lake import Lake
from catchment.lake.tables import PACKAGE, metadata_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """Deleted files, and the rest: files outside the data path, and snapshots with the tables.

    `snapshot_first` and `snapshot_last` are None if there are no such snapshots.
    """

    files: int = 0
    bytes: int = 0
    files_elsewhere: int = 0
    snapshots: int = 0
    snapshot_first: int | None = None
    snapshot_last: int | None = None


def erase(lake: Lake, schema: str) -> Erased:
    """Delete the files of all dropped tables of the schema; idempotent.

    Files that were registered outside the lake's data path are not touched.
    """
    metadata = metadata_of(lake.name)
    with lake.cursor() as cursor:
        paths = cursor.execute(sql.statement(PACKAGE, "erase_files", metadata=metadata), {"schema": schema}).fetchall()
        known = cursor.execute(
            sql.statement(PACKAGE, "erase_snapshots", metadata=metadata), {"schema": schema}
        ).fetchone()
    data_path = files.local_path(lake.address.data_path)
    found = [data_path / path for (path,) in paths]
    inside = [path for path in found if path.is_relative_to(data_path) and path.is_file()]
    size = sum(files.size_of(path) for path in inside)
    for path in inside:
        files.remove(path)
    for top in {path.relative_to(data_path).parts[0] for path in inside}:
        files.remove_empty_folders(data_path / top)
    snapshots, first, last = known or (0, None, None)
    erased = Erased(
        files=len(inside),
        bytes=size,
        files_elsewhere=sum(not path.is_relative_to(data_path) for path in found),
        snapshots=snapshots,
        snapshot_first=first,
        snapshot_last=last,
    )
    if inside:
        events.emit("schema_erased", schema=schema, files=erased.files, bytes=erased.bytes)
    return erased
