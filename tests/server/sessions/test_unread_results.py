"""Results that wait for their client are discarded in time."""

from pathlib import Path

import pytest

from catchment.app import App
from catchment.errors import TimedOutError
from catchment.foundation.settings import Settings
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.values import Call, Principal, Role
from catchment.testing import FakeClock

# It gives its first rows at once, and looks for more for hours.
LONG = "SELECT i FROM range(400000000000) r(i) WHERE i < 300000 OR hash(i) = 1"


def test_a_result_that_is_not_read_is_discarded_after_the_time_of_a_statement(tmp_path: Path) -> None:
    clock = FakeClock()
    settings = Settings(home=tmp_path, lake_threads_max=1, server_statement_seconds_max=10)
    with App(settings, clock=clock, sandboxed=True) as app:
        registry = SessionRegistry(app)
        session = registry.open(Principal("founder", Role.ADMIN))
        call = Call()
        rows = session.execute(LONG, call).result.batches(call)
        for _ in range(2):
            clock.advance(9)
            registry.sweep()
            assert next(rows).num_rows
        clock.advance(11)
        registry.sweep()
        with pytest.raises(TimedOutError, match="was not read"):
            next(rows)
        assert [each.num_rows for each in session.execute("SELECT 42", call).result.batches(call)] == [1]
        registry.close_all()
