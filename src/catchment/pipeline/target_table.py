"""The table that files are delivered into: found by the name that DuckDB takes for its own, or made from the files."""

from collections.abc import Sequence

from catchment.errors import InputError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake import Column, Commit, Lake, Table
from catchment.lake.commit import CreateTable
from catchment.lake.tables import PartitionKey
from catchment.pipeline.parquet_source import ParquetFiles

_COLUMNS_SHOWN_MAX = 20


def find_table(lake: Lake, wanted: TableId) -> Table | None:
    """The table that the lake has under that name, whichever way its letters of ASCII are written; or None."""
    exact = lake.find_table(wanted)
    if exact is not None:
        return exact
    alike = [each for each in lake.tables() if _folded(each) == _folded(wanted)]
    return lake.find_table(alike[0]) if alike else None


def draft(source: ParquetFiles, partition_by: Sequence[str] = ()) -> CreateTable:
    """The table that the files need, without effect on anything; columns to partition by must be among theirs."""
    # First, because it names a file that is not there.
    source.units()
    columns = source.columns()
    keys = tuple(PartitionKey(column=name) for name in _among(columns, partition_by))
    return CreateTable(table=source.table, columns=columns, partition_by=keys)


def drafted(change: CreateTable, *, encrypted: bool) -> Table:
    """The table as it will be in a lake that is `encrypted` or not, as far as a plan needs it."""
    return Table(
        id=change.table,
        uuid="",
        folder="",
        columns=change.columns,
        partition_by=change.partition_by,
        encrypted=encrypted,
    )


def make_table(lake: Lake, change: CreateTable) -> Table:
    """The table, made if it is still missing, and named as the catalog names it."""
    found = find_table(lake, change.table)
    if found is not None:
        require_partitioning(found, [key.column for key in change.partition_by])
        return found
    lake.commit(Commit(message=f"create {change.table}", changes=(change,)))
    # A schema that is there already keeps its own spelling.
    return find_table(lake, change.table) or lake.table(change.table)


def require_partitioning(table: Table, partition_by: Sequence[str]) -> None:
    """Refuse columns to partition by that are not those of a table which is there."""
    there = [str(key) for key in table.partition_by]
    if partition_by and [*map(sql.fold, partition_by)] != [*map(sql.fold, there)]:
        raise InputError(
            f"{table.id} is partitioned by {', '.join(there) or 'nothing'}, not by {', '.join(partition_by)}.",
            hint="Leave --partition-by out: it is for a table that is made. "
            f"ALTER TABLE {table.id} SET PARTITIONED BY (…) changes one that is there.",
        )


def _among(columns: Sequence[Column], names: Sequence[str]) -> tuple[str, ...]:
    known = {sql.fold(column.name): column.name for column in columns}
    for name in names:
        if sql.fold(name) not in known:
            shown = ", ".join([*known.values()][:_COLUMNS_SHOWN_MAX])
            raise InputError(
                f"The files have no column {name!r} to partition by.",
                hint=f"Partition by plain columns, not by transforms of them. They have: {shown}.",
            )
    found = tuple(known[sql.fold(name)] for name in names)
    if len(set(found)) != len(found):
        raise InputError(f"A column to partition by is named twice: {', '.join(names)}.", hint="Name each one once.")
    return found


def _folded(table: TableId) -> tuple[str, str]:
    return sql.fold(table.schema), sql.fold(table.name)
