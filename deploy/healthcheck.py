"""Asks the server of this container how it is, wherever its settings made it listen; run by the image's HEALTHCHECK.

A server that says `degraded` is alive, and starting it again would not help: only one that does not answer is not well.
One without a web server is well while its Flight port takes connections.
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
    """Ends with an error unless the server answers."""
    running = json.loads((Path(os.environ["CATCHMENT_HOME"]) / "server.json").read_text(encoding="utf-8"))
    if running["web"] is None:
        flight = urlsplit(running["uri"])
        socket.create_connection((flight.hostname, flight.port), timeout=TIMEOUT_S).close()
        return
    # Its certificate is made out to the name that clients know, and this is loopback.
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    # A proxy that the environment names is for the world outside, and knows no loopback of this container.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
    direct.open(f"{running['web']}/healthz", timeout=TIMEOUT_S).close()


if __name__ == "__main__":
    main()
