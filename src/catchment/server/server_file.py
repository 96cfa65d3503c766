"""`server.json` in the home: where its server is, and how commands on this machine get in.

It holds a token that opens everything, so only the server's own user can read it. A server that was killed leaves it
behind: it counts only while the process that wrote it lives.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from catchment.foundation import files
from catchment.foundation.settings import Settings

FILE_NAME = "server.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that runs; `started` tells its process from a later one with the same number.

    `certificate` is the file that it proves itself with, None where it speaks no TLS. `web` is where this machine
    reaches its status, None where it has no web server.
    """

    pid: int
    started: str
    uri: str
    certificate: str | None
    token: str = field(repr=False)
    web: str | None = None


def announce(settings: Settings, *, uri: str, token: str, web: str | None = None) -> None:
    """Say that this process serves the home; `uri` is where this machine reaches it."""
    pid, chain = os.getpid(), settings.server_tls_certificate
    running = RunningServer(
        pid=pid,
        started=files.process_started(pid) or "",
        uri=uri,
        certificate=None if chain is None else str(chain.absolute()),
        token=token,
        web=web,
    )
    files.make_folder(settings.home)
    files.replace_text(_path(settings), json.dumps(asdict(running)) + "\n", private=True)


def withdraw(settings: Settings) -> None:
    """Take back what this process announced; what another one did stays."""
    found = find(settings)
    if found is not None and found.pid == os.getpid():
        files.remove(_path(settings))


def find(settings: Settings) -> RunningServer | None:
    """The server that runs on the home; None where there is none, or where it is another user's."""
    try:
        found = RunningServer(**json.loads(_path(settings).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.started and files.process_started(found.pid) == found.started else None


def _path(settings: Settings) -> Path:
    return settings.home / FILE_NAME
