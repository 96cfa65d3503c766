"""The command line as a user runs it: the installed command in its own process, unconfigured."""

import hashlib
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import pytest

from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings, declared
from catchment.lake import Commit, Lake
from catchment.lake.commit import CreateTable
from catchment.pipeline import Deliverer, ParquetFiles
from catchment.testing import InlineRunner
from tests.acceptance.shell import Ended, Shell

ROWS_PER_FILE = 10
# The help of a terminal of 80 columns.
SCREEN_LINES_MAX = 40
SECRET = "hunter2"
EVENTS = TableId("main", "events")


@dataclass(frozen=True)
class Delivery:
    """A command that delivered files into a home's lake."""

    home: Path
    files: list[Path]
    ended: Ended


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("user"))


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A home that does not exist yet."""
    return tmp_path / "fresh"


@pytest.fixture(scope="module")
def delivered(shell: Shell) -> Delivery:
    """Five files, delivered into a table that is made for them."""
    home, files = shell.folder / "home", _parquet(shell.folder / "first", 5)
    return Delivery(home, files, shell.run("lake", "deliver", "events", "first", "--create", "--json", home=home))


@pytest.fixture(scope="module")
def mixed(shell: Shell, delivered: Delivery) -> Delivery:
    """Three good files and a corrupt one, delivered and removed."""
    folder = shell.folder / "second"
    files = [*_parquet(folder, 3, start=100), folder / "broken.parquet"]
    files[-1].write_bytes(b"PAR1 this is no Parquet file PAR1")
    ended = shell.run("lake", "deliver", "main.events", folder, "--retire", "remove", home=delivered.home)
    return Delivery(delivered.home, files, ended)


@pytest.fixture(scope="module")
def healthy(shell: Shell) -> Ended:
    return shell.run_cold("doctor", "--json", "--home", shell.folder / "examined")


def _parquet(folder: Path, count: int, *, start: int = 0) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{start + number:04d}.parquet" for number in range(count)]
    with duckdb.connect() as connection:
        for number, path in enumerate(paths, start):
            query = f"SELECT {number} AS file, i AS row FROM range({ROWS_PER_FILE}) r(i)"
            connection.execute(f"COPY ({query}) TO {sql.literal(str(path))} (FORMAT parquet)")
    return paths


def _lake_of_small_files(folder: Path, count: int) -> Path:
    """A home whose lake has as many deliveries, commits and files as asked for; made without Spark."""
    home = folder / "small"
    settings = Settings(home=home)
    source = ParquetFiles(_parquet(folder, count), EVENTS)
    with Lake.from_settings(settings) as lake:
        lake.commit(Commit(message="create", changes=(CreateTable(table=EVENTS, columns=source.columns()),)))
        assert Deliverer(lake, InlineRunner(), settings, units_per_commit_max=1).run(source).delivered == count
    return home


def _rows(home: Path, query: str = "SELECT file, row FROM events ORDER BY ALL") -> list[tuple[Any, ...]]:
    with Lake.from_settings(Settings(home=home)) as lake, lake.cursor() as cursor:
        return cursor.execute(query).fetchall()


def _rows_of(numbers: range) -> list[tuple[int, int]]:
    return [(number, row) for number in numbers for row in range(ROWS_PER_FILE)]


def _tree(folder: Path) -> dict[str, str]:
    """Every file below the folder with a digest of its content, except for SQLite's temporary ones."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
        if not path.name.endswith(("-wal", "-shm"))
    }


def test_help_shows_every_command_on_one_screen(shell: Shell) -> None:
    ended = shell.run("--help")
    assert ended.code == 0
    for command in ("demo", "doctor", "settings", "lake", "queue"):
        assert f" {command} " in ended.out
    assert ended.out.count("\n") <= SCREEN_LINES_MAX


def test_settings_lists_every_setting_even_if_one_is_wrong(shell: Shell) -> None:
    ended = shell.run("settings", CATCHMENT_LOG_LEVEL="nonsense")
    assert ended.code == 0
    listed = shell.run("settings", "--json").json["settings"]
    assert [each["variable"] for each in listed] == [each.variable for each in declared()]
    for setting in declared():
        assert f"  {setting.variable}: {setting.help}" in ended.out


def test_the_command_alone_shows_its_help(shell: Shell) -> None:
    ended = shell.run()
    assert "Usage: catchment" in ended.out + ended.err


def test_the_version_is_that_of_the_package(shell: Shell) -> None:
    ended = shell.run_cold("--version")
    assert (ended.code, ended.out) == (0, f"{version('catchment')}\n")


@pytest.mark.parametrize("arguments", [("--help",), ("lake", "--help"), ("lake", "audit"), ("nonsense",)])
def test_a_command_that_starts_warm_says_what_a_cold_one_says(arguments: tuple[str, ...], shell: Shell) -> None:
    assert shell.run(*arguments) == shell.run_cold(*arguments)


def test_a_command_that_does_not_exist_exits_with_two(shell: Shell) -> None:
    ended = shell.run("lake", "drain")
    assert ended.code == 2
    assert "drain" in ended.err


def test_a_table_that_is_missing_exits_with_two_and_says_how_to_make_it(shell: Shell, fresh: Path) -> None:
    files = _parquet(fresh.parent, 1)
    ended = shell.run("lake", "deliver", "events", *files, "--json", home=fresh)
    assert ended.code == 2
    assert ended.json == {
        "error": "InputError",
        "message": "The lake has no table main.events.",
        "hint": "Create it from the files: --create, or `create=True`.",
    }
    assert "hint: Create it from the files: --create" in ended.err


def test_a_delivery_makes_the_table_and_reports_in_one_json_value(delivered: Delivery) -> None:
    assert delivered.ended.code == 0, delivered.ended.err
    report = delivered.ended.json
    assert report["table"] == "main.events"
    assert (report["delivered"], report["skipped"], report["rows"], report["files"]) == (5, 0, 50, 1)
    assert report["failures"] == []
    assert _rows(delivered.home, "SELECT file, row FROM events WHERE file < 100 ORDER BY ALL") == _rows_of(range(5))


def test_everything_but_the_report_goes_to_stderr(delivered: Delivery) -> None:
    assert "5 units with 0.0 MB to deliver to main.events." in delivered.ended.err
    assert "to deliver to" not in delivered.ended.out


def test_spark_ends_without_output(delivered: Delivery) -> None:
    assert "Traceback" not in delivered.ended.err
    assert "Exception" not in delivered.ended.err


def test_delivered_files_stay_in_place_by_default(delivered: Delivery) -> None:
    assert all(path.exists() for path in delivered.files)


def test_delivering_the_same_again_delivers_nothing(shell: Shell, delivered: Delivery) -> None:
    before = _rows(delivered.home)
    ended = shell.run("lake", "deliver", "events", *delivered.files, "--json", home=delivered.home)
    assert ended.code == 0
    assert (ended.json["delivered"], ended.json["skipped"], ended.json["rows"]) == (0, 5, 0)
    assert _rows(delivered.home) == before


def test_a_dry_run_shows_the_plan_and_changes_nothing(shell: Shell, delivered: Delivery, tmp_path: Path) -> None:
    new = _parquet(tmp_path, 2, start=900)
    before = _tree(delivered.home)
    ended = shell.run(
        "lake", "deliver", "events", *new, *delivered.files, "--dry-run", "--json", "--retire=remove",
        home=delivered.home,
    )  # fmt: skip
    assert ended.code == 0
    size = sum(path.stat().st_size for path in new)
    assert ended.json == {
        "table": "main.events",
        "mode": "auto",
        "units": 2,
        "delivered_already": 5,
        "insert_reason": None,
        "bytes": size,
        "commits": 1,
        "tasks": [{"mode": "rewrite", "files": 2, "bytes": size}],
    }
    assert _tree(delivered.home) == before
    assert all(path.exists() for path in (*new, *delivered.files))


def test_a_dry_run_shows_the_table_that_would_be_made(shell: Shell, fresh: Path) -> None:
    files = _parquet(fresh.parent, 1)
    ended = shell.run("lake", "deliver", "events", *files, "--create", "--dry-run", home=fresh)
    assert ended.code == 0
    assert ended.out.startswith("Table main.events would be created: file INTEGER, row BIGINT.\n1 unit with 0.0 MB ")


def test_a_dry_run_without_a_lake_creates_none(shell: Shell, fresh: Path) -> None:
    files = _parquet(fresh.parent, 1)
    assert shell.run("lake", "deliver", "events", *files, "--create", "--dry-run", home=fresh).code == 0
    assert not fresh.exists()


def test_a_corrupt_file_fails_the_command_and_is_named(mixed: Delivery) -> None:
    assert mixed.ended.code == 1
    failed = [line for line in mixed.ended.out.splitlines() if line.startswith("Failed: ")]
    assert len(failed) == 1
    assert str(mixed.files[-1]) in failed[0]


def test_the_files_beside_a_corrupt_one_are_delivered(mixed: Delivery) -> None:
    assert mixed.ended.out.startswith("Delivered 3 units, 30 rows, in 1 file ")
    assert _rows(mixed.home) == [*_rows_of(range(5)), *_rows_of(range(100, 103))]


def test_delivered_files_are_removed_on_request_and_a_corrupt_one_is_kept(mixed: Delivery) -> None:
    assert [path for path in mixed.files if path.exists()] == [mixed.files[-1]]


def test_a_path_is_printed_as_it_is(shell: Shell, delivered: Delivery) -> None:
    path = "/nowhere/a:x:[red]b :warning:.parquet"
    ended = shell.run("lake", "deliver", "events", path, home=delivered.home)
    assert ended.code == 2
    assert f"error: {path} cannot be read" in ended.err


def test_a_file_name_that_is_not_utf8_is_refused_without_a_traceback(shell: Shell, delivered: Delivery) -> None:
    path = os.fsencode(shell.folder) + b"/\xff.parquet"
    Path(os.fsdecode(path)).write_bytes(delivered.files[0].read_bytes())
    ended = shell.run("lake", "deliver", "events", path, home=delivered.home)
    assert "Traceback" not in ended.err
    assert (ended.code, "error: " in ended.err) == (2, True)


def test_the_ledger_is_not_a_table_to_deliver_into(shell: Shell, delivered: Delivery) -> None:
    ended = shell.run("lake", "deliver", "_catchment.producers", *delivered.files, "--dry-run", home=delivered.home)
    assert ended.code == 2
    assert "_catchment" in ended.err


def test_delivering_without_java_says_what_to_install_and_delivers_nothing(
    shell: Shell, delivered: Delivery, tmp_path: Path
) -> None:
    before = _rows(delivered.home)
    new = _parquet(tmp_path, 1, start=900)
    without = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    ended = shell.run("lake", "deliver", "events", *new, "--json", home=delivered.home, **without)
    assert ended.code == 2
    assert ended.json["error"] == "JavaMissingError"
    assert "install a Java runtime" in ended.json["hint"]
    assert _rows(delivered.home) == before


def test_an_audit_of_a_sound_lake_finds_nothing(shell: Shell, mixed: Delivery) -> None:
    ended = shell.run("lake", "audit", "--json", home=mixed.home)
    assert ended.code == 0
    assert ended.json == {
        "ok": True,
        "producers": [
            {
                "producer": "parquet:1:main.events",
                "epoch": 0,
                "seq": 8,
                "units": 8,
                "rows": 80,
                "tables": ["main.events"],
            }
        ],
        "findings": [],
        "notes": [],
    }


def test_an_audit_as_text_ends_with_the_verdict(shell: Shell, mixed: Delivery) -> None:
    ended = shell.run("lake", "audit", "--producer", "parquet:1:main.events", home=mixed.home)
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "8 units, 80 rows: every one exactly once."


def test_an_audit_of_a_producer_that_does_not_exist_gives_no_clean_bill(shell: Shell, mixed: Delivery) -> None:
    ended = shell.run("lake", "audit", "--producer", "parquet:1:main.event", home=mixed.home)
    assert ended.code == 2
    assert "exactly once" not in ended.out


def test_an_audit_of_a_tampered_lake_exits_with_one_and_says_what_is_wrong(shell: Shell, tmp_path: Path) -> None:
    home = _lake_of_small_files(tmp_path, 3)
    with Lake.from_settings(Settings(home=home)) as lake, lake.write() as connection:
        connection.execute("DELETE FROM _catchment.deliveries WHERE seq_first = 2")
    ended = shell.run("lake", "audit", "--json", home=home)
    assert ended.code == 1
    assert ended.json["ok"] is False
    assert [(found["kind"], found["producer"]) for found in ended.json["findings"]] == [
        ("seq_gap", "parquet:1:main.events")
    ]
    assert "starts at seq 3, expected 2" in ended.json["findings"][0]["detail"]


def test_maintenance_does_what_its_dry_run_said_and_the_dry_run_changes_nothing(shell: Shell, tmp_path: Path) -> None:
    home = _lake_of_small_files(tmp_path, 4)
    rows, before = _rows(home), _tree(home)
    said = shell.run("lake", "maintain", "--dry-run", "--json", home=home)
    assert said.code == 0
    assert _tree(home) == before
    done = shell.run("lake", "maintain", "--json", home=home)
    assert done.code == 0
    assert (said.json["done"], done.json["done"]) == (False, True)
    assert said.json["steps"] == done.json["steps"]
    merged = {"name": "merge", "subject": "main.events", "count": 4, "unit": "files", "error": None}
    assert merged in done.json["steps"]
    assert _rows(home) == rows
    assert shell.run("lake", "audit", home=home).code == 0


@pytest.mark.parametrize("command", ["audit", "maintain", "maintain --dry-run"])
def test_without_a_lake_maintenance_and_audit_say_so_and_create_none(shell: Shell, fresh: Path, command: str) -> None:
    ended = shell.run("lake", *command.split(), "--json", home=fresh)
    assert ended.code == 2
    assert ended.json["error"] == "LakeMissingError"
    assert "catchment lake deliver" in ended.json["hint"]
    assert not fresh.exists()


def test_the_doctor_finds_this_machine_fit(healthy: Ended) -> None:
    assert healthy.code == 0, healthy.err
    assert healthy.json["ok"] is True
    assert [(check["name"], check["ok"]) for check in healthy.json["checks"]] == [
        (name, True) for name in ("python", "java", "extensions", "disk", "secrets", "lake", "control", "spark")
    ]
    assert all(check["detail"] for check in healthy.json["checks"])
    assert "ok   spark: Spark 4" in healthy.err


def test_the_doctor_creates_no_lake(shell: Shell, healthy: Ended) -> None:
    details = {check["name"]: check["detail"] for check in healthy.json["checks"]}
    assert details["lake"].startswith("none yet")
    assert details["control"].startswith("none yet")
    assert not (shell.folder / "examined" / "catalog.sqlite").exists()
    assert not (shell.folder / "examined" / "control.sqlite").exists()


def test_the_doctor_says_what_to_install_if_java_is_missing(shell: Shell, fresh: Path) -> None:
    empty = str(fresh.parent)
    ended = shell.run("doctor", "--json", home=fresh, PATH=empty, JAVA_HOME=empty)
    assert ended.code == 2
    failed = {check["name"]: check["hint"] for check in ended.json["checks"] if not check["ok"]}
    assert failed.keys() == {"java", "spark"}
    assert "install a Java runtime" in failed["java"]
    assert "FAIL java: Spark needs Java 17 or newer" in ended.err
    assert "install a Java runtime" in ended.err


@pytest.mark.parametrize("as_json", [False, True], ids=["prose", "json"])
def test_an_unknown_variable_exits_with_two_and_names_the_nearest_setting(
    shell: Shell, fresh: Path, as_json: bool
) -> None:
    options = ["--json"] if as_json else []
    ended = shell.run("lake", "audit", *options, home=fresh, CATCHMENT_LAKE_CATALOGUE="sqlite:x")
    assert ended.code == 2
    assert "CATCHMENT_LAKE_CATALOGUE" in ended.err
    assert "hint: Did you mean CATCHMENT_LAKE_CATALOG?" in ended.err
    assert (ended.json["hint"] if as_json else ended.out) == ("Did you mean CATCHMENT_LAKE_CATALOG?" if as_json else "")
    assert not fresh.exists()


def test_an_unknown_key_exits_with_two_and_names_the_file(shell: Shell, fresh: Path) -> None:
    fresh.mkdir()
    (fresh / "catchment.toml").write_text("spark_masters = 1")
    ended = shell.run("lake", "audit", home=fresh)
    assert ended.code == 2
    assert str(fresh / "catchment.toml") in ended.err
    assert "hint: Did you mean spark_master?" in ended.err


@pytest.mark.parametrize("catalog", [f"mysql://me:{SECRET}@db/lake", f"postgres:host=db password=two {SECRET}"])
def test_a_catalog_that_cannot_be_understood_exits_with_two_and_is_not_quoted(
    shell: Shell, fresh: Path, catalog: str
) -> None:
    ended = shell.run("lake", "audit", home=fresh, CATCHMENT_LAKE_CATALOG=catalog)
    assert ended.code == 2
    assert "hint: " in ended.err
    assert "CATCHMENT_LAKE_CATALOG" in ended.err
    assert SECRET not in ended.out + ended.err


def test_a_home_that_is_a_file_exits_with_two(shell: Shell, fresh: Path) -> None:
    fresh.touch()
    ended = shell.run("lake", "audit", home=fresh)
    assert "Traceback" not in ended.err
    assert ended.code == 2
