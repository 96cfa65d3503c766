"""The pages: sound for every role and status, self-contained, with protected buttons."""

import asyncio
import json
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette

from catchment.app import App
from catchment.errors import InputError
from catchment.foundation.ids import ProducerId
from catchment.foundation.meters import Distribution, Meters
from catchment.foundation.settings import Settings
from catchment.lake import Commit, DeadLetter
from catchment.lake.commit import RecordDeadLetters
from catchment.lake.dead_letters import packed
from catchment.status import Status
from catchment.status.model import FOR_ADMINS
from catchment.status.window import SAMPLE_S, TREND_S, Window
from catchment.testing import FakeClock
from catchment.web import charts, pages
from catchment.web.dead_letter_pages import LETTERS_SHOWN_MAX, LakeDeadLetterService
from catchment.web.live import Live
from catchment.web.site import HEADERS
from catchment.web.web_server import WebServer
from tests.queue.queues import event_rows
from tests.sample_events import EVENTS, create_table
from tests.status.sample_status import NOW, SECRET
from tests.web.text_browser import (
    PATHS,
    Browser,
    House,
    Markup,
    Page,
    away_status,
    browser_of,
    busy_status,
    empty_status,
    require_sound,
    slow_status,
    web_app,
)

STATUSES: dict[str, Callable[[], Status]] = {
    "busy": busy_status,
    "empty": empty_status,
    "away": away_status,
    "slow": slow_status,
}


class HurriedClock(FakeClock):
    """A clock that advances by a second whenever it is read."""

    def monotonic_s(self) -> float:
        self.advance(1)
        return super().monotonic_s()


# What pages consist of.


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("condition", list(STATUSES))
@pytest.mark.parametrize("who", ["ann", "rob", "anonymous"])
def test_every_page_is_sound_for_every_role_and_every_status(path: str, condition: str, who: str) -> None:
    app = web_app(STATUSES[condition], house=House(is_open=who == "anonymous"))
    page = browser_of(app, who).get(path)
    assert page.code == 200
    assert HEADERS.items() <= dict(page.headers).items()
    require_sound(page)
    found = Markup.of(page.body)
    titles = [each.title for each in pages.BY_PATH[path].parts]
    assert [text for tag, text in found.texts if tag == "h2"] == titles
    [current] = [each for each in found.tagged("a") if each.get("aria-current") == "page"]
    assert current["href"] == path
    # The home is at the foot of every page.
    assert (SECRET in page.body) == (who != "rob")


@pytest.mark.parametrize("path", PATHS)
def test_a_part_that_has_nothing_or_no_answer_says_so(path: str) -> None:
    by = {name: browser_of(web_app(status), "ann").get(path).body for name, status in STATUSES.items()}
    assert 'class="state empty"' in by["empty"]
    assert "secret reason of an outage" in by["away"]
    assert "No answer from" in by["away"]
    assert "Waiting for" in by["slow"]
    assert "No answer from" not in by["slow"]
    assert "Waiting for" not in by["busy"]
    assert "No answer from" not in by["busy"]


def test_readers_see_that_the_lake_is_unreachable_but_not_the_reason() -> None:
    body = browser_of(web_app(away_status), "rob").get("/lake").body
    assert "The reason is for admins only." in body
    assert FOR_ADMINS not in body.replace("The reason is for admins only.", "")


def test_readers_see_neither_sql_nor_buttons() -> None:
    reader, admin = browser_of(web_app(), "rob"), browser_of(web_app(), "ann")
    assert "SELECT" in admin.get("/sessions").body
    assert "SELECT" not in reader.get("/sessions").body
    assert "/queue/retry" in admin.get("/queue").body
    assert "/queue/retry" not in reader.get("/queue").body


def test_texts_from_users_are_escaped() -> None:
    body = browser_of(web_app(), "ann").get("/queue").body
    assert "secret &lt;b&gt;reason&lt;/b&gt;" in body


def test_the_overview_lists_problems_and_draws_the_trend() -> None:
    body = browser_of(web_app(), "rob").get("/").body
    assert "Flushes of main.events fail: 2 in a row." in body
    assert body.count('class="spark"') == 4
    assert '<rect class="fill" width="75.0"' in body


def test_a_line_says_its_span_its_least_and_its_most() -> None:
    found = Markup.of(browser_of(web_app(), "rob").get("/").body)
    said = [" ".join("".join(titles).replace("\u202f", " ").split()) for _, titles in found.pictures]
    assert "Acked rows a second in the last 20 s: from 0 to 7" in said
    assert "99th percentile of ack times in the last 20 s: from 1 ms to 2 ms" in said


def test_a_part_that_is_old_says_how_old() -> None:
    def hanging() -> Status:
        status = busy_status()
        return replace(status, lake=replace(status.lake, at=NOW - timedelta(minutes=3)))

    assert "no newer answer yet" in browser_of(web_app(hanging), "rob").get("/lake").body
    assert "no newer answer yet" not in browser_of(web_app(), "rob").get("/lake").body


def test_all_roles_see_differences_and_only_admins_their_sql() -> None:
    reader, admin = (browser_of(web_app(), who).get("/schema").body for who in ("rob", "ann"))
    for body in (reader, admin):
        assert "the column is missing" in body
        assert "Events have a kind." in body
    assert "secret script" in admin
    assert "secret path of a script" in admin
    assert SECRET not in reader


def test_a_move_that_is_over_shows_how_it_ended() -> None:
    body = browser_of(web_app(), "rob").get("/tenants").body
    assert "b → a" in body
    assert "aborted" in body


def test_the_page_of_a_move_shows_its_state() -> None:
    found = Markup.of(browser_of(web_app(), "rob").get("/tenants").body)
    [step] = [each for each in found.tagged("li") if each.get("aria-current") == "step"]
    assert step["class"] == "now"
    assert [each["class"] for each in found.tagged("li") if each.get("class") == "done"] == ["done"] * 3


@pytest.mark.parametrize("name", list(pages.STATIC))
def test_static_files_need_no_login_and_are_cached(name: str) -> None:
    answer = Browser(web_app()).get(f"/static/{name}")
    assert answer.code == 200
    assert answer.header("content-type") == pages.STATIC[name]
    assert "immutable" in str(answer.header("cache-control"))
    assert "http:" not in answer.body.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in answer.body


def test_nothing_else_is_served_from_the_folder() -> None:
    for path in ("/static/nothing.css", "/static/..%2fpages.py", "/static/../pages.py"):
        assert Browser(web_app()).get(path).code == 404


def test_an_unknown_address_is_answered_with_an_error_page() -> None:
    answer = Browser(web_app()).get("/nowhere")
    assert answer.code == 404
    require_sound(answer)


def test_a_bug_is_answered_with_a_page_that_says_nothing_of_it() -> None:
    def broken() -> Status:
        raise RuntimeError("secret bug")

    browser = Browser(web_app(broken, house=House(is_open=True)))
    chunks: asyncio.Queue[str] = asyncio.Queue()

    async def ask() -> str:
        with pytest.raises(RuntimeError):
            await browser.call("GET", "/", chunks=chunks)
        return await chunks.get()

    body = asyncio.run(ask())
    assert "The page could not be rendered." in body
    assert SECRET not in body


# Live updates.


def _listening(app: Starlette, browser: Browser, *, page: str = "queue", events: int = 2) -> list[str]:
    """Return the first live updates, then end the stream."""

    async def listen() -> list[str]:
        chunks: asyncio.Queue[str] = asyncio.Queue()
        call = asyncio.create_task(browser.call("GET", f"/events?page={page}", chunks=chunks))
        found = [await asyncio.wait_for(chunks.get(), 10) for _ in range(events)]
        app.state.live.end()
        answer = await asyncio.wait_for(call, 10)
        assert answer.code == 200
        assert str(answer.header("content-type")).startswith("text/event-stream")
        return found

    return asyncio.run(listen())


def _parts(chunk: str) -> dict[str, str]:
    event, data, *_ = chunk.split("\n")
    assert event == "event: parts"
    found: dict[str, str] = json.loads(data.removeprefix("data: "))
    return found


@pytest.mark.parametrize("page", [page.name for page in pages.PAGES])
def test_the_first_update_contains_the_parts_as_the_page_has_them(page: str) -> None:
    app = web_app()
    browser = browser_of(app, "ann")
    retry, first = _listening(app, browser, page=page)
    assert retry.startswith("retry: ")
    found = _parts(first)
    assert set(found) == {"pulse", *(part.id for part in pages.BY_NAME[page].parts)}
    body = browser.get(pages.BY_NAME[page].path).body
    for text in found.values():
        assert text in body


def test_later_updates_contain_only_changed_parts() -> None:
    statuses, clock = iter([busy_status(), replace(busy_status(), health=empty_status().health)]), HurriedClock()
    live = Live(clock=clock, interval_s=0.01)
    app = web_app(lambda: next(statuses, empty_status()), house=House(is_open=True), clock=clock, live=live)
    _, first, second = _listening(app, Browser(app), page="sessions", events=3)
    assert {"pulse", "load"} < set(_parts(first))
    assert set(_parts(second)) == {"pulse"}


def test_live_updates_are_redacted_for_the_role_too() -> None:
    app = web_app()
    assert SECRET not in "".join(_listening(app, browser_of(app, "rob"), page="sessions"))


def test_live_updates_require_the_right_to_see_the_page() -> None:
    stranger = Browser(web_app())
    stranger.headers["accept"] = "text/event-stream"
    assert stranger.get("/events?page=queue").code == 401
    assert browser_of(web_app(), "ann").get("/events?page=nowhere").code == 400


def test_live_updates_end_when_the_user_is_removed() -> None:
    house = House()
    app = web_app(house=house, live=Live(clock=FakeClock(), interval_s=0.01))
    browser = browser_of(app, "ann")

    async def listen() -> Page:
        chunks: asyncio.Queue[str] = asyncio.Queue()
        call = asyncio.create_task(browser.call("GET", "/events?page=lake", chunks=chunks))
        await chunks.get()
        await chunks.get()
        del house.users["ann"]
        return await asyncio.wait_for(call, 10)

    assert asyncio.run(listen()).code == 200


def test_listeners_are_bounded_and_their_places_are_free_again() -> None:
    live = Live(clock=FakeClock(), listeners_max=2)
    app = web_app(house=House(is_open=True), live=live)

    async def crowd() -> Page:
        calls = []
        for _ in range(2):
            chunks: asyncio.Queue[str] = asyncio.Queue()
            calls.append(asyncio.create_task(Browser(app).call("GET", "/events?page=lake", chunks=chunks)))
            await asyncio.wait_for(chunks.get(), 10)
        assert live.listeners == 2
        refused = await asyncio.wait_for(Browser(app).call("GET", "/events?page=lake"), 10)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return refused

    assert asyncio.run(crowd()).code == 503
    assert live.listeners == 0


# Numbers and lines.


def test_a_line_of_a_chart_breaks_where_values_are_missing() -> None:
    found = charts.spark((1.0, 2.0, None, 4.0, 0.0))
    assert found.line.count("M") == 2
    assert found.top == 4.0
    assert charts.spark((None, 1.0, None)).line == "M120.0 2.0 L120.0 2.0"
    for nothing in ((), (1.0,), (None, None)):
        assert not charts.spark(nothing).has_values
    assert charts.spark((0, 0)).has_values


def test_buckets_are_those_between_the_first_and_the_last_that_has_any() -> None:
    found = charts.buckets(Distribution((1.0, 2.0, 3.0), (0, 4, 0, 2), 9.0))
    assert [(each.low, each.high, each.count) for each in found] == [(1.0, 2.0, 4), (2.0, 3.0, 0), (3.0, None, 2)]
    assert [each.part for each in found] == [1.0, 0.0, 0.5]
    assert sum(each.share for each in found) == pytest.approx(1)
    assert charts.buckets(Distribution((1.0,), (0, 0), 0.0)) == ()


def test_columns_are_as_high_as_their_values_and_none_is_unseen() -> None:
    found = charts.columns([4, 0, 2])
    assert [each.height for each in found] == [charts.COLUMNS_HEIGHT, 1.0, charts.COLUMNS_HEIGHT / 2]
    assert [each.y + each.height for each in found] == [charts.COLUMNS_HEIGHT] * 3
    assert [each.height for each in charts.columns([0, 0])] == [1.0, 1.0]
    assert charts.columns([]) == ()


def test_the_segments_of_a_bar_fill_it() -> None:
    found = charts.segments([("a", 1), ("b", 0), ("c", 3)])
    assert [(each.name, each.x, each.width) for each in found] == [("a", 0.0, 25.0), ("c", 25.0, 75.0)]
    assert charts.segments([("a", 0)]) == ()
    few, many = charts.segments([("few", 1), ("many", 100_000)])
    assert few.width > 0.9
    assert few.width + many.width == pytest.approx(100)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (pages.short(987), "987"),
        (pages.short(0.05), "0.05"),
        (pages.short(12_345), "12.3 k"),
        (pages.short(4_500_000), "4.5 M"),
        (pages.counted(1, "file"), "1 file"),
        (pages.counted(1_200, "file"), "1 200 files"),
        (pages.size(512), "512 B"),
        (pages.size(1_536), "1.5 KiB"),
        (pages.size(3 * 1024**5), "3 072.0 TiB"),
        (pages.span(0), "0 s"),
        (pages.span(0.000_25), "250 µs"),
        (pages.span(0.0125), "12.5 ms"),
        (pages.span(59.99), "60 s"),
        (pages.span(200), "3 min 20 s"),
        (pages.span(7_500), "2 h 5 min"),
        (pages.span(4 * 86_400), "4 d"),
        (pages.share(0.75), "75 %"),
        (pages.share(0.001), "< 1 %"),
        (pages.share(0.999), "> 99 %"),
        (pages.share(1), "100 %"),
        (pages.clock(NOW), "2026-01-01 00:00:00"),
        (pages.ago(NOW, NOW), "now"),
        (pages.ago(NOW, NOW + timedelta(seconds=12.4)), "12 s ago"),
        (pages.ago(NOW, NOW + timedelta(seconds=119)), "1 min ago"),
        (pages.ago(NOW, NOW + timedelta(hours=5)), "5 h ago"),
        (pages.ago(NOW, NOW + timedelta(days=1_234)), "1 234 d ago"),
        (pages.ago(NOW, NOW - timedelta(seconds=16)), "in 16 s"),
        (pages.spoken("PreparingTarget"), "Preparing target"),
        (pages.spoken("Idle"), "Idle"),
    ],
)
def test_numbers_are_formatted_for_readers(shown: str, expected: str) -> None:
    assert shown.replace("\u202f", " ") == expected


def test_between_thousands_and_before_units_stands_a_thin_space_that_ends_no_line() -> None:
    assert [pages.count(1_234), pages.size(1_536), pages.span(200), pages.share(0.5), pages.short(12_345)] == [
        "1\u202f234",
        "1.5\u202fKiB",
        "3\u202fmin 20\u202fs",
        "50\u202f%",
        "12.3\u202fk",
    ]


def test_a_name_may_wrap_after_a_separator_and_is_escaped() -> None:
    assert pages.breaks("main.web_events") == "main.<wbr>web_<wbr>events"
    assert pages.breaks("a..b/") == "a..<wbr>b/"
    assert pages.breaks("<b>._") == "&lt;b&gt;._"
    assert pages.breaks("") == ""


def test_the_trend_is_bounded_and_has_the_differences_between_readings() -> None:
    clock, meters = FakeClock(), Meters()
    window = Window(meters, clock)
    assert window.trend().acked_rows_per_s == ()
    for number in range(int(TREND_S / SAMPLE_S) + 10):
        meters.acked(rows=10, size=1, seconds=0.001)
        meters.delivered_rows.add(5)
        clock.advance(SAMPLE_S)
        window.sample(buffered_rows=number)
    found = window.trend()
    assert found.span_s == TREND_S
    assert len(found.acked_rows_per_s) == len(found.ack_p99_s) == len(found.buffered_rows) == TREND_S / SAMPLE_S
    assert set(found.acked_rows_per_s) == {2.0}
    assert set(found.delivered_rows_per_s) == {1.0}
    assert found.buffered_rows[-1] == number


# With a real lake, and on a real port.


def test_a_dead_letter_is_shown_without_its_row_and_is_gone_once_it_is_delivered(tmp_path: Path) -> None:
    with App(Settings(home=tmp_path)) as app, closing(LakeDeadLetterService(app)) as desk:
        assert desk.letters().value == ()
        create_table(app.lake)
        letters = tuple(_letter(number) for number in range(LETTERS_SHOWN_MAX + 1))
        app.lake.commit(Commit(message="bury", changes=(RecordDeadLetters(letters=letters),)))
        # What was known is kept for a while.
        assert desk.letters().value == ()
        assert desk.retry(["letter 0"]).delivered == ("letter 0",)
        shown = desk.letters().value
        assert shown is not None
        assert len(shown) == LETTERS_SHOWN_MAX
        assert (shown[0].id, shown[0].table, shown[0].reason) == ("letter 1", "main.events", "too long")
        with pytest.raises(InputError):
            desk.retry(["letter 0"])


def _letter(number: int) -> DeadLetter:
    return DeadLetter(
        id=f"letter {number}",
        unit_id=f"unit {number}",
        producer=ProducerId.parse("queue:0123456789abcdef:main.events"),
        seq=number,
        table=EVENTS,
        reason="too long",
        row=packed(event_rows([number])),
        buried_at=NOW,
    )


def test_a_server_with_open_pages_ends_at_once() -> None:
    app = web_app(house=House(is_open=True))
    web = WebServer(app, host="127.0.0.1", port=0)
    web.start()
    request = urllib.request.Request(f"{web.address}/events?page=lake")
    with urllib.request.urlopen(request, timeout=10) as news:
        assert [news.readline()[:7], news.readline()] == [b"retry: ", b"\n"]
        assert app.state.live.listeners == 1
        web.stop()
        # Whole events or none, and an end, not a connection that broke.
        rest = news.read()
        assert not rest or rest.endswith(b"\n\n")
    assert app.state.live.listeners == 0
