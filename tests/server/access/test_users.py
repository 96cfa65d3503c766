"""The users file: no user is lost, only its owner reads it, and a damaged file is an error."""

import json
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from catchment.errors import CorruptInputError, InputError, StateError
from catchment.foundation.settings import Settings
from catchment.server.access.users import Users, is_password, unmatchable_hash
from catchment.server.values import Role
from catchment.tenants.model import TenantId
from catchment.testing import FakeClock
from tests.shortcuts import warm

PASSWORD = "correct horse"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
# A process that reports its start, waits for a line, and adds users.
ADDER = """
import sys
from pathlib import Path
from catchment.server.values import Role
from catchment.server.access.users import Users
print("there", flush=True)
sys.stdin.readline()
for number in range(10):
    Users(Path(sys.argv[1])).add(f"{sys.argv[2]}{number}", Role.READER, "correct horse")
"""


@pytest.fixture
def users(tmp_path: Path) -> Users:
    return Users(tmp_path / "home" / "users.json", clock=FakeClock(NOW))


def test_without_a_file_there_are_no_users_and_no_file_is_created(users: Users) -> None:
    assert users.all() == ()
    assert users.find("ada") is None
    assert not users.path.parent.exists()


def test_an_added_user_is_found_by_every_reader_of_the_file(users: Users) -> None:
    users.add("ada", Role.WRITER, PASSWORD)
    found = Users(users.path).find("ada")
    assert found is not None
    assert (found.name, found.role, found.created_at) == ("ada", Role.WRITER, NOW)
    assert is_password(found.password_hash, PASSWORD)
    assert not is_password(found.password_hash, PASSWORD + " ")


def test_the_placeholder_hash_is_like_any_other_and_matches_no_password(users: Users) -> None:
    user = users.add("ada", Role.ADMIN, PASSWORD)
    hashes = (unmatchable_hash(), unmatchable_hash(), user.password_hash)
    assert len({tuple(each.split("$")[:4]) for each in hashes}) == 1
    assert len({tuple(map(len, each.split("$"))) for each in hashes}) == 1
    assert len(set(hashes)) == 3
    assert not any(is_password(each, password) for each in hashes[:2] for password in ("", PASSWORD))


def test_the_file_holds_an_argon2id_hash_and_is_for_its_owner_alone(users: Users) -> None:
    user = users.add("ada", Role.ADMIN, PASSWORD)
    assert stat.S_IMODE(users.path.stat().st_mode) == 0o600
    assert PASSWORD not in users.path.read_text()
    assert user.password_hash.startswith("$argon2id$")
    assert user.password_hash not in repr(user)


def test_a_readable_temporary_file_of_a_killed_process_is_not_written_into(users: Users) -> None:
    users.path.parent.mkdir()
    left = users.path.with_name("users.json.new")
    left.touch(mode=0o666)
    users.add("ada", Role.ADMIN, PASSWORD)
    assert stat.S_IMODE(users.path.stat().st_mode) == 0o600


def test_a_change_by_another_process_is_seen(users: Users) -> None:
    users.add("ada", Role.READER, PASSWORD)
    Users(users.path).set_role("ada", Role.ADMIN)
    found = users.find("ada")
    assert found is not None
    assert found.role is Role.ADMIN
    Users(users.path).remove("ada")
    assert users.all() == ()


def test_a_password_is_changed_and_the_role_stays(users: Users) -> None:
    users.add("ada", Role.WRITER, PASSWORD)
    user = users.set_password("ada", "another horse")
    assert is_password(user.password_hash, "another horse")
    assert not is_password(user.password_hash, PASSWORD)
    assert user.role is Role.WRITER


def test_a_second_user_of_the_name_is_refused_and_the_first_stays(users: Users) -> None:
    first = users.add("ada", Role.READER, PASSWORD)
    with pytest.raises(StateError, match="already"):
        users.add("ada", Role.ADMIN, "another horse")
    assert users.all() == (first,)


def test_a_user_that_is_not_there_cannot_be_changed(users: Users) -> None:
    for change in (users.remove, lambda name: users.set_role(name, Role.ADMIN)):
        with pytest.raises(InputError, match="no user eve"):
            change("eve")
    assert not users.path.exists()


@pytest.mark.parametrize("name", ["", "a:b", "ä", "-a", "a b", "a\n", "a" * 65, "anonymous", "local"])
def test_a_name_that_cannot_be_one_is_refused(users: Users, name: str) -> None:
    with pytest.raises(InputError):
        users.add(name, Role.READER, PASSWORD)


@pytest.mark.parametrize("name", ["a", "a" * 64, "ada.lovelace@example.com", "svc_1-b"])
def test_usual_names_of_people_and_services_are_accepted(users: Users, name: str) -> None:
    assert users.add(name, Role.READER, PASSWORD).name == name


@pytest.mark.parametrize("password", ["", "1234567", "x" * 1025, "é" * 513, "x" * 8 + "\udcff"])
def test_a_password_that_is_too_short_or_too_long_or_no_text_is_refused(users: Users, password: str) -> None:
    users.add("ada", Role.READER, PASSWORD)
    with pytest.raises(InputError, match="password"):
        users.add("eve", Role.READER, password)
    with pytest.raises(InputError, match="password") as refused:
        users.set_password("ada", password)
    assert not password or password not in str(refused.value)
    assert [user.name for user in users.all()] == ["ada"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 3, "users": []}',
        '{"version": 1}',
        '{"version": 1, "users": [{"name": "ada"}]}',
        '{"version": 1, "users": [{"name": 1, "role": "admin", "created_at": "2026-01-01", "password_hash": ""}]}',
        '{"version": 1, "users": [{"name": "a", "role": "king", "created_at": "2026-01-01", "password_hash": ""}]}',
        '{"version": 1, "users": [{"name": "a", "role": "admin", "created_at": "then", "password_hash": ""}]}',
        '{"version": 1, "users": ["ada"]}',
        "\udcff",
    ],
)
def test_a_damaged_file_is_an_error_and_is_not_written_over(users: Users, text: str) -> None:
    users.path.parent.mkdir()
    damaged = text.encode(errors="surrogateescape")
    users.path.write_bytes(damaged)
    with pytest.raises(CorruptInputError, match="not a valid file of users"):
        users.all()
    with pytest.raises(CorruptInputError):
        users.add("ada", Role.READER, PASSWORD)
    assert users.path.read_bytes() == damaged


def test_a_file_that_cannot_be_read_is_an_error(users: Users) -> None:
    users.path.mkdir(parents=True)
    with pytest.raises(CorruptInputError, match="cannot be read"):
        users.all()


def test_a_hash_of_other_parameters_is_replaced_and_no_other(users: Users) -> None:
    users.add("ada", Role.WRITER, PASSWORD)
    content = json.loads(users.path.read_text())
    content["users"][0]["password_hash"] = PasswordHasher(time_cost=1, memory_cost=1024).hash(PASSWORD)
    users.path.write_text(json.dumps(content))
    (weak,) = users.all()
    users.hash_again(weak, PASSWORD)
    (strong,) = users.all()
    assert strong.password_hash != weak.password_hash
    assert is_password(strong.password_hash, PASSWORD)
    users.hash_again(strong, PASSWORD)
    assert users.all() == (strong,)


def test_a_password_that_was_changed_meanwhile_is_not_put_back(users: Users) -> None:
    users.add("ada", Role.WRITER, PASSWORD)
    content = json.loads(users.path.read_text())
    content["users"][0]["password_hash"] = PasswordHasher(time_cost=1, memory_cost=1024).hash(PASSWORD)
    users.path.write_text(json.dumps(content))
    (weak,) = users.all()
    changed = users.set_password("ada", "another horse")
    users.hash_again(weak, PASSWORD)
    assert users.all() == (changed,)


def test_two_processes_that_add_users_at_once_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    adding = [
        warm.Process([sys.executable, "-c", ADDER, str(path), prefix], stdin=warm.PIPE, stdout=warm.PIPE)
        for prefix in ("a", "b")
    ]
    for each in adding:
        assert each.stdout is not None
        assert each.stdout.readline() == "there\n"
    for each in adding:
        each.communicate(60, b"go\n")
        assert each.returncode == 0
    assert len(Users(path).all()) == 20


def test_the_users_file_is_at_the_path_of_the_settings(tmp_path: Path) -> None:
    assert Users.from_settings(Settings(home=tmp_path)).path == tmp_path / "users.json"
    elsewhere = tmp_path / "secrets" / "users"
    assert Users.from_settings(Settings(home=tmp_path, server_users_file=elsewhere)).path == elsewhere


def test_a_user_belongs_to_a_tenant_until_it_is_said_otherwise(users: Users) -> None:
    users.add("ada", Role.WRITER, PASSWORD, tenant=TenantId(7))
    users.add("bob", Role.READER, PASSWORD)
    assert [user.tenant for user in Users(users.path).all()] == [TenantId(7), None]
    users.set_tenant("ada", None)
    users.set_tenant("bob", TenantId(0))
    assert [user.tenant for user in Users(users.path).all()] == [None, TenantId(0)]


def test_a_tenants_user_is_never_an_admin(users: Users) -> None:
    with pytest.raises(InputError, match="cannot be an admin"):
        users.add("ada", Role.ADMIN, PASSWORD, tenant=TenantId(7))
    assert users.all() == ()
    users.add("ada", Role.WRITER, PASSWORD, tenant=TenantId(7))
    users.add("bob", Role.ADMIN, PASSWORD)
    before = users.path.read_text()
    with pytest.raises(InputError, match="cannot be an admin"):
        users.set_role("ada", Role.ADMIN)
    with pytest.raises(InputError, match="cannot be an admin"):
        users.set_tenant("bob", TenantId(7))
    assert users.path.read_text() == before


def test_a_server_that_knows_of_no_tenants_does_not_read_a_file_with_them(users: Users) -> None:
    users.add("ada", Role.WRITER, PASSWORD)
    kept = json.loads(users.path.read_text())
    assert kept["version"] == 1
    assert "tenant" not in kept["users"][0]
    users.set_tenant("ada", TenantId(7))
    kept = json.loads(users.path.read_text())
    assert kept["version"] == 2
    assert kept["users"][0]["tenant"] == "t7"
    users.set_tenant("ada", None)
    assert json.loads(users.path.read_text())["version"] == 1


@pytest.mark.parametrize("facts", [{"tenant": "seven"}, {"tenant": "t7", "role": "admin"}, {"tenant": ""}])
def test_a_file_with_a_tenant_that_cannot_be_is_an_error(users: Users, facts: dict[str, str]) -> None:
    users.add("ada", Role.WRITER, PASSWORD, tenant=TenantId(7))
    kept = json.loads(users.path.read_text())
    kept["users"][0].update(facts)
    users.path.write_text(json.dumps(kept))
    with pytest.raises(CorruptInputError, match="not a valid file of users"):
        Users(users.path).all()
