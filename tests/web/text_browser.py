"""A browser without a window, users of every role, and a status in every condition.

The application is called as a server would call it, so that an answer that goes on can be looked at
while it does.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Message

from catchment.errors import NotLoggedInError
from catchment.foundation import events
from catchment.queue.dead_letter_actions import Retried
from catchment.status.background import SLOW
from catchment.status.model import (
    NO_TREND,
    PARTS,
    Health,
    Imports,
    LakePart,
    Queue,
    Schemas,
    Sessions,
    Status,
    StatusPart,
    Tenants,
    Trend,
)
from catchment.testing import FakeClock
from catchment.web import pages
from catchment.web.dead_letter_pages import ShownDeadLetter
from catchment.web.live import Live
from catchment.web.login_sessions import Identity
from catchment.web.site import application
from tests.status.sample_status import NOW, full_status

PASSWORD = "correct horse"
ORIGIN = "http://127.0.0.1:4215"
COOKIE = "catchment_4215"
PATHS = [page.path for page in pages.PAGES]
VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "path", "rect", "wbr"})
_TREND = Trend(
    span_s=20.0,
    acked_rows_per_s=(0.0, 5.0, 2.5, 7.0),
    ack_p99_s=(None, 0.002, 0.001, None),
    delivered_rows_per_s=(0.0, 0.0, 20.0, 0.0),
    buffered_rows=(0, 3, None, 3),
)


def busy_status() -> Status:
    """A status with something in every part, and a line for every chart."""
    return replace(full_status(), trend=_TREND)


def empty_status() -> Status:
    """A server that has just been started for the first time."""
    lake = LakePart(
        tables_total=0,
        files=0,
        bytes=0,
        rows=0,
        small_files=0,
        small_file_share=0.0,
        snapshots=0,
        snapshot_newest=0,
        snapshot_at=None,
        dead_letters=0,
        tables=(),
        last_deliveries=(),
        last_audit=None,
    )
    queue = Queue(
        layout="shared",
        root="/q",
        rows=0,
        bytes=0,
        bytes_max=0,
        oldest_age_s=None,
        tables_total=0,
        tables=(),
        set_aside=(),
    )
    sessions = Sessions(
        sessions_total=0, sessions_max=0, statements_running=0, slow_seconds=1.0, sessions=(), running=(), slow=()
    )
    full = full_status()
    acks = replace(full.totals, ack_p50_s=None, ack_p99_s=None, group_writes_mean=None, window_s=0.0)
    return replace(
        full,
        shard=None,
        health=Health(ok=True, reasons=()),
        totals=acks,
        queue=StatusPart(NOW, queue),
        lake=StatusPart(NOW, lake),
        legacy=StatusPart(NOW, Imports(imports=())),
        schemas=StatusPart(NOW, Schemas(databases=())),
        tenants=StatusPart(NOW, Tenants(tenants_total=0, shards=(), tenants=(), moves=())),
        sessions=StatusPart(NOW, sessions),
        meters={**full.meters, "ack_seconds": _nothing(full)},
        trend=NO_TREND,
    )


def away_status(reason: str = "secret reason of an outage") -> Status:
    """A server of which no part answers."""
    away: dict[str, Any] = {name: StatusPart(NOW, unavailable=reason) for name in PARTS}
    return replace(full_status(), **away)


def slow_status() -> Status:
    """A server of which every part takes its time."""
    return away_status(SLOW)


def _nothing(status: Status) -> Any:
    seen: Any = status.meters["ack_seconds"]
    return seen.minus(seen)


@dataclass
class House:
    """Users and their logins; `is_open` admits every visitor as an admin."""

    is_open: bool = False
    users: dict[str, Identity] = field(
        default_factory=lambda: {
            "ann": Identity(name="ann", role="admin"),
            "rob": Identity(name="rob", role="reader"),
            "eve": Identity(name="eve", role="reader", tenant="t7"),
        }
    )
    hashes: int = 0

    def identify(self, authorization: str, host: str) -> Identity:
        if not authorization:
            if self.is_open:
                return Identity(name="anonymous", role="admin")
            raise NotLoggedInError("Log in first.")
        self.hashes += 1
        name, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if password != PASSWORD or name not in self.users:
            raise NotLoggedInError("The user or the password is wrong.")
        return replace(self.users[name], credential_version=self.credential_version(name))

    def credential_version(self, name: str) -> str | None:
        return repr(self.users.get(name)) if name in self.users else None


@dataclass
class Letters:
    """Dead letters, which of them were tried again, and by whom as the log has it."""

    retried: list[Sequence[str] | None] = field(default_factory=list)
    asked_by: list[object] = field(default_factory=list)

    def letters(self) -> StatusPart[tuple[ShownDeadLetter, ...]]:
        letter = ShownDeadLetter(id="l1", table="main.events", seq=7, reason="secret <b>reason</b>", buried_at=NOW)
        return StatusPart(NOW, (letter,))

    def retry(self, ids: Sequence[str] | None) -> Retried:
        self.retried.append(ids)
        self.asked_by.append(events.current("user"))
        return Retried(delivered=("l1",), refused={"l2": "no"})


@dataclass(frozen=True)
class Page:
    """What came back."""

    code: int
    headers: list[tuple[str, str]]
    body: str

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each == name), None)


class Browser:
    """Keeps cookies, and says where its forms come from."""

    def __init__(self, app: Starlette, *, user: str | None = None, origin: str = ORIGIN) -> None:
        self.app = app
        self.cookies: dict[str, str] = {}
        self.origin = origin
        self.headers: dict[str, str] = {"accept": "text/html"}
        if user is not None:
            self.headers["authorization"] = "Basic " + base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()

    def get(self, path: str, **headers: str) -> Page:
        return asyncio.run(self.call("GET", path, headers=headers))

    def post(self, path: str, *, form: dict[str, str], **headers: str) -> Page:
        typed = {"content-type": "application/x-www-form-urlencoded", "origin": self.origin}
        return asyncio.run(self.call("POST", path, body=urlencode(form).encode(), headers={**typed, **headers}))

    def login(self, name: str, password: str = PASSWORD, *, after: str = "/") -> Page:
        """Open the form, fill it in, send it."""
        form = Markup.of(self.get(f"/login?after={after}").body)
        return self.post("/login", form={**form.fields, "name": name, "password": password})

    def request(self, path: str) -> Request:
        """A call that is not made."""
        return Request(self._scope("GET", path, {}))

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        chunks: "asyncio.Queue[str] | None" = None,
    ) -> Page:
        """One call; `chunks` gets what comes as it comes."""
        sent: list[Message] = []
        scope = self._scope(method, path, headers or {})
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            found = next(asked, None)
            return found if found is not None else await asyncio.Future()

        async def send(message: Message) -> None:
            sent.append(message)
            if chunks is not None and message["type"] == "http.response.body":
                await chunks.put(message["body"].decode())

        await self.app(scope, receive, send)
        start = next(each for each in sent if each["type"] == "http.response.start")
        found = [(name.decode(), value.decode()) for name, value in start["headers"]]
        self._keep([value for name, value in found if name == "set-cookie"])
        return Page(start["status"], found, b"".join(each.get("body", b"") for each in sent).decode())

    def _scope(self, method: str, path: str, headers: dict[str, str]) -> dict[str, Any]:
        where, address = urlsplit(path), urlsplit(ORIGIN)
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        named = {"host": address.netloc, "cookie": cookie, **self.headers, **said}
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": address.scheme,
            "path": where.path,
            "raw_path": where.path.encode(),
            "query_string": where.query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items() if value],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 4215),
        }

    def _keep(self, lines: list[str]) -> None:
        for line in lines:
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[name]


class Markup(HTMLParser):
    """What a page consists of; ValueError where tags do not close as they should."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.fields: dict[str, str] = {}
        self.pictures: list[tuple[dict[str, str | None], list[str]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []

    @classmethod
    def of(cls, text: str) -> "Markup":
        found = cls()
        found.feed(text)
        found.close()
        if found._open:
            raise ValueError(f"never closed: {found._open}")
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "svg":
            self.pictures.append((dict(attrs), []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            raise ValueError(f"</{tag}> closes nothing at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.append((self._open[-1], data.strip()))
            if self._open[-1] == "title" and "svg" in self._open:
                self.pictures[-1][1].append(data)

    def attributes(self, name: str) -> list[str]:
        """Every value of that attribute."""
        return [value or "" for _, attrs in self.tags for each, value in attrs.items() if each == name]

    def tagged(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every such tag."""
        return [attrs for each, attrs in self.tags if each == tag]

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if len(found) != len(attrs):
            raise ValueError(f"<{tag}> has an attribute twice")
        self.tags.append((tag, found))
        if tag == "input":
            self.fields[found.get("name") or ""] = found.get("value") or ""


def web_app(
    status: Callable[[], Status] = busy_status,
    *,
    house: House | None = None,
    desk: Letters | None = None,
    clock: FakeClock | None = None,
    live: Live | None = None,
) -> Starlette:
    """The web, with users unless its house is open."""
    return application(
        status,
        house or House(),
        dead_letters=desk or Letters(),
        clock=clock or FakeClock(),
        live=live,
        hosts=("127.0.0.1",),
    )


def browser_of(app: Starlette, who: str) -> Browser:
    """A browser that is logged in as that user."""
    if who == "anonymous":
        return Browser(app)
    browser = Browser(app)
    assert browser.login(who).code == 303
    return browser


def token_of(browser: Browser, path: str = "/queue") -> str:
    """What the forms of a page send along."""
    return Markup.of(browser.get(path).body).fields["token"]


def require_sound(page: Page) -> None:
    """Check that a page is well formed, accessible, and loads nothing inline or from elsewhere."""
    assert page.body.startswith("<!doctype html>")
    found = Markup.of(page.body)
    ids = found.attributes("id")
    assert len(ids) == len(set(ids))
    for reference in ("aria-labelledby", "aria-describedby", "for"):
        assert set(found.attributes(reference)) <= set(ids)
    assert len(found.tagged("main")) == len(found.tagged("h1")) == 1
    assert found.tagged("a")[0]["href"] == "#main"
    for attrs, titles in found.pictures:
        assert attrs.get("aria-hidden") == "true" or (attrs.get("role") == "img" and titles)
    assert all("alt" in each for each in found.tagged("img"))
    labelled = set(found.attributes("for"))
    for each in found.tagged("input"):
        assert each.get("type") == "hidden" or each["id"] in labelled
    assert not found.tagged("style")
    assert not [name for _, attrs in found.tags for name in attrs if name == "style" or name.startswith("on")]
    for script in found.tagged("script"):
        assert str(script["src"]).startswith("/static/")
    assert not [text for tag, text in found.texts if tag == "script"]
    for address in (*found.attributes("href"), *found.attributes("src"), *found.attributes("action")):
        assert address.startswith(("/", "#")), address
        assert not address.startswith("//"), address
    assert "://" not in page.body
    levels = [int(tag[1]) for tag, _ in found.tags if tag in ("h1", "h2", "h3", "h4")]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for grid in [attrs for tag, attrs in found.tags if attrs.get("class") == "grid"]:
        assert grid["tabindex"] == "0"
        assert grid["aria-label"]
