"""Leases: one holder at a time, and none once its process is gone; by files and by PostgreSQL."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.errors import LakeUnavailableError, SettingsError
from catchment.foundation.settings import Settings
from catchment.queue.sessions.lease_factory import leases_for
from catchment.queue.sessions.leases import FileLeases, Leases
from catchment.queue.sessions.postgres_leases import PostgresLeases
from catchment.testing import EmbeddedPostgres, FakeClock
from tests.shortcuts import warm

Open = Callable[[], Leases]

_HOLDER = """
import sys
from pathlib import Path
from catchment.foundation.clock import SystemClock
from catchment.queue.sessions.leases import FileLeases
from catchment.queue.sessions.postgres_leases import PostgresLeases
kind, where = sys.argv[1:]
leases = FileLeases(Path(where), SystemClock()) if kind == "files" else PostgresLeases(where)
lease = leases.take("a")
print("held" if lease else "refused", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["files", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if request.param == "files":
        return "files", str(tmp_path)
    return "postgres", request.getfixturevalue("postgres").new_database()


@pytest.fixture
def open_leases(place: tuple[str, str]) -> Iterator[Open]:
    """Opens the leases as one more process would."""
    opened: list[Leases] = []

    def open_() -> Leases:
        kind, where = place
        opened.append(FileLeases(Path(where), FakeClock()) if kind == "files" else PostgresLeases(where))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def test_a_lease_has_one_holder(open_leases: Open) -> None:
    mine, theirs = open_leases(), open_leases()
    lease = mine.take("a")
    assert lease is not None
    assert lease.is_held()
    assert theirs.take("a") is None
    assert theirs.take("b") is not None


def test_the_holder_cannot_take_a_lease_twice(open_leases: Open) -> None:
    leases = open_leases()
    lease = leases.take("a")
    assert lease is not None
    assert leases.take("a") is None
    lease.release()
    assert leases.take("a") is not None


def test_a_released_lease_is_free_and_releasing_it_again_does_not_affect_its_new_holder(open_leases: Open) -> None:
    mine, theirs = open_leases(), open_leases()
    lease = mine.take("a")
    assert lease is not None
    lease.release()
    assert not lease.is_held()
    other = theirs.take("a")
    assert other is not None
    lease.release()
    assert other.is_held()
    assert mine.take("a") is None


def test_closing_gives_all_leases_back(open_leases: Open) -> None:
    mine, theirs = open_leases(), open_leases()
    leases = [mine.take(name) for name in "abc"]
    mine.close()
    assert not any(lease.is_held() for lease in leases if lease is not None)
    assert all(theirs.take(name) is not None for name in "abc")


def test_a_lease_dies_with_its_holder(open_leases: Open, place: tuple[str, str]) -> None:
    leases = open_leases()
    command = [sys.executable, "-c", _HOLDER, *place]
    with warm.Process(command, stdin=warm.PIPE, stdout=warm.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert leases.take("a") is None
        holder.kill()
    # The system releases a lock at once, a PostgreSQL server when it notices that the connection
    # is closed.
    assert _eventually(leases, "a")


def _eventually(leases: Leases, name: str) -> bool:
    return any(leases.take(name) is not None for _ in range(100_000))


def test_forgetting_a_name_clears_its_file_away(tmp_path: Path) -> None:
    leases = FileLeases(tmp_path, FakeClock())
    lease = leases.take("a")
    assert lease is not None
    lease.release()
    assert list((tmp_path / "leases").iterdir())
    leases.forget("a")
    leases.forget("a")
    assert not list((tmp_path / "leases").iterdir())


def test_a_lost_connection_loses_all_leases_and_the_next_take_connects_again(postgres: EmbeddedPostgres) -> None:
    conninfo = postgres.new_database()
    mine, theirs = PostgresLeases(conninfo), PostgresLeases(conninfo)
    one, other = mine.take("a"), mine.take("b")
    assert one is not None
    assert other is not None
    postgres.terminate_connections(conninfo)
    assert not one.is_held()
    assert not other.is_held()
    assert theirs.take("a") is not None
    assert mine.take("a") is None
    again = mine.take("b")
    assert again is not None
    other.release()
    assert again.is_held()
    mine.close()
    theirs.close()


def test_a_name_held_by_a_connection_that_was_lost_unnoticed_can_be_taken(postgres: EmbeddedPostgres) -> None:
    conninfo = postgres.new_database()
    leases = PostgresLeases(conninfo)
    assert leases.take("a") is not None
    postgres.terminate_connections(conninfo)
    assert leases.take("a") is not None
    leases.close()


def test_an_unreachable_server_is_reported_and_not_tried_for_every_lease() -> None:
    clock = FakeClock()
    leases = PostgresLeases("host=127.0.0.1 port=1 dbname=nowhere", clock=clock)
    with pytest.raises(LakeUnavailableError, match="does not answer"):
        leases.take("a")
    with pytest.raises(LakeUnavailableError, match="a moment ago"):
        leases.take("a")
    clock.advance(5)
    with pytest.raises(LakeUnavailableError, match="does not answer"):
        leases.take("a")


def test_the_settings_choose_files_or_the_server_that_there_is(tmp_path: Path) -> None:
    def leases(**values: SecretStr) -> Leases:
        return leases_for(Settings(home=tmp_path, **values), tmp_path, FakeClock())  # type: ignore[arg-type]

    server = SecretStr("host=127.0.0.1 dbname=x")
    assert isinstance(leases(), FileLeases)
    assert isinstance(leases(lake_catalog=SecretStr("postgres:host=127.0.0.1 dbname=x")), PostgresLeases)
    assert isinstance(leases(queue_lease_postgres=server), PostgresLeases)
    assert isinstance(leases(queue_lease_postgres=SecretStr("postgres:host=127.0.0.1 dbname=x")), PostgresLeases)


def test_a_connection_string_that_cannot_be_read_is_refused_without_being_quoted(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, queue_lease_postgres=SecretStr("password=secret nonsense"))
    with pytest.raises(SettingsError) as caught:
        leases_for(settings, tmp_path, FakeClock())
    assert "secret" not in str(caught.value)
