"""Calls from other shards and from processes that move tenants, dispatched to this server's shard."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from catchment.errors import NotAllowedError, NotSupportedError
from catchment.foundation import events
from catchment.server.values import Principal, Role
from catchment.tenants.model import TenantId
from catchment.tenants.shard import TenantShard
from catchment.tenants.shard_api import Replica, TenantRecord
from catchment.tenants.transport import shard_messages as wire

_Values = dict[str, Any]
_Tables = Sequence[pa.Table]


class ShardCalls:
    """Answers calls for one shard."""

    def __init__(self, shard: TenantShard | None) -> None:
        self._shard = shard
        self._known: dict[str, Callable[[TenantShard, TenantId, _Values, _Tables], Any]] = {
            "facts": lambda shard, _tenant, _values, _tables: dict(shard.facts()),
            "record": _record,
            "write": _write,
            "receive": _append_replicated,
            "positions": lambda shard, tenant, _values, _tables: wire.pack_positions(shard.positions(tenant)),
            "welcome": lambda shard, tenant, values, _tables: shard.welcome(
                tenant, epoch=values["epoch"], move=values["move"]
            ),
            "hold": _retain_log,
            "begin_at": lambda shard, tenant, values, _tables: shard.start_after(
                tenant, wire.unpack_positions(values["positions"]), move=values["move"]
            ),
            "replicate": _replicate,
            "lag": lambda shard, tenant, _values, _tables: wire.pack_lag(shard.lag(tenant)),
            "close_gate": _close_barrier,
            "settle": _settle,
            "digests": lambda shard, tenant, values, _tables: wire.pack_digests(
                shard.digests(tenant, wire.unpack_positions(values["at"]))
            ),
            "readers": lambda shard, tenant, _values, _tables: shard.readers(tenant),
            "drop": lambda shard, tenant, values, _tables: asdict(shard.drop(tenant, epoch=values["epoch"])),
        }

    def do(self, name: str, body: bytes, principal: Principal) -> bytes:
        """Return the result of a call, as a message."""
        if principal.role < Role.ADMIN or principal.tenant is not None:
            raise NotAllowedError("This call is only for shards and for processes that move tenants.")
        if self._shard is None:
            raise NotSupportedError(
                "This server is not a shard.",
                hint="Set CATCHMENT_SHARD_NAME to the name given to `catchment shard add`.",
            )
        known = self._known.get(name)
        if known is None:
            raise NotSupportedError(f"Shards have no call {name[:100]!r}.")
        values, tables = wire.unpack(body)
        try:
            tenant = TenantId(values["tenant"])
            events.identify(tenant=str(tenant), move=values.get("move"))
            call = known(self._shard, tenant, values, tables)
        except (LookupError, TypeError, ValueError):
            raise wire.malformed() from None
        return wire.pack({"result": call})


def _write(shard: TenantShard, tenant: TenantId, values: _Values, tables: _Tables) -> Any:
    ack = shard.write(tenant, values["table"], tables[0], epoch=values["epoch"], session=values["session"])
    return wire.pack_ack(ack)


def _record(shard: TenantShard, tenant: TenantId, _values: _Values, _tables: _Tables) -> Any:
    found = shard.record(tenant)
    return None if found is None else found.to_json()


def _retain_log(shard: TenantShard, tenant: TenantId, values: _Values, _tables: _Tables) -> Any:
    return wire.pack_retained(shard.retain_log(tenant, epoch=values["epoch"], move=values["move"]))


def _replicate(shard: TenantShard, tenant: TenantId, values: _Values, _tables: _Tables) -> Any:
    replica = Replica.from_json(values["copy"])
    return wire.pack_positions(shard.replicate(tenant, replica, epoch=values["epoch"]))


def _append_replicated(shard: TenantShard, tenant: TenantId, values: _Values, tables: _Tables) -> Any:
    shipments = wire.unpack_shipments(values["shipments"], tables)
    return wire.pack_positions(shard.append_replicated(tenant, shipments, epoch=values["epoch"]))


def _close_barrier(shard: TenantShard, tenant: TenantId, values: _Values, _tables: _Tables) -> Any:
    positions = shard.close_barrier(
        tenant, move=values["move"], version=values["version"], deadline_s=values["deadline_s"]
    )
    return wire.pack_positions(positions)


def _settle(shard: TenantShard, tenant: TenantId, values: _Values, _tables: _Tables) -> None:
    record = TenantRecord.from_json(values["record"])
    if record.tenant != tenant:
        raise wire.malformed()
    shard.settle(record)
