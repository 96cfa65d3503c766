"""Shipping a log to the target of a move: message sizes, failures, and tables without rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catchment.foundation.ids import TableId
from catchment.queue.replication import LogRows
from catchment.queue.shared.shared_buffer import SharedBuffer
from catchment.tenants import shipping
from catchment.tenants.model import Positions, TenantId
from catchment.tenants.transport import shard_messages as wire
from tests.tenants.two_shards import EVENTS, T7, A, B, Scene, caught_up, events, in_dual_write, two_shards
from tests.waiting import wait_until

BYTES_MAX = 100_000


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with two_shards(tmp_path) as scene:
        yield scene


def wide(first: int, rows: int, size: int = 2_000) -> pa.Table:
    """Rows of that many bytes each."""
    return pa.table({"id": pa.array(range(first, first + rows), pa.int64()), "kind": ["x" * size] * rows})


def test_no_message_to_the_replica_is_larger_than_servers_accept_however_wide_the_rows_are(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_BYTES_MAX", BYTES_MAX)
    sizes: list[tuple[int, int]] = []
    receive = scene.shards[B].append_replicated

    def measured(tenant: TenantId, shipments: Sequence[LogRows], *, epoch: int) -> Positions:
        heads, tables = wire.pack_shipments(shipments)
        sizes.append((len(wire.pack({"shipments": heads}, tables)), sum(each.num_rows for each in tables)))
        return receive(tenant, shipments, epoch=epoch)

    monkeypatch.setattr(scene.shards[B], "append_replicated", measured)
    write = scene.gateway().signal_for_tenant
    write(T7, "events", wide(0, 1))
    move = in_dual_write(scene)
    # As it was handed over, and from the log.
    write(T7, "events", wide(1, 300))
    caught_up(scene)
    scene.away.add(B)
    write(T7, "events", wide(301, 5_000))
    write(T7, "events", wide(5_301, 1, size=3 * BYTES_MAX))
    scene.away.clear()
    caught_up(scene)
    assert all(size < 2 * BYTES_MAX + 10_000 for size, rows in sizes if rows > 1), max(sizes)
    assert [rows for size, rows in sizes if size > 3 * BYTES_MAX] == [1]
    assert move.verify().ok


def test_no_more_of_the_log_is_read_than_goes_into_a_message(scene: Scene) -> None:
    scene.gateway().signal_for_tenant(T7, "events", wide(0, 10_000))
    found = scene.queues[A].replication.log.read_log(EVENTS, 0, rows_max=50_000, bytes_max=BYTES_MAX)
    assert found is not None
    assert found.seq_first == 1
    assert 0 < found.rows.num_rows < 5_000
    rest = scene.queues[A].replication.log.read_log(EVENTS, found.seq_last, rows_max=50_000)
    assert rest is not None
    assert rest.seq_last == 10_000


@pytest.mark.parametrize("trouble", [pa.ArrowInvalid("damaged"), OSError("gone"), MemoryError()], ids=repr)
def test_a_replica_follows_again_after_any_failure(
    scene: Scene, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    in_dual_write(scene)
    receive = scene.shards[B].append_replicated
    troubles = [trouble]

    def troubled(*args: Any, **kwargs: Any) -> Positions:
        if troubles:
            raise troubles.pop()
        return receive(*args, **kwargs)

    monkeypatch.setattr(scene.shards[B], "append_replicated", troubled)
    write(T7, "events", events(2))
    caught_up(scene)
    assert scene.rows_in(B) == [1, 2]


def test_a_replica_keeps_no_log_of_flushed_rows_because_the_primary_has_it(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    move = in_dual_write(scene)
    write(T7, "events", events(2, 3, 4))
    caught_up(scene)
    scene.queues[B].force_flush_all()
    buffer = scene.queues[B].buffer
    assert isinstance(buffer, SharedBuffer)
    log = buffer._file.store.log(EVENTS)
    assert log is not None
    assert (log.seq_last, log.seq_gone) == (4, 4)
    # What it takes as the home is kept, and shipped back.
    scene.away.add(A)
    move.finalize()
    write(T7, "events", events(5))
    scene.queues[B].force_flush_all()
    scene.away.clear()
    move.reverse()
    assert scene.rows_in(A) == [1, 2, 3, 4, 5]


def test_a_table_without_rows_that_is_made_during_a_move_comes_along(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    move = in_dual_write(scene)
    write(T7, "empty", events(1).slice(0, 0))
    wait_until(lambda: TableId("t7", "empty") in scene.lake(B).tables(), "the target has the table")
    move.finalize()
    write(T7, "empty", events(2))
    move.gc_source(0)
    assert scene.rows_in(B, TableId("t7", "empty")) == [2]
