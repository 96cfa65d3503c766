"""Pages that stay open: live updates keep the reader's state, and an outage is shown and ends."""

from dataclasses import replace
from datetime import datetime
from urllib.request import urlopen

import pytest
from selenium.webdriver.common.keys import Keys

from catchment.foundation.clock import SystemClock
from catchment.status.model import Status
from tests.browser.stage import Stage, Window, staged
from tests.status.rich_status import rich_status
from tests.web.text_browser import PASSWORD


def _buffering(rows: int, now: datetime) -> Status:
    status = rich_status(now)
    queue = status.queue.value
    assert queue is not None
    tables = tuple(replace(each, rows=rows, last_flushes=each.last_flushes[rows % 2 :]) for each in queue.tables)
    return replace(status, queue=replace(status.queue, value=replace(queue, rows=rows, tables=tables)))


def _refused(letters: int, status: Status) -> Status:
    lake = status.lake.value
    assert lake is not None
    return replace(status, lake=replace(status.lake, value=replace(lake, dead_letters=letters)))


def _show(window: Window, stage: Stage, rows: int) -> None:
    """Have other numbers come in, and wait until they are to be read."""
    stage.show = lambda now: _buffering(rows, now)
    window.until(lambda: f"{rows}" in window.text("#buffer") and f"{rows}" in window.text("#tables"), "no news came")


def _open(window: Window, stage: Stage, path: str = "/queue") -> None:
    window.open(stage.address + path)
    window.until(lambda: window.text("#live-state") == "Live", "no news came")
    window.run("window.wasHere = true")


def test_focus_and_expanded_sections_survive_a_live_update(window: Window) -> None:
    with staged(rich_status) as stage:
        _open(window, stage)
        window.tab_to("#flushes-before summary")
        window.press(Keys.ENTER)
        for rows in (731, 842):
            _show(window, stage, rows)
            assert window.run("return document.getElementById('flushes-before').open")
            assert window.run("return document.activeElement.matches('#flushes-before summary')")
        window.tab_to("#retry-letter-3")
        window.run("document.getElementById('retry-letter-3').dataset.isOld = 'yes'")
        # Its row says how long ago it was, which is another after a while.
        window.until(
            lambda: window.run("return document.getElementById('retry-letter-3').dataset.isOld === undefined"),
            "the part was not renewed",
        )
        assert window.run("return document.activeElement.id") == "retry-letter-3"
        assert window.is_focus_seen()
        assert window.run("return window.wasHere")


def test_text_that_is_being_selected_stays(window: Window) -> None:
    # At one moment: what has not changed is not sent again.
    moment = SystemClock().now()
    with staged(lambda _: _buffering(731, moment)) as stage:
        _open(window, stage)
        window.run("getSelection().selectAllChildren(document.querySelector('#tables tbody th'))")
        stage.show = lambda _: _buffering(842, moment)
        window.until(lambda: "842" in window.text("#buffer"), "no news came")
        assert window.run("return String(getSelection())") == "main.payments"
        assert "842" not in window.text("#tables")
        window.run("getSelection().removeAllRanges()")
        window.until(lambda: "842" in window.text("#tables"), "what waited did not come")


def test_a_click_is_not_lost_if_the_page_updates_while_the_button_is_pressed(window: Window) -> None:
    with staged(rich_status) as stage:
        _open(window, stage)
        window.run("document.getElementById('retry-all').scrollIntoView()")
        window.hold("#retry-all")
        window.run("document.getElementById('retry-all').dataset.isOld = 'yes'")
        stage.show = lambda now: _refused(99, _buffering(842, now))
        window.until(lambda: "842" in window.text("#tables"), "no news came")
        assert window.run("return document.getElementById('retry-all').dataset.isOld") == "yes"
        window.let_go()
        window.until(lambda: "Delivered: 0." in window.text(".notice"), "the click was lost")
        assert "Retry all 99" in window.text("#letters")


def test_a_page_can_be_held_and_goes_on(window: Window) -> None:
    with staged(lambda now: _buffering(731, now)) as stage:
        _open(window, stage)
        window.click("#live")
        assert window.text("#live-state") == "Paused"
        assert window.text("#live") == "Resume"
        stage.show = lambda now: _buffering(842, now)
        window.click("#live")
        window.until(lambda: "842" in window.text("#buffer"), "it did not go on")
        assert window.text("#live-state") == "Live"


def test_a_page_says_that_the_server_is_unreachable_and_resumes_once_it_is_back(window: Window) -> None:
    with staged(lambda now: _buffering(731, now)) as stage:
        _open(window, stage)
    window.until(lambda: "No connection to the server." in window.text("#connection"), "it did not say so")
    assert window.text("#live-state") == "Not live"
    assert "731" in window.text("#buffer")
    assert window.overflow() <= 0
    assert window.faint() == []
    window.shot("away-queue-light-1600")
    with staged(lambda now: _buffering(842, now), port=stage.port):
        window.until(lambda: "842" in window.text("#buffer"), "it did not go on")
        assert window.text("#live-state") == "Live"
        assert window.text("#connection") == ""
        assert window.run("return window.wasHere")


def test_a_page_whose_login_is_over_says_so_and_leads_back_to_itself(window: Window) -> None:
    with staged(rich_status, is_open=False) as stage:
        _log_in(window, stage, "ann", after="/lake")
        window.until(lambda: window.text("#live-state") == "Live", "no news came")
        kept = stage.house.users.pop("ann")
        window.until(lambda: "You are logged out." in window.text("#connection"), "it did not say so")
        assert window.text("#live-state") == "Logged out"
        stage.house.users["ann"] = replace(kept, role="reader")
        window.click("#connection a")
        _fill_in(window, "ann")
        window.until(lambda: window.text("h1") == "Lake", "it leads elsewhere")


def test_a_page_over_the_limit_says_so_and_resumes_once_there_is_a_place(window: Window) -> None:
    with staged(lambda now: _buffering(731, now), listeners_max=1) as stage:
        with urlopen(f"{stage.address}/events?page=queue", timeout=30):
            window.open(stage.address + "/queue")
            window.until(lambda: "Too many pages are open." in window.text("#connection"), "it did not say so")
            assert window.text("#live-state") == "Not live"
            assert "No connection" not in window.text("#connection")
        window.until(lambda: window.text("#live-state") == "Live", "it did not go on")
        assert window.text("#connection") == ""


# Long waits are noted, and are over at once.
_HURRY = """
window.waits = [];
const after = window.setTimeout;
window.setTimeout = (act, ms) => {
  if (ms < 5000) return after(act, ms);
  window.waits.push(ms);
  return after(act, 10);
};
"""


def test_a_page_that_is_refused_tries_again_more_and_more_seldom(window: Window) -> None:
    hurry = window.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _HURRY})
    try:
        with staged(rich_status, listeners_max=0) as stage:
            window.open(stage.address + "/queue")
            waits = window.until(lambda: window.run("return waits.length > 5 && waits"), "it does not try again")
            asked = window.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    finally:
        window.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", hurry)
    assert waits[:6] == [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]
    assert not [each for each in asked if "status.json" in each]


def test_a_page_that_is_paused_while_it_asks_why_it_was_refused_stays_paused(window: Window) -> None:
    with staged(rich_status, is_open=False) as stage:
        _log_in(window, stage, "ann", after="/lake")
        window.until(lambda: window.text("#live-state") == "Live", "no news came")
        window.run("window.fetch = () => new Promise((resolve) => { window.reply = resolve; })")
        stage.house.users.pop("ann")
        window.until(lambda: window.run("return Boolean(window.reply)"), "it does not ask")
        window.click("#live")
        window.run("reply(new Response(null, { status: 401 }))")
        assert window.text("#live-state") == "Paused"
        assert window.text("#connection") == ""


@pytest.mark.parametrize("who", ["ann", "rob"])
def test_buttons_and_sql_are_for_admins_only(window: Window, who: str) -> None:
    with staged(rich_status, is_open=False) as stage:
        _log_in(window, stage, who)
        seen = {}
        for path in ("/queue", "/schema", "/sessions"):
            _open(window, stage, path)
            seen[path] = str(window.run("return document.documentElement.outerHTML"))
            window.shot(f"{who}-{path[1:]}")
        is_admin = who == "ann"
        assert ("/queue/retry" in seen["/queue"]) == is_admin
        assert ("ALTER TABLE payments" in seen["/schema"]) == is_admin
        assert ("SELECT date_trunc" in seen["/sessions"]) == is_admin
        assert ("/srv/catchment" in "".join(seen.values())) == is_admin
        assert "payments.settled_at" in seen["/schema"]


def _log_in(window: Window, stage: Stage, name: str, *, after: str = "/") -> None:
    window.open(f"{stage.address}{after}")
    _fill_in(window, name)


def _fill_in(window: Window, name: str) -> None:
    window.log_in(name, PASSWORD)
    window.until(lambda: window.count("#live") == 1, "the login did not work")
