"""Prepared statements: inspected first, then run any number of times, with parameters."""

import json
import re
from contextlib import suppress
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from catchment.errors import CatchmentError, StateError
from catchment.foundation import sql
from catchment.foundation.text import plural
from catchment.lake import extensions
from catchment.lake.types import Column
from catchment.server.sessions import queue_results
from catchment.server.sessions.connections import Connection, Parameters, by_position_or_name
from catchment.server.sessions.session_state import SessionState
from catchment.server.sessions.statements import Statements
from catchment.server.sql.sql_policy import StatementKind, transaction_kind
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
from catchment.server.values import Call, StatementFacts

_COUNT = pa.schema([("Count", pa.int64())])
_SHAPES_MAX = 1_000
# Clients bind values of a parameter's type; to a parameter of the null type they could bind
# nothing.
_UNKNOWN = "VARCHAR"
_TYPE_NAME = re.compile(r"[A-Z][A-Z0-9_ ]*")


class PreparedStatement:
    """A statement with a handle: inspected once, run any number of times."""

    def __init__(self, handle: bytes, text: str, transaction: bytes | None, facts: StatementFacts) -> None:
        self.handle = handle
        self.text = text
        self.transaction = transaction
        self.schema = facts.schema
        self.parameters = facts.parameters
        self.is_update = facts.is_update
        self._bound: pa.Table | None = None

    def bind(self, rows: pa.Table) -> None:
        """Bind rows for executions that pass no rows."""
        self._bound = rows

    def parameter_rows(self, given: pa.Table | None) -> pa.Table | None:
        """Return the rows of parameters for an execution: those given, or else those bound."""
        rows = given if given is not None and given.num_columns else self._bound
        if rows is None and len(self.parameters):
            raise StateError(f"The statement has {plural(len(self.parameters), 'parameter')}, and no value is bound.")
        return rows if rows is not None and rows.num_columns else None


def inspect(statements: Statements, text: str, transaction: bytes | None, call: Call) -> StatementFacts:
    """Inspect a text: its result columns, its parameters, and whether it changes anything."""
    steps = statements.state.plan(text)
    if len(steps) == 1:
        return _facts(statements, steps[0], transaction, call)
    # The result of the last statement may depend on the others, so its columns are known only after
    # they ran.
    is_update = not _gives_rows(statements, steps[-1], transaction)
    schema = pa.schema([])
    if not is_update and _only_read(statements, steps[:-1], transaction):
        schema = _facts(statements, steps[-1], transaction, call).schema
    return StatementFacts(schema=schema, is_update=is_update)


def _facts(statements: Statements, step: Step, transaction: bytes | None, call: Call) -> StatementFacts:
    match step:
        case QueueCommand.FLUSH:
            return StatementFacts(schema=queue_results.FLUSHED)
        case QueueCommand.STATUS:
            return StatementFacts(schema=queue_results.STATUS)
        case NamedStatement(verb="execute"):
            found = _facts(statements, statements.stored(step), transaction, call)
            return StatementFacts(schema=found.schema, is_update=found.is_update)
        case NamedStatement():
            return StatementFacts(is_update=True)
        case Capture():
            return StatementFacts(parameters=_captured_parameters(statements.state, step), is_update=True)
        case CreateThroughQueue():
            made = statements.state.parser.statements(step.named("catchment_target"))[-1]
            return StatementFacts(parameters=_unknown(len(made.named_parameters)), is_update=True)
        case FreshRead():
            return _fresh_facts(statements, step, call)
        case Plain():
            return _plain_facts(statements, step, transaction, call)
    raise StateError("There is no such statement.")


def _gives_rows(statements: Statements, step: Step, transaction: bytes | None) -> bool:
    if isinstance(step, NamedStatement):
        return step.verb == "execute" and _gives_rows(statements, statements.stored(step), transaction)
    if not isinstance(step, Plain):
        return not isinstance(step, Capture | CreateThroughQueue)
    if transaction_kind(step.tokens) is not None:
        return False
    state = statements.state
    with state.connection(state.find(transaction)) as connection:
        return statements.policy.authorized(step, connection)[1].kind is StatementKind.READ


def _only_read(statements: Statements, steps: tuple[Step, ...], transaction: bytes | None) -> bool:
    """Return whether no statement changes the result of those after it."""
    return all(not isinstance(step, NamedStatement) and _gives_rows(statements, step, transaction) for step in steps)


def _plain_facts(statements: Statements, step: Plain, transaction: bytes | None, call: Call) -> StatementFacts:
    state, policy = statements.state, statements.policy
    if transaction_kind(step.tokens) is not None:
        # Without a connection: its transaction may have been lost.
        state.parser.statements(step.text)
        return StatementFacts(schema=pa.schema([]), is_update=True)
    with state.connection(state.find(transaction)) as connection:
        statement, permission = policy.authorized(step, connection)
        names = statement.named_parameters
        count = len(names)
        is_read = permission.kind is StatementKind.READ
        if is_read:
            schema = _result_schema(
                policy.readable(step, permission).text,
                connection,
                by_position_or_name(names, sorted(names), [None] * count),
                call,
            )
        else:
            schema = _COUNT if step.returns else pa.schema([])
        return StatementFacts(
            schema=schema,
            parameters=_parameters(step.text, connection, count, call),
            is_update=not is_read and not step.returns,
        )


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


def _fresh_facts(statements: Statements, step: FreshRead, call: Call) -> StatementFacts:
    names = statements.state.parser.statements(step.text)[-1].named_parameters
    nothing = pa.table({name: pa.nulls(1) for name in names}) if names else None
    outcome = statements.run(step, call, None, nothing)
    outcome.result.close()
    return StatementFacts(schema=outcome.result.schema, parameters=_unknown(len(names)))


def _captured_parameters(state: SessionState, step: Capture) -> pa.Schema:
    if not {"?", "$"}.intersection(step.before + step.after):
        return pa.schema([])
    statement = state.parser.statements(step.into("catchment_target"))[-1]
    count = len(statement.named_parameters)
    queue = state.queue
    if not count or queue is None or step.bulk is None or step.bulk.plain_columns is None:
        return _unknown(count)
    try:
        columns = queue.columns(step.table if state.scope is None else state.scope.own(step.table))
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
    """Return DuckDB's spelling of a type in its plan; text if the type is unknown or nested.

    The plan comes from an engine, which is not trusted, and the name becomes part of a statement.
    """
    info, name = node_type.get("type_info") or {}, str(node_type["id"])
    if name == "DECIMAL":
        return f"DECIMAL({int(info['width'])},{int(info['scale'])})"
    is_known = not info and name not in ("UNKNOWN", "INVALID", "NULL") and _TYPE_NAME.fullmatch(name)
    return name if is_known else _UNKNOWN


@lru_cache(maxsize=_SHAPES_MAX)
def _typed(types: tuple[str, ...]) -> pa.Schema:
    listed = ", ".join(f"NULL::{each}" for each in types)
    with extensions.scratch() as connection:
        found = connection.execute(f"SELECT {listed}").to_arrow_table().schema
    return pa.schema([pa.field(str(at + 1), field.type) for at, field in enumerate(found)])
