"""What went wrong with moves of tenants once, and must not again."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from catchment.errors import (
    CatchmentError,
    InputError,
    LakeUnavailableError,
    LockTimeoutError,
    ShardUnreachableError,
)
from catchment.flight_protocol import flight_pb2 as flight
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.settings import MIB, Settings
from catchment.lake.dead_letters import DeadLetter, DeadLetters, packed
from catchment.pipeline.tenant_history import ShardBackfill
from catchment.queue.replication import LogRows
from catchment.queue.shared_buffer import SharedBuffer
from catchment.tenants import shipping
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import Positions, TenantId
from catchment.tenants.run_move import run_move
from catchment.tenants.shard import WAITS
from catchment.tenants.shard_api import RetainedHistory
from catchment.tenants.transport import shard_messages as wire
from catchment.tenants.transport.remote_shard import RemoteShard
from catchment.testing import InlineRunner
from tests.server.server_process import wait_until
from tests.tenants.two_shards import EVENTS, T7, A, B, Scene, events, two_shards

BYTES_MAX = 100_000


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with two_shards(tmp_path) as scene:
        yield scene


def caught_up(scene: Scene) -> None:
    """Wait until the target has what the source has."""
    scene.shards[A]._shippers[T7].catch_up(scene.shards[A].positions(T7), wait_s=60)


def in_dual_write(scene: Scene) -> TenantMigration:
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    caught_up(scene)
    return move


def wide(first: int, rows: int, size: int = 2_000) -> pa.Table:
    """Rows of that many bytes each."""
    return pa.table({"id": pa.array(range(first, first + rows), pa.int64()), "kind": ["x" * size] * rows})


def test_files_of_two_tables_that_cannot_be_adopted_are_rewritten_each_into_its_own(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    lists = pa.list_(pa.list_(pa.int64()))
    for name, number in (("one", 1), ("two", 2)):
        rows = pa.table({"id": pa.array([number], pa.int64()), "tags": pa.array([[[number]]], lists)})
        write(T7, name, rows)
    scene.queues[A].force_flush_all()
    move = in_dual_write(scene)
    assert scene.rows_in(B, TableId("t7", "one")) == [1]
    assert scene.rows_in(B, TableId("t7", "two")) == [2]
    assert move.verify().ok


def test_no_message_to_the_copy_is_larger_than_servers_take_however_wide_the_rows_are(
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
    found = scene.queues[A].read_log(EVENTS, 0, rows_max=50_000, bytes_max=BYTES_MAX)
    assert found is not None
    assert found.seq_first == 1
    assert 0 < found.rows.num_rows < 5_000
    rest = scene.queues[A].read_log(EVENTS, found.seq_last, rows_max=50_000)
    assert rest is not None
    assert rest.seq_last == 10_000


@pytest.mark.parametrize("trouble", [pa.ArrowInvalid("damaged"), OSError("gone"), MemoryError()], ids=repr)
def test_a_copy_follows_again_after_any_trouble(
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


def test_a_copy_keeps_no_log_of_what_is_flushed_because_the_home_has_it(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    move = in_dual_write(scene)
    write(T7, "events", events(2, 3, 4))
    caught_up(scene)
    scene.queues[B].force_flush_all()
    buffer = scene.queues[B].buffer
    assert isinstance(buffer, SharedBuffer)
    log = buffer._store.log(EVENTS)
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


def test_a_table_that_is_made_while_source_and_target_are_compared_is_no_difference(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    move = in_dual_write(scene)
    scene.away.add(B)
    digests = scene.shards[A].digests

    def late(tenant: TenantId, at: Positions) -> Any:
        write(T7, "late", events(2))
        return digests(tenant, at)

    monkeypatch.setattr(scene.shards[A], "digests", late)
    assert move.verify().ok


@pytest.mark.parametrize("trouble", [LakeUnavailableError("It is away."), LockTimeoutError("It is busy.")], ids=repr)
def test_a_lake_that_is_away_or_busy_for_a_moment_does_not_end_the_drive(
    scene: Scene, trouble: CatchmentError, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.gateway().signal_for_tenant(T7, "events", events(1))
    hold = scene.shards[A].retain_log
    troubles = [trouble]

    def troubled(*args: Any, **kwargs: Any) -> RetainedHistory:
        if troubles:
            raise troubles.pop()
        return hold(*args, **kwargs)

    monkeypatch.setattr(scene.shards[A], "retain_log", troubled)
    assert run_move(scene.move(), clock=scene.clock).state == "Finalizing"
    assert scene.rows_in(B) == [1]


def test_a_write_that_no_server_took_is_not_one_of_which_nobody_knows() -> None:
    told = threading.Event()
    waiting = threading.Event()

    def answer(_request: bytes, _context: object) -> bytes:
        waiting.set()
        assert told.wait(30)
        return b""

    methods: dict[str, Any] = {"DoAction": grpc.unary_unary_rpc_method_handler(answer)}
    handlers = [grpc.method_handlers_generic_handler("arrow.flight.protocol.FlightService", methods)]
    limits = (("grpc.max_receive_message_length", MIB),)
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers, options=limits, maximum_concurrent_rpcs=1)
        shard = RemoteShard(A, f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", Settings())
        server.start()
        with pytest.raises(InputError, match="too large"):
            shard.write(T7, "events", wide(0, 1_000), epoch=1)
        busy = threading.Thread(target=lambda: suppressed(lambda: shard.positions(T7)))
        busy.start()
        assert waiting.wait(30)
        with pytest.raises(ShardUnreachableError, match="limit exceeded"):
            shard.write(T7, "events", events(1), epoch=1)
        told.set()
        busy.join()
        shard.close()
        server.stop(None).wait()


def suppressed(action: Callable[[], object]) -> None:
    """Do something of which only the effect on others counts."""
    with suppress(CatchmentError):
        action()


def test_a_write_to_another_shard_is_waited_for_as_long_as_it_may_wait_there(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(queue_full_wait_seconds=11)
    shard = RemoteShard(A, "grpc://127.0.0.1:1", settings)
    waits: list[float] = []

    def answer(_action: bytes, *, metadata: object, timeout: float) -> bytes:
        del metadata
        waits.append(timeout)
        ack = {"table": ["t7", "events"], "source": "x", "seqs": [1, 1]}
        message: bytes = flight.Result(body=wire.pack({"result": ack})).SerializeToString()
        return message

    monkeypatch.setattr(shard, "_act", answer)
    shard.write(T7, "events", events(1), epoch=1)
    assert waits[0] > 11 + WAITS.gate_s + WAITS.copy_s
    shard.close()


def bury(scene: Scene, *tables: TableId) -> None:
    """A dead letter of each table in the source's lake."""
    with scene.lake(A).write() as connection:
        DeadLetters(connection, scene.lake(A).name).add(
            DeadLetter(
                id=f"letter-{table}",
                unit_id="unit",
                producer=ProducerId("queue", str(table), "1"),
                seq=1,
                table=table,
                reason="It does not fit.",
                row=packed(events(1)),
                buried_at=scene.clock.now(),
            )
            for table in tables
        )


def test_a_tenant_with_dead_letters_is_not_moved(scene: Scene) -> None:
    scene.gateway().signal_for_tenant(T7, "events", events(1))
    scene.lake(B).open()
    source, target = scene.store.shard(A), scene.store.shard(B)
    backfill = ShardBackfill(InlineRunner(), clock=scene.clock)
    backfill.plan(T7, source, target, snapshot=None, token="x")
    bury(scene, EVENTS, TableId("t8", "events"))
    with pytest.raises(InputError, match="1 dead letters"):
        backfill.plan(T7, source, target, snapshot=None, token="x")


def test_letters_that_were_buried_during_a_move_go_with_the_tenant_and_no_others(scene: Scene) -> None:
    scene.gateway().signal_for_tenant(T7, "events", events(1))
    move = in_dual_write(scene)
    bury(scene, EVENTS, TableId("t8", "events"))
    move.finalize()
    move.gc_source(0)
    assert [letter.table.schema for letter in scene.lake(A).dead_letters()] == ["t8"]
