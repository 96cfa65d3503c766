"""Health check of the image: fail unless the server of this container answers at its address.

A server that reports `degraded` passes, because a restart would not help it; only a server that
does not answer fails. Without a web server, it passes if its Flight port accepts connections.
"""

import json
import os
import socket
import ssl
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 5.0


def main() -> None:
    """Raise an error unless the server answers."""
    running = json.loads((Path(os.environ["CATCHMENT_HOME"]) / "server.json").read_text(encoding="utf-8"))
    if running["web"] is None:
        flight = urlsplit(running["uri"])
        socket.create_connection((flight.hostname, flight.port), timeout=TIMEOUT_S).close()
        return
    # The certificate is for the name that clients use, and this is loopback.
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    # Ignore a proxy from the environment: it cannot reach the loopback of this container.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
    direct.open(f"{running['web']}/healthz", timeout=TIMEOUT_S).close()


if __name__ == "__main__":
    main()
