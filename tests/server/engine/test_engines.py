"""Which statements are refused, what an engine may use, and which sessions share one."""

import os
import signal
from pathlib import Path

import pytest

from catchment.errors import StateError
from catchment.foundation.settings import MIB, Settings
from catchment.server.engine.engine_process import EngineStatement
from catchment.server.engine.engines import EngineMemory, Suspects
from catchment.testing import FakeClock
from tests.conftest import MakeSettings
from tests.server.raw_client import Client, server
from tests.waiting import wait_until

GIB = 1024 * MIB


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def suspects(clock: FakeClock) -> Suspects:
    return Suspects(clock)


def is_refused(suspects: Suspects, text: str, user: str = "") -> bool:
    try:
        suspects.refuse(EngineStatement(text, user))
    except StateError:
        return True
    return False


def accuse(suspects: Suspects, *texts: str) -> None:
    suspects.accuse(list(map(EngineStatement, texts)))


def test_a_statement_that_ended_two_engines_alone_is_refused_for_a_while(suspects: Suspects, clock: FakeClock) -> None:
    accuse(suspects, "x")
    assert not is_refused(suspects, "x")
    clock.advance(60)
    accuse(suspects, "x")
    assert is_refused(suspects, "x")
    assert not is_refused(suspects, "y")
    # Another user's session may give the same text another meaning.
    assert not is_refused(suspects, "x", "somebody")
    clock.advance(541)
    assert not is_refused(suspects, "x")


def test_a_statement_that_ran_beside_others_is_refused_later(suspects: Suspects) -> None:
    for other in "abc":
        # In several sessions at once: that says no more about it.
        accuse(suspects, "x", "x", "x", other)
    assert not is_refused(suspects, "x")
    accuse(suspects, "x", "d")
    assert is_refused(suspects, "x")
    assert not any(is_refused(suspects, other) for other in "abcd")


def test_the_end_of_a_transaction_is_not_suspected(suspects: Suspects) -> None:
    for text in ("COMMIT", " rollback;"):
        for _ in range(4):
            accuse(suspects, text)
        assert not is_refused(suspects, text)


def test_a_statement_that_has_run_to_its_end_is_not_suspected(suspects: Suspects) -> None:
    for other in "abc":
        accuse(suspects, "x", other)
        suspects.clear(EngineStatement("x"))
    accuse(suspects, "x", "d")
    assert not is_refused(suspects, "x")


def test_the_number_of_suspects_is_bounded(suspects: Suspects) -> None:
    accuse(suspects, *map(str, range(5_000)))
    assert len(suspects._points) == 1_000


@pytest.mark.parametrize("engines", [1, 4])
def test_the_memory_of_each_engine_is_as_set(engines: int) -> None:
    found = EngineMemory.of(1000, engines, sessions=106)
    assert found.duckdb_mb == 1000
    # With the stacks of 256 threads.
    assert found.data_bytes_max == 1250 * MIB + GIB + 2 * GIB
    assert found.connections_max == 256


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_without_a_setting_engines_share_the_memory_that_there_is(
    monkeypatch: pytest.MonkeyPatch, engines: int
) -> None:
    monkeypatch.setattr("catchment.server.engine.engines.memory_bytes", lambda: 24 * GIB)
    found = EngineMemory.of(0, engines, sessions=106)
    assert found.data_bytes_max * engines == pytest.approx(24 * GIB, abs=MIB)
    # Less 1 GiB, and 2 GiB for stacks.
    assert found.duckdb_mb == pytest.approx((24 / engines - 3) * 1024 * 0.8, abs=1)


@pytest.mark.parametrize("memory_gib", [3, 4, 6])
def test_on_a_small_machine_unused_stacks_take_nothing_from_duckdb(
    monkeypatch: pytest.MonkeyPatch, memory_gib: int
) -> None:
    monkeypatch.setattr("catchment.server.engine.engines.memory_bytes", lambda: memory_gib * GIB)
    found = EngineMemory.of(0, 1, sessions=106)
    assert found.duckdb_mb == memory_gib * 1024 // 2
    # Without the stacks, it fits.
    assert found.data_bytes_max - 2 * GIB <= memory_gib * GIB


def test_if_memory_runs_out_the_kernel_ends_an_engine_and_not_the_server(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, server_port=0, lake_threads_max=1)
    with server(settings) as running, Client(running.uri) as client:
        assert client.query("SELECT 42 AS x") == [{"x": 42}]
        assert running._sessions is not None
        engines = running._sessions.backend.engines
        assert engines is not None
        (found,) = engines.status()
        assert Path(f"/proc/{found.pid}/oom_score_adj").read_text(encoding="ascii") == "1000\n"


def test_sessions_are_spread_over_engines_and_the_end_of_one_spares_the_other(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, server_port=0, server_engines=2, lake_threads_max=1)
    with server(settings) as running, Client(running.uri) as first, Client(running.uri) as second:
        assert running._sessions is not None
        engines = running._sessions.backend.engines
        assert engines is not None
        for client in (first, second):
            client.authorization = f"Bearer {client.handshake()}"
            client.update("CREATE TEMP TABLE mine AS SELECT 1 AS a")
        one, two = (each.pid for each in engines.status())
        assert one is not None
        assert two not in (None, one)
        os.kill(one, signal.SIGKILL)
        wait_until(lambda: sum(each.replaced for each in engines.status()) == 1, "the server has noticed")
        assert second.query("SELECT a FROM mine") == [{"a": 1}]


def test_with_a_duckdb_catalog_statements_run_in_the_server(make_settings: MakeSettings) -> None:
    settings = make_settings("duckdb", server_port=0, lake_threads_max=1)
    with server(settings) as running, Client(running.uri) as client:
        assert running._sessions is not None
        assert running._sessions.backend.engines is None
        assert client.query("SELECT 42 AS x") == [{"x": 42}]
