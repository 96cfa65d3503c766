"""Client for a shard on another server: every call of `ShardNode` is one Flight action."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import grpc
import pyarrow as pa

from catchment.errors import CommitUnknownError, InputError, ShardUnreachableError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol.request_ids import request_id_headers
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake.erase import Erased
from catchment.queue.buffer import Ack
from catchment.queue.coordinator import FULL_WAIT_SECONDS
from catchment.queue.replication import LogRows
from catchment.tenants.model import Positions, ShardId, TenantId
from catchment.tenants.shard import WAITS
from catchment.tenants.shard_api import Lag, Replica, RetainedHistory, ShardNode, TableDigest, TenantRecord
from catchment.tenants.transport import shard_messages as wire
from catchment.tenants.transport.channels import open_channel, shard_login, was_never_sent
from catchment.tenants.transport.reported_errors import reported_error

_DO_ACTION = "/arrow.flight.protocol.FlightService/DoAction"
_CALL_S = 10.0
# A comparison reads all of a tenant's rows, and a drop waits for the lake.
_LONG_CALL_S = 600.0


class RemoteShard:
    """One shard, called through its server. Thread-safe."""

    def __init__(self, shard: ShardId, location: str, settings: Settings) -> None:
        self._id = shard
        self._location = location
        self._login = shard_login(settings)
        # A write may wait for the write barrier, for room in the queue, and for the replica. A
        # caller that gives up earlier does not know the outcome.
        self._write_s = _CALL_S + sum((WAITS.gate_s, FULL_WAIT_SECONDS, WAITS.replica_s))
        self._channel = open_channel(location, settings)
        self._act: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(_DO_ACTION)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    @property
    def id(self) -> ShardId:
        return self._id

    def facts(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._ask("facts", TenantId(0), {})
        return found

    def record(self, tenant: TenantId) -> TenantRecord | None:
        found = self._ask("record", tenant, {})
        return None if found is None else TenantRecord.from_json(found)

    def write(self, tenant: TenantId, table: str, rows: pa.Table, *, epoch: int, session: str = "default") -> Ack:
        values = {"table": table, "epoch": epoch, "session": session}
        return wire.unpack_ack(self._ask("write", tenant, values, [rows], seconds=self._write_s, is_write=True))

    def append_replicated(self, tenant: TenantId, shipments: Sequence[LogRows], *, epoch: int) -> Positions:
        heads, tables = wire.pack_shipments(shipments)
        return wire.unpack_positions(self._ask("receive", tenant, {"shipments": heads, "epoch": epoch}, tables))

    def positions(self, tenant: TenantId) -> Positions:
        return wire.unpack_positions(self._ask("positions", tenant, {}))

    def welcome(self, tenant: TenantId, *, epoch: int, move: str) -> None:
        # The shard may have to drop data of an earlier move.
        self._ask("welcome", tenant, {"epoch": epoch, "move": move}, seconds=_LONG_CALL_S)

    def retain_log(self, tenant: TenantId, *, epoch: int, move: str) -> RetainedHistory:
        return wire.unpack_retained(self._ask("hold", tenant, {"epoch": epoch, "move": move}, seconds=_LONG_CALL_S))

    def start_after(self, tenant: TenantId, positions: Positions, *, move: str) -> None:
        self._ask("begin_at", tenant, {"positions": wire.pack_positions(positions), "move": move}, seconds=_LONG_CALL_S)

    def replicate(self, tenant: TenantId, replica: Replica, *, epoch: int) -> Positions:
        return wire.unpack_positions(self._ask("replicate", tenant, {"copy": replica.to_json(), "epoch": epoch}))

    def lag(self, tenant: TenantId) -> Lag:
        return wire.unpack_lag(self._ask("lag", tenant, {}))

    def close_barrier(self, tenant: TenantId, *, move: str, version: int, deadline_s: float) -> Positions:
        values = {"move": move, "version": version, "deadline_s": deadline_s}
        return wire.unpack_positions(self._ask("close_gate", tenant, values))

    def settle(self, record: TenantRecord) -> None:
        self._ask("settle", record.tenant, {"record": record.to_json()})

    def digests(self, tenant: TenantId, at: Positions) -> Mapping[TableId, TableDigest]:
        values = {"at": wire.pack_positions(at)}
        return wire.unpack_digests(self._ask("digests", tenant, values, seconds=_LONG_CALL_S))

    def readers(self, tenant: TenantId) -> int:
        return int(self._ask("readers", tenant, {}))

    def drop(self, tenant: TenantId, *, epoch: int) -> Erased:
        return wire.unpack_erased(self._ask("drop", tenant, {"epoch": epoch}, seconds=_LONG_CALL_S))

    def _ask(
        self,
        name: str,
        tenant: TenantId,
        values: Mapping[str, Any],
        tables: Sequence[pa.Table] = (),
        *,
        seconds: float = _CALL_S,
        is_write: bool = False,
    ) -> Any:
        body = wire.pack({**values, "tenant": tenant.number}, tables)
        action = flight.Action(type=wire.PREFIX + name, body=body).SerializeToString()
        try:
            answer = self._act(action, metadata=(*self._login, *request_id_headers()), timeout=seconds)
        except grpc.RpcError as error:
            self._fail(error, is_write=is_write)
        return wire.unpack(flight.Result.FromString(answer).body)[0]["result"]

    def _fail(self, error: grpc.RpcError, *, is_write: bool) -> NoReturn:
        """Raise the shard's error or, if it reported none, that it cannot be reached."""
        text = error.details() or "no reason given"
        reported = reported_error(error)
        if reported is not None:
            raise reported from None
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
            raise InputError(
                f"The request is too large to be sent to {self._id}: {text}", hint="Send fewer rows at once."
            ) from None
        if is_write and not was_never_sent(error):
            raise CommitUnknownError(
                f"The write to {self._id} may or may not have been kept: {text}",
                hint="Check whether the rows are there before you write them again.",
            ) from None
        raise ShardUnreachableError(f"Shard {self._id} at {self._location} cannot be reached: {text}") from None


class Remotes:
    """Clients for the shards that this process calls; one connection per name and location."""

    def __init__(self, settings: Settings, here: Mapping[ShardId, ShardNode] | None = None) -> None:
        """`here` are the shards of this process."""
        self._settings = settings
        self._here = dict(here or {})
        self._mutex = threading.Lock()
        self._known: dict[tuple[ShardId, str], RemoteShard] = {}

    def connect(self, shard: ShardId, location: str) -> ShardNode:
        """Return the shard, local or remote."""
        near = self._here.get(shard)
        if near is not None:
            return near
        with self._mutex:
            found = self._known.get((shard, location))
            if found is None:
                found = self._known[shard, location] = RemoteShard(shard, location, self._settings)
            return found

    def add(self, node: ShardNode) -> None:
        """Register a shard of this process."""
        self._here[node.id] = node

    def close(self) -> None:
        """Close all connections."""
        with self._mutex:
            for each in self._known.values():
                each.close()
            self._known.clear()
