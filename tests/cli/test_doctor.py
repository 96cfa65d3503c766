"""The doctor on a broken machine: a problem is a failed check with a hint, never a traceback."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from catchment import doctor
from catchment.cli.main import app
from catchment.doctor import Check, examine
from catchment.errors import JavaMissingError
from catchment.foundation import events
from catchment.foundation.ids import TableId
from catchment.foundation.settings import FILE_NAME, Settings
from catchment.pipeline.java import find_java
from catchment.server.access.users import Users
from catchment.server.values import Role
from tests.sample_events import create_table
from tests.shortcuts.made_lakes import new_lake


def _before_spark(checks: Iterable[Check]) -> dict[str, Check]:
    """The checks up to the one of the control database, after which Spark would start."""
    found: dict[str, Check] = {}
    for check in checks:
        found[check.name] = check
        if check.name == "control":
            break
    return found


def _closed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make a folder read-only, even if the tests run as root."""
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and real(path, mode))


@pytest.mark.parametrize("home", ["", "home", "below/home"], ids=["the folder", "in it", "far below it"])
def test_a_home_that_cannot_be_created_fails_the_checks_of_lake_and_control_database(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _closed(monkeypatch, tmp_path)
    checks = _before_spark(examine(Settings(home=tmp_path / home)))
    for name in ("lake", "control"):
        assert not checks[name].ok
        assert checks[name].detail == f"{tmp_path} is not a folder that this user may write to."
        assert "--home" in (checks[name].hint or "")


def test_a_home_that_cannot_be_written_fails_the_doctor_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Settings) -> Any:
        raise PermissionError(13, "Permission denied", str(tmp_path / "spark.log"))

    monkeypatch.setattr(doctor, "SparkRunner", refuse)
    monkeypatch.setattr(events, "configure_logging", lambda **_: None)
    ended = CliRunner().invoke(app, ["doctor", "--json", "--home", str(tmp_path)])
    assert ended.exit_code == 2
    (failed,) = [check for check in json.loads(ended.stdout)["checks"] if not check["ok"]]
    assert (failed["name"], failed["detail"]) == ("spark", f"{tmp_path / 'spark.log'}: Permission denied.")
    assert "may this user write there?" in failed["hint"]


def test_the_doctor_never_sends_you_to_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"this is no database at all, and long enough to be looked at" * 100)
    (tmp_path / "control.sqlite").write_bytes(b"this is no database at all, and long enough to be looked at" * 100)
    checks = _before_spark(examine(Settings(home=tmp_path)))
    for name in ("lake", "control"):
        assert not checks[name].ok
        assert checks[name].hint
        assert "catchment doctor" not in str(checks[name].hint)


@pytest.mark.parametrize(
    ("line", "is_secret"),
    [
        ("shard_secret = 'sixteen characters'", True),
        ("lake_catalog = 'postgres:host=db password=x dbname=lake'", True),
        ("control_db = 'postgres://ada:x@db/control'", True),
        ("lake_catalog = 'postgres:host=db dbname=lake'", False),
        ("control_db = 'sqlite:/tmp/control.sqlite'", False),
        ("spark_conf = {'spark.hadoop.fs.s3a.secret.key' = 'x'}", True),
        ("spark_conf = {'spark.executor.cores' = '2'}", False),
    ],
)
def test_a_settings_file_with_a_secret_must_be_closed_to_other_users(
    line: str, is_secret: bool, tmp_path: Path
) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(line, encoding="utf-8")
    path.chmod(0o644)
    check = _secrets(tmp_path)
    assert check.ok is not is_secret
    if is_secret:
        assert str(path) in check.detail
        assert check.hint == f"Run `chmod o= {path}`."
        path.chmod(0o640)
        assert _secrets(tmp_path).detail == "1 file with secrets, closed to other users"


def test_users_and_the_private_key_must_be_closed_to_other_users(tmp_path: Path) -> None:
    key = tmp_path / "server.key"
    key.touch(0o600)
    Users(tmp_path / "users.json").add("ada", Role.READER, "a good password")
    settings = Settings(home=tmp_path, server_tls_key=key)
    assert _before_spark(examine(settings))["secrets"].detail == "2 files with secrets, closed to other users"
    for path in (key, settings.users_path):
        path.chmod(0o604)
    assert str(key) in _before_spark(examine(settings))["secrets"].detail
    assert str(settings.users_path) in _before_spark(examine(settings))["secrets"].detail


def _secrets(home: Path) -> Check:
    return next(check for check in examine(Settings(home=home)) if check.name == "secrets")


def test_a_lake_with_one_table_has_one_table(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", lake_catalog=SecretStr(f"sqlite:{tmp_path}/home/catalog.sqlite"))
    with new_lake(settings) as lake:
        create_table(lake, TableId("main", "events"))
    assert _before_spark(examine(settings))["lake"].detail.startswith("1 table at ")


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError) as raised:
        find_java()
    assert raised.value.message.endswith(f"JAVA_HOME is {tmp_path}, which has no Java.")
    assert "unset it" in str(raised.value.hint)
