"""Overview of a lake: tables and files, snapshots, recent deliveries, dead letters, migrations."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb

from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake.dead_letters import DeadLetters
from catchment.lake.lake import Lake
from catchment.lake.ledger import Delivery
from catchment.lake.tables import LEDGER_SCHEMA, PACKAGE, has_table, metadata_of

_MIGRATIONS = "_migrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The files of one table. A single file does not count as small: it cannot be merged."""

    table: TableId
    files: int
    bytes: int
    rows: int
    small_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """Progress of one schema's migrations, by their records in the lake."""

    schema: str
    applied: int
    last: str
    finished_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """State of the lake at one snapshot."""

    tables: tuple[TableFiles, ...]
    snapshots: int
    snapshot_newest: int
    snapshot_at: datetime | None
    deliveries: tuple[Delivery, ...]
    dead_letters: Mapping[TableId, int]
    migrated: tuple[Migrated, ...]


NOTHING = Overview(
    tables=(), snapshots=0, snapshot_newest=0, snapshot_at=None, deliveries=(), dead_letters={}, migrated=()
)


def overview(lake: Lake, *, small_bytes: int, deliveries_max: int) -> Overview:
    """Return the lake's state, from its catalog alone; files below `small_bytes` are small."""
    with lake.snapshot() as connection:
        metadata = metadata_of(lake.name)
        text = sql.statement(PACKAGE, "overview_tables", metadata=metadata)
        rows = connection.execute(text, [small_bytes, LEDGER_SCHEMA]).fetchall()
        count, newest, at = connection.execute(
            f"SELECT count(*), max(snapshot_id), max_by(snapshot_time::TIMESTAMPTZ::VARCHAR, snapshot_id) "
            f"FROM {sql.identifier(metadata)}.ducklake_snapshot"
        ).fetchall()[0]
        return Overview(
            tables=tuple(
                TableFiles(
                    table=TableId(schema, name),
                    files=files,
                    bytes=int(size),
                    rows=int(records),
                    small_files=small if files > 1 else 0,
                )
                for schema, name, files, size, records, small in rows
            ),
            snapshots=count,
            snapshot_newest=newest or 0,
            snapshot_at=None if at is None else datetime.fromisoformat(at).astimezone(UTC),
            deliveries=tuple(lake.ledger_on(connection).recent(deliveries_max)),
            dead_letters=DeadLetters(connection, lake.name).counts(),
            migrated=_migrated(connection, lake.name),
        )


def _migrated(connection: duckdb.DuckDBPyConnection, lake_name: str) -> tuple[Migrated, ...]:
    # Created by the first migration of the lake.
    if not has_table(connection, lake_name, TableId(LEDGER_SCHEMA, _MIGRATIONS)):
        return ()
    rows = connection.execute(sql.statement(PACKAGE, "overview_migrations", lake=lake_name)).fetchall()
    return tuple(
        Migrated(schema=schema, applied=applied, last=last, finished_at=str(at)) for schema, applied, last, at in rows
    )
