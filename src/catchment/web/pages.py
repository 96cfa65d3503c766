"""Pages: their parts, and how they are rendered to HTML.

A page is a list of parts. A part is a macro of the page's template, so that the loaded page and its
live updates have the same text. Templates get a status restricted to the caller's role: hidden
values never reach them.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from catchment.status.background import SLOW
from catchment.status.model import ADMIN, FOR_ADMINS, Status, StatusPart
from catchment.web import charts
from catchment.web.dead_letter_pages import ShownDeadLetter
from catchment.web.login_sessions import Identity

STATIC: Mapping[str, str] = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
# Between thousands, and between a number and its unit: a narrow, non-breaking space.
_THIN = "\u202f"
_AGES = (("d", 86_400), ("h", 3_600), ("min", 60))
# A part that is older shows its age.
STALE_S = 60.0
PHASES = ("Idle", "PreparingTarget", "DualWrite", "Finalizing")


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a page: `id` in the page and macro of its template."""

    id: str
    title: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page; its template has the same name."""

    name: str
    path: str
    title: str
    parts: tuple[PagePart, ...]


PAGES: tuple[Page, ...] = (
    Page(
        "overview",
        "/",
        "Overview",
        (
            PagePart("health", "Health"),
            PagePart("intake", "Coming in"),
            PagePart("landing", "Landing in the lake"),
            PagePart("through", "Flushed through"),
            PagePart("latency", "Time to an ack"),
        ),
    ),
    Page(
        "queue",
        "/queue",
        "Queue",
        (
            PagePart("buffer", "Buffer"),
            PagePart("tables", "Tables"),
            PagePart("flushes", "Last flushes"),
            PagePart("letters", "Dead letters"),
        ),
    ),
    Page(
        "lake",
        "/lake",
        "Lake",
        (
            PagePart("extent", "Extent"),
            PagePart("audit", "Audit"),
            PagePart("tables", "Tables"),
            PagePart("deliveries", "Last deliveries"),
        ),
    ),
    Page("imports", "/imports", "Imports", (PagePart("imports", "Legacy imports"),)),
    Page(
        "schema",
        "/schema",
        "Schema",
        (PagePart("databases", "Databases"), PagePart("differences", "What differs")),
    ),
    Page(
        "tenants",
        "/tenants",
        "Tenants",
        (
            PagePart("moves", "Moves under way"),
            PagePart("shards", "Shards"),
            PagePart("finished", "Finished moves"),
            PagePart("tenants", "Tenants and their primaries"),
        ),
    ),
    Page(
        "sessions",
        "/sessions",
        "Sessions",
        (
            PagePart("load", "Now"),
            PagePart("running", "Running statements"),
            PagePart("slow", "Slow statements"),
            PagePart("sessions", "Open sessions"),
        ),
    ),
)
BY_NAME: Mapping[str, Page] = {page.name: page for page in PAGES}
BY_PATH: Mapping[str, Page] = {page.path: page for page in PAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """Input of a page's template; `token` is sent with its forms, `notice` is a button's result."""

    status: Status
    identity: Identity
    token: str
    letters: StatusPart[tuple[ShownDeadLetter, ...]] | None = None
    notice: str | None = None
    can_log_out: bool = False

    @property
    def is_admin(self) -> bool:
        """Whether buttons are shown."""
        return self.identity.role == ADMIN


def page(found: Page, view: PageView) -> str:
    """Render a whole page."""
    return _environment().get_template("page.html").render(page=found, view=view, bodies=parts(found, view))


def parts(found: Page, view: PageView) -> dict[str, str]:
    """Render the parts of a page by id, and the pulse at the top of every page."""
    macros = _environment().get_template(f"{found.name}.html").module
    pulse = _environment().get_template("pulse.html").module
    return {
        "pulse": getattr(pulse, "pulse")(view).strip(),  # noqa: B009
        **{part.id: getattr(macros, part.id)(view).strip() for part in found.parts},
    }


def login(*, token: str, after: str, message: str | None = None, name: str = "") -> str:
    """Render the login form."""
    return _environment().get_template("login.html").render(token=token, after=after, message=message, name=name)


def problem(*, code: int, message: str, hint: str | None = None) -> str:
    """Render a page that reports a problem."""
    return _environment().get_template("problem.html").render(code=code, message=message, hint=hint)


@cache
def static(name: str) -> bytes:
    """Return a static file."""
    return resources.files("catchment.web").joinpath("static", name).read_bytes()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("catchment.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # A served page's files do not change.
        auto_reload=False,
    )
    environment.filters.update(
        count=count,
        counted=counted,
        short=short,
        size=size,
        span=span,
        share=share,
        clock=clock,
        ago=ago,
        spoken=spoken,
        breaks=breaks,
    )
    environment.globals.update(
        pages=PAGES,
        phases=PHASES,
        charts=charts,
        asset=_asset,
        is_slow=lambda part: part.unavailable == SLOW,
        is_hidden=lambda part: part.unavailable == FOR_ADMINS,
        is_stale=lambda part, now: (now - part.at).total_seconds() > STALE_S,
        show={"short": short, "span": span, "rate": lambda number: f"{short(number)}{_THIN}/s"},
    )
    return environment


@cache
def _asset(name: str) -> str:
    """URL of a static file; changes with its content."""
    return f"/static/{name}?v={hashlib.sha256(static(name)).hexdigest()[:12]}"


# Number formats.


def count(number: float) -> str:
    """1 234"""
    return _grouped(f"{number:,.0f}")


def counted(number: int, word: str) -> str:
    """1 file, 2 files"""
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def short(number: float) -> str:
    """987, 12.3 k, 4.5 M"""
    for unit, least in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(number) >= least:
            return _grouped(f"{number / (1e3 if unit == 'k' else least):,.1f}") + f"{_THIN}{unit}"
    return count(number) if number == round(number) or abs(number) >= 100 else f"{number:,.2g}"


def size(number: float) -> str:
    """512 B, 1.5 KiB, 2.0 GiB"""
    left = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(left) < 1024:
            return f"{left:,.0f}{_THIN}{unit}" if unit == "B" else _grouped(f"{left:,.1f}") + f"{_THIN}{unit}"
        left /= 1024
    return _grouped(f"{left:,.1f}") + f"{_THIN}TiB"


def span(seconds: float) -> str:
    """250 µs, 12 ms, 2.5 s, 3 min 20 s, 2 h 5 min, 4 d 1 h"""
    if seconds < 1:
        if seconds <= 0:
            return f"0{_THIN}s"
        return f"{seconds * 1e6:.0f}{_THIN}µs" if seconds < 0.001 else f"{seconds * 1e3:.3g}{_THIN}ms"
    if seconds < 60:
        return f"{seconds:.3g}{_THIN}s"
    whole = round(seconds)
    for unit, least, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= least:
            rest, said = whole % least // part, f"{count(whole // least)}{_THIN}{unit}"
            return f"{said} {rest}{_THIN}{smaller}" if rest else said
    return f"{whole}{_THIN}s"


def ago(at: datetime, now: datetime) -> str:
    """12 s ago, 3 min ago, in 16 s"""
    seconds = round((now - at).total_seconds())
    if seconds == 0:
        return "now"
    unit, length = next((each for each in _AGES if abs(seconds) >= each[1]), ("s", 1))
    said = f"{count(abs(seconds) // length)}{_THIN}{unit}"
    return f"{said} ago" if seconds > 0 else f"in {said}"


def share(number: float) -> str:
    """75 %"""
    shown = f"{number:.0%}"[:-1]
    # Neither 0 % nor 100 %, unless exact.
    said = "< 1" if number > 0 and shown == "0" else "> 99" if number < 1 and shown == "100" else shown
    return f"{said}{_THIN}%"


def clock(at: datetime) -> str:
    """2026-01-31 09:05:00"""
    return f"{at:%Y-%m-%d %H:%M:%S}"


def spoken(name: str) -> str:
    """PreparingTarget in words: Preparing target"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def breaks(name: str) -> Markup:
    """Allow line breaks in a name after a dot, a slash or an underscore only."""
    return Markup("<wbr>").join(re.findall(r"[^._/]*[._/]+|[^._/]+", name))


def _grouped(number: str) -> str:
    return number.replace(",", _THIN)
