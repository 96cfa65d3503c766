"""`catchment user` as an operator runs it: passwords are piped in or typed, and never shown."""

import os
import pty
import stat
import subprocess
from pathlib import Path

import pytest

from catchment.server.access.users import Users, is_password
from catchment.server.values import Role
from catchment.tenants.model import TenantId
from tests.acceptance.shell import COMMAND, Ended, Shell
from tests.shortcuts import warm

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("user"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def ada(home: Path) -> Path:
    """A home with a user."""
    Users(home / "users.json").add("ada", Role.WRITER, PASSWORD)
    return home


def _run(*arguments: str, home: Path, typed: str | bytes = "", **environment: str) -> Ended:
    """The command with something on its stdin."""
    ended = warm.run(
        [COMMAND, "user", *arguments, "--home", str(home)],
        env={"PATH": os.environ["PATH"], "COLUMNS": "200", **environment},
        timeout=60,
        typed=typed.encode() if isinstance(typed, str) else typed,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def test_help_lists_every_command(shell: Shell) -> None:
    ended = shell.run("user", "--help")
    assert ended.code == 0
    assert all(f" {command} " in ended.out for command in ("add", "list", "remove", "password", "role", "tenant"))


def test_a_user_is_added_with_a_password_from_stdin_and_listed(home: Path) -> None:
    ended = _run("add", "ada", "--role", "writer", "--password-stdin", "--json", home=home, typed=f"{PASSWORD}\r\n")
    assert ended.code == 0, ended.err
    assert (ended.json["name"], ended.json["role"]) == ("ada", "writer")
    assert "every client must log in" in ended.err
    user = Users(home / "users.json").find("ada")
    assert user is not None
    assert is_password(user.password_hash, PASSWORD)
    assert stat.S_IMODE((home / "users.json").stat().st_mode) == 0o600
    listed = _run("list", "--json", home=home)
    assert [(each["name"], each["role"]) for each in listed.json["users"]] == [("ada", "writer")]
    shown = _run("list", home=home)
    assert "ada" in shown.out
    for each in (ended, listed, shown):
        assert PASSWORD not in each.out + each.err
        assert "argon2" not in each.out + each.err


def test_an_empty_user_list_says_how_to_add_a_user_and_creates_no_file(home: Path) -> None:
    ended = _run("list", home=home)
    assert (ended.code, ended.out) == (0, "There are no users: `catchment user add NAME --role admin`.\n")
    assert _run("list", "--json", home=home).json["users"] == []
    assert not home.exists()


def test_a_password_is_typed_twice_at_a_terminal_and_not_shown(home: Path) -> None:
    master, terminal = pty.openpty()
    command: list[str | Path] = [COMMAND, "user", "add", "ada", "--role", "admin", "--home", home]
    process = subprocess.Popen(
        command,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], "TERM": "dumb"},
    )
    os.close(terminal)
    seen = ""
    for question in ("Password:", "Repeat the password:"):
        while question not in seen.rpartition("\n")[2]:
            seen += os.read(master, 1024).decode()
        os.write(master, f"{PASSWORD}\n".encode())
    out, _ = process.communicate(timeout=60)
    os.close(master)
    assert (process.returncode, out) == (0, "Added ada, admin.\n")
    assert PASSWORD not in seen


def test_without_a_terminal_and_without_the_option_no_password_is_prompted_for(home: Path) -> None:
    ended = _run("add", "ada", "--role", "admin", "--json", home=home, typed=PASSWORD)
    assert (ended.code, ended.json["error"]) == (2, "InputError")
    assert "--password-stdin" in ended.json["hint"]
    assert not home.exists()


@pytest.mark.parametrize("typed", ["", "short\n", "x" * 2_000, b"\xff" * 10])
def test_an_invalid_password_exits_with_two_and_adds_no_user(home: Path, typed: str | bytes) -> None:
    ended = _run("add", "ada", "--role", "admin", "--password-stdin", "--json", home=home, typed=typed)
    assert (ended.code, ended.json["error"]) == (2, "InputError")
    assert not (home / "users.json").exists()


def test_a_role_is_needed_and_must_be_one(home: Path) -> None:
    assert _run("add", "ada", "--password-stdin", home=home, typed=PASSWORD).code == 2
    assert _run("add", "ada", "--role", "king", "--password-stdin", home=home, typed=PASSWORD).code == 2
    assert not home.exists()


def test_a_password_cannot_be_given_on_the_command_line(home: Path) -> None:
    assert _run("add", "ada", "--role", "admin", "--password", PASSWORD, home=home).code == 2


def test_a_password_is_changed(ada: Path) -> None:
    ended = _run("password", "ada", "--password-stdin", "--json", home=ada, typed="another horse\n")
    assert ended.code == 0, ended.err
    user = Users(ada / "users.json").find("ada")
    assert user is not None
    assert is_password(user.password_hash, "another horse")


def test_a_role_is_changed(ada: Path) -> None:
    ended = _run("role", "ada", "reader", home=ada)
    assert (ended.code, ended.out) == (0, "ada is reader now.\n")
    assert Users(ada / "users.json").all()[0].role is Role.READER


def test_a_user_is_removed(ada: Path) -> None:
    assert _run("remove", "ada", "--json", home=ada).json["name"] == "ada"
    assert Users(ada / "users.json").all() == ()


@pytest.mark.parametrize("command", ["remove eve", "role eve admin", "password eve --password-stdin"])
def test_a_user_that_is_not_there_exits_with_two(ada: Path, command: str) -> None:
    ended = _run(*command.split(), "--json", home=ada, typed=PASSWORD)
    assert (ended.code, ended.json["message"]) == (2, "There is no user eve.")


def test_adding_a_user_twice_exits_with_two(ada: Path) -> None:
    ended = _run("add", "ada", "--role", "admin", "--password-stdin", "--json", home=ada, typed=PASSWORD)
    assert (ended.code, ended.json["error"]) == (2, "StateError")


def test_a_damaged_file_is_an_error_and_stays(ada: Path) -> None:
    (ada / "users.json").write_text("{")
    for arguments in (["list"], ["add", "eve", "--role", "admin", "--password-stdin"]):
        ended = _run(*arguments, "--json", home=ada, typed=PASSWORD)
        assert (ended.code, ended.json["error"]) == (2, "CorruptInputError")
    assert (ada / "users.json").read_text() == "{"


def test_the_users_file_is_at_the_path_of_the_setting(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    add = ("add", "ada", "--role", "admin", "--password-stdin")
    assert _run(*add, home=home, typed=PASSWORD, CATCHMENT_SERVER_USERS_FILE=str(elsewhere)).code == 0
    assert elsewhere.exists()
    assert not home.exists()


def test_a_tenants_user_is_added_listed_and_changed(home: Path) -> None:
    added = _run("add", "eve", "--role", "writer", "--tenant", "t7", "--password-stdin", home=home, typed=PASSWORD)
    assert added.code == 0, added.err
    assert "writer of t7" in added.out
    assert "t7" in _run("list", home=home).out
    assert [each["tenant"] for each in _run("list", "--json", home=home).json["users"]] == ["t7"]
    changed = _run("tenant", "eve", "none", "--json", home=home)
    assert changed.json["tenant"] is None
    assert "of t8" in _run("tenant", "eve", "8", home=home).out
    user = Users(home / "users.json").find("eve")
    assert user is not None
    assert user.tenant == TenantId(8)


def test_a_tenants_user_cannot_be_made_an_admin(home: Path) -> None:
    refused = _run("add", "eve", "--role", "admin", "--tenant", "t7", "--password-stdin", home=home, typed=PASSWORD)
    assert refused.code != 0
    assert "cannot be an admin" in refused.err
    _run("add", "eve", "--role", "reader", "--tenant", "t7", "--password-stdin", home=home, typed=PASSWORD)
    assert _run("role", "eve", "admin", home=home).code != 0
    unknown = _run("tenant", "eve", "seven", home=home)
    assert unknown.code != 0
    assert "t7" in unknown.err
