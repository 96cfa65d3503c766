"""Calls to another shard over the network: which failures are final, and how long a write waits."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pyarrow as pa
import pytest

from catchment.errors import CatchmentError, InputError, ShardUnreachableError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.foundation.settings import MIB, Settings
from catchment.tenants.shard import WAITS
from catchment.tenants.transport import remote_shard
from catchment.tenants.transport import shard_messages as wire
from catchment.tenants.transport.remote_shard import RemoteShard
from tests.tenants.two_shards import T7, A, events


def wide(first: int, rows: int, size: int = 2_000) -> pa.Table:
    """Rows of that many bytes each."""
    return pa.table({"id": pa.array(range(first, first + rows), pa.int64()), "kind": ["x" * size] * rows})


def test_a_write_that_the_other_server_refused_is_not_reported_as_unknown() -> None:
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
    monkeypatch.setattr(remote_shard, "FULL_WAIT_SECONDS", 11)
    shard = RemoteShard(A, "grpc://127.0.0.1:1", Settings())
    waits: list[float] = []

    def answer(_action: bytes, *, metadata: object, timeout: float) -> bytes:
        del metadata
        waits.append(timeout)
        ack = {"table": ["t7", "events"], "source": "x", "seqs": [1, 1]}
        message: bytes = flight.Result(body=wire.pack({"result": ack})).SerializeToString()
        return message

    monkeypatch.setattr(shard, "_act", answer)
    shard.write(T7, "events", events(1), epoch=1)
    assert waits[0] > 11 + WAITS.gate_s + WAITS.replica_s
    shard.close()
