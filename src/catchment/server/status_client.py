"""Reads the status of a running server over HTTP, for commands on its machine."""

import base64
import json
import ssl
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from catchment.errors import StateError
from catchment.foundation.server_file import RunningServer
from catchment.server.access.users import LOCAL

_TIMEOUT_S = 30.0


def fetch_status(server: RunningServer) -> dict[str, Any]:
    """Return `/status.json` as an admin sees it; StateError if it is off or unreachable."""
    if server.web is None:
        raise StateError("The server has no web server: it was started with `--web-port off`.")
    login = base64.b64encode(f"{LOCAL}:{server.token}".encode()).decode()
    request = urllib.request.Request(f"{server.web}/status.json", headers={"Authorization": f"Basic {login}"})
    # No proxy: the request stays on this machine.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if server.certificate is not None:
        handlers.append(urllib.request.HTTPSHandler(context=_trusting(Path(server.certificate))))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except (OSError, HTTPException, ValueError) as error:
        raise StateError(f"The server at {server.web} cannot be reached: {error}.") from None
    return found


def _trusting(chain: Path) -> ssl.SSLContext:
    """Trust only the server's own certificate, whatever its issuer and name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(chain)
    return context
