"""`server.json` in the home: the address of its server, and the token for local commands.

The token grants full access, so only the server's own user can read the file. A server that was
killed leaves the file in place: it is valid only while the process that wrote it is alive.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from catchment.foundation import files, process
from catchment.foundation.settings import Settings

FILE_NAME = "server.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A running server; `started` distinguishes its process from a later one with the same number.

    `certificate` is the server's certificate file, or None if it does not use TLS. `web` is the
    local address of its status, or None if it has no web server.
    """

    pid: int
    started: str
    uri: str
    certificate: str | None
    token: str = field(repr=False)
    web: str | None = None


def announce(settings: Settings, *, uri: str, token: str, web: str | None = None) -> None:
    """Announce that this process serves the home; `uri` is its local address."""
    pid, chain = os.getpid(), settings.server_tls_certificate
    running = RunningServer(
        pid=pid,
        started=process.start_tick(pid) or "",
        uri=uri,
        certificate=None if chain is None else str(chain.absolute()),
        token=token,
        web=web,
    )
    files.make_folder(settings.home)
    files.replace_text(_path(settings), json.dumps(asdict(running)) + "\n", private=True)


def withdraw(settings: Settings) -> None:
    """Remove this process's announcement; that of another process stays."""
    found = find(settings)
    if found is not None and found.pid == os.getpid():
        files.remove(_path(settings))


def find(settings: Settings) -> RunningServer | None:
    """Return the server that runs on the home; None if there is none, or it is another user's."""
    try:
        found = RunningServer(**json.loads(_path(settings).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.started and process.start_tick(found.pid) == found.started else None


def _path(settings: Settings) -> Path:
    return settings.home / FILE_NAME
