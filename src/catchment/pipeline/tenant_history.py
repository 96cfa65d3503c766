"""`ShardBackfill`: copies a tenant's history from one shard's lake into another's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catchment.errors import InputError
from catchment.foundation.clock import Clock
from catchment.foundation.settings import settings_of
from catchment.lake import Lake
from catchment.pipeline.backfill import Backfill
from catchment.pipeline.deliver import Deliverer
from catchment.pipeline.runner import Runner
from catchment.tenants.migration import History, HistoryProgress
from catchment.tenants.model import ShardInfo, TenantId


class ShardBackfill:
    """The `HistoryCopier` of moves; opens both shards' lakes by their homes."""

    def __init__(self, runner: Runner, *, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    def plan(
        self, tenant: TenantId, source: ShardInfo, target: ShardInfo, *, snapshot: int | None, token: str
    ) -> History:
        """Plan the copy, without side effects; InputError if the tenant has dead letters."""
        with self._between(source, target) as (lake, other, backfill):
            plan = backfill.plan(tenant.schema, snapshot or lake.newest_snapshot(), token)
            letters = sum(letter.table.schema == tenant.schema for letter in lake.dead_letters())
            if letters:
                raise InputError(
                    f"{tenant} has {letters} dead letters, which a move cannot copy.",
                    hint="`catchment queue dead-letters` retries or drops them.",
                )
            return History(
                tables=len(plan.tables),
                files=sum(len(table.units) for table in plan.tables),
                bytes=plan.bytes,
                source_lake=lake.identity(),
                target_lake=other.identity(),
                notes=tuple(plan.explain()),
            )

    def run(
        self,
        tenant: TenantId,
        source: ShardInfo,
        target: ShardInfo,
        *,
        snapshot: int,
        token: str,
        progress: HistoryProgress | None = None,
    ) -> History:
        """Copy the files that the target does not have yet, each once."""
        with self._between(source, target) as (_, _, backfill):
            report = backfill.run(backfill.plan(tenant.schema, snapshot, token), progress)
        return History(tables=len(report.tables), files=report.files, bytes=report.bytes)

    @contextmanager
    def _between(self, source: ShardInfo, target: ShardInfo) -> Iterator[tuple[Lake, Lake, Backfill]]:
        ours, theirs = (settings_of(Path(shard.home)) for shard in (source, target))
        one = Lake.from_settings(ours, clock=self._clock)
        other = Lake.from_settings(theirs, clock=self._clock)
        with one, other:
            yield one, other, Backfill(one, Deliverer(other, self._runner, theirs))
