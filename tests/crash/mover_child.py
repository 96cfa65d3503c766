"""The mover of a tenant in its own process; started by the crash tests of tenants.

    python -m tests.crash.mover_child CONTROL TENANT SOURCE TARGET WHAT [POINT]

WHAT is `move`, `abort` or `reverse`. It ends at the crash point, as by a power cut; without one it
goes on as the command does, until it is done.
"""

import sys
from pathlib import Path

from pydantic import SecretStr

from catchment.control import ControlDatabase
from catchment.foundation import faults
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.pipeline.tenant_history import ShardBackfill
from catchment.tenants.control_store import ControlStore
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import ShardId, TenantId
from catchment.tenants.run_move import retry_step, run_move
from catchment.tenants.transport.remote_shard import Remotes
from catchment.testing import InlineRunner


def main() -> None:
    control, tenant, source, target, what, *points = sys.argv[1:]
    for point in points:
        faults.arm(point, faults.kill)
    clock = SystemClock()
    settings = Settings(home=Path(control.partition(":")[2]).parent, control_db=SecretStr(control))
    remotes = Remotes(settings)
    migration = TenantMigration(
        TenantId.parse(tenant),
        ShardId(source),
        ShardId(target),
        control=ControlStore(ControlDatabase.open(settings, clock=clock), clock=clock),
        connect=remotes.connect,
        backfill=ShardBackfill(InlineRunner(), clock=clock),
        clock=clock,
        gate_s=1.0,
    )
    if what == "move":
        run_move(migration, clock=clock, gc_window_s=0.0)
    else:
        retry_step({"abort": migration.abort, "reverse": migration.reverse}[what], clock=clock)
    remotes.close()


if __name__ == "__main__":
    main()
