"""Queries of buffered rows: those of `catchment_fresh`, and those of `duckling_queue` that a session wrote itself."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa

from catchment.errors import NotSupportedError
from catchment.server.connections import parameter_row, require_row
from catchment.server.statement_plan import FRESH, QUEUE, FreshRead
from catchment.server.values import Call, StatementOutcome

if TYPE_CHECKING:
    from catchment.server.statements import Statements


def read(statements: "Statements", step: FreshRead, call: Call, bound: pa.Table | None) -> StatementOutcome:
    """Run a query over lake and buffer, on a connection of its own: it is always as of now."""
    session, engine = statements.session, statements.session.engine
    if any(step.own) and engine.settings.queue_layout != "sessions":
        raise NotSupportedError(
            f"{QUEUE} is write-only: it takes INSERT INTO and CREATE TABLE {QUEUE}.<table>, and nothing else.",
            hint=f"Read the table itself, or {FRESH}.<table> with the rows that are still buffered.",
        )
    # Its statement is judged as it was written: what is put in its place is ours.
    with session.autocommit_link() as link:
        statement, verdict = statements.examined(step, link)
    require_row(bound)
    if bound is not None and bound.num_rows > 1:
        raise NotSupportedError("A fresh read takes one row of parameters.")
    with ExitStack() as cleanup:
        cleanup.enter_context(session.reading_lake(verdict.touched))
        spelled = {table: statements.spelled(table) for table in step.tables}
        places = dict.fromkeys((spelled[table], own) for table, own in zip(step.tables, step.own, strict=True))
        origin = engine.lake.origin()
        fresh = cleanup.enter_context(
            statements.queue().fresh(
                *(table for table, is_own in places if not is_own),
                own=[table for table, is_own in places if is_own],
                session=session.queue_name,
            )
        )
        link = engine.wrap(fresh.connection, origin)
        if session.island is not None:
            link.run(session.island.set_path, call)
        text = step.over(lambda table, is_own: (fresh.own if is_own else fresh.queries)[spelled[table]])
        keep_open = cleanup.pop_all()
        try:
            result = link.stream(
                text, call, None if bound is None else parameter_row(statement, bound, 0), on_close=keep_open.close
            )
        except BaseException:
            keep_open.close()
            raise
        return StatementOutcome(None, result)
