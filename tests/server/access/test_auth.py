"""Logging in: who is admitted, the cost of guessing, and addresses that a server refuses to use."""

import base64
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from catchment.errors import CatchmentError, CorruptInputError, NotLoggedInError, SettingsError
from catchment.foundation.settings import Settings
from catchment.server.access import auth
from catchment.server.access.auth import Authenticator, Failures, is_loopback, parse_basic, require_safe
from catchment.server.access.users import Users, is_password
from catchment.server.values import Principal, Role
from catchment.testing import FakeClock

PASSWORD = "correct horse"
HOST = "10.0.0.7"
CERTIFICATES = Path(__file__).parents[2] / "certificates"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def users(tmp_path: Path) -> Users:
    return Users(tmp_path / "users.json")


@pytest.fixture
def ada(users: Users) -> Users:
    users.add("ada", Role.WRITER, PASSWORD)
    return users


@pytest.fixture
def door(ada: Users, clock: FakeClock) -> Authenticator:
    return Authenticator(ada, required=None, clock=clock)


def _refused(login: Callable[[], object]) -> str:
    with pytest.raises(NotLoggedInError) as refused:
        login()
    return refused.value.message


def _fail(door: Authenticator, name: str = "ada", times: int = auth.FAILURES_FREE) -> None:
    for _ in range(times):
        assert "wrong" in _refused(lambda: door.login(name, "a wrong one", HOST))


def _basic(text: str | bytes) -> str:
    return "Basic " + base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def test_the_right_password_yields_the_user_and_the_role(door: Authenticator) -> None:
    assert door.login("ada", PASSWORD, HOST) == Principal("ada", Role.WRITER)


@pytest.mark.parametrize(
    ("name", "password"),
    [("ada", ""), ("ada", "wrong"), ("ADA", PASSWORD), ("eve", PASSWORD), ("", PASSWORD), ("ada", "x" * 1_000_000)],
)
def test_a_wrong_name_and_a_wrong_password_get_the_same_answer(door: Authenticator, name: str, password: str) -> None:
    assert _refused(lambda: door.login(name, password, HOST)) == "The user or the password is wrong."


def test_an_unknown_user_costs_a_verification_like_a_known_one(
    door: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []

    def watched(password_hash: str, password: str) -> bool:
        verified.append(password_hash.rpartition("$")[0].rpartition("$")[0])
        return is_password(password_hash, password)

    monkeypatch.setattr("catchment.server.access.auth.is_password", watched)
    for name in ("ada", "eve"):
        _refused(partial(door.login, name, "a wrong one", HOST))
    assert len(verified) == 2
    assert verified[0] == verified[1]


def test_after_a_few_failures_a_user_waits_and_is_not_verified(
    door: Authenticator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(door)
    monkeypatch.setattr("catchment.server.access.auth.is_password", lambda *_: pytest.fail("verified"))
    assert _refused(lambda: door.login("ada", PASSWORD, HOST)) == "Too many failed log-ins; try again in 1 s."
    assert clock.slept_s == []


def test_when_the_wait_is_over_the_right_password_is_taken_and_all_is_forgotten(
    door: Authenticator, clock: FakeClock
) -> None:
    _fail(door)
    clock.advance(1.1)
    assert door.login("ada", PASSWORD, HOST).name == "ada"
    _fail(door)


def test_the_wait_doubles_up_to_a_minute() -> None:
    failures, waits = Failures(0, 0.0), []
    for _ in range(auth.FAILURES_FREE + 2_000):
        failures = failures.after_failure(0.0)
        waits.append(failures.until_s)
    assert waits[: auth.FAILURES_FREE + 7] == [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert max(waits) == 60


def test_another_user_and_another_host_do_not_wait(door: Authenticator, ada: Users) -> None:
    ada.add("bob", Role.READER, PASSWORD)
    _fail(door)
    assert door.login("bob", PASSWORD, HOST).role is Role.READER
    assert door.login("ada", PASSWORD, "10.0.0.8").role is Role.WRITER


@pytest.mark.parametrize(
    ("hosts", "other"),
    [
        (("127.0.0.1", "127.0.0.2", "::1", "127.255.255.254", "::ffff:127.0.0.9"), "10.0.0.1"),
        (("2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::", "2001:db8::1%eth0", "2001:db8::3"), "2001:db8:0:1::1"),
        (("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", "::ffff:a00:1", "10.0.0.1"), "::ffff:10.0.0.2"),
    ],
)
def test_a_guesser_gains_nothing_by_using_another_of_its_addresses(
    door: Authenticator, hosts: tuple[str, ...], other: str
) -> None:
    for host in hosts:
        assert "wrong" in _refused(partial(door.login, "ada", "a wrong one", host))
    for host in hosts:
        assert "Too many" in _refused(partial(door.login, "ada", PASSWORD, host))
    assert door.login("ada", PASSWORD, other).name == "ada"


def test_failures_of_names_that_do_not_exist_are_counted_too_and_bounded(
    door: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(door, "eve")
    assert "try again" in _refused(lambda: door.login("eve", PASSWORD, HOST))
    monkeypatch.setattr(auth, "FAILURES_KEPT_MAX", 3)
    for number in range(5):
        _fail(door, f"eve{number}", times=1)
    assert len(door._failures) <= 4


def test_guesses_that_come_together_are_not_all_verified(door: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []

    def watched(password_hash: str, password: str) -> bool:
        verified.append(password)
        return is_password(password_hash, password)

    monkeypatch.setattr("catchment.server.access.auth.is_password", watched)
    guesses = [threading.Thread(target=lambda: _refused(lambda: door.login("ada", "guess", HOST))) for _ in range(40)]
    for guess in guesses:
        guess.start()
    for guess in guesses:
        guess.join()
    assert auth.FAILURES_FREE <= len(verified) < auth.FAILURES_FREE + auth._HASHES_MAX


def test_added_removed_and_changed_users_take_effect_without_a_restart(door: Authenticator, ada: Users) -> None:
    Users(ada.path).set_role("ada", Role.ADMIN)
    assert door.login("ada", PASSWORD, HOST).role is Role.ADMIN
    Users(ada.path).remove("ada")
    assert "wrong" in _refused(lambda: door.login("ada", PASSWORD, HOST))


def test_without_users_no_client_has_to_log_in_and_all_have_every_right(users: Users) -> None:
    assert Authenticator(users, required=None).anonymous() == Principal("anonymous", Role.ADMIN)
    assert Authenticator(users, required=False).anonymous().role is Role.ADMIN


def test_with_users_every_client_has_to_log_in_unless_the_setting_says_otherwise(ada: Users) -> None:
    for required in (None, True):
        assert "Log in" in _refused(Authenticator(ada, required=required).anonymous)
    assert Authenticator(ada, required=False).anonymous().name == "anonymous"


def test_the_first_user_makes_logins_required_and_removing_the_last_does_not_revert_that(users: Users) -> None:
    door = Authenticator(users, required=None)
    door.anonymous()
    Users(users.path).add("ada", Role.READER, PASSWORD)
    _refused(door.anonymous)
    Users(users.path).remove("ada")
    _refused(door.anonymous)
    users.path.unlink()
    _refused(door.anonymous)


def test_while_the_users_file_is_damaged_logins_fail_without_naming_its_path(door: Authenticator, ada: Users) -> None:
    ada.path.write_text("{")
    for refused in (_refused(door.anonymous), _refused(lambda: door.login("ada", PASSWORD, HOST))):
        assert refused == "Log-in is not possible at present."


def test_a_command_of_this_machine_logs_in_with_the_token_of_the_process(door: Authenticator, ada: Users) -> None:
    assert door.login("local", door.local_token, "127.0.0.1") == Principal("local", Role.ADMIN)
    for wrong in ("", "x", Authenticator(ada, required=True).local_token, "\udcff"):
        _refused(partial(door.login, "local", wrong, "127.0.0.1"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ada:secret", ("ada", "secret")), ("ada:a:b", ("ada", "a:b")), ("a:", ("a", "")), ("é:ü", ("é", "ü"))],
)
def test_a_basic_header_is_read_with_and_without_padding(text: str, expected: tuple[str, str]) -> None:
    header = _basic(text)
    assert parse_basic(header) == expected
    assert parse_basic(header.rstrip("=")) == expected
    assert parse_basic(header.replace("Basic", "basic")) == expected


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic ",
        "Bearer abc",
        "Basic *",
        "Basic YQ",
        "Basic \udcff",
        _basic(b"\xff:\xff"),
        _basic("no colon"),
        _basic("a:" + "x" * 10_000),
        "x" * 1_000_000,
    ],
)
def test_a_malformed_authorization_header_is_refused(header: str) -> None:
    _refused(lambda: parse_basic(header))


def test_a_basic_header_logs_in(door: Authenticator) -> None:
    assert door.login_basic(_basic(f"ada:{PASSWORD}"), HOST) == Principal("ada", Role.WRITER)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_addresses_that_only_this_machine_reaches_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.7", "192.168.1.1", "8.8.8.8", "fe80::1"])
def test_addresses_that_other_machines_reach_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_host_name_that_does_not_resolve_is_refused() -> None:
    with pytest.raises(SettingsError, match="not an address"):
        is_loopback("no-such-host.invalid")


def _settings(home: Path, *, host: str = "0.0.0.0", tls: bool = True, **values: object) -> Settings:
    files = {
        "server_tls_certificate": CERTIFICATES / "loopback.crt",
        "server_tls_key": CERTIFICATES / "loopback.key",
    }
    return Settings(**{"home": home, "server_host": host, **(files if tls else {}), **values})  # type: ignore[arg-type]


def test_on_loopback_neither_login_nor_tls_is_needed(tmp_path: Path, users: Users) -> None:
    require_safe(_settings(tmp_path, host="127.0.0.1", tls=False), users)
    require_safe(_settings(tmp_path, host="127.0.0.1", tls=False, server_auth=False), users)


def test_on_other_addresses_login_and_tls_together_suffice_and_login_is_the_default(tmp_path: Path, ada: Users) -> None:
    settings = _settings(tmp_path)
    require_safe(settings, ada)
    door = Authenticator.from_settings(settings, ada)
    ada.remove("ada")
    assert door.login_required


@pytest.mark.parametrize(
    ("host", "values", "message"),
    [
        ("0.0.0.0", {"tls": False}, "TLS is not configured"),
        ("::", {"tls": False}, "TLS is not configured"),
        ("10.0.0.7", {"tls": False}, "TLS is not configured"),
        ("0.0.0.0", {"server_auth": False}, "log-in is switched off"),
    ],
)
def test_on_other_addresses_login_or_tls_alone_is_not_enough(
    tmp_path: Path, ada: Users, host: str, values: dict[str, bool], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        require_safe(_settings(tmp_path, host=host, **values), ada)
    assert refused.value.hint


def test_on_other_addresses_there_must_be_users(tmp_path: Path, users: Users) -> None:
    with pytest.raises(SettingsError, match="no users"):
        require_safe(_settings(tmp_path), users)


def test_a_damaged_file_of_users_is_found_before_the_server_listens(tmp_path: Path, users: Users) -> None:
    users.path.write_text("{")
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(CorruptInputError):
            require_safe(_settings(tmp_path, host=host), users)


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("loopback.crt", None, "the key is not set"),
        (None, "loopback.key", "the certificate is not set"),
        ("missing.crt", "loopback.key", "cannot be read"),
        ("loopback.crt", "other.key", "cannot be used"),
        ("loopback.crt", "encrypted.key", "cannot be used"),
        ("loopback.key", "loopback.crt", "cannot be used"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_also_on_loopback(
    tmp_path: Path, users: Users, certificate: str | None, key: str | None, message: str
) -> None:
    settings = Settings(
        home=tmp_path,
        server_tls_certificate=None if certificate is None else CERTIFICATES / certificate,
        server_tls_key=None if key is None else CERTIFICATES / key,
    )
    with pytest.raises(CatchmentError, match=message) as refused:
        require_safe(settings, users)
    assert (type(refused.value), refused.value.exit_code) == (SettingsError, 2)
