"""A real server and lake in a real browser: log in, see a write arrive, deliver a dead letter."""

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from catchment.foundation.settings import Settings
from catchment.server.access.users import Users
from catchment.server.values import Role
from tests.browser.stage import Window
from tests.web.watched_server import PASSWORD, Watched, watched

QUEUE = "/queue"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A server with users, 20 flushed rows, and one dead letter."""
    home = tmp_path_factory.mktemp("server")
    users = Users.from_settings(Settings(home=home))
    users.add("ann", Role.ADMIN, PASSWORD)
    users.add("rob", Role.READER, PASSWORD)
    with watched(home) as found:
        found.execute(
            "CREATE TABLE events (id INTEGER, kind VARCHAR)",
            "INSERT INTO duckling_queue.events SELECT range, 'kind' FROM range(20)",
            "CALL duckling_queue_flush()",
            "INSERT INTO duckling_queue.events VALUES (20, NULL)",
            "ALTER TABLE events ALTER COLUMN kind SET NOT NULL",
            "CALL duckling_queue_flush()",
            user="ann",
        )
        yield found


def _log_in(window: Window, server: Watched, name: str, password: str = PASSWORD) -> None:
    window.open(f"{server.web}{QUEUE}")
    window.log_in(name, password)


def _is_live(window: Window) -> bool:
    return window.text("#live-state") == "Live"


def test_a_wrong_password_shows_an_error_and_the_right_one_opens_the_page(window: Window, server: Watched) -> None:
    _log_in(window, server, "ann", "wrong horse")
    window.until(lambda: "The user or the password is wrong." in window.text("[role=alert]"), "it got no answer")
    window.shot("login-refused-light-1600")
    window.type_into("password", PASSWORD)
    window.until(lambda: _is_live(window), "the login did not work")
    assert window.text("h1") == "Queue"
    assert "ann admin" in window.text(".user")


def test_a_write_shows_up_on_a_page_that_is_open(window: Window, server: Watched) -> None:
    _log_in(window, server, "rob")
    window.until(lambda: _is_live(window), "the login did not work")
    window.run("window.wasHere = true")
    assert "main.fresh" not in window.text("#tables")
    server.execute(
        "CREATE TABLE fresh (id INTEGER)", "INSERT INTO duckling_queue.fresh SELECT * FROM range(1234)", user="ann"
    )
    window.until(lambda: "main.fresh" in window.text("#tables"), "it did not show up")
    assert "1\u202f234" in window.text("#tables")
    assert window.run("return window.wasHere")
    assert window.complaints() == []


def test_a_dead_letter_is_delivered_by_a_button_which_a_reader_does_not_have(window: Window, server: Watched) -> None:
    _log_in(window, server, "rob")
    window.until(lambda: "Refused by their tables: 1 row" in window.text("#letters"), "it was not buried")
    assert window.count("[action='/queue/retry']") == 0
    window.clear()
    _log_in(window, server, "ann")
    window.until(lambda: "column 'kind' is NULL" in window.text("#letters"), "there is no reason")
    window.tab_to("#letters td button")
    window.press(Keys.ENTER)
    window.until(lambda: "Refused again: 1." in window.text(".notice"), "it was not tried")
    server.execute("ALTER TABLE events ALTER COLUMN kind DROP NOT NULL", user="ann")
    window.click("#letters td button")
    window.until(lambda: "Delivered: 1." in window.text(".notice"), "it was not delivered")
    window.until(lambda: "No dead letters" in window.text("#letters"), "it is still shown")
    window.shot("queue-delivered-light-1600")
    assert _rows(server) == 21


def test_a_form_without_its_token_is_refused_and_changes_nothing(window: Window, server: Watched) -> None:
    _log_in(window, server, "ann")
    window.until(lambda: _is_live(window), "the login did not work")
    asked = (
        "return fetch('/queue/retry', {method: 'POST', body: new URLSearchParams(arguments[0])}).then(a => a.status)"
    )
    token = str(window.run("return document.querySelector('[name=token]').value"))
    assert window.run(asked, {"letter": "all"}) == 403
    assert window.run(asked, {"letter": "all", "token": token[::-1]}) == 403
    assert window.run(asked, {"letter": "all", "token": token}) == 200
    window.run("document.querySelectorAll('[name=token]').forEach((each) => each.remove())")
    window.click("[action='/logout'] button")
    window.until(lambda: "The form is not from this page" in window.text("h1"), "it was taken")
    window.shot("refused-light-1600")
    window.open(f"{server.web}{QUEUE}")
    assert "ann admin" in window.text(".user")


def test_the_server_has_every_page(window: Window, server: Watched) -> None:
    _log_in(window, server, "ann")
    window.until(lambda: _is_live(window), "the login did not work")
    for path in [each.get_attribute("href") for each in window.driver.find_elements("css selector", "nav a")]:
        window.open(str(path))
        window.until(lambda: _is_live(window), f"{path} has no news")
        assert window.overflow() <= 0
        assert window.faint() == []
        assert window.count(".state.away") == 0
        window.shot(f"server-{window.text('h1').lower()}-light-1600")
    assert window.complaints() == []


def _rows(server: Watched) -> int:
    status = server.get("/status.json", user="ann").json
    [table] = [each for each in status["lake"]["tables"] if each["table"] == "main.events"]
    return int(table["rows"])
