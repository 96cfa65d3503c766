"""Queries of buffered rows: `catchment_fresh`, and the session's own rows in `duckling_queue`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import duckdb
import pyarrow as pa

from catchment.errors import NotSupportedError
from catchment.lake.instance import Origin
from catchment.server.sessions.connections import parameter_row, require_row
from catchment.server.sessions.queue_statements import QueueStatements
from catchment.server.sessions.session_state import SessionState
from catchment.server.sql.statement_plan import FRESH, QUEUE, FreshRead
from catchment.server.values import Call, StatementOutcome


def read(queued: QueueStatements, step: FreshRead, call: Call, bound: pa.Table | None) -> StatementOutcome:
    """Run a query over lake and buffer on a separate connection, which sees their current state."""
    state, backend = queued.state, queued.state.backend
    if any(step.own) and not (state.queue is not None and state.queue.buffer.separates_sessions):
        raise NotSupportedError(
            f"{QUEUE} is write-only: it accepts only INSERT INTO and CREATE TABLE {QUEUE}.<table>.",
            hint=f"Read the table itself, or {FRESH}.<table> to include the buffered rows.",
        )
    # The policy sees the statement as the client wrote it; the inserted subqueries are trusted.
    with state.autocommit_connection() as connection:
        statement, permission = queued.policy.authorized(step, connection)
    require_row(bound)
    if bound is not None and bound.num_rows > 1:
        raise NotSupportedError("A fresh read accepts one row of parameters.")
    with ExitStack() as cleanup:
        cleanup.enter_context(state.reading_lake(permission.touched))
        spelled = {table: queued.spelled(table) for table in step.tables}
        places = dict.fromkeys((spelled[table], own) for table, own in zip(step.tables, step.own, strict=True))
        origins: list[Origin] = []
        fresh = cleanup.enter_context(
            queued.queue().fresh(
                *(table for table, is_own in places if not is_own),
                own=[table for table, is_own in places if is_own],
                session=state.queue_name,
                snapshot=lambda: _snapshot(state, origins),
            )
        )
        connection = backend.wrap(fresh.connection, origins[-1], state.engine)
        if state.scope is not None:
            connection.run(state.scope.set_path, call)
        state.apply_settings(connection)
        text = step.with_sources(lambda table, is_own: (fresh.own if is_own else fresh.queries)[spelled[table]])
        keep_open = cleanup.pop_all()
        try:
            result = connection.stream(
                text, call, None if bound is None else parameter_row(statement, bound, 0), on_close=keep_open.close
            )
        except BaseException:
            keep_open.close()
            raise
        return StatementOutcome(None, result)


@contextmanager
def _snapshot(state: SessionState, origins: list[Origin]) -> Iterator[duckdb.DuckDBPyConnection]:
    with state.backend.snapshot(state.engine) as (connection, origin):
        origins.append(origin)
        yield connection
