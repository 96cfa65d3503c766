"""The table that files are delivered to: found by name, ignoring ASCII case, or created."""

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
    """Return the lake's table of that name, ignoring ASCII case as DuckDB does, or None."""
    exact = lake.find_table(wanted)
    if exact is not None:
        return exact
    alike = [each for each in lake.tables() if _folded(each) == _folded(wanted)]
    return lake.find_table(alike[0]) if alike else None


def draft(source: ParquetFiles, partition_by: Sequence[str] = ()) -> CreateTable:
    """Return the table that the files need; InputError if they lack a column to partition by."""
    # First, because its error names a file that does not exist.
    source.units()
    columns = source.columns()
    keys = tuple(PartitionKey(column=name) for name in _partition_columns(columns, partition_by))
    return CreateTable(table=source.table, columns=columns, partition_by=keys)


def table_of_draft(change: CreateTable, *, encrypted: bool) -> Table:
    """Return the table as it will be in the lake, as far as a plan needs it."""
    return Table(
        id=change.table,
        uuid="",
        folder="",
        columns=change.columns,
        partition_by=change.partition_by,
        encrypted=encrypted,
    )


def make_table(lake: Lake, change: CreateTable) -> Table:
    """Return the table as the catalog names it. Create it if it is still missing."""
    found = find_table(lake, change.table)
    if found is not None:
        require_partitioning(found, [key.column for key in change.partition_by])
        return found
    lake.commit(Commit(message=f"create {change.table}", changes=(change,)))
    # An existing schema keeps its own spelling.
    return find_table(lake, change.table) or lake.table(change.table)


def require_partitioning(table: Table, partition_by: Sequence[str]) -> None:
    """Refuse partition columns that differ from those of an existing table."""
    existing = [str(key) for key in table.partition_by]
    if partition_by and [*map(sql.fold, partition_by)] != [*map(sql.fold, existing)]:
        raise InputError(
            f"{table.id} is partitioned by {', '.join(existing) or 'nothing'}, not by {', '.join(partition_by)}.",
            hint="Omit --partition-by: it applies only to a table that is created. "
            f"ALTER TABLE {table.id} SET PARTITIONED BY (…) changes an existing one.",
        )


def _partition_columns(columns: Sequence[Column], names: Sequence[str]) -> tuple[str, ...]:
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
