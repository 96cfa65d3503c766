"""A server that is killed while it receives a long stream; started by the crash tests.

python -m tests.crash.ingest_child HOME POINT
"""

import sys
from pathlib import Path

from catchment.foundation import faults
from catchment.foundation.settings import Settings
from tests.server.raw_client import Client, ingest, server
from tests.server.sessions.test_bulk import LONG


def main(home: str, point: str) -> None:
    faults.arm(point, faults.kill)
    with server(Settings(home=Path(home), server_port=0)) as running:
        Client(running.uri).put(ingest("events", create=False), LONG)


if __name__ == "__main__":
    main(*sys.argv[1:])
