"""What a file of the buffer says about itself: its identity, the versions of its tables, what is held, and lives.

Statements on those tables; each runs in whatever transaction its connection is in.

    dq_meta          one row per version of a table's columns: its staging table, where it starts, what is flushed
    held_schemas     schemas whose flushed rows are kept as a log; only in the shared buffer
    table_lives      tables that were dropped, or began behind a number that is not 0; only in the shared buffer
    unproven_tables  tables whose numbers the ledger may not know, and how far they had come; only in the shared buffer
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import duckdb

from catchment.errors import InvariantError
from catchment.foundation import sql
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue.buffer import AT, SEQ
from catchment.queue.table_log import AckMark, TableLog, Version

PACKAGE = "catchment.queue"
_SAMPLE_ROWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferIdentity:
    """Which life of which buffer a file is."""

    incarnation: str
    session: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Which life of a name it is, counted from 1, and behind which number it began, where that was said.

    A name begins another life when the table under it is another one. What the buffer still has of the one before is
    kept under a name of its own then, and `origin_name` is the name that it had.
    """

    number: int = 1
    seq_begun: int | None = None
    origin_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything that a file says about itself when it is opened."""

    identity: BufferIdentity
    logs: dict[TableId, TableLog]
    holds: frozenset[str]
    lives: dict[TableId, Generation]
    unproven: dict[TableId, int]


def opened(
    connection: duckdb.DuckDBPyConnection, *, identity_table: str, fresh: BufferIdentity, ships: bool
) -> Contents:
    """Make the tables that are missing, and read them; `ships` says that the file may hold logs."""
    connection.execute(sql.statement(PACKAGE, "store_create", identity=identity_table))
    holds: frozenset[str] = frozenset()
    lives: dict[TableId, Generation] = {}
    unproven: dict[TableId, int] = {}
    if ships:
        connection.execute(sql.statement(PACKAGE, "shipping_create"))
        holds = frozenset(row[0] for row in connection.execute("FROM held_schemas").fetchall())
        lives = {
            TableId(schema, name): Generation(number=number, seq_begun=begun, origin_name=origin)
            for schema, name, number, begun, origin in connection.execute("FROM table_lives").fetchall()
        }
        unproven = {
            TableId(schema, name): seq for schema, name, seq in connection.execute("FROM unproven_tables").fetchall()
        }
    identity = _identity(connection, identity_table, fresh)
    return Contents(identity=identity, logs=dict(_logs(connection, holds)), holds=holds, lives=lives, unproven=unproven)


def add_version(connection: duckdb.DuckDBPyConnection, version: Version, *, seq_flushed: int) -> None:
    """Make a staging table, and note what it is for."""
    payload = "".join(f", {sql.identifier(column.name)} {column.type}" for column in version.columns)
    connection.execute(
        f"CREATE TABLE {sql.identifier(version.staging)} ({SEQ} BIGINT NOT NULL, {AT} TIMESTAMP NOT NULL{payload})"
    )
    connection.execute(
        "INSERT INTO dq_meta VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            *key(version.table),
            version.number,
            version.staging,
            json.dumps([asdict(column) for column in version.columns]),
            version.seq_first,
            seq_flushed,
        ],
    )


def drop_versions(connection: duckdb.DuckDBPyConnection, versions: Iterable[Version]) -> None:
    """Drop staging tables, with whatever is in them."""
    for version in versions:
        connection.execute(f"DROP TABLE IF EXISTS {sql.identifier(version.staging)}")
        connection.execute(sql.statement(PACKAGE, "version_remove"), [*key(version.table), version.number])


def delete_gone(connection: duckdb.DuckDBPyConnection, before: TableLog, after: TableLog) -> None:
    """Delete what is in the file by the log before, and not by the one after; note how far it is flushed."""
    drop_versions(connection, (version for version in before.versions if version not in after.versions))
    if after.seq_gone > before.seq_gone:
        for version in after.versions:
            connection.execute(f"DELETE FROM {sql.identifier(version.staging)} WHERE {SEQ} <= {after.seq_gone}")
    if after.seq_flushed > before.seq_flushed:
        table = after.versions[-1].table
        connection.execute(sql.statement(PACKAGE, "version_flushed"), [after.seq_flushed, *key(table)])


def set_life(connection: duckdb.DuckDBPyConnection, table: TableId, life: Generation) -> None:
    """Note which life of the table it is."""
    connection.execute("DELETE FROM table_lives WHERE table_schema = ? AND table_name = ?", key(table))
    connection.execute(
        "INSERT INTO table_lives VALUES (?, ?, ?, ?, ?)",
        [*key(table), life.number, life.seq_begun, life.origin_name],
    )


def staging_name(connection: duckdb.DuckDBPyConnection, table: TableId, number: int) -> str:
    """A name for the staging table of a new version."""
    place = table.name if table.schema == DEFAULT_SCHEMA else f"{table.schema}.{table.name}"
    wanted = f"dq_{place}" if number == 1 else f"dq_{place}@{number}"
    taken = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    # Tables `a.b` of the default schema and `b` of schema `a` would meet, and so would names that differ in case.
    return _free(wanted, (name for (name,) in taken))


def former_of(table: TableId, log: TableLog, taken: Iterable[TableId]) -> TableId:
    """What the rows of a table are kept under once its name is another table's."""
    # The end of a uuid tells those apart that were made in the same moment.
    ending = (types.table_of(log.versions[-1].columns) or "")[-8:]
    return TableId(table.schema, _free(f"{table.name}@{ending}", (each.name for each in taken)))


def _free(wanted: str, taken: Iterable[str]) -> str:
    folded = {sql.fold(name) for name in taken}
    while sql.fold(wanted) in folded:
        wanted += "'"
    return wanted


def rename(connection: duckdb.DuckDBPyConnection, table: TableId, name: str) -> None:
    """Keep a table's versions, and what is not proven of it, under another name of the same schema."""
    for each in ("dq_meta", "unproven_tables"):
        connection.execute(
            f"UPDATE {each} SET table_name = ? WHERE table_schema = ? AND table_name = ?", [name, *key(table)]
        )


def set_unproven(connection: duckdb.DuckDBPyConnection, table: TableId, seq: int | None) -> None:
    """Note how far a table is whose numbers are to be compared with the ledger's; None where that was done."""
    connection.execute("DELETE FROM unproven_tables WHERE table_schema = ? AND table_name = ?", key(table))
    if seq is not None:
        connection.execute("INSERT INTO unproven_tables VALUES (?, ?, ?)", [*key(table), seq])


def key(table: TableId) -> tuple[str, str]:
    """A table, as these tables name it."""
    return table.schema, table.name


def naive(moment: datetime) -> datetime:
    """A moment, as the file keeps it: in UTC, which goes without saying."""
    return moment.astimezone(UTC).replace(tzinfo=None)


def _identity(connection: duckdb.DuckDBPyConnection, table: str, fresh: BufferIdentity) -> BufferIdentity:
    select = f"SELECT incarnation, session, created_at FROM {sql.identifier(table)}"
    rows = connection.execute(select).fetchall()
    if not rows:
        connection.execute(
            f"INSERT INTO {sql.identifier(table)} VALUES (?, ?, ?)",
            [fresh.incarnation, fresh.session, naive(fresh.created_at)],
        )
        rows = connection.execute(select).fetchall()
    if len(rows) != 1:
        raise InvariantError(f"{table} holds {len(rows)} rows instead of one.")
    incarnation, session, created_at = rows[0]
    return BufferIdentity(incarnation=incarnation, session=session, created_at=created_at.replace(tzinfo=UTC))


def _logs(connection: duckdb.DuckDBPyConnection, holds: frozenset[str]) -> Iterator[tuple[TableId, TableLog]]:
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
        yield table, _as_held(connection, log) if sql.fold(table.schema) in holds else log


def _log(connection: duckdb.DuckDBPyConnection, versions: list[Version], flushed: int) -> TableLog:
    """How far it is flushed, as noted; how far it is written, by the rows."""
    log = TableLog(
        versions=tuple(versions),
        seq_last=max(flushed, versions[-1].seq_first - 1),
        seq_flushed=flushed,
        seq_gone=flushed,
    )
    marks: list[AckMark] = []
    for version in versions:
        # Rows that are flushed lie there only where they are held.
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


def _as_held(connection: duckdb.DuckDBPyConnection, log: TableLog) -> TableLog:
    """The rows tell from where on they are kept; what was let go of and not flushed has to be let go of again."""
    for version in log.versions:
        row = connection.execute(f"SELECT min({SEQ}) FROM {sql.identifier(version.staging)}").fetchone()
        if row is not None and row[0] is not None:
            return replace(log, is_held=True, seq_gone=min(log.seq_flushed, row[0] - 1))
    return replace(log, is_held=True)
