"""Tables of a buffer file: its metadata (identity, versions, retained logs, generations) and rows.

Each function runs its statements in the connection's current transaction.

    dq_meta          one row per version of a table's columns: staging table, first number,
                     flushed position
    held_schemas     schemas whose flushed rows are kept as a log; shared layout only
    table_lives      generations of tables that were dropped or do not start at 1; shared layout only
    unproven_tables  positions at opening, not compared with the ledger yet; shared layout only
    dq_<table>       a staging table: the rows of one version
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from catchment.errors import InvariantError
from catchment.foundation import sql
from catchment.foundation.clock import Clock
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue import incoming
from catchment.queue.buffer import AT, SEQ
from catchment.queue.store.table_log import AckMark, TableLog, Version

_PACKAGE = "catchment.queue.store"
_SAMPLE_ROWS = 1_000
_FLUSHED_PREFIX = "__dq_flushed_"


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferIdentity:
    """The generation of the buffer that a file belongs to."""

    generation: str
    session: str
    created_at: datetime

    @classmethod
    def new(cls, generation: str, session: str, clock: Clock) -> "BufferIdentity":
        """Return the identity of a file that is created now."""
        return cls(generation=generation, session=session, created_at=clock.now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Generation of a table's name, counted from 1, and the number after which it started, if set.

    A name starts another generation when another table takes it. The buffered rows of the previous
    one are then kept under another name, and `origin_name` is their former name.
    """

    number: int = 1
    start_seq: int | None = None
    origin_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All metadata of a file at opening."""

    identity: BufferIdentity
    logs: dict[TableId, TableLog]
    retained_schemas: frozenset[str]
    generations: dict[TableId, Generation]
    unproven: dict[TableId, int]


def opened(
    connection: duckdb.DuckDBPyConnection, *, identity_table: str, fresh: BufferIdentity, is_replicated: bool
) -> Contents:
    """Create missing tables and read them; `is_replicated` if the file may contain logs."""
    connection.execute(sql.statement(_PACKAGE, "store_create", identity=identity_table))
    retained_schemas: frozenset[str] = frozenset()
    generations: dict[TableId, Generation] = {}
    unproven: dict[TableId, int] = {}
    if is_replicated:
        connection.execute(sql.statement(_PACKAGE, "replication_create"))
        retained_schemas = frozenset(row[0] for row in connection.execute("FROM held_schemas").fetchall())
        generations = {
            TableId(schema, name): Generation(number=number, start_seq=started, origin_name=origin)
            for schema, name, number, started, origin in connection.execute("FROM table_lives").fetchall()
        }
        unproven = {
            TableId(schema, name): seq for schema, name, seq in connection.execute("FROM unproven_tables").fetchall()
        }
    identity = _identity(connection, identity_table, fresh)
    return Contents(
        identity=identity,
        logs=dict(_logs(connection, retained_schemas)),
        retained_schemas=retained_schemas,
        generations=generations,
        unproven=unproven,
    )


def add_version(connection: duckdb.DuckDBPyConnection, version: Version, *, seq_flushed: int) -> None:
    """Create a staging table and record its version."""
    payload = "".join(f", {sql.identifier(column.name)} {column.type}" for column in version.columns)
    connection.execute(
        f"CREATE TABLE {sql.identifier(version.staging)} ({SEQ} BIGINT NOT NULL, {AT} TIMESTAMP NOT NULL{payload})"
    )
    connection.execute(
        "INSERT INTO dq_meta VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            *_key(version.table),
            version.number,
            version.staging,
            json.dumps([asdict(column) for column in version.columns]),
            version.seq_first,
            seq_flushed,
        ],
    )


def insert(
    connection: duckdb.DuckDBPyConnection, version: Version, seq_first: int, times: pa.Array, rows: pa.Table
) -> None:
    """Insert rows with the numbers from `seq_first` on and their times."""
    expressions = incoming.select_list(rows.schema, version.columns)
    seqs = pa.arange(seq_first, seq_first + rows.num_rows)
    numbered = rows.append_column(SEQ, seqs).append_column(AT, times)
    # A bare capsule: DuckDB reads an Arrow table object by a slower path.
    connection.register("arriving", numbered.__arrow_c_stream__())
    try:
        connection.execute(
            f"INSERT INTO {sql.identifier(version.staging)} SELECT {SEQ}, {AT}, {expressions} FROM arriving"
        )
    finally:
        connection.unregister("arriving")


def mark_flushed(connection: duckdb.DuckDBPyConnection, version: Version) -> None:
    """Rename the version's staging table to show that the lake has its rows."""
    flushed = sql.identifier(_FLUSHED_PREFIX + version.staging)
    connection.execute(f"ALTER TABLE {sql.identifier(version.staging)} RENAME TO {flushed}")
    _remove_version(connection, version)


def drop_versions(connection: duckdb.DuckDBPyConnection, versions: Iterable[Version]) -> None:
    """Drop staging tables with their rows."""
    for version in versions:
        connection.execute(f"DROP TABLE IF EXISTS {sql.identifier(version.staging)}")
        _remove_version(connection, version)


def _remove_version(connection: duckdb.DuckDBPyConnection, version: Version) -> None:
    connection.execute(sql.statement(_PACKAGE, "version_remove"), [*_key(version.table), version.number])


def delete_gone(connection: duckdb.DuckDBPyConnection, before: TableLog, after: TableLog) -> None:
    """Delete rows that `before` has and `after` does not; record the flushed position."""
    drop_versions(connection, (version for version in before.versions if version not in after.versions))
    if after.seq_gone > before.seq_gone:
        for version in after.versions:
            connection.execute(f"DELETE FROM {sql.identifier(version.staging)} WHERE {SEQ} <= {after.seq_gone}")
    if after.seq_flushed > before.seq_flushed:
        table = after.versions[-1].table
        connection.execute(sql.statement(_PACKAGE, "version_flushed"), [after.seq_flushed, *_key(table)])


def set_generation(connection: duckdb.DuckDBPyConnection, table: TableId, generation: Generation) -> None:
    """Record the table's generation."""
    connection.execute("DELETE FROM table_lives WHERE table_schema = ? AND table_name = ?", _key(table))
    connection.execute(
        "INSERT INTO table_lives VALUES (?, ?, ?, ?, ?)",
        [*_key(table), generation.number, generation.start_seq, generation.origin_name],
    )


def staging_name(connection: duckdb.DuckDBPyConnection, table: TableId, number: int) -> str:
    """Return an unused name for the staging table of a new version."""
    place = table.name if table.schema == DEFAULT_SCHEMA else f"{table.schema}.{table.name}"
    wanted = f"dq_{place}" if number == 1 else f"dq_{place}@{number}"
    taken = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    # Tables `a.b` of the default schema and `b` of schema `a` would collide, as would names that
    # differ in case only.
    return _free(wanted, (name for (name,) in taken))


def former_of(table: TableId, log: TableLog, taken: Iterable[TableId]) -> TableId:
    """Return the name under which a table's rows are kept once another table has its name."""
    # The end of a uuid distinguishes tables that were created at the same moment.
    ending = (types.table_of(log.versions[-1].columns) or "")[-8:]
    return TableId(table.schema, _free(f"{table.name}@{ending}", (each.name for each in taken)))


def _free(wanted: str, taken: Iterable[str]) -> str:
    folded = {sql.fold(name) for name in taken}
    while sql.fold(wanted) in folded:
        wanted += "'"
    return wanted


def rename(connection: duckdb.DuckDBPyConnection, table: TableId, name: str) -> None:
    """Move a table's versions and unproven position to another name of the same schema."""
    for each in ("dq_meta", "unproven_tables"):
        connection.execute(
            f"UPDATE {each} SET table_name = ? WHERE table_schema = ? AND table_name = ?", [name, *_key(table)]
        )


def set_unproven(connection: duckdb.DuckDBPyConnection, table: TableId, seq: int | None) -> None:
    """Record a position that is to be compared with the ledger; None once that was done."""
    connection.execute("DELETE FROM unproven_tables WHERE table_schema = ? AND table_name = ?", _key(table))
    if seq is not None:
        connection.execute("INSERT INTO unproven_tables VALUES (?, ?, ?)", [*_key(table), seq])


def _key(table: TableId) -> tuple[str, str]:
    """Return the table's key in the metadata tables."""
    return table.schema, table.name


def utc_naive(moment: datetime) -> datetime:
    """Return the time as the file stores it: in UTC, without a time zone."""
    return moment.astimezone(UTC).replace(tzinfo=None)


def _identity(connection: duckdb.DuckDBPyConnection, table: str, fresh: BufferIdentity) -> BufferIdentity:
    select = f"SELECT incarnation, session, created_at FROM {sql.identifier(table)}"
    rows = connection.execute(select).fetchall()
    if not rows:
        connection.execute(
            f"INSERT INTO {sql.identifier(table)} VALUES (?, ?, ?)",
            [fresh.generation, fresh.session, utc_naive(fresh.created_at)],
        )
        rows = connection.execute(select).fetchall()
    if len(rows) != 1:
        raise InvariantError(f"{table} has {len(rows)} rows instead of one.")
    generation, session, created_at = rows[0]
    return BufferIdentity(generation=generation, session=session, created_at=created_at.replace(tzinfo=UTC))


def _logs(
    connection: duckdb.DuckDBPyConnection, retained_schemas: frozenset[str]
) -> Iterator[tuple[TableId, TableLog]]:
    found: dict[TableId, list[tuple[Version, int]]] = {}
    for schema, name, number, staging, columns, first, flushed in connection.execute(
        "SELECT * FROM dq_meta ORDER BY table_schema, table_name, version"
    ).fetchall():
        version = Version(
            table=TableId(schema, name),
            number=number,
            staging=staging,
            columns=tuple(map(Column.from_json, json.loads(columns))),
            seq_first=first,
        )
        found.setdefault(version.table, []).append((version, flushed))
    for table, versions in found.items():
        log = _log(connection, [version for version, _ in versions], max(flushed for _, flushed in versions))
        yield table, _as_retained(connection, log) if sql.fold(table.schema) in retained_schemas else log


def _log(connection: duckdb.DuckDBPyConnection, versions: list[Version], flushed: int) -> TableLog:
    """Return the log: the flushed position as recorded, the written position by the rows."""
    log = TableLog(
        versions=tuple(versions),
        seq_last=max(flushed, versions[-1].seq_first - 1),
        seq_flushed=flushed,
        seq_gone=flushed,
    )
    marks: list[AckMark] = []
    for version in versions:
        # Flushed rows are here only if the log is retained.
        marks += [
            AckMark(seq, at.replace(tzinfo=UTC))
            for seq, at in connection.execute(
                f"SELECT max({SEQ}), min({AT}) FROM {sql.identifier(version.staging)} WHERE {SEQ} > {flushed} "
                f"GROUP BY date_trunc('second', {AT}) ORDER BY 1"
            ).fetchall()
        ]
    if not marks:
        return log
    sample = connection.execute(f"FROM {sql.identifier(versions[-1].staging)} LIMIT {_SAMPLE_ROWS}").to_arrow_table()
    return replace(
        log,
        seq_last=max(log.seq_last, marks[-1].seq_last),
        rows_written=max(1, sample.num_rows),
        bytes_written=sample.nbytes,
        marks=tuple(marks),
    )


def _as_retained(connection: duckdb.DuckDBPyConnection, log: TableLog) -> TableLog:
    """Return the log as retained, starting at the first row that is there.

    Rows that were truncated before they were flushed have to be truncated again.
    """
    for version in log.versions:
        row = connection.execute(f"SELECT min({SEQ}) FROM {sql.identifier(version.staging)}").fetchone()
        if row is not None and row[0] is not None:
            return replace(log, is_retained=True, seq_gone=min(log.seq_flushed, row[0] - 1))
    return replace(log, is_retained=True)
