"""A server in its own process that flushes without Spark; started by `watched_server`.

    python -m tests.web.watched_server_child HOME WEB_PORT

It says on one line where it is, as JSON, and ends when its stdin does, as by a power cut.
"""

import json
import os
import sys
from pathlib import Path

from catchment.foundation.settings import load_settings
from catchment.server import statement_log
from catchment.server.flight_server import FlightServer
from catchment.status import background
from catchment.testing import InlineRunner


def main() -> None:
    home, web_port = sys.argv[1:]
    settings = load_settings(
        Path(home),
        server_port=0,
        server_web_port=web_port,
    )
    # Every statement is a slow one.
    statement_log.SLOW_SECONDS = 0
    # Every answer is of this moment.
    background.AGE_SECONDS_MAX = 0
    server = FlightServer(settings)
    server.app._runner = InlineRunner()  # type: ignore[assignment]
    server.start()
    os.write(1, json.dumps({"uri": server.uri, "web": server.web_address}).encode() + b"\n")
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
