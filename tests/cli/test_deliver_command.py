"""`catchment lake deliver` on a real lake, in this process: inputs, new tables and refusals."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from catchment.app import App
from catchment.cli.main import app
from catchment.foundation import events
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.testing import InlineRunner
from tests.sample_events import EVENTS, assert_exactly_once, create_table, event_files, rows_of, write_parquet
from tests.shortcuts.made_lakes import new_lake


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks in this process, and keep the log as it is."""
    monkeypatch.setattr(App, "runner", InlineRunner())
    monkeypatch.setattr(events, "configure_logging", lambda **_: None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A folder with two files of known rows."""
    event_files(tmp_path / "inbox", 2)
    return tmp_path / "inbox"


def _deliver(home: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["lake", "deliver", *map(str, arguments), "--home", str(home)])


def _json(home: Path, *arguments: str | Path) -> tuple[int, Any]:
    ended = _deliver(home, *arguments, "--json")
    return ended.exit_code, json.loads(ended.stdout)


def _lake(home: Path) -> Lake:
    return Lake.from_settings(Settings(home=home))


def _made(home: Path, table: TableId = EVENTS, partition_by: tuple[str, ...] = ()) -> None:
    with new_lake(Settings(home=home)) as lake:
        create_table(lake, table, partition_by=partition_by)


def _tables(home: Path) -> list[str]:
    with _lake(home) as lake:
        return [str(each) for each in lake.tables()]


def _refusing(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Make a folder unreadable, even if the tests run as root."""
    real = os.scandir

    def scandir(folder: Any) -> Any:
        if folder == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)


def test_a_folder_that_cannot_be_read_is_an_error_and_nothing_is_delivered(
    home: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _made(home)
    event_files(inbox / "closed" / "below", 1)
    _refusing(monkeypatch, inbox / "closed" / "below")
    code, error = _json(home, "events", inbox)
    assert (code, error["error"]) == (2, "InputError")
    assert error["message"] == f"{inbox / 'closed' / 'below'} cannot be read: Permission denied."
    assert error["hint"] == "Check that this user may read it."
    with _lake(home) as lake:
        assert rows_of(lake) == []


def test_a_folder_is_searched_to_the_bottom_for_files_and_nothing_else(home: Path, inbox: Path, tmp_path: Path) -> None:
    event_files(inbox / ".hidden" / "deep", 1)
    (inbox / "folder.parquet").mkdir()
    (inbox / "gone.parquet").symlink_to(tmp_path / "nowhere")
    (inbox / "notes.txt").write_text("no rows")
    assert _json(home, "events", inbox, "--create", "--dry-run")[1]["units"] == 3


def test_a_table_is_made_from_the_files_that_can_be_read_and_the_others_are_reported(home: Path, inbox: Path) -> None:
    bad = [inbox / "0.parquet", inbox / "z.parquet"]
    for path in bad:
        path.write_bytes(b"PAR1 this is no Parquet file PAR1")
    code, report = _json(home, "events", inbox, "--create")
    assert (code, report["delivered"]) == (1, 2)
    assert [failure["path"] for failure in report["failures"]] == [str(path) for path in bad]
    with _lake(home) as lake:
        assert_exactly_once(lake, 2)


def test_if_no_file_can_be_read_the_error_names_one_and_quotes_no_statement(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 this is no Parquet file PAR1")
    code, error = _json(home, "events", path, "--create")
    assert (code, error["error"]) == (2, "CorruptInputError")
    assert str(path) in error["message"]
    assert error["hint"] == "Check that they are Parquet files, and completely written."
    assert "read_parquet" not in error["message"]
    assert not home.exists()


@pytest.mark.parametrize("mode", ["adopt", "rewrite"])
@pytest.mark.parametrize("name", ["a*b?", "a[1]"])
def test_a_name_that_looks_like_a_pattern_is_that_of_one_file(name: str, mode: str, home: Path, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / name / f"{name}.parquet", "SELECT 1::BIGINT AS id")
    write_parquet(tmp_path / name / "a1.parquet", "SELECT 2::BIGINT AS id, 3 AS other")
    code, report = _json(home, "events", path, "--create", "--mode", mode)
    assert (code, report["delivered"]) == (0, 1)
    with _lake(home) as lake:
        assert rows_of(lake, "FROM events") == [(1,)]


@pytest.mark.parametrize("name", ["Events", "EVENTS", "MAIN.events"])
def test_a_table_is_found_by_any_spelling_that_duckdb_takes_for_its_name(name: str, home: Path, inbox: Path) -> None:
    _made(home)
    for options in ((), ("--create",)):
        code, report = _json(home, name, inbox, *options)
        assert (code, report["table"]) == (0, "main.events")
    assert (report["delivered"], report["skipped"]) == (0, 2)
    with _lake(home) as lake:
        assert_exactly_once(lake, 2)


def test_a_table_in_a_schema_that_is_spelt_otherwise_is_made_and_delivered_into(home: Path, inbox: Path) -> None:
    code, report = _json(home, "MAIN.Q", inbox, "--create")
    assert (code, report["table"], report["delivered"]) == (0, "main.Q", 2)
    assert _tables(home) == ["main.Q"]


def test_tables_are_distinguished_by_letters_beyond_ascii(home: Path, inbox: Path) -> None:
    _made(home, TableId("main", "größe"))
    code, error = _json(home, "GRÖSSE", inbox)
    assert (code, error["message"]) == (2, "The lake has no table main.GRÖSSE.")


def test_the_ledger_is_refused_however_it_is_spelt(home: Path, inbox: Path) -> None:
    code, error = _json(home, "_CATCHMENT.producers", inbox, "--create")
    assert (code, home.exists()) == (2, False)
    assert "ledger" in error["message"]


def test_a_dry_run_shows_the_plan_for_a_table_that_is_still_to_be_made(home: Path, inbox: Path) -> None:
    code, shown = _json(home, "events", inbox, "--create", "--partition-by", "KIND", "--dry-run")
    size = sum(path.stat().st_size for path in inbox.iterdir())
    assert code == 0
    assert shown == {
        "create": ["id BIGINT", "kind VARCHAR"],
        "partition_by": ["kind"],
        "table": "main.events",
        "mode": "auto",
        "insert_reason": None,
        "units": 2,
        "delivered_already": 0,
        "bytes": size,
        "commits": 1,
        "tasks": [{"mode": "rewrite", "files": 2, "bytes": size}],
    }
    assert not home.exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("day", "The files have no column 'day' to partition by."),
        ("year(id)", "The files have no column 'year(id)' to partition by."),
        ("kind,,id", "--partition-by 'kind,,id' contains an empty name."),
        (",", "--partition-by ',' contains an empty name."),
        ("kind,KIND", "A column to partition by is named twice: kind, KIND."),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_an_unusable_partition_key_is_refused_and_nothing_is_created(
    options: tuple[str, ...], keys: str, message: str, home: Path, inbox: Path
) -> None:
    code, error = _json(home, "events", inbox, "--create", "--partition-by", keys, *options)
    assert (code, error["message"]) == (2, message)
    assert error["hint"]
    assert not home.exists()


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_refused_plan_creates_no_table(options: tuple[str, ...], home: Path, inbox: Path) -> None:
    (inbox / "link.parquet").symlink_to(inbox / "00000.parquet")
    code, error = _json(home, "events", inbox, "--create", *options)
    assert (code, home.exists()) == (2, False)
    assert str(inbox / "link.parquet") in error["message"]


def test_a_partitioning_that_is_not_the_tables_own_is_refused(home: Path, inbox: Path) -> None:
    _made(home, partition_by=("kind",))
    assert _json(home, "events", inbox, "--partition-by", "Kind", "--dry-run")[0] == 0
    code, error = _json(home, "events", inbox, "--create", "--partition-by", "id")
    assert (code, error["message"]) == (2, "main.events is partitioned by kind, not by id.")
    assert "Omit --partition-by" in error["hint"]


def test_a_folder_without_files_is_nothing_to_deliver(home: Path, tmp_path: Path) -> None:
    _made(home)
    (tmp_path / "empty").mkdir()
    code, report = _json(home, "events", tmp_path / "empty")
    assert (code, report["delivered"], report["skipped"], report["failures"]) == (0, 0, 0, [])


def test_a_table_cannot_be_made_from_a_folder_without_files(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, error = _json(home, "events", tmp_path / "empty", "--create")
    assert (code, error["hint"]) == (2, "Name files, or folders that contain some.")
    assert not home.exists()


@pytest.mark.parametrize(
    ("path", "said", "hint"),
    [
        ("/nowhere/a.parquet", "/nowhere/a.parquet cannot be read: No such file or directory.", "Check the path."),
        ("/nowhere/*.parquet", "/nowhere/*.parquet cannot be read", "no match for the pattern"),
        ("s3://bucket/a.parquet", "s3:// storage is not supported", "Use a local path"),
        ("", "A path is empty.", "Name a file"),
    ],
)
def test_a_path_that_does_not_exist_is_an_error_with_a_hint(path: str, said: str, hint: str, home: Path) -> None:
    _made(home)
    code, error = _json(home, "events", path)
    assert code == 2
    assert said in error["message"]
    assert hint in error["hint"]


def test_folders_that_look_like_columns_are_remarked_upon(home: Path, tmp_path: Path) -> None:
    event_files(tmp_path / "in" / "region=eu" / "day=2026-01-01", 1)
    ended = _deliver(home, "events", tmp_path / "in", "--create", "--dry-run")
    assert ended.exit_code == 0
    assert "Folders such as `region=…` are not read as columns." in ended.stderr
    assert "`catchment legacy plan --tree DIR --keys region,day`" in ended.stderr


def test_plain_folders_are_not_remarked_upon(home: Path, inbox: Path) -> None:
    assert "not read as columns" not in _deliver(home, "events", inbox, "--create", "--dry-run").stderr
