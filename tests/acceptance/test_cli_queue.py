"""`catchment queue` as a user runs it: buffered rows, flushes, dead letters and the audit."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import Deliverer
from catchment.pipeline.flush import FlushPipeline
from catchment.queue import DqCoordinator, open_buffer
from catchment.queue.store import file_failures
from catchment.testing import InlineRunner
from tests import sample_events
from tests.acceptance.shell import Ended, Shell
from tests.server.server_process import serving

EVENTS = sample_events.EVENTS
ORDERS = TableId("shop", "orders")
NOT_A_BUFFER = b"this is no DuckDB file" * 1_000


@dataclass(frozen=True)
class Queue:
    """A home's queue as a Python program uses it, with tasks that run without Spark."""

    home: Path
    layout: str = "shared"

    @property
    def settings(self) -> Settings:
        return Settings(home=self.home, queue_layout=self.layout)

    @contextmanager
    def opened(self) -> Iterator[DqCoordinator]:
        settings, clock = self.settings, SystemClock()
        with Lake.from_settings(settings) as lake:
            buffer = open_buffer(settings, clock=clock)
            flusher = FlushPipeline(Deliverer(lake, InlineRunner(), settings), buffer)
            try:
                yield DqCoordinator(buffer=buffer, lake=lake, flusher=flusher, settings=settings, clock=clock)
            finally:
                buffer.close()

    def make(self, *tables: TableId) -> "Queue":
        """A lake with these tables."""
        with Lake.from_settings(self.settings) as lake:
            for table in tables:
                sample_events.create_table(lake, table)
        return self

    def write(self, table: TableId, *, count: int, kind: str | None = "k") -> "Queue":
        """Rows in writes of ten."""
        with self.opened() as queue:
            for first in range(0, count, 10):
                queue.enqueue(table, _rows(range(first, min(first + 10, count)), kind))
        return self

    def change(self, statement: str) -> "Queue":
        with Lake.from_settings(self.settings) as lake, lake.write() as connection:
            connection.execute(statement)
        return self

    def read(self, query: str) -> list[tuple[Any, ...]]:
        with Lake.from_settings(self.settings) as lake:
            return sample_events.rows_of(lake, query)


@dataclass(frozen=True)
class Flushed:
    """A queue that the command has flushed through Spark."""

    queue: Queue
    ended: Ended


@dataclass(frozen=True)
class Buried:
    """A queue of which two rows were refused, because their table had lost a column that they use."""

    queue: Queue
    ids: list[str]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("user"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture(scope="module")
def flushed(shell: Shell) -> Flushed:
    """Two tables, flushed by the command; the only test of this file that starts Spark."""
    queue = Queue(shell.folder / "flushed").make(EVENTS, ORDERS).write(EVENTS, count=120).write(ORDERS, count=30)
    return Flushed(queue, shell.run("queue", "flush", "--json", home=queue.home))


@pytest.fixture
def buried(shell: Shell, home: Path) -> Buried:
    queue = Queue(home).make(EVENTS)
    with queue.opened() as opened:
        # As an earlier version has buffered them: bound to no table, and so to the names of its
        # columns.
        columns = tuple(column.unbound for column in opened.columns(EVENTS))
        opened.buffer.append(EVENTS, columns, _rows(range(8), None), session="default")
        opened.buffer.append(EVENTS, columns, _rows(range(8, 10), "bad"), session="default")
        queue.change("ALTER TABLE events DROP COLUMN kind")
        opened.force_flush_all()
    listed = shell.run("queue", "dead-letters", "list", "--json", home=home).json["dead_letters"]
    return Buried(queue, [letter["id"] for letter in listed])


def _rows(ids: range, kind: str | None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": pa.array([kind] * len(ids), pa.string())})


@pytest.mark.parametrize(
    ("group", "commands"),
    [
        (["queue"], ["status", "flush", "audit", "export", "redirect", "discard", "dead-letters"]),
        (["queue", "dead-letters"], ["list", "show", "retry", "drop"]),
    ],
    ids=["queue", "dead-letters"],
)
def test_help_lists_every_command_of_the_queue(shell: Shell, group: list[str], commands: list[str]) -> None:
    ended = shell.run(*group, "--help")
    assert ended.code == 0
    assert all(f" {command} " in ended.out for command in commands)


def test_the_status_of_an_empty_home_is_empty_and_creates_nothing(shell: Shell, home: Path) -> None:
    ended = shell.run("queue", "status", "--json", home=home)
    assert ended.code == 0, ended.err
    assert (ended.json["layout"], ended.json["tables"], ended.json["set_aside"]) == ("shared", [], [])
    assert (ended.json["bytes"], ended.json["bytes_max"], ended.json["incarnation"]) == (0, None, None)
    assert ended.json["root"] == str(home / "duckling_queue")
    assert not home.exists()


def test_the_status_text_says_that_there_is_no_buffer_yet(shell: Shell, home: Path) -> None:
    ended = shell.run("queue", "status", home=home)
    assert (ended.code, ended.err) == (0, "")
    assert "There is no buffer yet" in ended.out


@pytest.mark.parametrize("command", ["audit", "dead-letters list", "dead-letters retry --all"])
def test_without_a_lake_the_command_says_so_and_creates_none(shell: Shell, home: Path, command: str) -> None:
    ended = shell.run("queue", *command.split(), "--json", home=home)
    assert ended.code == 2
    assert ended.json["error"] == "LakeMissingError"
    assert not home.exists()


def test_flushing_an_empty_buffer_ends_at_once_and_creates_nothing(shell: Shell, home: Path) -> None:
    ended = shell.run("queue", "flush", home=home)
    assert (ended.code, ended.out) == (0, "Nothing is buffered.\n")
    assert not home.exists()


def test_the_status_shows_what_is_buffered_for_each_table(shell: Shell, home: Path) -> None:
    Queue(home).make(EVENTS, ORDERS).write(EVENTS, count=120).write(ORDERS, count=30)
    ended = shell.run("queue", "status", "--json", home=home, DUCKLING_QUEUE_BUFFER_MAX_ROWS="100")
    assert ended.code == 0, ended.err
    shown = {table["table"]: table for table in ended.json["tables"]}
    assert {name: table["rows"] for name, table in shown.items()} == {"main.events": 120, "shop.orders": 30}
    assert (shown["main.events"]["seq_flushed"], shown["main.events"]["seq_last"]) == (0, 120)
    assert (shown["main.events"]["due"], shown["shop.orders"]["due"]) == ("rows", None)
    assert (shown["main.events"]["last_error"], shown["main.events"]["retry_at"]) == (None, None)
    assert 0 <= shown["main.events"]["oldest_age_seconds"] < 300
    assert shown["main.events"]["bytes"] > 0
    assert ended.json["bytes"] > 0


def test_the_status_as_text_says_how_full_the_buffer_is(shell: Shell, home: Path) -> None:
    Queue(home).make(EVENTS).write(EVENTS, count=20)
    ended = shell.run("queue", "status", home=home, DUCKLING_QUEUE_MAX_DB_BYTES="5000000")
    assert ended.code == 0
    assert f"Layout shared, in {home / 'duckling_queue'}: 20 rows buffered" in ended.out
    assert "of at most 5.0 MB." in ended.out
    assert "0 of 20" in ended.out


def test_a_flush_brings_everything_into_the_lake_and_reports_in_one_json_value(flushed: Flushed) -> None:
    assert flushed.ended.code == 0, flushed.ended.err
    report = flushed.ended.json
    assert (report["rows"], report["files"]) == (150, 2)
    assert report["seconds"] > 0
    assert {table["table"]: table["rows"] for table in report["tables"]} == {"main.events": 120, "shop.orders": 30}
    assert flushed.queue.read("SELECT count(*), count(DISTINCT id) FROM events") == [(120, 120)]
    assert flushed.queue.read("SELECT count(*), count(DISTINCT id) FROM shop.orders") == [(30, 30)]


def test_a_flush_reports_its_progress_on_stderr(flushed: Flushed) -> None:
    assert "Spark 4" in flushed.ended.err
    assert "main.events: 120 rows in 1 file" in flushed.ended.err
    assert "shop.orders: 30 rows in 1 file" in flushed.ended.err


def test_after_a_flush_the_status_says_how_far(shell: Shell, flushed: Flushed) -> None:
    tables = shell.run("queue", "status", "--json", home=flushed.queue.home).json["tables"]
    assert [(each["rows"], each["seq_flushed"], each["seq_last"]) for each in tables] == [(0, 120, 120), (0, 30, 30)]


def test_flushing_again_finds_nothing_to_do(shell: Shell, flushed: Flushed) -> None:
    ended = shell.run("queue", "flush", home=flushed.queue.home)
    assert (ended.code, ended.out) == (0, "Nothing is buffered.\n")


def test_an_audit_shows_the_queue_alone_and_says_what_is_still_buffered(shell: Shell, flushed: Flushed) -> None:
    ended = shell.run("queue", "audit", "--json", home=flushed.queue.home)
    assert ended.code == 0, ended.err
    assert (ended.json["ok"], ended.json["findings"], ended.json["notes"]) == (True, [], [])
    assert [(each["tables"], each["seq"], each["rows"]) for each in ended.json["producers"]] == [
        (["main.events"], 120, 120),
        (["shop.orders"], 30, 30),
    ]
    assert ended.json["buffered"] == {}


def test_an_audit_leaves_other_producers_out_and_counts_rows_that_wait(shell: Shell, home: Path) -> None:
    queue = Queue(home).make(EVENTS).write(EVENTS, count=25)
    with Lake.from_settings(queue.settings) as lake:
        source = sample_events.source_of(sample_events.event_files(home / "incoming", 2))
        assert sample_events.deliverer(lake, queue.settings).run(source).delivered == 2
    ended = shell.run("queue", "audit", home=home)
    assert ended.code == 0, ended.err
    assert "parquet" not in ended.out
    assert ended.out.splitlines()[-2:] == [
        "0 units, 0 rows: every one exactly once.",
        "main.events: 25 rows still buffered.",
    ]


def test_an_audit_finds_rows_that_left_the_buffer_without_reaching_the_lake(shell: Shell, home: Path) -> None:
    with Queue(home).make(EVENTS).write(EVENTS, count=20).opened() as opened:
        (payload,) = opened.buffer.payloads()
        opened.buffer.retire(payload)
    ended = shell.run("queue", "audit", "--json", home=home)
    assert ended.code == 1
    assert [finding["kind"] for finding in ended.json["findings"]] == ["buffer"]
    assert "has retired it up to 20" in ended.json["findings"][0]["detail"]


def test_a_flush_that_fails_exits_with_one_and_keeps_the_rows(shell: Shell, home: Path) -> None:
    queue = Queue(home).make(EVENTS)
    with queue.opened() as opened:
        columns = tuple(column.unbound for column in opened.columns(EVENTS))
        opened.buffer.append(EVENTS, columns, _rows(range(20), "k"), session="default")
    queue.change("DROP TABLE events")
    ended = shell.run("queue", "flush", "--json", home=home)
    assert ended.code == 1
    assert ended.json["error"] == "FlushFailedError"
    assert (ended.json["rows"], ended.json["files"]) == (0, 0)
    assert [error.partition(":")[0] for error in ended.json["errors"]] == ["main.events"]
    assert "main.events" in ended.err
    (table,) = shell.run("queue", "status", "--json", home=home).json["tables"]
    assert table["rows"] == 20


@pytest.mark.parametrize("command", ["status", "flush"])
def test_a_buffer_that_another_process_holds_exits_with_one_and_a_hint(shell: Shell, home: Path, command: str) -> None:
    with Queue(home).make(EVENTS).write(EVENTS, count=10).opened():
        ended = shell.run("queue", command, "--json", home=home)
    assert ended.code == 1
    assert ended.json["error"] == "BufferHeldError"
    assert ended.json["hint"]
    assert str(home / "duckling_queue" / "buffer.duckdb") in ended.json["message"]
    assert "Traceback" not in ended.err


def test_an_audit_beside_a_process_that_holds_the_buffer_says_what_it_did_not_compare(shell: Shell, home: Path) -> None:
    with Queue(home).make(EVENTS).write(EVENTS, count=10).opened():
        ended = shell.run("queue", "audit", "--json", home=home)
    assert ended.code == 0, ended.err
    assert ended.json["buffered"] is None
    assert "not compared" in ended.json["notes"][0]


def test_a_buffer_that_cannot_be_opened_is_quarantined_and_the_status_says_how_to_inspect_it(
    shell: Shell, home: Path
) -> None:
    Queue(home).make(EVENTS)
    (home / "duckling_queue").mkdir()
    (home / "duckling_queue" / "buffer.duckdb").write_bytes(NOT_A_BUFFER)
    shell.run("queue", "status", home=home)
    ended = shell.run("queue", "status", "--json", home=home)
    assert ended.code == 0
    (aside,) = ended.json["set_aside"]
    assert Path(aside["path"]).read_bytes() == NOT_A_BUFFER
    assert aside["reason"]
    assert "duckdb " in aside["inspect"]
    assert aside["path"] in shell.run("queue", "status", home=home).out


def test_an_audit_names_quarantined_files_and_exits_with_two_until_they_are_removed(shell: Shell, home: Path) -> None:
    Queue(home).make(EVENTS)
    (home / "duckling_queue").mkdir()
    (home / "duckling_queue" / "buffer.duckdb").write_bytes(NOT_A_BUFFER)
    ended = shell.run("queue", "audit", "--json", home=home)
    assert ended.code == 2
    assert (ended.json["ok"], ended.json["findings"]) == (False, [])
    (aside,) = ended.json["set_aside"]
    assert Path(aside["path"]).read_bytes() == NOT_A_BUFFER
    assert aside["reason"]
    said = shell.run("queue", "audit", home=home)
    assert said.code == 2
    assert f"QUARANTINED {aside['path']}: {aside['reason']}" in said.out
    shutil.rmtree(home / "duckling_queue" / "set_aside")
    ended = shell.run("queue", "audit", "--json", home=home)
    assert (ended.code, ended.json["ok"], ended.json["set_aside"]) == (0, True, [])


def test_an_audit_with_a_finding_exits_with_one_even_if_files_are_quarantined(shell: Shell, home: Path) -> None:
    with Queue(home).make(EVENTS).write(EVENTS, count=20).opened() as opened:
        (payload,) = opened.buffer.payloads()
        opened.buffer.retire(payload)
        file_failures.quarantine(
            _file(home, "other.duckdb"), root=home / "duckling_queue", reason="of old", clock=SystemClock()
        )
    ended = shell.run("queue", "audit", "--json", home=home)
    assert ended.code == 1
    assert [each["reason"] for each in ended.json["set_aside"]] == ["of old"]


def _file(home: Path, name: str) -> Path:
    path = home / "duckling_queue" / name
    path.write_bytes(NOT_A_BUFFER)
    return path


def test_the_sessions_layout_shows_and_counts_sealed_files(shell: Shell, home: Path) -> None:
    Queue(home, "sessions").make(EVENTS).write(EVENTS, count=30)
    ended = shell.run("queue", "status", "--json", home=home, DUCKLING_QUEUE_LAYOUT="sessions")
    assert ended.code == 0, ended.err
    (table,) = ended.json["tables"]
    assert (table["rows"], table["sealed_rows"], table["due"]) == (30, 30, "sealed")
    assert ended.json["notes"] == []


@pytest.mark.parametrize(("there", "asked"), [("shared", "sessions"), ("sessions", "shared")])
def test_rows_that_lie_there_in_the_other_layout_are_mentioned(
    shell: Shell, home: Path, there: str, asked: str
) -> None:
    Queue(home, there).make(EVENTS).write(EVENTS, count=10)
    ended = shell.run("queue", "status", "--json", home=home, DUCKLING_QUEUE_LAYOUT=asked)
    assert ended.code == 0, ended.err
    assert ended.json["tables"] == []
    assert f"DUCKLING_QUEUE_LAYOUT={there}" in ended.json["notes"][0]


def test_rows_that_their_table_refuses_are_listed_with_the_reason(shell: Shell, buried: Buried) -> None:
    ended = shell.run("queue", "dead-letters", "list", "--json", home=buried.queue.home)
    assert ended.code == 0, ended.err
    listed = ended.json["dead_letters"]
    assert [(each["table"], each["seq"]) for each in listed] == [("main.events", 9), ("main.events", 10)]
    assert "the table has no column 'kind'" in listed[0]["reason"]
    assert buried.queue.read("SELECT id FROM events ORDER BY id") == [(n,) for n in range(8)]
    ended = shell.run("queue", "dead-letters", "list", "--table", "shop.orders", home=buried.queue.home)
    assert ended.out == "There are no dead letters.\n"


def test_a_dead_letter_is_shown_with_its_row(shell: Shell, buried: Buried) -> None:
    ended = shell.run("queue", "dead-letters", "show", buried.ids[0], "--json", home=buried.queue.home)
    assert ended.code == 0, ended.err
    assert ended.json["row"] == {"id": 8, "kind": "bad"}
    ended = shell.run("queue", "dead-letters", "show", buried.ids[0], home=buried.queue.home)
    assert "kind = 'bad'" in ended.out


def test_a_dead_letter_that_does_not_exist_exits_with_two(shell: Shell, buried: Buried) -> None:
    for command in (["show", "no-such-id"], ["retry", "no-such-id"], ["drop", "no-such-id", "--yes"]):
        ended = shell.run("queue", "dead-letters", *command, "--json", home=buried.queue.home)
        assert (ended.code, ended.json["message"]) == (2, "There is no dead letter no-such-id.")


def test_retrying_before_the_table_is_mended_exits_with_one_and_keeps_the_letters(shell: Shell, buried: Buried) -> None:
    ended = shell.run("queue", "dead-letters", "retry", "--all", "--json", home=buried.queue.home)
    assert ended.code == 1
    assert ended.json["delivered"] == []
    assert sorted(ended.json["refused"]) == sorted(buried.ids)
    listed = shell.run("queue", "dead-letters", "list", "--json", home=buried.queue.home).json["dead_letters"]
    assert len(listed) == 2


def test_retrying_after_the_table_is_mended_delivers_the_rows_once(shell: Shell, buried: Buried) -> None:
    buried.queue.change("ALTER TABLE events ADD COLUMN kind VARCHAR")
    ended = shell.run("queue", "dead-letters", "retry", buried.ids[0], "--json", home=buried.queue.home)
    assert (ended.code, ended.json) == (0, {"delivered": [buried.ids[0]], "refused": {}})
    ended = shell.run("queue", "dead-letters", "retry", "--all", home=buried.queue.home)
    assert (ended.code, ended.out) == (0, "Delivered 1 row.\n")
    assert buried.queue.read("SELECT id FROM events WHERE kind = 'bad' ORDER BY id") == [(8,), (9,)]
    assert shell.run("queue", "audit", home=buried.queue.home).code == 0


def test_retrying_without_a_selection_exits_with_two(shell: Shell, buried: Buried) -> None:
    ended = shell.run("queue", "dead-letters", "retry", "--json", home=buried.queue.home)
    assert (ended.code, ended.json["hint"]) == (2, "Give ids, or --all.")


def test_dropping_needs_a_yes_and_then_gives_the_rows_up(shell: Shell, buried: Buried) -> None:
    ended = shell.run("queue", "dead-letters", "drop", *buried.ids, "--json", home=buried.queue.home)
    assert ended.code == 2
    assert "--yes" in ended.json["hint"]
    ended = shell.run("queue", "dead-letters", "drop", *buried.ids, "--yes", "--json", home=buried.queue.home)
    assert (ended.code, ended.json) == (0, {"dropped": 2})
    ended = shell.run("queue", "dead-letters", "list", "--json", home=buried.queue.home)
    assert ended.json == {"dead_letters": []}


@pytest.fixture(params=["shared", "sessions"])
def stranded(request: pytest.FixtureRequest, home: Path) -> Queue:
    """A queue with rows of a table that was dropped."""
    queue = Queue(home, request.param).make(EVENTS).write(EVENTS, count=3)
    return queue.change("DROP TABLE events")


def test_rows_of_a_dropped_table_are_shown_exported_and_discarded(shell: Shell, stranded: Queue) -> None:
    layout = {"DUCKLING_QUEUE_LAYOUT": stranded.layout}

    def run(*words: str) -> Ended:
        return shell.run("queue", *words, home=stranded.home, **layout)

    flushed = run("flush")
    assert flushed.code == 0
    assert "3 rows of main.events stay buffered" in flushed.out
    (path,) = run("export", "events", "--json").json["files"]
    assert duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall() == [(3,)]
    assert run("discard", "events", "--dry-run", "--json").json["rows"] == 3
    refused = run("discard", "events")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert run("discard", "events", "--yes").out == "3 rows of main.events discarded.\n"
    assert run("discard", "events", "--yes").code == 2
    assert run("audit").code == 0


def test_rows_of_a_dropped_table_are_redirected_by_the_server_that_has_them(shell: Shell, home: Path) -> None:
    queue = Queue(home).make(EVENTS).write(EVENTS, count=3).change("DROP TABLE events").make(ORDERS)
    with serving(home):
        assert shell.run("queue", "redirect", "events", "shop.orders", home=home).code == 2
        assert (
            shell.run("queue", "redirect", "events", "shop.orders", "--dry-run", "--json", home=home).json["rows"] == 3
        )
        ended = shell.run("queue", "redirect", "events", "shop.orders", "--yes", home=home)
        assert (ended.code, ended.out) == (0, "3 rows delivered to shop.orders.\n"), ended.err
    assert queue.read("SELECT count(*) FROM shop.orders") == [(3,)]
