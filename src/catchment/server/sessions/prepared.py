"""Prepared statements: inspected first, then run any number of times, with parameters."""

import json
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from catchment.errors import CatchmentError, StateError
from catchment.foundation import sql
from catchment.lake import extensions
from catchment.lake.types import Column
from catchment.server.sessions import queue_results
from catchment.server.sessions.connections import Connection, Parameters, by_position_or_name
from catchment.server.sessions.statements import Statements
from catchment.server.shards.peers import StatementFacts
from catchment.server.sql.sql_policy import StatementKind
from catchment.server.sql.statement_plan import (
    Bulk,
    Capture,
    CreateThroughQueue,
    FreshRead,
    NamedStatement,
    Plain,
    QueueCommand,
    Step,
)
from catchment.server.sql.syntax import nodes
from catchment.server.values import Call, StatementOutcome

if TYPE_CHECKING:
    from catchment.server.sessions.session import Session

_COUNT = pa.schema([("Count", pa.int64())])
_SHAPES_MAX = 1_000
# Clients bind values of a parameter's type; to a parameter of the null type they could bind
# nothing.
_UNKNOWN = "VARCHAR"


class PreparedStatement:
    """A statement with a handle: parsed once, run any number of times."""

    def __init__(
        self,
        session: "Session",
        handle: bytes,
        text: str,
        transaction: bytes | None,
        *,
        schema: pa.Schema,
        parameters: pa.Schema,
        is_update: bool,
    ) -> None:
        self.handle = handle
        self.text = text
        self.transaction = transaction
        self.schema = schema
        self.parameters = parameters
        self.is_update = is_update
        self._session = session
        self._bound: pa.Table | None = None

    @classmethod
    def of(
        cls, session: "Session", handle: bytes, text: str, transaction: bytes | None, call: Call
    ) -> "PreparedStatement":
        """Inspect a text: its result columns, its parameters, and whether it changes anything."""
        steps = session.plan(text)
        if len(steps) > 1:
            # The result of the last statement may depend on the others, so its columns are known
            # only after they ran.
            is_update = not _gives_rows(session, steps[-1], transaction)
            schema = none = pa.schema([])
            if not is_update and _only_read(session, steps[:-1], transaction):
                schema, _, _ = _facts(session, steps[-1], transaction, call)
            return cls(session, handle, text, transaction, schema=schema, parameters=none, is_update=is_update)
        schema, parameters, is_update = _facts(session, steps[0], transaction, call)
        return cls(session, handle, text, transaction, schema=schema, parameters=parameters, is_update=is_update)

    @classmethod
    def known(cls, session: "Session", handle: bytes, text: str, facts: StatementFacts) -> "PreparedStatement":
        """Return a statement that another server has inspected and will run."""
        return cls(
            session,
            handle,
            text,
            None,
            schema=facts.schema,
            parameters=facts.parameters,
            is_update=facts.is_update,
        )

    def bind(self, rows: pa.Table) -> None:
        """Bind rows for executions that pass no rows."""
        self._bound = rows

    def execute(self, call: Call, rows: pa.Table | None = None, *, is_update: bool = False) -> StatementOutcome:
        """Run it as one statement with all passed rows, or with the bound rows if none are passed."""
        bound = rows if rows is not None and rows.num_columns else self._bound
        if bound is None and len(self.parameters):
            raise StateError(f"The statement has {len(self.parameters)} parameters, and none of them is bound.")
        if bound is not None and not bound.num_columns:
            bound = None
        return self._session.execute(
            self.text,
            call,
            transaction=self._session.current(self.transaction),
            parameters=bound,
            is_update=is_update,
        )


def _facts(session: "Session", step: Step, transaction: bytes | None, call: Call) -> tuple[pa.Schema, pa.Schema, bool]:
    """Return the schema, the parameters, and whether it is an update."""
    none = pa.schema([])
    match step:
        case QueueCommand.FLUSH:
            return queue_results.FLUSHED, none, False
        case QueueCommand.STATUS:
            return queue_results.STATUS, none, False
        case NamedStatement(verb="execute"):
            schema, _, is_update = _facts(session, Statements(session).stored(step), transaction, call)
            return schema, none, is_update
        case NamedStatement():
            return none, none, True
        case Capture():
            return none, _captured_parameters(session, step), True
        case CreateThroughQueue():
            made = session.parser.statements(step.named("catchment_target"))[-1]
            return none, _unknown(len(made.named_parameters)), True
        case FreshRead():
            return _fresh_facts(session, step, call)
        case Plain():
            return _plain_facts(session, step, transaction, call)
    raise StateError("There is no such statement.")


def _gives_rows(session: "Session", step: Step, transaction: bytes | None) -> bool:
    if isinstance(step, NamedStatement):
        return step.verb == "execute" and _gives_rows(session, Statements(session).stored(step), transaction)
    if not isinstance(step, Plain):
        return not isinstance(step, Capture | CreateThroughQueue)
    statements = Statements(session)
    with statements.connection(session.find(transaction)) as connection:
        return statements.authorized(step, connection)[1].kind is StatementKind.READ


def _only_read(session: "Session", steps: tuple[Step, ...], transaction: bytes | None) -> bool:
    """Return whether no statement changes the result of those after it."""
    return all(not isinstance(step, NamedStatement) and _gives_rows(session, step, transaction) for step in steps)


def _plain_facts(
    session: "Session", step: Plain, transaction: bytes | None, call: Call
) -> tuple[pa.Schema, pa.Schema, bool]:
    statements = Statements(session)
    with statements.connection(session.find(transaction)) as connection:
        statement, permission = statements.authorized(step, connection)
        names = statement.named_parameters
        count = len(names)
        if permission.kind is not StatementKind.READ:
            schema = _COUNT if step.returns else pa.schema([])
            return schema, _parameters(step.text, connection, count, call), not step.returns
        schema = _result_schema(
            statements.readable(step, permission).text,
            connection,
            by_position_or_name(names, sorted(names), [None] * count),
            call,
        )
        return schema, _parameters(step.text, connection, count, call), False


def _result_schema(text: str, connection: Connection, parameters: Parameters, call: Call) -> pa.Schema:
    """Return the columns of a query's result without running it."""
    body = text.rstrip().rstrip(";")
    try:
        empty = connection.table(f"SELECT * FROM ({body}\n) LIMIT 0", call, parameters)
    except duckdb.Error:
        # Not every statement that returns rows can be put in parentheses; SHOW and EXPLAIN cannot.
        live = connection.stream(text, call, parameters)
        live.close()
        return live.schema
    return empty.schema


def _fresh_facts(session: "Session", step: FreshRead, call: Call) -> tuple[pa.Schema, pa.Schema, bool]:
    names = session.parser.statements(step.text)[-1].named_parameters
    nothing = pa.table({name: pa.nulls(1) for name in names}) if names else None
    outcome = Statements(session).run(step, call, None, nothing)
    outcome.result.close()
    return outcome.result.schema, _unknown(len(names)), False


def _captured_parameters(session: "Session", step: Capture) -> pa.Schema:
    if not {"?", "$"}.intersection(step.before + step.after):
        return pa.schema([])
    statement = session.parser.statements(step.into("catchment_target"))[-1]
    count = len(statement.named_parameters)
    queue = session.queue
    if not count or queue is None or step.bulk is None or step.bulk.plain_columns is None:
        return _unknown(count)
    try:
        columns = queue.columns(step.table if session.scope is None else session.scope.own(step.table))
    except CatchmentError:
        return _unknown(count)
    return _by_columns(step.bulk, columns) or _unknown(count)


def _by_columns(bulk: Bulk, columns: tuple[Column, ...]) -> pa.Schema | None:
    """Return each parameter with the type of its column; None if they do not match one to one."""
    by_name = {sql.fold(column.name): column for column in columns}
    names = bulk.plain_columns or tuple(column.name for column in columns)
    if len(names) != bulk.parameters or not all(sql.fold(name) in by_name for name in names):
        return None
    return _typed(tuple(by_name[sql.fold(name)].type for name in names))


def _unknown(count: int) -> pa.Schema:
    return pa.schema([pa.field(str(at + 1), pa.string()) for at in range(count)])


def _parameters(text: str, connection: Connection, count: int, call: Call) -> pa.Schema:
    """Return the types that DuckDB assigns to parameters, as far as its plan shows them."""
    if not count:
        return pa.schema([])
    found: dict[str, str] = {}
    # A plan that is nested too deeply shows no types either.
    with suppress(duckdb.Error, RecursionError):
        plan_of = connection.table("SELECT json_serialize_plan(?, optimize := false) AS plan", call, [text])
        for node in nodes(json.loads(plan_of.column(0)[0].as_py())):
            if node.get("type") == "VALUE_PARAMETER":
                found[str(node["identifier"])] = _type_name(node["return_type"])
    names = [found.get(str(at + 1), _UNKNOWN) for at in range(count)]
    return _typed(tuple(names))


def _type_name(node_type: dict[str, Any]) -> str:
    """Return DuckDB's spelling of a type in its plan; text if the type is unknown or nested."""
    info = node_type.get("type_info") or {}
    if node_type["id"] == "DECIMAL":
        return f"DECIMAL({info['width']},{info['scale']})"
    return str(node_type["id"]) if not info and node_type["id"] not in ("UNKNOWN", "INVALID", "NULL") else _UNKNOWN


@lru_cache(maxsize=_SHAPES_MAX)
def _typed(types: tuple[str, ...]) -> pa.Schema:
    listed = ", ".join(f"NULL::{each}" for each in types)
    with extensions.scratch() as connection:
        found = connection.execute(f"SELECT {listed}").to_arrow_table().schema
    return pa.schema([pa.field(str(at + 1), field.type) for at, field in enumerate(found)])
