"""`catchment legacy` as a user runs it: a Tailpipe home or hive folders, into the lake and back."""

import os
import pty
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import InputError
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline.legacy.import_source import parse_keys
from tests import sample_events
from tests.acceptance.shell import Ended, Shell
from tests.pipeline.legacy.generated_tree import (
    BLOCKING,
    LegacyHome,
    LegacyTable,
    Odd,
    TreeShape,
    make_legacy_home,
    snapshot_tree,
)
from tests.shortcuts import warm

TRAIL = LegacyTable(name="aws_cloudtrail_log", leaves=4)
NGINX = LegacyTable(name="nginx_access_log", shape=TreeShape.ACCESS_LOG, leaves=2, files_per_leaf=3)
UNREADABLE = frozenset({Odd.TRUNCATED_FILE, Odd.ZERO_BYTE_FILE, Odd.GARBAGE_FILE})
Snapshot = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Legacy:
    """A legacy home, and a lake beside it that may not be there yet."""

    shell: Shell
    made: LegacyHome
    lake: Path

    def run(self, name: str, *options: str | Path) -> Ended:
        return self.shell.run("legacy", name, *self.where, *options)

    @property
    def where(self) -> tuple[str | Path, ...]:
        return ("--home", self.made.home, "--lake-home", self.lake)

    def rows(self, table: LegacyTable) -> list[tuple[Any, ...]]:
        with Lake.from_settings(Settings(home=self.lake)) as lake:
            return sample_events.rows_of(lake, f"SELECT count(*), count(DISTINCT tp_id) FROM {table.name}")

    def snapshot(self) -> Snapshot:
        return snapshot_tree(self.made.home)


@dataclass(frozen=True)
class Story:
    """An import from beginning to undo, by commands only, and what lay on the disk in between."""

    legacy: Legacy
    before: Snapshot
    looked: Snapshot
    backup: Snapshot
    after: Snapshot
    rows: dict[str, list[tuple[Any, ...]]]
    commands: dict[str, Ended]
    terminal: str


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("user"))


def _legacy(shell: Shell, folder: Path, *tables: LegacyTable, odd: frozenset[Odd] = frozenset()) -> Legacy:
    return Legacy(shell, make_legacy_home(folder / "tailpipe", tables=tables, odd=odd), folder / "lake")


@pytest.fixture(scope="module")
def story(shell: Shell) -> Story:
    legacy = _legacy(shell, shell.folder / "story", TRAIL, NGINX, odd=frozenset(Odd) - BLOCKING)
    before = legacy.snapshot()
    commands = {name: legacy.run(name, "--json") for name in ("detect", "plan")}
    commands["plan for a person"] = legacy.run("plan")
    commands["dry run"] = legacy.run("run", "--dry-run", "--json")
    commands["no terminal"] = legacy.run("run", "--json")
    looked = legacy.snapshot()
    commands["run"], terminal = _at_terminal(legacy, "y\n", "run", "--json")
    commands |= {name: legacy.run(name, "--json") for name in ("status", "verify", "report")}
    commands["again"] = legacy.run("run", "--yes")
    backup = snapshot_tree(legacy.made.home / "migration" / "migrated")
    rows = {table.name: legacy.rows(table) for table in (TRAIL, NGINX)}
    commands["undo without terminal"] = legacy.run("undo", "--json")
    commands["undo"] = legacy.run("undo", "--yes", "--json")
    return Story(
        legacy=legacy,
        before=before,
        looked=looked,
        backup=backup,
        after=snapshot_tree(legacy.made.home / "data"),
        rows=rows,
        commands=commands,
        terminal=terminal,
    )


@dataclass(frozen=True)
class Trouble:
    """An import that is stopped by Ctrl-C, resumed, and finished without unreadable files."""

    legacy: Legacy
    before: Snapshot
    commands: dict[str, Ended]


@pytest.fixture(scope="module")
def trouble(shell: Shell) -> Trouble:
    legacy = _legacy(shell, shell.folder / "trouble", TRAIL, odd=UNREADABLE)
    before = snapshot_tree(legacy.made.data)
    # A commit for each unit, so that there is a middle to be stopped in.
    one_by_one = replace(shell, constants={"catchment.app.UNITS_PER_COMMIT_MAX": 1})
    process = one_by_one.start("legacy", "run", "--yes", "--json", *legacy.where)
    _read_until(process, "The tree has moved to")
    os.kill(process.pid, signal.SIGSTOP)
    commands = {"second": legacy.run("run", "--yes", "--json"), "status beside": legacy.run("status", "--json")}
    os.kill(process.pid, signal.SIGCONT)
    _read_until(process, " is up.")
    # As in a terminal: every process of the group gets the signal, Spark's too.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    commands["stopped"] = Ended(process.wait(), out, err)
    commands["status of stopped"] = legacy.run("status", "--json")
    commands["resumed"] = legacy.run("run", "--yes", "--json")
    commands["status of failed"] = legacy.run("status")
    commands["retried"] = legacy.run("retry", "--quarantine", "--json")
    return Trouble(legacy, before, commands)


def _at_terminal(legacy: Legacy, answer: str, name: str, *options: str) -> tuple[Ended, str]:
    """Run a command at a terminal with this answer; return its end and what the terminal showed."""
    ours, theirs = pty.openpty()
    process = legacy.shell.start("legacy", name, *legacy.where, *options, terminal=theirs, TERM="xterm")
    os.close(theirs)
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(ours, 65536)
        os.write(ours, answer.encode())
        while True:
            shown += os.read(ours, 65536)
    except OSError:
        # The other end is closed: the command has ended.
        out, _ = process.communicate()
    finally:
        os.close(ours)
    return Ended(process.wait(), out, ""), shown.decode()


def test_help_lists_every_command_and_the_exit_codes(shell: Shell) -> None:
    ended = shell.run("legacy", "--help")
    assert ended.code == 0
    commands = ("detect", "plan", "run", "status", "retry", "verify", "undo", "report")
    assert all(f" {command} " in ended.out for command in commands)
    assert "130 stopped by Ctrl-C" in ended.out


def test_without_anything_to_import_the_command_says_so_and_creates_nothing(shell: Shell, tmp_path: Path) -> None:
    for name in ("detect", "run"):
        ended = shell.run("legacy", name, "--home", tmp_path / "none", "--lake-home", tmp_path / "lake")
        assert ended.code == 0, ended.err
        assert "Nothing to do" in ended.out
    assert list(tmp_path.iterdir()) == []


def test_the_home_is_tailpipes_default_unless_another_is_given(shell: Shell, tmp_path: Path) -> None:
    ended = shell.run("legacy", "detect", "--json", HOME=str(tmp_path))
    assert ended.json["phase"] == "nothing"
    assert ended.json["data"] == str(tmp_path / ".tailpipe" / "data")


def test_a_home_that_was_not_imported_is_detected_with_the_next_command(story: Story) -> None:
    found = story.commands["detect"].json
    assert found["phase"] == "ready"
    assert found["data"] == str(story.legacy.made.data)
    assert found["next"].startswith("catchment legacy run --home ")


def test_a_plan_has_tables_leaves_files_bytes_mode_disk_time_and_problems(story: Story) -> None:
    planned = story.commands["plan"].json
    tables = {table["table"]: table for table in planned["tables"]}
    assert set(tables) == {"main.aws_cloudtrail_log", "main.nginx_access_log"}
    nginx = tables["main.nginx_access_log"]
    assert (nginx["leaves"], nginx["files"], nginx["rows"]) == (2, 6, 300)
    assert (nginx["adopted"], nginx["rewritten"]) == (0, 2)
    assert nginx["partition_by"] == ["tp_partition", "tp_index", "tp_date"]
    trail = tables["main.aws_cloudtrail_log"]
    assert trail["rows"] == story.legacy.made.rows(TRAIL.name)
    assert any("tp_tags" in finding["extra"] for finding in trail["findings"])
    assert planned["bytes"] > 0
    assert 0 < planned["disk_needed_bytes"] < planned["disk_free_bytes"]
    assert planned["seconds"] > 0
    assert planned["views_without_data"] == list(story.legacy.made.places[Odd.VIEW_WITHOUT_DATA])
    assert any("no view describes this table" in problem for problem in planned["problems"])


def test_a_plan_as_text_has_the_same_facts_and_the_next_command(story: Story) -> None:
    ended = story.commands["plan for a person"]
    assert (ended.code, ended.err) == (0, "")
    assert "main.nginx_access_log is created" in ended.out
    assert "0 to be adopted, 2 to be rewritten." in ended.out
    assert "stays in the backup and is not imported" in ended.out
    assert ended.out.splitlines()[-1].startswith("Next: catchment legacy run --home ")


def test_a_dry_run_is_the_plan_and_changes_nothing(story: Story) -> None:
    planned, dry = story.commands["plan"].json, story.commands["dry run"].json
    # The room on the disk is what it is at the moment.
    assert {**planned, "disk_free_bytes": 0} == {**dry, "disk_free_bytes": 0}
    assert story.looked == story.before


@pytest.mark.parametrize("name", ["no terminal", "undo without terminal"])
def test_without_a_terminal_and_without_yes_it_exits_with_two_and_names_the_flag(story: Story, name: str) -> None:
    ended = story.commands[name]
    assert ended.code == 2
    assert "--yes" in ended.json["hint"]


def test_a_run_at_a_terminal_asks_for_confirmation_and_shows_progress(story: Story) -> None:
    assert story.commands["run"].code == 0, story.terminal
    assert "away and import it?" in story.terminal
    assert "2/2 leaves" in story.terminal
    assert "rows/s" in story.terminal


def test_a_run_imports_every_row_once_and_reports_in_one_json_value(story: Story) -> None:
    report = story.commands["run"].json
    assert (report["ok"], report["phase"], report["stopped"], report["failures"]) == (True, "done", False, [])
    assert {table["table"]: table["rows"] for table in report["tables"]} == {
        f"main.{table.name}": story.legacy.made.rows(table.name) for table in (TRAIL, NGINX)
    }
    for table in (TRAIL, NGINX):
        rows = story.legacy.made.rows(table.name)
        assert story.rows[table.name] == [(rows, rows)]


def test_a_run_leaves_a_backup_that_is_the_tree_as_it_was(story: Story) -> None:
    tree = {path.removeprefix("data/"): facts for path, facts in story.before.items() if path != "data/"}
    assert story.backup == tree


def test_after_a_run_the_status_is_done_and_the_proof_holds(story: Story) -> None:
    status, proof = story.commands["status"], story.commands["verify"]
    leaves = story.commands["run"].json["leaves"]
    assert (status.code, status.json["phase"], status.json["leaves_left"]) == (0, "done", 0)
    assert status.json["leaves_imported"] == leaves
    assert (proof.code, proof.json["ok"], proof.json["mismatches"]) == (0, True, [])
    assert proof.json["leaves"] == leaves
    assert proof.json["rows"] == story.commands["run"].json["rows"]


def test_the_report_of_the_last_run_is_shown_again(story: Story) -> None:
    last = story.commands["report"]
    assert last.code == 0
    assert last.json["tables"] == story.commands["run"].json["tables"]


def test_running_again_finds_nothing_to_do(story: Story) -> None:
    again = story.commands["again"]
    assert again.code == 0
    assert "Nothing to do: everything is imported" in again.out


def test_an_undo_drops_the_tables_and_puts_the_tree_back_as_it_was(story: Story) -> None:
    undone = story.commands["undo"]
    assert undone.code == 0, undone.err
    assert undone.json["dropped"] == ["main.aws_cloudtrail_log", "main.nginx_access_log"]
    assert {f"data/{path}": facts for path, facts in story.after.items()} == {
        path: facts for path, facts in story.before.items() if path != "data/"
    }
    with Lake.from_settings(Settings(home=story.legacy.lake)) as lake:
        assert lake.tables() == ()


def test_after_an_undo_there_is_nothing_to_report_retry_or_undo(story: Story) -> None:
    for name in ("report", "retry", "undo"):
        ended = story.legacy.run(name, "--json")
        assert ended.code == 2
        assert "catchment legacy" in ended.json["hint"]


def test_answering_no_changes_nothing(shell: Shell, tmp_path: Path) -> None:
    legacy = _legacy(shell, tmp_path, NGINX)
    before = legacy.snapshot()
    ended, shown = _at_terminal(legacy, "n\n", "run")
    assert ended.code == 2
    assert "Nothing was changed." in shown
    assert legacy.snapshot() == before


def test_data_in_both_places_exits_with_two_and_says_what_to_do(shell: Shell, tmp_path: Path) -> None:
    legacy = _legacy(shell, tmp_path, NGINX)
    migrating = legacy.made.home / "migration" / "migrating" / "default"
    migrating.mkdir(parents=True)
    shutil.copy(legacy.made.database, migrating)
    for command in (["detect"], ["run", "--yes"]):
        ended = legacy.run(*command, "--json")
        assert ended.code == 2
        assert "is both in" in ended.json["message"]
        assert "then move it back and run again" in ended.json["hint"]


def test_several_workspaces_exit_with_two_and_one_can_be_named(shell: Shell, tmp_path: Path) -> None:
    legacy = _legacy(shell, tmp_path, NGINX)
    make_legacy_home(legacy.made.home, tables=[NGINX], workspace="other")
    ended = legacy.run("detect", "--json")
    assert ended.code == 2
    assert "--workspace" in ended.json["hint"]
    ended = legacy.run("detect", "--workspace", "other", "--json")
    assert ended.json["data"] == str(legacy.made.home / "data" / "other")


def test_a_lake_inside_the_tree_that_would_move_is_refused(shell: Shell, tmp_path: Path) -> None:
    legacy = _legacy(shell, tmp_path, NGINX)
    before = legacy.snapshot()
    ended = shell.run("legacy", "run", "--yes", "--home", legacy.made.home, "--lake-home", legacy.made.data, "--json")
    assert ended.code == 2
    assert "--lake-home" in ended.json["hint"]
    assert legacy.snapshot() == before


def test_any_hive_folders_can_be_imported_and_rows_that_are_gone_are_a_mismatch(shell: Shell, tmp_path: Path) -> None:
    for region, day in (("eu", "2024-01-01"), ("eu", "2024-01-02"), ("007", "2024-01-01")):
        path = tmp_path / "sales" / f"region={region}" / f"day={day}" / "data.parquet"
        sample_events.write_parquet(path, f"SELECT i AS id, '{region}' || i AS note FROM range(10) r(i)")
    where = ("--tree", tmp_path / "sales", "--keys", "region,day:DATE", "--lake-home", tmp_path / "lake")
    ended = shell.run("legacy", "run", "--yes", "--schema", "shop", "--partition-by", "day", *where)
    assert ended.code == 0, ended.err
    assert "shop.sales: 3 leaves, 30 rows" in ended.out
    with Lake.from_settings(Settings(home=tmp_path / "lake")) as lake:
        query = "SELECT region, typeof(day), count(*) FROM shop.sales GROUP BY ALL ORDER BY region"
        assert sample_events.rows_of(lake, query) == [("007", "DATE", 10), ("eu", "DATE", 20)]
        with lake.write() as connection:
            connection.execute("DELETE FROM shop.sales WHERE region = '007' AND id = 3")
    found = shell.run("legacy", "verify", "--schema", "shop", *where)
    assert found.code == 1
    assert "MISMATCH shop.sales region=007/day=2024-01-01: the backup has 10 rows, and the lake has 9" in found.out
    undone = shell.run("legacy", "undo", "--yes", "--schema", "shop", *where, "--json")
    assert undone.code == 2
    assert "verify" in undone.json["hint"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keys", "a"], "are valid only with --tree"),
        (["--tree", "."], "A tree needs its keys"),
        (["--tree", ".", "--keys", "a,,b"], "a key without a name"),
        (["--tree", ".", "--keys", "a", "--table", "x.y"], "'x.y' is not a table name"),
        (["--tree", ".", "--keys", "a", "--home", "."], "cannot be combined with --home"),
    ],
    ids=["keys", "tree", "syntax", "table", "home"],
)
def test_options_that_say_nothing_together_exit_with_two(shell: Shell, options: list[str], message: str) -> None:
    ended = shell.run("legacy", "plan", *options, "--json")
    assert ended.code == 2
    assert message in ended.json["message"]
    assert ended.json["hint"]


@pytest.mark.parametrize("text", ["", "a,", "a:", "a:NOTHING", "a,A", "a=b", "a/b"])
def test_keys_that_cannot_be_read_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_keys(text)
    assert "region,day:DATE" in (caught.value.hint or "") or "once" in (caught.value.hint or "")


def test_a_key_is_text_unless_it_has_a_type() -> None:
    keys = [(key.name, key.type) for key in parse_keys("a, b:date,c:decimal(10,2)")]
    assert keys == [("a", "VARCHAR"), ("b", "DATE"), ("c", "DECIMAL(10,2)")]


def test_a_second_run_beside_the_first_is_refused_and_the_status_says_that_one_is_at_work(trouble: Trouble) -> None:
    second = trouble.commands["second"]
    assert (second.code, second.json["error"]) == (1, "LockTimeoutError")
    assert trouble.commands["status beside"].json["running"]


def test_ctrl_c_lets_the_current_commit_finish_and_says_how_to_go_on(trouble: Trouble) -> None:
    stopped = trouble.commands["stopped"]
    assert stopped.code == 130, stopped.err
    assert "Stopping once the current commit is done." in stopped.err
    assert (stopped.json["stopped"], stopped.json["leaves"]) == (True, 1)
    assert stopped.json["next"].startswith("catchment legacy retry --home ")
    status = trouble.commands["status of stopped"].json
    left = TRAIL.leaves - 1 + len(UNREADABLE)
    assert (status["phase"], status["leaves_imported"], status["leaves_left"]) == ("importing", 1, left)


def test_the_next_run_goes_on_and_names_files_that_cannot_be_read(trouble: Trouble) -> None:
    resumed = trouble.commands["resumed"]
    assert resumed.code == 1, resumed.err
    assert (resumed.json["phase"], resumed.json["leaves"]) == ("importing", TRAIL.leaves - 1)
    failed = {each["leaf"]: each["reason"] for each in resumed.json["failures"]}
    assert set(failed) == {place for odd in UNREADABLE for place in trouble.legacy.made.places[odd]}
    assert all(".parquet cannot be read" in reason for reason in failed.values())
    status = trouble.commands["status of failed"]
    assert (status.code, status.out.count("Failed: ")) == (0, len(UNREADABLE))
    assert "Repair them there, then: catchment legacy retry --home" in status.out


def test_a_retry_with_quarantine_imports_the_rest_and_every_row_is_there_once(trouble: Trouble) -> None:
    retried = trouble.commands["retried"]
    assert retried.code == 0, retried.err
    assert len(retried.json["quarantined"]) == len(UNREADABLE)
    rows = trouble.legacy.made.rows(TRAIL.name)
    assert trouble.legacy.rows(TRAIL) == [(rows, rows)]
    assert snapshot_tree(trouble.legacy.made.home / "migration" / "migrated" / "default") == trouble.before
    assert trouble.legacy.run("verify").code == 0


def _read_until(process: warm.Process, words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"the command ended and did not say {words!r}")
