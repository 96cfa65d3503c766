"""Placement of a tenant's statements: here if its primary is here, else on its primary's server.

A route may be stale. A shard that is not the primary refuses a statement before it has any effect;
then the route is read again, and the statement runs on the current primary. A statement that was
not refused in this way is never run a second time.
"""

import threading
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

import pyarrow as pa

from catchment.errors import NotReadyError, ShardUnreachableError, StaleRouteError, StateError
from catchment.foundation.backoff import Backoff
from catchment.foundation.clock import Clock
from catchment.server.shards.peers import PeerSession
from catchment.server.shards.routing import TenantRouting
from catchment.server.sql import sql_tokens
from catchment.server.sql.sql_policy import StatementKind, transaction_kind
from catchment.server.sql.statement_plan import Capture, CreateThroughQueue, NamedStatement, Plain, Step
from catchment.server.values import Call, Principal
from catchment.tenants.model import ShardId, ShardInfo, TenantId

_POLICY = Backoff(attempts_max=60, first_ms=5, factor=1.6, wait_ms_max=500)
# Bytes of an upload that are kept, to send them again to another primary.
_KEPT_BYTES = 64 * 1024 * 1024
_READS = frozenset(
    {
        *("select", "from", "table", "values", "show", "describe", "desc", "explain", "summarize"),
        *("pivot", "pivot_wider", "unpivot", "pivot_longer", "("),
    }
)

T = TypeVar("T")


class Forwarding:
    """Runs the statements of one session on the tenant's primary. Thread-safe."""

    def __init__(self, routing: TenantRouting, tenant: TenantId, principal: Principal, clock: Clock) -> None:
        self._routing = routing
        self._tenant = tenant
        self._principal = principal
        self._clock = clock
        self._mutex = threading.Lock()
        self._peers: dict[tuple[ShardId, str], PeerSession] = {}

    def run(self, here: Callable[[], T], there: Callable[[PeerSession], T], call: Call) -> T:
        """Call `here` or `there`; both raise StaleRouteError only if they had no effect."""
        remote = self._routing.remote_primary(self._tenant)
        attempt = 1
        while True:
            call.refuse_stopped()
            try:
                return here() if remote is None else there(self._peer(remote))
            except StaleRouteError:
                if attempt >= _POLICY.attempts_max:
                    raise
                if attempt > 1:
                    # The new primary has not learned of its role yet.
                    self._clock.sleep(_POLICY.wait_ms(attempt, 0.5) / 1000)
                remote = self._routing.remote_primary(self._tenant, refresh=True)
            except ShardUnreachableError:
                known, remote = remote, self._routing.remote_primary(self._tenant, refresh=True)
                if remote == known or attempt >= _POLICY.attempts_max:
                    raise
            attempt += 1

    def begin(self, here: Callable[[], T], call: Call) -> T:
        """Open a transaction, which is possible on the primary only."""
        return self.run(here, self._refuse, call)

    def close(self) -> None:
        """End the sessions on other servers."""
        with self._mutex:
            peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close()

    def _refuse(self, _peer: PeerSession) -> NoReturn:
        """Raise the error that names the shard on which the tenant's transactions can be opened."""
        primary = self._routing.remote_primary(self._tenant, refresh=True)
        if primary is None:
            raise StaleRouteError(f"{self._tenant} now lives here.")
        raise StateError(
            f"{self._tenant} lives in shard {primary.id}, at {primary.location}. "
            "Transactions can only be opened there.",
            hint="Connect there, or use autocommit.",
        )

    def _peer(self, shard: ShardInfo) -> PeerSession:
        with self._mutex:
            found = self._peers.get((shard.id, shard.location))
            if found is None:
                found = self._peers[shard.id, shard.location] = self._routing.peer(shard, self._principal)
            return found


class Rewindable:
    """Rows of an upload; can be read again from the start, until too many have been read."""

    def __init__(self, rows: pa.RecordBatchReader, bytes_max: int = _KEPT_BYTES) -> None:
        self._rows = rows
        self._bytes_max = bytes_max
        # A thread that sent them before may still wait for the next batch when they are read again.
        self._mutex = threading.Lock()
        self._kept: list[pa.RecordBatch] = []
        self._passed = 0
        self._bytes = 0

    def read(self, take: Callable[[pa.RecordBatchReader], T]) -> T:
        """Pass the rows to `take`, which reads all of them or refuses them with StaleRouteError."""
        try:
            return take(pa.RecordBatchReader.from_batches(self._rows.schema, self._from_the_start()))
        except StaleRouteError as error:
            if self._passed:
                raise NotReadyError(
                    f"{error.message} None of the rows were kept, and there are too many to forward.",
                    hint="Send them again.",
                ) from None
            raise

    def _from_the_start(self) -> Iterator[pa.RecordBatch]:
        at = 0
        while (batch := self._at(at)) is not None:
            yield batch
            at += 1

    def _at(self, at: int) -> pa.RecordBatch | None:
        with self._mutex:
            if at < self._passed + len(self._kept):
                return self._kept[at - self._passed]
            batch = next(self._rows, None)
            if batch is not None:
                self._keep(batch)
            return batch

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._bytes += batch.nbytes
        if self._bytes > self._bytes_max:
            self._passed += len(self._kept)
            self._kept.clear()
        self._kept.append(batch)


def texts(text: str) -> tuple[str, ...]:
    """Return the statements of a text, each unchanged."""
    source = text.encode()
    return tuple(own.decode() for own, _ in sql_tokens.statements(source, sql_tokens.read(source)))


def may_change(step: Step) -> bool:
    """Return whether a statement may have changed something if no answer arrived."""
    if isinstance(step, Plain):
        return step.tokens[0].text not in _READS
    return isinstance(step, Capture | CreateThroughQueue | NamedStatement)


def begins(step: Step) -> bool:
    """Return whether a statement opens a transaction."""
    return isinstance(step, Plain) and transaction_kind(step.tokens) is StatementKind.BEGIN
