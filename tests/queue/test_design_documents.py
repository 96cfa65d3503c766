"""What the design documents ask for and no other test shows: see `docs/seeds.md`."""

import json
import threading
from pathlib import Path

import duckdb
import grpc
import pytest

from catchment.errors import SettingsError
from catchment.foundation import faults
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import load_settings
from catchment.queue import QueueRuntime
from catchment.queue.shared_buffer import SharedBuffer
from tests.conftest import MakeSettings
from tests.queue.open_queues import event_rows, ids_in, new_queue
from tests.sample_events import EVENTS, create_table
from tests.schema.scenario_copies import scene
from tests.server.raw_client import Client, refused, server
from tests.server.server_process import wait_until
from tests.shortcuts.made_lakes import put_lake

PATIENCE_S = 30.0
TOO_MANY_S = 0.1


def test_the_shared_buffer_has_the_tables_that_its_design_names(make_settings: MakeSettings) -> None:
    settings = make_settings("sqlite")
    with new_queue(settings) as queue:
        assert isinstance(queue.buffer, SharedBuffer)
        queue.enqueue(EVENTS, event_rows([1, 2]))
        queue.force_flush_all()
        queue.enqueue(EVENTS, event_rows([3]))
    with duckdb.connect(str(settings.queue_path / "buffer.duckdb"), read_only=True) as connection:
        columns = connection.execute("DESCRIBE dq_events").fetchall()
        assert [(name, kind) for name, kind, *_ in columns if name in ("dq_seq", "id", "kind")] == [
            ("dq_seq", "BIGINT"),
            ("id", "BIGINT"),
            ("kind", "VARCHAR"),
        ]
        assert connection.execute("SELECT dq_seq, id FROM dq_events").fetchall() == [(3, 3)]
        ((name, shape, flushed),) = connection.execute(
            "SELECT table_name, columns, last_flushed_seq FROM dq_meta"
        ).fetchall()
    assert (name, [column["name"] for column in json.loads(shape)], flushed) == ("events", ["id", "kind"], 2)


@pytest.mark.parametrize("most", [1, 2])
def test_so_many_flushes_run_at_once_and_no_more(make_settings: MakeSettings, most: int) -> None:
    settings = make_settings("sqlite", queue_max_parallel_flushes=most, queue_buffer_max_rows=1)
    tables = [TableId("main", f"table_{number}") for number in range(4)]
    waiting, changed = list(tables), threading.Condition()
    under_way: set[int] = set()
    peak = 0

    def begun() -> None:
        nonlocal peak
        with changed:
            under_way.add(threading.get_ident())
            peak = max(peak, len(under_way))
            following = waiting.pop() if waiting else None
            changed.notify_all()
        if following is not None:
            # It is due while this flush is under way.
            queue.enqueue(following, event_rows([1]))
        with changed:
            assert changed.wait_for(lambda: peak >= most, PATIENCE_S)
            # One too many would come now.
            changed.wait_for(lambda: peak > most, TOO_MANY_S)

    def ended() -> None:
        with changed:
            under_way.discard(threading.get_ident())

    with new_queue(settings) as queue:
        for table in tables:
            create_table(queue.lake, table)
        runtime = QueueRuntime(queue, settings, SystemClock())
        with faults.armed("deliver.before_write", begun), faults.armed("queue.after_retire", ended):
            queue.enqueue(waiting.pop(), event_rows([1]))
            runtime.start()
            wait_until(lambda: all(ids_in(queue.lake, table) for table in tables), "all tables are flushed")
            runtime.stop()
    assert peak == most


def test_a_generated_script_says_how_to_merge_it_with_earlier_ones(tmp_path: Path) -> None:
    generated = scene("models_only", tmp_path).migrate.generate()
    assert generated is not None
    header = [line for line in generated.read_text().splitlines() if line.startswith("--")]
    assert "-- To merge it with earlier scripts that production has not run yet:" in header
    assert [line.split()[1:3] for line in header if line[5:6].isdigit()] == [
        ["1.", "rm"],
        ["2.", "restore"],
        ["3.", "generate"],
        ["4.", "apply"],
    ]


def test_a_server_whose_queue_is_switched_off_says_so_and_takes_rows_for_its_tables(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings("sqlite", queue_enable=False, server_port=0)
    put_lake(settings, events=True)
    with server(settings) as running:
        client = Client(running.uri)
        statement = "INSERT INTO duckling_queue.events VALUES (1, 'x')"
        told = refused(grpc.StatusCode.UNIMPLEMENTED, client.update, statement)
        assert "The queue is switched off. DUCKLING_QUEUE_ENABLE=true switches it on." in told
        assert client.update("INSERT INTO events VALUES (1, 'x')") == 1
        client.close()
    assert not settings.queue_path.exists()


def test_rows_are_flushed_to_the_lake_by_its_name_and_to_no_other_catalog(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CATCHMENT_HOME", str(tmp_path))
    monkeypatch.setenv("DUCKLING_QUEUE_TARGET_CATALOG", "swanlake")
    with pytest.raises(SettingsError, match="queue_target_catalog must be the lake's name, 'lake', or be left out"):
        load_settings()
    monkeypatch.setenv("CATCHMENT_LAKE_NAME", "swanlake")
    assert load_settings().lake_name == "swanlake"
