"""A commit as a value: preconditions and changes, applied in one DuckLake transaction.

A commit fails in one of three ways. Each is a separate error because each calls for a different
action: ConflictError (nothing landed: refresh and redo), FencedError (another process owns the
producer: stop) and CommitUnknownError (the connection broke during COMMIT: query the ledger).
"""

import glob
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, assert_never

import duckdb

from catchment.errors import ConflictError, InputError, InvariantError, PreconditionError
from catchment.foundation import files, sql
from catchment.foundation.ids import TableId
from catchment.lake import tables, types
from catchment.lake.dead_letters import DeadLetter, DeadLetters
from catchment.lake.ledger import Claim, Delivery, Ledger
from catchment.lake.placeholders import without_tokens
from catchment.lake.tables import LEDGER_SCHEMA, PartitionKey, SortKey, Table
from catchment.lake.types import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIs:
    """Requires the same table, columns, partitions and order as when the plan was made."""

    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """Requires that the table has none of these units."""

    unit_ids: tuple[str, ...]
    table_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """Requires that the table has not changed since a snapshot."""

    table: Table
    snapshot_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """Creates the table, and its schema if it is missing."""

    table: TableId
    columns: tuple[Column, ...]
    partition_by: tuple[PartitionKey, ...] = ()
    sort_by: tuple[SortKey, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumn:
    """Adds a nullable column."""

    table: TableId
    column: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """Drops the table; its files are deleted once the snapshots that list them have expired."""

    table: TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertRows:
    """Inserts the result of a query on the lake's connection; for few rows, not for bulk."""

    table: TableId
    query: str
    parameters: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterFiles:
    """Registers the Parquet files under `folder`, which must be exactly `names`, as relative paths.

    With `partitioned`, partition values come from `key=value` folders. With `allow_missing`, a
    column that a file lacks is NULL.
    """

    table: TableId
    folder: str
    names: frozenset[str]
    partitioned: bool
    allow_missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertFiles:
    """Inserts the rows of Parquet files with the table's columns; their number must be `rows`.

    For a table that cannot have registered files: DuckLake reads these files and writes its own.
    The caller keeps and removes them.
    """

    table: Table
    paths: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Moves a producer's watermark, on the precondition that no other process has moved it."""

    claim: Claim
    seq_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordUnits:
    """Writes delivered units into the audit trail."""

    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDeadLetters:
    """Quarantines rows that can never be delivered."""

    letters: tuple[DeadLetter, ...]


Precondition = TableIs | Undelivered | Untouched
Change = (
    CreateTable
    | AddColumn
    | DropTable
    | InsertRows
    | RegisterFiles
    | InsertFiles
    | Advance
    | RecordUnits
    | RecordDeadLetters
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Preconditions and changes, applied in the given order. `info` only documents the snapshot.

    `as_of` is a snapshot at which all preconditions were true: while it is the newest one, they are
    not checked again.
    """

    message: str
    changes: tuple[Change, ...]
    requires: tuple[Precondition, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    as_of: int | None = None

    @property
    def files(self) -> int:
        """Number of files that the commit registers."""
        return sum(len(change.names) for change in self.changes if isinstance(change, RegisterFiles))

    @property
    def inserts_into(self) -> tuple[str, ...]:
        """Folders in which DuckLake itself writes files for the commit."""
        return tuple(change.table.folder for change in self.changes if isinstance(change, InsertFiles))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The open transaction that a commit is applied to."""

    connection: duckdb.DuckDBPyConnection
    lake_name: str
    now: datetime
    find_table: Callable[[TableId], Table | None]


def apply(commit: Commit, target: Target) -> None:
    """Run everything but BEGIN and COMMIT."""
    if commit.as_of is None or tables.snapshot_of(target.connection, target.lake_name) != commit.as_of:
        for requirement in commit.requires:
            _require(requirement, target)
    for change in commit.changes:
        _change(change, target)
    target.connection.execute(
        f"CALL {sql.identifier(target.lake_name)}.set_commit_message('catchment', ?, extra_info => ?)",
        [without_tokens(commit.message), without_tokens(json.dumps(commit.info))],
    )


def _require(requirement: Precondition, target: Target) -> None:
    match requirement:
        case TableIs(table=table):
            if (
                not tables.is_as_it_was(target.connection, target.lake_name, table)
                and target.find_table(table.id) != table
            ):
                raise PreconditionError(
                    f"Table {table.id} has changed since the delivery was planned.", hint="Plan and deliver again."
                )
        case Undelivered(unit_ids=unit_ids, table_uuid=uuid):
            there = Ledger(target.connection, target.lake_name).delivered_ids(unit_ids, uuid)
            if there:
                raise ConflictError(f"{len(there)} of {len(unit_ids)} units were delivered since the plan was made.")
        case Untouched(table=table, snapshot_id=since):
            changes = tables.changes_since(target.connection, target.lake_name, table, since)
            if changes:
                raise PreconditionError(f"Table {table.id} changed {changes} times since the plan was made.")
        case _ as unreachable:
            assert_never(unreachable)


def _change(change: Change, target: Target) -> None:
    if isinstance(change, CreateTable | AddColumn | DropTable | InsertRows | RegisterFiles):
        refuse_ledger(change.table)
    match change:
        case CreateTable():
            _create_table(change, target)
        case AddColumn(table=table, column=column):
            types.require_deliverable(column)
            tables.require_computable(table, [column], [])
            _alter(target, table, f"ADD COLUMN {column.definition}")
        case DropTable(table=table):
            target.connection.execute(f"DROP TABLE {_name(target, table)}")
        case InsertRows(table=table, query=query, parameters=parameters):
            target.connection.execute(f"INSERT INTO {_name(target, table)} BY NAME {query}", list(parameters))
        case RegisterFiles():
            _register(change, target)
        case InsertFiles():
            _insert(change, target)
        case Advance(claim=claim, seq_to=seq_to):
            Ledger(target.connection, target.lake_name).advance(claim, seq_to, target.now)
        case RecordUnits(deliveries=deliveries):
            Ledger(target.connection, target.lake_name).record(deliveries)
        case RecordDeadLetters(letters=letters):
            DeadLetters(target.connection, target.lake_name).add(letters)
        case _ as unreachable:
            assert_never(unreachable)


def refuse_ledger(table: TableId) -> None:
    """Refuse a change to the ledger's own tables."""
    if sql.fold(table.schema) == LEDGER_SCHEMA:
        raise InputError(f"{table} belongs to Catchment's ledger.", hint="Choose a table in another schema.")


def _create_table(change: CreateTable, target: Target) -> None:
    for column in change.columns:
        types.require_deliverable(column)
    tables.require_computable(change.table, change.columns, change.sort_by)
    target.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {sql.qualified(target.lake_name, change.table.schema)}")
    definitions = ", ".join(column.definition for column in change.columns)
    target.connection.execute(f"CREATE TABLE {_name(target, change.table)} ({definitions})")
    if change.partition_by:
        _alter(target, change.table, f"SET PARTITIONED BY ({', '.join(key.clause for key in change.partition_by)})")
    if change.sort_by:
        _alter(target, change.table, f"SET SORTED BY ({', '.join(key.clause for key in change.sort_by)})")


def _register(change: RegisterFiles, target: Target) -> None:
    # A pattern registers thousands of files several times as fast as a list does, but a file that
    # another attempt left in the folder would silently duplicate rows. So check the folder first.
    found = files.names_below(files.local_path(change.folder), ".parquet")
    if found != change.names:
        strays, lost = len(found - change.names), len(change.names - found)
        raise InvariantError(f"{change.folder} has {strays} unexpected files and lacks {lost}.")
    if tables.is_encrypted(target.connection, target.lake_name):
        raise InvariantError(f"Unencrypted files cannot be registered in an encrypted lake, for {change.table}.")
    target.connection.execute(
        "CALL ducklake_add_data_files(?, ?, ?, schema => ?, hive_partitioning => ?, allow_missing => ?)",
        [
            target.lake_name,
            change.table.name,
            f"{change.folder.rstrip('/')}/**/*.parquet",
            change.table.schema,
            change.partitioned,
            change.allow_missing,
        ],
    )


def _insert(change: InsertFiles, target: Target) -> None:
    refuse_ledger(change.table.id)
    names = sql.identifiers(column.name for column in change.table.columns)
    # Some types change when they are read back from Parquet.
    values = ", ".join(f"CAST({sql.identifier(column.name)} AS {column.type})" for column in change.table.columns)
    paths = sql.literals(glob.escape(path) for path in change.paths)
    row = target.connection.execute(
        f"INSERT INTO {_name(target, change.table.id)} ({names}) "
        f"SELECT {values} FROM read_parquet({paths}, hive_partitioning = false)"
    ).fetchone()
    inserted = int(row[0]) if row else 0
    if inserted != change.rows:
        raise InvariantError(f"{inserted} rows were inserted into {change.table.id}, but {change.rows} were written.")


def _alter(target: Target, table: TableId, action: str) -> None:
    target.connection.execute(f"ALTER TABLE {_name(target, table)} {action}")


def _name(target: Target, table: TableId) -> str:
    return sql.qualified(target.lake_name, table.schema, table.name)
