"""An unreachable catalog: readers get UNAVAILABLE, and not that a table is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import grpc
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from catchment.errors import LakeUnavailableError
from catchment.server.flight_server import FlightServer
from catchment.testing import EmbeddedPostgres
from tests.conftest import MakeSettings
from tests.server.raw_client import Client, refused, server
from tests.waiting import wait_until

HINT = LakeUnavailableError.default_hint
QUERY = "SELECT id FROM events ORDER BY id"
QUERIES = (QUERY, "SELECT id FROM main.events", "SELECT id FROM lake.main.events", "DESCRIBE events")


class Place:
    """A server whose catalog is in PostgreSQL, and can be closed."""

    def __init__(self, running: FlightServer, conninfo: str, postgres: EmbeddedPostgres) -> None:
        self._running = running
        self._conninfo = conninfo
        self._postgres = postgres

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client with a session of its own."""
        found = Client(self._running.uri)
        try:
            found.handshake()
            yield found
        finally:
            found.close()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuse connections to the catalog's database, and break existing ones."""
        self._allow(False)
        try:
            self._postgres.terminate_connections(self._conninfo)
            yield
        finally:
            self._allow(True)

    def end_engine(self) -> None:
        """Kill the engine process, so that sessions need new connections."""
        sessions = self._running._sessions
        assert sessions is not None
        assert sessions.backend.engines is not None
        (engine,) = sessions.backend.engines._engines
        process = engine.process()
        process.kill("of a test")
        wait_until(lambda: engine.process() is not process, "it was replaced")

    def _allow(self, is_allowed: bool) -> None:
        name = sql.Identifier(str(conninfo_to_dict(self._conninfo)["dbname"]))
        change = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(name, sql.Literal(is_allowed))
        with psycopg.connect(make_conninfo(self._conninfo, dbname="postgres"), autocommit=True) as connection:
            connection.execute(change)


@pytest.fixture
def place(make_settings: MakeSettings, postgres: EmbeddedPostgres) -> Iterator[Place]:
    settings = make_settings("postgres", server_port=0, server_web_port=None)
    conninfo = settings.catalog_url.get_secret_value().removeprefix("postgres:")
    with server(settings) as running:
        found = Place(running, conninfo, postgres)
        with found.client() as client:
            client.update("CREATE TABLE events (id BIGINT)")
            client.update("INSERT INTO events VALUES (1), (2)")
        yield found


@pytest.mark.parametrize("is_new", [False, True], ids=["open session", "new session"])
def test_a_query_is_unavailable_while_the_lake_is_unreachable_and_answered_once_it_is_back(
    place: Place, is_new: bool
) -> None:
    with place.client() as client:
        if not is_new:
            assert client.query(QUERY) == [{"id": 1}, {"id": 2}]
        with place.away():
            for call, query in product((client.query, client.prepare), QUERIES):
                said = refused(grpc.StatusCode.UNAVAILABLE, call, query)
                assert said.endswith(f" {HINT}")
                assert "does not exist!" not in said
        assert client.query(QUERY) == [{"id": 1}, {"id": 2}]


def test_statements_that_need_no_lake_are_answered_while_it_is_unreachable(place: Place) -> None:
    with place.client() as client, place.away():
        assert client.query("SELECT 40 + 2 AS x") == [{"x": 42}]
        assert "nowhere" in refused(grpc.StatusCode.INVALID_ARGUMENT, client.query, "SELECT nowhere")


def test_settings_are_back_when_the_lake_is(place: Place) -> None:
    query = "SELECT current_setting('TimeZone') AS zone, current_schema() AS schema"
    with place.client() as client:
        client.authorization = f"Bearer {client.handshake()}"
        client.update("CREATE SCHEMA lake.other")
        client.update("USE lake.other")
        with place.away():
            place.end_engine()
            assert client.query("SELECT 40 + 2 AS x") == [{"x": 42}]
            client.update("SET TimeZone = 'Asia/Tokyo'")
            refused(grpc.StatusCode.UNAVAILABLE, client.query, QUERY)
        assert client.query(query) == [{"zone": "Asia/Tokyo", "schema": "other"}]


def test_a_table_that_is_not_there_is_not_found_while_the_lake_is(place: Place) -> None:
    with place.client() as client:
        assert "does not exist" in refused(grpc.StatusCode.NOT_FOUND, client.query, "SELECT * FROM nothing")


def test_no_statement_that_goes_well_asks_whether_the_lake_is_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    monkeypatch.setattr("catchment.server.sessions.backend.Backend.require_lake", lambda _: asked.append(None))
    with place.client() as client:
        client.query(QUERY)
        client.update("INSERT INTO events VALUES (3)")
        assert not asked
        refused(grpc.StatusCode.NOT_FOUND, client.query, "SELECT * FROM nothing")
        assert asked
