"""Scenes of the server: a real process on a home of its own, and clients that meet it through the real ADBC driver."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight
import grpc
from google.protobuf.message import Message

from catchment.flight_protocol import flight_pb2 as pb
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.server import messages
from tests.acceptance.shell import COMMAND, KEPT
from tests.shortcuts import warm

PATIENCE_S = 60.0
# Longer than anybody has patience for, and nothing but work.
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
_SERVICE = "/arrow.flight.protocol.FlightService/"
_PAUSE_S = 0.02
# Between two writes of a client: those that never pause take the machine from whatever they are to go on beside.
BEAT_S = 0.05


class ServerProcess:
    """`catchment serve` on one home: started, stopped, killed, and started again on the port that it had."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
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
                [COMMAND, "serve", "--port", str(self.port), "--home", self.home],
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
def serving(home: Path, **environment: str) -> Iterator[ServerProcess]:
    """A server that is killed at the end: a gentle end would start Spark to flush what tests leave behind."""
    server = ServerProcess(home, **environment)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def wait_until(is_so: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Wait until something is so that no event tells of."""
    clock = SystemClock()
    end_s = clock.monotonic_s() + patience_s
    while not is_so():
        assert clock.monotonic_s() < end_s, f"not within {patience_s:g} s: {what}"
        clock.sleep(_PAUSE_S)


class RawSession:
    """A session by Flight SQL's own messages, for what the driver has no words for."""

    def __init__(self, server: ServerProcess) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
        self._metadata: tuple[tuple[str, str], ...] = ()

    def __enter__(self) -> "RawSession":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    @property
    def token(self) -> str:
        """What the session is known by."""
        return dict(self._metadata)["authorization"].removeprefix("Bearer ")

    def begin(self) -> bytes:
        """Open a transaction; its id."""
        body = self._act("BeginTransaction", sql.ActionBeginTransactionRequest())
        return messages.body(sql.ActionBeginTransactionResult, body).transaction_id

    def end(self, transaction: bytes, *, commit: bool) -> None:
        """Commit a transaction, or roll it back."""
        kinds = sql.ActionEndTransactionRequest
        action = kinds.END_TRANSACTION_COMMIT if commit else kinds.END_TRANSACTION_ROLLBACK
        self._act("EndTransaction", kinds(transaction_id=transaction, action=action))

    def update(self, statement: str, transaction: bytes = b"") -> int:
        """Run a statement; how many rows it changed."""
        command = sql.CommandStatementUpdate(query=statement, transaction_id=transaction or None)
        descriptor = pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=messages.pack(command))
        put: grpc.StreamUnaryMultiCallable[bytes, bytes] = self._channel.stream_unary(_SERVICE + "DoPut")
        data = pb.FlightData(flight_descriptor=descriptor).SerializeToString()
        answer, call = put.with_call(iter([data]), metadata=self._metadata, timeout=PATIENCE_S)
        self._remember(call)
        result = sql.DoPutUpdateResult.FromString(pb.PutResult.FromString(answer).app_metadata)
        return result.record_count

    def _act(self, kind: str, body: Message) -> bytes:
        act: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(_SERVICE + "DoAction")
        action = pb.Action(type=kind, body=messages.pack(body)).SerializeToString()
        answer, call = act.with_call(action, metadata=self._metadata, timeout=PATIENCE_S)
        self._remember(call)
        return pb.Result.FromString(answer).body

    def _remember(self, call: grpc.Call) -> None:
        tokens = [(key, str(value)) for key, value in call.initial_metadata() if key == "authorization"]
        self._metadata = tuple(tokens) or self._metadata
