"""Every page in a real browser: at every width, in light and dark, by keyboard, and self-contained.

What is shown is made up, so that there is something of everything. Pictures are left in `out`, for
people to look at.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from catchment.status.background import SLOW
from catchment.status.model import PARTS, Health, Status, StatusPart
from catchment.web import pages
from tests.browser.stage import NARROW, WIDE, Stage, Window, staged
from tests.status.rich_status import lost_lake, rich_status
from tests.web.text_browser import empty_status

LOOKS = [(theme, width) for theme in ("light", "dark") for width in (NARROW, WIDE)]
TWO_LOOKS = [("light", NARROW), ("dark", WIDE)]


def _empty(now: datetime) -> Status:
    status = empty_status()
    totals = replace(status.totals, acked_rows=0, acked_bytes=0, acked_rows_per_s=0.0)
    parts: dict[str, Any] = {name: replace(getattr(status, name), at=now) for name in PARTS}
    return replace(status, at=now, home="/srv/catchment", totals=totals, **parts)


def _slow(now: datetime) -> Status:
    slow: dict[str, Any] = {name: StatusPart(now, unavailable=SLOW) for name in PARTS}
    return replace(rich_status(now), health=Health(ok=True, reasons=()), **slow)


CONDITIONS: dict[str, tuple[Callable[[datetime], Status], tuple[str, ...]]] = {
    "empty": (_empty, tuple(pages.BY_NAME)),
    "lost": (lambda now: lost_lake(rich_status(now)), ("overview", "queue", "lake")),
    "slow": (_slow, ("overview", "schema", "tenants")),
}


@pytest.fixture(scope="module")
def rich() -> Iterator[Stage]:
    with staged(rich_status) as found:
        yield found


def _open(window: Window, stage: Stage, page: pages.Page) -> None:
    window.open(stage.address + page.path)
    window.until(lambda: window.text("#live-state") == "Live", f"{page.name} has no news")


def _require_whole(window: Window, stage: Stage, name: str, looks: Sequence[tuple[str, int]] = LOOKS) -> None:
    """As a person would see it, narrow and wide, in light and dark."""
    grounds = set()
    for theme, width in looks:
        window.look(width, dark=theme == "dark")
        window.shot(f"{name}-{theme}-{width}")
        assert window.overflow() <= 0, f"{name} is too wide at {width}"
        assert window.faint() == []
        grounds.add((theme, window.run("return getComputedStyle(document.body).backgroundColor")))
    assert len(grounds) == len({ground for _, ground in grounds}) == 2
    assert window.complaints() == []
    assert window.hosts() == {urlsplit(stage.address).netloc}


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_a_page_is_complete_and_legible_at_every_width_and_loads_nothing_from_elsewhere(
    window: Window, rich: Stage, page: pages.Page
) -> None:
    _open(window, rich, page)
    assert window.text("nav [aria-current=page]") == page.title
    _require_whole(window, rich, page.name)


@pytest.mark.parametrize("condition", list(CONDITIONS))
def test_pages_are_whole_when_there_is_nothing_or_no_answer(window: Window, condition: str) -> None:
    show, names = CONDITIONS[condition]
    with staged(show) as stage:
        for name in names:
            _open(window, stage, pages.BY_NAME[name])
            _require_whole(window, stage, f"{condition}-{name}", TWO_LOOKS)


@pytest.mark.parametrize("path", ["/login", "/nowhere"])
def test_login_and_error_pages_are_complete(window: Window, path: str) -> None:
    with staged(rich_status, is_open=False) as stage:
        window.open(stage.address + path)
        # The browser reports a missing page in its console, as it should.
        window.complaints()
        _require_whole(window, stage, {"/login": "login", "/nowhere": "problem"}[path])


# By keyboard.


def test_tab_reaches_content_navigation_and_every_button_with_visible_focus(window: Window, rich: Stage) -> None:
    _open(window, rich, pages.BY_NAME["queue"])
    assert window.tab_to(".skip") == 1
    assert window.is_focus_seen()
    for page in pages.PAGES:
        window.tab_to(f"nav a[href='{page.path}']", tabs_max=10)
        assert window.is_focus_seen()
    for selector in ("#flushes-before summary", "#retry-all", "#retry-letter-0", "#retry-letter-5"):
        window.tab_to(selector)
        assert window.is_focus_seen()


def test_the_first_link_leads_past_the_navigation(window: Window, rich: Stage) -> None:
    _open(window, rich, pages.BY_NAME["queue"])
    window.press(Keys.TAB, Keys.ENTER)
    window.until(lambda: window.run("return document.activeElement.id") == "main", "it leads nowhere")
    assert window.tab_to("#grid-tables") == 1


def test_the_sql_of_a_script_is_folded_out_by_keyboard(window: Window, rich: Stage) -> None:
    _open(window, rich, pages.BY_NAME["schema"])
    assert not window.find("#script-1-1 pre").is_displayed()
    window.tab_to("#script-1-1 summary")
    window.press(Keys.ENTER)
    assert "ALTER TABLE payments ADD COLUMN settled_at" in window.text("#script-1-1 pre")
    window.shot("schema-sql-folded-out")
    assert window.overflow() <= 0
    window.look(NARROW)
    assert window.overflow() <= 0
