"""The web of a real server: metrics, the status, access by role, and protection."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from catchment.errors import MachineError
from catchment.foundation import events, server_file
from catchment.foundation.settings import Settings
from catchment.server.access.users import Users
from catchment.server.flight_server import FlightServer
from catchment.server.status_client import fetch_status
from catchment.server.values import Role
from catchment.status import StatusReader, readings
from catchment.status.background import SLOW
from catchment.status.model import FOR_ADMINS
from catchment.tenants.model import TenantId
from catchment.testing import InlineRunner
from catchment.web.metric_catalogue import METRICS
from catchment.web.site import HEADERS
from tests.server.raw_client import server
from tests.web.watched_server import Watched, sample, watched

CERTIFICATES = Path(__file__).parents[1] / "certificates"
SECRET_SQL = "SELECT 'the secret of the house'"
PATHS = ("/metrics", "/status.json")


class ClosingRunner(InlineRunner):
    """Has nothing to close."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A server that 20 rows went through, and in which 3 wait."""
    with watched(tmp_path_factory.mktemp("open")) as found:
        found.execute(
            "CREATE TABLE events (id INTEGER)",
            *(f"INSERT INTO duckling_queue.events VALUES ({number})" for number in range(20)),
            "CALL duckling_queue_flush()",
            "INSERT INTO duckling_queue.events VALUES (20), (21), (22)",
        )
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A server with users of every role."""
    home = tmp_path_factory.mktemp("guarded")
    users = Users.from_settings(Settings(home=home))
    users.add("ann", Role.ADMIN, "correct horse")
    users.add("rob", Role.READER, "correct horse")
    users.add("wil", Role.WRITER, "correct horse")
    users.add("eve", Role.READER, "correct horse", tenant=TenantId(7))
    with watched(home) as found:
        found.execute(SECRET_SQL, user="ann")
        yield found


def test_metrics_count_written_and_flushed_rows(written: Watched) -> None:
    found = written.scrape()
    assert sample(found, "catchment_acked_rows_total") == 23
    assert sample(found, "catchment_acked_bytes_total") > 0
    assert sample(found, "catchment_ack_seconds", "_count") == 21
    assert sample(found, "catchment_ack_seconds", "_bucket", le="+Inf") == 21
    assert 0 < sample(found, "catchment_ack_seconds", "_sum") < 21
    assert sample(found, "catchment_group_writes", "_sum") == 21
    assert sample(found, "catchment_delivered_rows_total") == 20
    assert sample(found, "catchment_delivered_files_total") == 1
    assert sample(found, "catchment_flushes_total", outcome="done") == 1
    assert sample(found, "catchment_flushes_total", outcome="failed") == 0
    for step in ("read", "write", "commit"):
        assert sample(found, "catchment_flush_seconds", "_count", step=step) == 1
        assert sample(found, "catchment_flush_seconds", "_sum", step=step) > 0
    assert sample(found, "catchment_buffer_rows") == 3
    assert sample(found, "catchment_table_buffered_rows", table="main.events") == 3
    assert sample(found, "catchment_lake_files") == 1
    assert sample(found, "catchment_small_file_share") == 0
    assert sample(found, "catchment_statement_seconds", "_count") == 23
    assert sample(found, "catchment_healthy") == 1


def test_every_metric_that_is_declared_is_offered_and_no_other(written: Watched) -> None:
    found = {name for name in written.scrape() if not name.startswith("process_")}
    assert found == {metric.name.removesuffix("_total") for metric in METRICS}


def test_the_status_says_the_same_as_the_metrics(written: Watched) -> None:
    status = written.get("/status.json").json
    assert status["serving"]
    assert status["health"] == {"state": "ok", "reasons": []}
    assert status["totals"]["acked_rows"] == 23
    assert status["totals"]["group_writes_mean"] == 1
    assert 0 < status["totals"]["ack_p50_s"] <= status["totals"]["ack_p99_s"]
    [table] = status["queue"]["tables"]
    assert (table["table"], table["rows"], table["seq_flushed"], table["dead_letters"]) == ("main.events", 3, 20, 0)
    assert [flush["rows"] for flush in table["last_flushes"]] == [20]
    [delivery] = status["lake"]["last_deliveries"]
    assert (delivery["table"], delivery["rows"]) == ("main.events", 20)
    assert status["schemas"]["databases"][0]["state"] == "CURRENT"
    assert "INSERT INTO duckling_queue.events VALUES (20), (21), (22)" in [
        each["text"] for each in status["sessions"]["slow"]
    ]


def test_a_statement_that_fails_is_counted(written: Watched) -> None:
    before = sample(written.scrape(), "catchment_statements_failed_total")
    with pytest.raises(Exception, match="nowhere"):
        written.execute("INSERT INTO events SELECT CAST('nowhere' || range AS INTEGER) FROM range(2)")
    assert sample(written.scrape(), "catchment_statements_failed_total") > before


@pytest.mark.parametrize("path", PATHS)
def test_with_users_nothing_is_shown_without_a_login(guarded: Watched, path: str) -> None:
    for answer in (
        guarded.get(path),
        guarded.get(path, user="ann", password="wrong"),
        guarded.get(path, Authorization="Bearer x"),
    ):
        assert answer.code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert answer.json["error"] == "NotLoggedInError"


def test_a_failed_login_is_counted(guarded: Watched) -> None:
    guarded.get("/metrics", user="rob", password="wrong")
    assert sample(guarded.scrape(user="rob"), "catchment_logins_failed_total") >= 1


def test_only_admins_see_statements(guarded: Watched) -> None:
    assert SECRET_SQL in [each["text"] for each in guarded.get("/status.json", user="ann").json["sessions"]["slow"]]
    for user in ("rob", "wil"):
        answer = guarded.get("/status.json", user=user)
        assert answer.code == 200
        for hidden in ("secret of the house", "SELECT", '"ann"', str(guarded.home)):
            assert hidden not in answer.body
        assert answer.json["home"] == FOR_ADMINS
        assert answer.json["sessions"]["sessions_total"] >= 0
        assert "secret of the house" not in guarded.get("/metrics", user=user).body


def test_repeated_wrong_passwords_are_delayed_whatever_address_the_client_claims(guarded: Watched) -> None:
    answers = [
        guarded.get("/metrics", user="nobody", password="wrong", **{"X-Forwarded-For": f"10.0.0.{number}"})
        for number in range(7)
    ]
    assert {answer.code for answer in answers} == {401}
    assert "Too many failed log-ins" in answers[-1].json["message"]


@pytest.mark.parametrize("path", PATHS)
def test_a_user_of_a_tenant_sees_nothing_of_the_whole(guarded: Watched, path: str) -> None:
    answer = guarded.get(path, user="eve")
    assert answer.code == 403
    assert answer.json["error"] == "NotAllowedError"


def test_the_health_check_needs_no_login_and_reveals_nothing_else(guarded: Watched) -> None:
    answer = guarded.get("/healthz")
    assert (answer.code, answer.body) == (200, "ok\n")


@pytest.mark.parametrize(("path", "code"), [("/healthz", 200), ("/status.json", 401), ("/nowhere", 404)])
def test_every_answer_has_the_security_headers_and_does_not_say_what_made_it(
    guarded: Watched, path: str, code: int
) -> None:
    answer = guarded.get(path)
    assert answer.code == code
    assert HEADERS.items() <= answer.headers.items()
    assert "server" not in answer.headers


def test_a_request_with_a_foreign_host_name_is_refused(written: Watched) -> None:
    assert written.get("/status.json", Host="evil.example.com").code == 400
    assert written.get("/status.json", Host="localhost:1").code == 200


def test_a_port_that_is_taken_is_an_error_that_says_which_option_to_change(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        taken = FlightServer(Settings(home=tmp_path, server_port=0, server_web_port=port))
        with pytest.raises(MachineError, match=rf"127\.0\.0\.1:{port} for the web: the port is in use") as caught:
            taken.start()
    assert "--web-port" in str(caught.value.hint)
    assert server_file.find(Settings(home=tmp_path)) is None


def test_a_server_with_tls_speaks_it_on_the_web_too(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path,
        server_port=0,
        server_tls_certificate=CERTIFICATES / "loopback.crt",
        server_tls_key=CERTIFICATES / "loopback.key",
    )
    with server(settings) as found:
        announced = server_file.find(settings)
        assert announced is not None
        assert str(found.web_address).startswith("https://127.0.0.1:")
        assert announced.web == found.web_address
        assert fetch_status(announced)["serving"]


def test_the_web_can_be_switched_off(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, server_port=0, server_web_port="off")
    with server(settings) as found:
        assert found.web_address is None
        announced = server_file.find(settings)
        assert announced is not None
        assert announced.web is None


def test_a_status_source_that_hangs_delays_neither_the_last_flush_nor_the_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, happened, close = threading.Event(), [], StatusReader.close

    def closed(reader: StatusReader) -> None:
        happened.append("status closed")
        close(reader)

    monkeypatch.setattr(readings, "imports", lambda _: release.wait())
    monkeypatch.setattr(StatusReader, "close", closed)
    found = FlightServer(Settings(home=tmp_path, server_port=0))
    found.app._runner = ClosingRunner()  # type: ignore[assignment]
    found.start()
    client = Watched(tmp_path, found.uri, found.web_address)
    client.execute("CREATE TABLE events (id INTEGER)", "INSERT INTO duckling_queue.events VALUES (1)")
    assert client.get("/status.json").json["legacy"]["unavailable"] == SLOW
    with events.listening(lambda event: happened.append(event.verb)):
        assert found.stop()
    release.set()
    assert happened.index("flushed") < happened.index("status closed") < happened.index("stopped")
