"""Entry point for a tenant's writes: routes them to its primary, also after it has moved.

A shard that is not the primary, or is in another epoch, refuses the whole write. Then the route is
looked up again, and the write is sent there. A stale route costs a retry, never a row.
"""

from collections.abc import Callable

import pyarrow as pa

from catchment.errors import NotReadyError, RetryableError, ShardUnreachableError, StaleRouteError
from catchment.foundation.backoff import Backoff
from catchment.foundation.clock import Clock
from catchment.queue.buffer import Ack
from catchment.tenants.model import ShardId, TenantId
from catchment.tenants.router import Access, TenantRouter
from catchment.tenants.shard_api import ShardNode

_POLICY = Backoff(attempts_max=60, first_ms=5, factor=1.6, wait_ms_max=500)


class TenantGateway:
    """Writes for tenants, to whichever shard is their primary. Thread-safe."""

    def __init__(self, router: TenantRouter, connect: Callable[[ShardId, str], ShardNode], *, clock: Clock) -> None:
        self._router = router
        self._connect = connect
        self._clock = clock

    def signal_for_tenant(self, tenant: TenantId, table: str, rows: pa.Table, *, session: str = "default") -> Ack:
        """Write rows into a tenant's table; they are durable on its primary when this returns.

        Raises CommitUnknownError if the answer was lost: only then is it unknown whether the rows
        were kept.
        """
        attempt = 1
        while True:
            try:
                routed = self._router.routed(tenant, Access.WRITE)
                node = self._connect(routed.primary.id, routed.primary.location)
                return node.write(tenant, table, rows, epoch=routed.route.epoch, session=session)
            except (StaleRouteError, NotReadyError, ShardUnreachableError) as error:
                # Nothing was kept: it is safe to write again, maybe to another shard.
                self._wait(attempt, error)
            attempt += 1
            self._router.refresh(tenant)

    def _wait(self, attempt: int, error: RetryableError) -> None:
        if attempt >= _POLICY.attempts_max:
            raise error
        # The first retry does not wait: a tenant that has moved is on its new primary.
        if attempt > 1 or not isinstance(error, StaleRouteError):
            self._clock.sleep(_POLICY.wait_ms(attempt, 0.5) / 1000)
