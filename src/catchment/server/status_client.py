"""The status of a running server, asked for over HTTP by commands of this machine."""

import base64
import json
import ssl
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from catchment.errors import StateError
from catchment.server.server_file import RunningServer
from catchment.server.users import LOCAL

_PATIENCE_S = 30.0


def fetch_status(server: RunningServer) -> dict[str, Any]:
    """What `/status.json` says to an admin; StateError where it has no web server, or where that does not answer."""
    if server.web is None:
        raise StateError("The server has no web server: it was started with `--web-port off`.")
    login = base64.b64encode(f"{LOCAL}:{server.token}".encode()).decode()
    request = urllib.request.Request(f"{server.web}/status.json", headers={"Authorization": f"Basic {login}"})
    # A proxy is for others: this stays on the machine.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if server.certificate is not None:
        handlers.append(urllib.request.HTTPSHandler(context=_trusting(Path(server.certificate))))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except (OSError, HTTPException, ValueError) as error:
        raise StateError(f"The server at {server.web} cannot be asked: {error}.") from None
    return found


def _trusting(chain: Path) -> ssl.SSLContext:
    """The server's own certificate is what is trusted, whoever issued it and whatever name it is made out to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(chain)
    return context
