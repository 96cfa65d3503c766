"""A server in its own process, and clients that reach it through the ADBC driver."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight

from catchment.foundation.settings import Settings
from tests.acceptance.shell import KEPT, command_with
from tests.shortcuts import warm
from tests.waiting import PATIENCE_S


class ServerProcess:
    """`catchment serve` on one home: started, stopped, killed, and restarted on its port."""

    def __init__(self, home: Path, constants: Mapping[str, float] | None = None, /, **environment: str) -> None:
        """`constants` are given other values in its process, see `patched_command`."""
        self.home = home
        self._constants = constants
        self.port = 0
        self._environment = environment
        self._process: warm.Process | None = None

    @property
    def uri(self) -> str:
        """Where clients connect to."""
        return f"grpc://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process that serves."""
        return self._running().pid

    @property
    def settings(self) -> Settings:
        """What the process was started with."""
        return Settings(home=self.home, queue_layout=self._environment.get("DUCKLING_QUEUE_LAYOUT", "shared"))

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.home.mkdir(parents=True, exist_ok=True)
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        with (self.home / "serve.err").open("a") as err:
            process = self._process = warm.Process(
                [*command_with(self._constants), "serve", "--port", str(self.port), "--home", self.home],
                env={**kept, "HOME": str(self.home), "COLUMNS": "200", **self._environment},
                stdout=warm.PIPE,
                stderr=err,
                start_new_session=True,
            )
        assert process.stdout is not None
        ready = re.match(r"ready grpc://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert ready, self.said
        self.port = int(ready[1])

    def stop(self) -> int:
        """End it gently; what it exits with."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        return self._gone(process)

    def kill(self) -> None:
        """End it as a loss of power would."""
        if self._process is not None:
            self._process.kill()
            self._gone(self._process)

    @property
    def said(self) -> str:
        """What it said on stderr since its first start."""
        return (self.home / "serve.err").read_text(encoding="utf-8")

    def connect(self, *, autocommit: bool = True, options: dict[str, str] | None = None) -> Any:
        """A client with a session of its own."""
        return flight.connect(self.uri, conn_kwargs=options or {}, autocommit=autocommit)

    @contextmanager
    def cursor(self, *, autocommit: bool = True, options: dict[str, str] | None = None) -> Iterator[Any]:
        """A cursor of a client with a session of its own."""
        with self.connect(autocommit=autocommit, options=options) as connection, connection.cursor() as cursor:
            yield cursor

    def rows(self, *statements: str) -> list[tuple[Any, ...]]:
        """What the last of the statements gives, all run in one new session."""
        with self.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def _running(self) -> warm.Process:
        assert self._process is not None
        return self._process

    def _gone(self, process: warm.Process) -> int:
        code = process.wait(timeout=PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        return code


@contextmanager
def serving(home: Path, constants: Mapping[str, float] | None = None, /, **environment: str) -> Iterator[ServerProcess]:
    """A server that is killed at the end: a clean stop would start Spark to flush leftover rows."""
    server = ServerProcess(home, constants, **environment)
    try:
        server.start()
        yield server
    finally:
        server.kill()
