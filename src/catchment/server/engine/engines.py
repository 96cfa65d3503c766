"""The engines of a server: each a process that runs clients' SQL, and is replaced when it ends.

    request ──▶ Engine ──▶ process 1 ── ends ──▶ process 2 ── …
                  │           │
                  │           └─ its connections are lost: their owners close them
                  └─ EngineInstance: lake, files, bare: what a process opens when it is first needed

A process ends by a crash, by its memory limit, or because the server kills it: DuckDB failed
internally in it, or a statement went on after its interruption. The next one is started at once.
"""

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path

import duckdb
from duckdb import StatementType

from catchment.app import App
from catchment.errors import CancelledError, EngineFailedError, StateError, StorageFailedError
from catchment.foundation import events, files
from catchment.foundation.clock import Clock
from catchment.foundation.lasting_thread import LastingThread
from catchment.foundation.meters import Counter
from catchment.foundation.process import memory_bytes
from catchment.foundation.settings import MIB
from catchment.lake.attach import LakeAddress
from catchment.lake.instance import Instance, Origin, has_failed_inside
from catchment.lake.sandbox import Sandbox
from catchment.server.engine.databases import BareDatabase, EngineDatabase, LakeDatabase, ParserDatabase
from catchment.server.engine.engine_process import EngineProcess, EngineStatement
from catchment.server.engine.parsing import ParsedStatement
from catchment.server.engine.remote_connection import RemoteConnection
from catchment.server.values import running_call
from catchment.status.model import EngineStatus

# The databases of an engine: for clients' statements, for the files of long ingest streams, and for
# statements while the lake is unavailable.
LAKE, FILES, BARE = "lake", "files", "bare"

_START_S = 30.0
# After so many processes in a row that ended sooner than this, the next one is started when it is
# needed, so that a process that cannot run is not started again and again.
_LIVED_S_MIN = 2.0
_SHORT_LIVES_MAX = 10
_CONNECT_ATTEMPTS = 2
_PARSERS_IDLE_MAX = 4
_PARSED_MAX = 2_000
_PARSED_CHARACTERS_MAX = 2_000
# A statement that ran alone when its engine ended has two points, one that ran beside others one.
# With this many points, it is refused until the oldest are forgotten.
_POINTS_REFUSED = 4
_POINTS_ALONE = 2
_FORGOTTEN_S = 600.0
# The end of a transaction is not a text to avoid.
_NEVER_SUSPECT = re.compile(r"\s*(?:begin|start|commit|end|rollback|abort)\b", re.IGNORECASE)
_SUSPECTS_MAX = 1_000
# What a process allocates beside DuckDB's buffers: code, Arrow, and for each connection a thread,
# whose stack counts whole.
_BESIDE_DUCKDB_BYTES = 1_024 * MIB
_STACK_BYTES = 8 * MIB
# Besides one per session: unread results, further transactions, the parser's.
_CONNECTIONS_MORE_MAX = 150


class Suspects:
    """Statements that ran when an engine ended, to refuse those that end one again and again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        # When each got its points, by the digest of a statement; the newest suspects last.
        self._points: dict[bytes, list[float]] = {}

    def accuse(self, statements: Iterable[EngineStatement]) -> None:
        """Add points to statements that ran when an engine ended."""
        keys = {each.key for each in statements if not _NEVER_SUSPECT.match(each.text)}
        each = _POINTS_ALONE if len(keys) == 1 else 1
        now_s = self._clock.monotonic_s()
        with self._mutex:
            for key in keys:
                points = self._points.pop(key, [])
                self._points[key] = [*self._recent(points, now_s), *[now_s] * each][-_POINTS_REFUSED:]
            for key in list(self._points)[:-_SUSPECTS_MAX]:
                del self._points[key]

    def clear(self, statement: EngineStatement) -> None:
        """Forget a statement's points, because it has run to its end."""
        # Nearly always there is none.
        if self._points:
            with self._mutex:
                self._points.pop(statement.key, None)

    def refuse(self, statement: EngineStatement) -> None:
        """Raise StateError for a statement that ended engines repeatedly."""
        points = self._points.get(statement.key) if self._points else None
        if not points:
            return
        now_s = self._clock.monotonic_s()
        if len(self._recent(points, now_s)) >= _POINTS_REFUSED:
            left_s = points[0] + _FORGOTTEN_S - now_s
            raise StateError(
                f"This statement ended its engine process repeatedly; it is refused for {left_s:.0f} more seconds.",
                hint="It triggers a defect of DuckDB, or needs too much memory: write it in another way.",
            )

    @staticmethod
    def _recent(points: Sequence[float], now_s: float) -> list[float]:
        return [each for each in points if now_s - each < _FORGOTTEN_S]


class EngineInstance(Instance):
    """A database in an engine's process; a new process has a new one."""

    def __init__(self, name: str, engine: "Engine", database: EngineDatabase, *, failed: threading.Event) -> None:
        """`failed` is set when connections were lost, for the component that closes them."""
        super().__init__(name, database.open)
        self.failed = failed
        self._engine = engine
        self._database = database
        # The process of its connections, and the database that new ones use.
        self._process: EngineProcess | None = None
        self._where: tuple[EngineProcess, int] | None = None

    def remote_cursor(self) -> RemoteConnection:
        """Return a connection; the caller closes it."""
        for left in reversed(range(_CONNECT_ATTEMPTS)):
            # Not under the mutex: a process may have to be started first, and the end of the former
            # one noted here.
            process = self._engine.process()
            with self._mutex:
                if not process.is_running and left:
                    # It has ended since then: its successor's connections are not to be lost.
                    continue
                if self._process is not process:
                    if self._process is not None:
                        # Its end is being noted at this moment.
                        self._count_as_lost()
                    self._process, self._where = process, None
                if self._where is None:
                    self._where = (process, process.number_database())
                number = self._where[1]
            try:
                return RemoteConnection(process, number, self._database)
            except EngineFailedError:
                # It may have ended before it had anything of this caller's.
                if not left:
                    raise
        raise EngineFailedError

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection, typed as DuckDB's own: it has those methods that Catchment uses."""
        return self.remote_cursor()  # type: ignore[return-value]

    def note(self, error: BaseException, generation: int) -> None:
        """Kill that generation's process if the error is an internal failure of DuckDB."""
        with self._mutex:
            where = self._where if generation == self.generation else None
        if where is not None and has_failed_inside(error):
            # Other sessions get the reason, too: it must not quote this one's statement.
            where[0].kill("DuckDB failed internally")

    def give_up(self) -> None:
        """Use a new database for later connections; readers keep the old one until they finish."""
        with self._mutex:
            where, self._where = self._where, None
            self.generation += 1
        if where is not None:
            where[0].close_database(where[1])

    def lose(self, process: EngineProcess) -> None:
        """Mark the connections to an ended process as lost."""
        with self._mutex:
            if self._process is process:
                self._process = self._where = None
                self._count_as_lost()

    def _count_as_lost(self) -> None:
        self.generation += 1
        self._sound_from = self.generation


class Engine:
    """One engine: its process, started when needed, and replaced when it ends. Thread-safe."""

    def __init__(
        self,
        name: str,
        *,
        databases: dict[str, EngineDatabase],
        spill_path: Path,
        memory: "EngineMemory",
        failed: threading.Event,
        failures: Counter,
        suspects: Suspects,
        clock: Clock,
    ) -> None:
        """`databases` are by name; they spill below `spill_path`. `failed` is set when connections
        were lost.
        """
        self.name = name
        self._spill_path = spill_path
        self._memory = memory
        self._failed = failed
        self._failures = failures
        self._suspects = suspects
        self._clock = clock
        self._changed = threading.Condition()
        self._process: EngineProcess | None = None
        self._is_wanted = False
        self._short_lives = 0
        self._is_closed = False
        self._failure: str | None = None
        self._replaced = 0
        self._last_end: str | None = None
        self.instances = {
            key: EngineInstance(f"{name} {key}", self, database, failed=failed) for key, database in databases.items()
        }
        self.parser = EngineParser(self, failed)
        # It starts processes, because the kernel ends a process with the thread that started it.
        self._thread = LastingThread(self._supervise, name=f"catchment-{name}")
        self._thread.start()

    def start(self) -> None:
        """Start the process, if none runs; does not wait for it."""
        with self._changed:
            self._is_wanted = True
            self._changed.notify_all()

    def process(self) -> EngineProcess:
        """Return the running process, started if necessary."""
        with self._changed:
            if self._process is None:
                self._failure = None
                self._is_wanted = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._process or self._is_closed or self._failure, _START_S)
            process = self._process
        if process is None:
            raise EngineFailedError(f"No engine process can be started: {self._failure or 'it takes too long'}.")
        return process

    def status(self) -> EngineStatus:
        """Return the state of the engine."""
        with self._changed:
            process, replaced, last_end = self._process, self._replaced, self._last_end
        return EngineStatus(
            name=self.name,
            pid=None if process is None else process.pid,
            bytes=0 if process is None else process.resident_bytes,
            replaced=replaced,
            last_end=last_end,
        )

    def close(self) -> None:
        """End the process."""
        with self._changed:
            self._is_closed = True
            process = self._process
            self._changed.notify_all()
        self.parser.close()
        if process is not None:
            process.close()
        self._thread.join()

    def _supervise(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_wanted or self._is_closed)
                if self._is_closed:
                    return
            started_s = self._clock.monotonic_s()
            try:
                # What an ended process has spilled.
                files.remove_tree(self._spill_path)
                files.make_folder(self._spill_path)
                process = EngineProcess(
                    data_bytes_max=self._memory.data_bytes_max,
                    connections_max=self._memory.connections_max,
                    on_end=self._lose,
                )
            except (OSError, StorageFailedError) as error:
                with self._changed:
                    self._failure, self._is_wanted = str(error), False
                    self._changed.notify_all()
                continue
            with self._changed:
                self._process, self._is_wanted = process, False
                self._changed.notify_all()
                is_closed = self._is_closed
            if not is_closed:
                process.wait()
            process.close()
            is_short = self._clock.monotonic_s() - started_s < _LIVED_S_MIN
            self._short_lives = self._short_lives + 1 if is_short else 0

    def _lose(self, process: EngineProcess) -> None:
        """Note the end of a process, once; afterwards all of it is known, to whichever thread asks."""
        with self._changed:
            if self._process is not process:
                return
            # Before another process can be used, so that no connection counts as one of it.
            for instance in (*self.instances.values(), self.parser.instance):
                instance.lose(process)
            self._process = None
            if self._is_closed:
                return
            self._is_wanted = self._is_wanted or self._short_lives < _SHORT_LIVES_MAX
            self._replaced += 1
            self._last_end = process.reason
            statements = process.statements()
            self._suspects.accuse(process.blamed())
            self._failed.set()
            self._failures.add()
            events.emit(
                "engine_replaced",
                level=logging.ERROR,
                engine=self.name,
                pid=process.pid,
                reason=process.reason,
                statements=len(statements),
                requests=events.first_few([each.request for each in statements]),
            )


class EngineParser:
    """DuckDB's parser, in an engine's process; stopped with the current call. Thread-safe."""

    def __init__(self, engine: Engine, failed: threading.Event) -> None:
        self.instance = EngineInstance(f"{engine.name} parser", engine, ParserDatabase(), failed=failed)
        self._mutex = threading.Lock()
        self._idle: list[tuple[Origin, RemoteConnection]] = []
        self._is_closed = False
        self._cached = lru_cache(maxsize=_PARSED_MAX)(self._statements)

    def statements(self, text: str) -> tuple[ParsedStatement, ...]:
        """Return the statements of a text, as DuckDB parses them; duckdb.Error if it cannot."""
        return self._cached(text) if len(text) <= _PARSED_CHARACTERS_MAX else self._statements(text)

    def tree(self, text: str) -> str:
        """Return DuckDB's tree of a text, as JSON."""
        with self._connection(text) as connection:
            return connection.tree(text)

    def _statements(self, text: str) -> tuple[ParsedStatement, ...]:
        # DuckDB keeps the engine's interpreter meanwhile, so that it reads no interrupt: its end
        # comes first, or that of an engine without a sign of life.
        with self._connection(text) as connection:
            found = connection.statements(text)
        return tuple(ParsedStatement(StatementType(kind), frozenset(names)) for kind, names in found)

    @contextmanager
    def _connection(self, text: str) -> Iterator[RemoteConnection]:
        connection = self._idle_connection() or self.instance.remote_cursor()
        connection.statement = EngineStatement.current(text)
        call = running_call()
        try:
            with connection.stoppable(), call.interruptible(connection.interrupt):
                yield connection
        except EngineFailedError:
            connection.close()
            raise
        except duckdb.InterruptException:
            call.refuse_stopped()
            raise CancelledError from None
        finally:
            connection.statement = None
            if not connection.is_closed:
                self._keep(connection)

    def _idle_connection(self) -> RemoteConnection | None:
        while True:
            with self._mutex:
                if not self._idle:
                    return None
                known, connection = self._idle.pop()
            if not known.is_lost:
                return connection
            connection.close()

    def _keep(self, connection: RemoteConnection) -> None:
        with self._mutex:
            is_kept = len(self._idle) < _PARSERS_IDLE_MAX and not self._is_closed
            if is_kept:
                self._idle.append((self.instance.origin(), connection))
        if not is_kept:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._mutex:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


class Engines:
    """The engines of a server; sessions are spread over them. Thread-safe."""

    def __init__(
        self,
        app: App,
        address: LakeAddress,
        *,
        threads_max: int,
        failed: threading.Event,
    ) -> None:
        """`failed` is set when connections were lost."""
        count_of = app.settings.server_engines
        memory = EngineMemory.of(app.settings.server_memory_mb, count_of, sessions=app.settings.server_sessions_max)
        self.suspects = Suspects(app.clock)
        self._engines = tuple(
            self._make(app, address, memory, number, threads_max=threads_max, failed=failed)
            for number in range(1, count_of + 1)
        )
        self._next = cycle(self._engines)
        self._mutex = threading.Lock()

    def _make(
        self,
        app: App,
        address: LakeAddress,
        memory: "EngineMemory",
        number: int,
        *,
        threads_max: int,
        failed: threading.Event,
    ) -> Engine:
        spill_path = app.sandbox.spill_path / f"engine-{number}"
        sandbox = replace(app.sandbox, memory_mb=memory.duckdb_mb, spill_path=spill_path / LAKE)
        return Engine(
            f"engine {number}",
            databases=_databases(sandbox, address, threads_max),
            spill_path=spill_path,
            memory=memory,
            failed=failed,
            failures=app.meters.engines_replaced,
            suspects=self.suspects,
            clock=app.clock,
        )

    def pick(self) -> Engine:
        """Return the engine for a new session."""
        with self._mutex:
            return next(self._next)

    def lake_origins(self) -> tuple[Origin, ...]:
        """Return the origins of connections to the lake that are created from now on."""
        return tuple(engine.instances[LAKE].origin() for engine in self._engines)

    def start(self) -> None:
        """Start all processes, without waiting for them."""
        for engine in self._engines:
            engine.start()

    def status(self) -> tuple[EngineStatus, ...]:
        """Return the state of each engine."""
        return tuple(engine.status() for engine in self._engines)

    def close(self) -> None:
        """End all processes."""
        for engine in self._engines:
            engine.close()


def _databases(sandbox: Sandbox, address: LakeAddress, threads_max: int) -> dict[str, EngineDatabase]:
    # Two instances must not spill into the same folder.
    writing = replace(sandbox, spill_path=sandbox.spill_path.with_name(FILES))
    bare = replace(sandbox, spill_path=sandbox.spill_path.with_name(BARE))
    return {
        LAKE: LakeDatabase(address=address, sandbox=sandbox, threads_max=threads_max),
        FILES: BareDatabase(sandbox=writing, address=address, threads_max=threads_max),
        BARE: BareDatabase(sandbox=bare),
    }


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Limits of one engine: DuckDB's, which spills, and the operating system's, which is hard; and
    the number of connections that fit in.

        hard limit = DuckDB's limit × 5/4 + 1 GiB + a stack for each connection

    Without a setting, the hard limits of all engines are together the memory that there is. On a
    small machine the stacks would leave nothing, but nearly all of them stays unused: there, half
    of the memory is DuckDB's.
    """

    duckdb_mb: int
    data_bytes_max: int
    connections_max: int

    @classmethod
    def of(cls, memory_mb: int, engines: int, *, sessions: int) -> "EngineMemory":
        """Return the limits of each of so many engines; `memory_mb` 0 is a part of the memory.

        One engine may have to serve all of the `sessions`.
        """
        connections = sessions + _CONNECTIONS_MORE_MAX
        beside_bytes = _BESIDE_DUCKDB_BYTES + connections * _STACK_BYTES
        part_bytes = memory_bytes() // engines
        duckdb_bytes = memory_mb * MIB or max((part_bytes - beside_bytes) * 4 // 5, part_bytes // 2)
        return cls(duckdb_bytes // MIB, duckdb_bytes * 5 // 4 + beside_bytes, connections)
