"""Attacks on the web server: slow clients, malformed requests, forged hosts and cookies, markup in
values, and addresses that are not for the caller.
"""

import dataclasses
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import fields, replace
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import Route

from catchment.status import Status
from catchment.status.model import StatusPart
from catchment.web import web_server
from catchment.web.dead_letter_pages import ShownDeadLetter
from catchment.web.login_sessions import Identity, new_key
from catchment.web.site import LOOPBACK_HOSTS, application
from catchment.web.web_server import WebServer
from tests.waiting import PATIENCE_S, wait_until
from tests.web.text_browser import (
    COOKIE,
    PATHS,
    Browser,
    House,
    Letters,
    Markup,
    Page,
    browser_of,
    busy_status,
    web_app,
)

MARKUP = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}</textarea>\r\nSet-Cookie: a=b"
FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A server that soon loses patience."""
    monkeypatch.setattr(web_server, "CLIENT_S_MAX", 0.5)
    yield from _serving()


@pytest.fixture(scope="module")
def serving() -> Iterator[WebServer]:
    yield from _serving()


def _serving() -> Iterator[WebServer]:
    app = application(busy_status, House(), dead_letters=Letters(), hosts=LOOPBACK_HOSTS)
    server = WebServer(app, host="127.0.0.1", port=0)
    server.start()
    yield server
    server.stop()


def _connect(server: WebServer, sent: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    found.sendall(sent)
    return found


def _rest(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    found = b""
    while True:
        try:
            part = connection.recv(1 << 16)
        except ConnectionResetError:
            return found
        if not part:
            return found
        found += part


def _ask(server: WebServer, sent: bytes) -> bytes:
    with closing(_connect(server, sent)) as connection:
        return _rest(connection)


def _connections(server: WebServer) -> int:
    return len(server._server.server_state.connections)


# Slow clients.


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health",
        FORM,
        FORM + b"Content-Length: 100\r\n\r\ntoken=",
        FORM + b"Transfer-Encoding: chunked\r\n\r\n5\r\ntoken",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he",
    ],
    ids=["nothing", "half a line", "half a header", "half a form", "half a chunk", "no body", "half a second one"],
)
def test_a_client_that_stops_in_a_request_is_disconnected(slow: WebServer, sent: bytes) -> None:
    with closing(_connect(slow, sent)) as connection:
        assert b"login" not in _rest(connection)


def test_a_client_that_sends_a_byte_at_a_time_is_disconnected_too(slow: WebServer) -> None:
    with closing(_connect(slow, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")) as connection:
        connection.settimeout(0.05)
        for _ in range(int(PATIENCE_S / 0.05)):
            try:
                connection.sendall(b"x")
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
    pytest.fail("it may go on for ever")


def test_a_client_that_reads_no_answers_is_disconnected(slow: WebServer) -> None:
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        connection.connect(("127.0.0.1", slow.port))
        connection.setblocking(False)
        asked = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000
        with pytest.raises(ConnectionError):
            wait_until(lambda: _is_refused(connection, asked), "disconnected")
        wait_until(lambda: _connections(slow) == 0, "its place is free again")


def _is_refused(connection: socket.socket, sent: bytes) -> bool:
    with suppress(BlockingIOError):
        connection.send(sent)
    return False


def test_clients_that_send_nothing_keep_others_out_for_a_moment_only(slow: WebServer) -> None:
    with ExitStack() as opened:
        for _ in range(web_server._CONNECTIONS_MAX):
            opened.enter_context(closing(_connect(slow)))
        wait_until(lambda: _ask(slow, GET).startswith(b"HTTP/1.1 200 "), "others are served")


def test_a_form_that_breaks_off_leaves_no_traceback_in_the_log(
    serving: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        with closing(_connect(serving, FORM + b"Content-Length: 100\r\n\r\ntoken=")):
            wait_until(lambda: _connections(serving) == 1, "connected")
        wait_until(lambda: _connections(serving) == 0, "disconnected")
        # The application notices it later than the connection does.
        assert _ask(serving, GET).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: not serving._server.server_state.tasks, "answered")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# Malformed requests.


def _get(path: str, *lines: str, host: str | None = "localhost") -> bytes:
    named = () if host is None else (f"Host: {host}",)
    return "\r\n".join((f"GET {path} HTTP/1.1", "Connection: close", *named, *lines, "", "")).encode("latin-1")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        # Two readings of one request: a proxy may have taken the rest for a request of its own.
        (FORM + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET, 403),
        (FORM + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd" + GET, 400),
        (FORM + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + GET, 400),
        (FORM + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + GET, 400),
        (FORM + b"Content-Length: +4\r\n\r\nabcd" + GET, 400),
        (FORM + b"Content-Length: 99999\r\nConnection: close\r\n\r\n" + b"a" * 99_999, 400),
        (_get("/", "Host: evil.example"), 400),
        (_get("/", host="localhost@evil.example"), 400),
        (_get("/", host="localhost.evil.example"), 400),
        (_get("/", host="localhost:x"), 400),
        (_get("/", host=None), 400),
        (_get("/", "X-Forwarded-Host: localhost", "Forwarded: host=localhost", host="evil.example"), 400),
        (_get("http://localhost/status.json", host="evil.example"), 400),
        (_get("/\xff"), 400),
        (_get("/", "X: " + "a" * 200_000), 400),
        (_get("/static/..%2f..%2fpages.py"), 404),
        (_get("/static/%2e%2e/pages.py"), 404),
        (_get("/static/style.css%00.html"), 404),
        (_get("//evil.example/"), 404),
        (_get("/queue/"), 404),
        (_get("/status.json", "Upgrade: websocket", "Connection: upgrade"), 401),
        (_get("/").replace(b"GET", b"TRACE"), 405),
        (_get("/").replace(b"GET", b"CONNECT"), 405),
    ],
)
def test_a_malformed_request_is_refused_and_nothing_follows(serving: WebServer, sent: bytes, code: int) -> None:
    with closing(_connect(serving)) as connection:
        # The answer may come, and the connection be closed, before all is sent.
        with suppress(ConnectionError):
            connection.sendall(sent)
        found = _rest(connection)
    assert [int(each[:3]) for each in found.split(b"HTTP/1.1 ")[1:]] == [code]
    assert b"evil" not in found


@pytest.mark.parametrize("value", ['"a\\012b"', "a\x01b", "a b", "x" * 65, "<b>"])
def test_a_cookie_that_is_not_of_this_server_is_not_repeated(value: str) -> None:
    browser = Browser(web_app())
    browser.cookies[COOKIE] = value
    browser.get("/login")
    assert len(browser.cookies[COOKIE]) == len(new_key())


def test_a_cookie_that_another_site_planted_is_of_no_use_after_the_login() -> None:
    app, planted = web_app(), new_key()
    browser, thief = Browser(app), Browser(app)
    browser.cookies[COOKIE] = thief.cookies[COOKIE] = planted
    assert browser.login("ann").code == 303
    assert browser.get("/").code == 200
    assert thief.get("/").code == 303


def test_a_user_who_is_changed_during_the_login_is_not_logged_in_as_before() -> None:
    class Changing(House):
        """Takes the admin's rights away once the password is verified."""

        def identify(self, authorization: str, host: str) -> Identity:
            found = super().identify(authorization, host)
            self.users[found.name] = replace(found, role="reader", credential_version=None)
            return found

    browser = Browser(web_app(house=Changing()))
    assert browser.login("ann").code == 303
    assert browser.get("/").code == 303


# Markup in values.


@pytest.mark.parametrize("who", ["ann", "rob"])
def test_no_value_of_the_status_becomes_markup(who: str) -> None:
    status: Status = _marked(busy_status())
    desk = Letters()
    letter = ShownDeadLetter(id=MARKUP, table=MARKUP, seq=7, reason=MARKUP, buried_at=status.at)
    desk.letters = lambda: StatusPart(status.at, (letter,))  # type: ignore[method-assign]
    browser = browser_of(web_app(lambda: status, desk=desk), who)
    for path in PATHS:
        page = browser.get(path)
        assert page.code == 200
        assert "alert(1)" in page.body
        _require_inert(page)
    assert "{{ 7 * 7 }}" in browser.get("/queue").body
    lines = browser.get("/metrics").body.splitlines()
    assert not [line for line in lines if line.startswith(("<", "Set-Cookie"))]


def test_what_a_visitor_types_does_not_become_markup() -> None:
    browser = Browser(web_app())
    _require_inert(browser.login(MARKUP, after="/"))
    for path in (f"/{quote(MARKUP)}", f"/login?after={quote(MARKUP)}", f"/events?page={quote(MARKUP)}"):
        _require_inert(browser.get(path))
    logged_in = browser_of(web_app(), "ann")
    _require_inert(logged_in.get(f"/queue?delivered={quote(MARKUP)}&refused=1"))


def _require_inert(page: Page) -> None:
    found = Markup.of(page.body) if page.body.startswith("<!") else Markup.of("")
    assert not [script for script in found.tagged("script") if not str(script.get("src")).startswith("/static/")]
    assert not found.tagged("img")
    assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]
    assert not [value for name, value in page.headers if "a=b" in value or "alert" in value or "\n" in value]


def _marked(value: Any) -> Any:
    """The same value with markup appended to every text in it that a client may have chosen."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _marked_field(each.name, getattr(value, each.name)) for each in fields(value)}
        )
    if isinstance(value, tuple):
        return tuple(map(_marked, value))
    return value + MARKUP if type(value) is str else value


def _marked_field(name: str, value: Any) -> Any:
    # Words of this program, and meters by their names.
    return value if name in ("state", "phase", "kind", "outcome", "meters", "unavailable") else _marked(value)


# Who may request what.

_PUBLIC = {"/healthz": 200, "/static/{name}": 404, "/login": 200}


@pytest.mark.parametrize(
    ("who", "expected"),
    [("stranger", 401), ("nobody", 401), ("eve", 403), ("rob", 200), ("ann", 200)],
)
def test_every_address_is_only_for_those_who_may_see_it(who: str, expected: int) -> None:
    app = web_app()
    asked = {route.path: route.methods or set() for route in app.routes if isinstance(route, Route)}
    assert _PUBLIC.keys() < asked.keys()
    for path, methods in asked.items():
        visitor = Browser(app, user=None if who == "stranger" else who)
        visitor.headers["accept"] = "application/json"
        if methods == {"POST"}:
            # Forms need their token, also those of an admin.
            assert visitor.post(path, form={"letter": "all"}).code in (401, 403), path
        elif path != "/events":
            code = visitor.get(path).code
            assert code == (303 if path == "/login" and expected == 200 else _PUBLIC.get(path, expected)), path
