"""Sessions of a server in this process, without Flight, and their statements."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from catchment.app import App
from catchment.foundation.settings import Settings
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.values import Call, Principal, Role

FOUNDER = Principal("founder", Role.ADMIN)


@contextmanager
def sessions_of(settings: Settings) -> Iterator[SessionRegistry]:
    """The sessions of a server that waits for the lake's commit lock for a second."""
    with App(settings, sandboxed=True) as app:
        app.lake.limits = replace(app.lake.limits, lock_timeout_s=1)
        registry = SessionRegistry(app)
        yield registry
        registry.close_all()


def run(
    session: Session, text: str, *, transaction: bytes | None = None, parameters: pa.Table | None = None
) -> list[dict[str, object]]:
    """Run a statement, and read its rows."""
    call = Call()
    result = session.execute(text, call, transaction=transaction, parameters=parameters).result
    rows: list[dict[str, object]] = pa.Table.from_batches(result.batches(call), result.schema).to_pylist()
    return rows
