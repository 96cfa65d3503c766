"""A server that is a shard, in its own process; started by the crash tests of tenants.

    python -m tests.crash.shard_child HOME NAME CONTROL PORT

It says `ready PORT`. For every line on stdin, the name of a crash point, it says `armed`, and ends
there the next time, as by a power cut. What it flushes, it flushes without Spark.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr

from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.server.flight_server import FlightServer
from catchment.tenants import shard
from catchment.testing import InlineRunner


def main() -> None:
    home, name, control, port = sys.argv[1:]
    shard.WAITS = replace(shard.WAITS, replica_s=1)
    server = FlightServer(
        Settings(
            home=Path(home),
            shard_name=name,
            control_db=SecretStr(control),
            server_port=int(port),
            queue_auto_create_tables=True,
            queue_flush_interval_seconds=1,
        )
    )
    server.app._runner = InlineRunner()  # type: ignore[assignment]
    server.start()
    os.write(1, f"ready {server.port}\n".encode())
    for line in sys.stdin:
        faults.arm(line.strip(), faults.kill)
        os.write(1, b"armed\n")
    server.stop()


if __name__ == "__main__":
    main()
