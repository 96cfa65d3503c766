"""Logging in to the pages: cookies, ends of a login, and forms that only our own pages can send."""

from dataclasses import replace
from pathlib import Path

import pytest

from catchment.errors import NotLoggedInError
from catchment.foundation.settings import Settings
from catchment.server.access.auth import Authenticator
from catchment.server.access.users import Users
from catchment.server.values import Role
from catchment.server.web_auth import WebAuth
from catchment.testing import FakeClock
from catchment.web.login_sessions import IDLE_S_MAX, LOGIN_S_MAX, LoginSessions
from catchment.web.site import FORM_BYTES_MAX
from tests.web.text_browser import (
    COOKIE,
    PASSWORD,
    PATHS,
    Browser,
    House,
    Letters,
    browser_of,
    require_sound,
    token_of,
    web_app,
)


def test_an_anonymous_visitor_is_redirected_to_the_login_and_then_to_the_requested_page() -> None:
    browser = Browser(web_app())
    led = browser.get("/queue")
    assert (led.code, led.header("location")) == (303, "/login?after=%2Fqueue")
    form = browser.get(str(led.header("location")))
    require_sound(form)
    answer = browser.login("ann", after="/queue")
    assert (answer.code, answer.header("location")) == (303, "/queue")
    assert browser.get("/queue").code == 200
    assert browser.get("/login").header("location") == "/"


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites() -> None:
    for line in (
        Browser(web_app()).get("/login").header("set-cookie"),
        Browser(web_app()).login("ann").header("set-cookie"),
        Browser(web_app(house=House(is_open=True))).get("/").header("set-cookie"),
    ):
        name, _, rest = str(line).partition("=")
        key, *flags = [each.strip().lower() for each in rest.split(";")]
        assert name == COOKIE
        assert len(key) >= 43
        assert {"httponly", "samesite=strict", "path=/"} <= set(flags)


def test_a_login_costs_one_hash_and_gives_a_new_key() -> None:
    house = House()
    browser = Browser(web_app(house=house))
    browser.get("/login")
    before = browser.cookies[COOKIE]
    browser.login("ann")
    assert browser.cookies[COOKIE] != before
    for path in PATHS:
        assert browser.get(path).code == 200
    assert browser.get("/status.json").code == 200
    assert house.hashes == 1


def test_a_wrong_password_is_reported_in_the_form_without_saying_what_is_wrong() -> None:
    browser = Browser(web_app())
    for name in ("ann", "nobody", "an:n", ""):
        answer = browser.login(name, "wrong")
        assert answer.code == 401
        assert "The user or the password is wrong." in answer.body
        # A browser would ask in a window of its own.
        assert answer.header("www-authenticate") is None
        require_sound(answer)
    assert browser.get("/queue").code == 303


def test_a_user_of_a_tenant_does_not_get_in() -> None:
    browser = Browser(web_app())
    assert browser.login("eve").code == 403
    assert browser.get("/queue").code == 303
    assert Browser(web_app(), user="eve").get("/queue").code == 403


def test_a_login_never_redirects_to_another_site() -> None:
    for after in ("//evil.example.com", "https://evil.example.com", "/status.json", "javascript:x"):
        assert Browser(web_app()).login("ann", after=after).header("location") == "/"


def test_scrapers_come_in_with_a_header_and_browsers_with_a_wrong_one_do_not() -> None:
    assert Browser(web_app(), user="rob").get("/status.json").code == 200
    assert Browser(web_app(), user="rob").get("/lake").code == 200
    refused = Browser(web_app(), user="nobody").get("/lake")
    assert refused.code == 401
    assert str(refused.header("www-authenticate")).startswith("Basic ")
    program = Browser(web_app())
    program.headers["accept"] = "*/*"
    assert program.get("/status.json").code == 401


def test_a_script_of_a_page_is_refused_without_a_window_of_the_browser() -> None:
    script = Browser(web_app())
    script.headers["accept"] = "text/event-stream"
    refused = script.get("/events?page=queue", sec_fetch_mode="cors")
    assert (refused.code, refused.header("www-authenticate")) == (401, None)
    asked = script.get("/events?page=queue")
    assert str(asked.header("www-authenticate")).startswith("Basic ")


def test_a_login_ends_by_itself() -> None:
    clock = FakeClock()
    browser = browser_of(web_app(clock=clock), "ann")
    clock.advance(IDLE_S_MAX + 1)
    assert browser.get("/").code == 303
    browser = browser_of(web_app(clock=clock), "ann")
    for _ in range(int(LOGIN_S_MAX / IDLE_S_MAX)):
        clock.advance(IDLE_S_MAX - 1)
        assert browser.get("/").code == 200
    clock.advance(IDLE_S_MAX - 1)
    assert browser.get("/").code == 303


def test_a_login_ends_when_the_user_is_another_or_gone() -> None:
    house = House()
    browser = browser_of(web_app(house=house), "ann")
    house.users["ann"] = replace(house.users["ann"], role="reader")
    assert browser.get("/").code == 303
    browser = browser_of(web_app(house=house), "rob")
    del house.users["rob"]
    assert browser.get("/").code == 303


def test_logging_out_invalidates_the_cookie() -> None:
    browser = browser_of(web_app(), "ann")
    kept = dict(browser.cookies)
    answer = browser.post("/logout", form={"token": token_of(browser)})
    assert (answer.code, answer.header("location")) == (303, "/login")
    assert not browser.cookies
    browser.cookies = kept
    assert browser.get("/").code == 303


def test_of_too_many_logins_the_oldest_ends() -> None:
    reception, browsers = LoginSessions(House(), FakeClock(), logins_max=2), [Browser(web_app()) for _ in range(3)]
    for browser in browsers:
        browser.cookies[COOKIE] = reception.login(browser.request("/login"), "rob", PASSWORD)
    with pytest.raises(NotLoggedInError):
        reception.admit(browsers[0].request("/"))
    assert [reception.admit(each.request("/")).identity.name for each in browsers[1:]] == ["rob", "rob"]


def test_a_user_stands_otherwise_once_anything_about_them_is_another(tmp_path: Path) -> None:
    users = Users.from_settings(Settings(home=tmp_path))
    door = WebAuth(Authenticator(users, required=None))
    seen = [door.credential_version("rob")]
    users.add("rob", Role.READER, "correct horse")
    seen.append(door.credential_version("rob"))
    assert door.credential_version("rob") == seen[-1]
    users.set_role("rob", Role.WRITER)
    seen.append(door.credential_version("rob"))
    users.set_password("rob", "another horse")
    seen.append(door.credential_version("rob"))
    assert len(set(seen)) == 4
    assert seen[0] is None


# Buttons.


@pytest.mark.parametrize("who", ["ann", "anonymous"])
def test_an_admin_retries_a_dead_letter_or_all(who: str) -> None:
    desk = Letters()
    browser = browser_of(web_app(house=House(is_open=who == "anonymous"), desk=desk), who)
    for letter in ("l1", "all"):
        answer = browser.post("/queue/retry", form={"token": token_of(browser), "letter": letter})
        assert answer.code == 303
    assert desk.retried == [["l1"], None]
    assert desk.asked_by == [who, who]
    shown = browser.get(str(answer.header("location")))
    assert "Delivered: 1. Refused again: 1." in shown.body
    require_sound(shown)


def test_a_reader_cannot_retry() -> None:
    desk = Letters()
    browser = browser_of(web_app(desk=desk), "rob")
    answer = browser.post("/queue/retry", form={"token": token_of(browser, "/"), "letter": "all"})
    assert answer.code == 403
    assert not desk.retried


@pytest.mark.parametrize("path", ["/queue/retry", "/logout", "/login"])
@pytest.mark.parametrize(
    ("token", "headers"),
    [
        ("", {}),
        ("wrong", {}),
        ("é", {}),
        (None, {"origin": "http://evil.example.com"}),
        (None, {"origin": "https://127.0.0.1:4215"}),
        (None, {"origin": "null"}),
        (None, {"origin": ""}),
        (None, {"sec_fetch_site": "cross-site"}),
        (None, {"sec_fetch_site": "same-site"}),
    ],
)
def test_a_form_that_another_page_sends_is_refused(path: str, token: str | None, headers: dict[str, str]) -> None:
    desk = Letters()
    browser = browser_of(web_app(desk=desk), "ann")
    right = token_of(browser)
    form = {"token": right if token is None else token, "letter": "all", "name": "rob", "password": PASSWORD}
    answer = browser.post(path, form=form, **headers)
    assert answer.code == 403
    assert not desk.retried
    assert browser.get("/").code == 200


def test_a_form_token_belongs_to_one_cookie() -> None:
    desk = Letters()
    app = web_app(house=House(is_open=True), desk=desk)
    one, other = Browser(app), Browser(app)
    taken = token_of(one)
    token_of(other)
    assert other.post("/queue/retry", form={"token": taken, "letter": "all"}).code == 403
    one.cookies.clear()
    assert one.post("/queue/retry", form={"token": taken, "letter": "all"}).code == 403
    assert not desk.retried


def test_a_form_is_accepted_through_a_proxy_if_the_browser_says_it_is_of_the_same_origin() -> None:
    browser = browser_of(web_app(), "ann")
    form = {"token": token_of(browser), "letter": "all"}
    headers = {"origin": "https://proxy.example.com", "sec_fetch_site": "same-origin"}
    assert browser.post("/queue/retry", form=form, **headers).code == 303


def test_actions_of_buttons_cannot_be_requested_by_get() -> None:
    browser = browser_of(web_app(), "ann")
    assert browser.get("/queue/retry").code == 405
    assert browser.get("/logout").code == 405


def test_a_form_is_bounded_and_of_one_kind() -> None:
    browser = browser_of(web_app(), "ann")
    token = token_of(browser)
    assert browser.post("/queue/retry", form={"token": token, "letter": "x" * FORM_BYTES_MAX}).code == 400
    assert browser.post("/queue/retry", form={"token": token}).code == 400
    assert browser.post("/queue/retry", form={"token": token}, content_type="text/plain").code == 400
