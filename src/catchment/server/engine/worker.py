"""The engine process: runs statements of clients, one thread per connection.

    python -m catchment.server.engine.worker FD DATA_BYTES_MAX

FD is the control socket, on which the server opens connections and interrupts requests. When the
server closes it, or has ended, the process ends. It ignores signals that a terminal or a service
manager sends to all processes of the server: the server ends it after its last statement.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from catchment.errors import EngineFailedError, InvariantError, LimitError
from catchment.server import memory
from catchment.server.engine import frames
from catchment.server.engine.databases import EngineDatabase

_CONTROL_BYTES_MAX = 4_096
# The server sends one every two seconds.
_PINGS_PER_TRIM = 5
# Between two interrupts of a closed connection: DuckDB loses those that come before a query begins.
_DROP_S = 0.1
# Linux: the highest probability that the kernel ends this process if memory runs out.
_OOM_SCORE_PATH = Path("/proc/self/oom_score_adj")
_OOM_SCORE_MAX = "1000"
# Linux: the signal for this process when the thread that started it ends.
_PR_SET_PDEATHSIG = 1


class Databases:
    """The process's DuckDB instances, by the number that the server gave them. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        # One lock each: opening a lake takes as long as its catalog takes to answer.
        self._locks: dict[int, threading.Lock] = defaultdict(threading.Lock)
        self._open: dict[int, duckdb.DuckDBPyConnection] = {}
        self._closed: set[int] = set()

    def cursor(self, number: int, database: EngineDatabase) -> duckdb.DuckDBPyConnection:
        """Return a connection to the instance, which is created if it does not exist yet."""
        with self._lock(number):
            if number in self._closed:
                # The server has replaced it in the meantime, and tries again with the new one.
                raise EngineFailedError
            if number not in self._open:
                self._open[number] = database.open()
            return self._open[number].cursor()

    def close(self, number: int) -> None:
        """Close the instance once its last connection is closed."""
        with self._lock(number):
            self._closed.add(number)
            # It ends with its last connection. Its own method would close those, too.
            self._open.pop(number, None)

    def _lock(self, number: int) -> threading.Lock:
        with self._mutex:
            return self._locks[number]


class Channel:
    """One connection: answers the server's requests in order, in its own thread."""

    def __init__(self, number: int, end: socket.socket, databases: Databases) -> None:
        self.number = number
        self._socket = end
        # The request that is being answered.
        self._number = 0
        self._databases = databases
        self._duckdb: duckdb.DuckDBPyConnection | None = None
        self._reader: pa.RecordBatchReader | None = None
        # Guards the two below: an interrupt must not hit a later request.
        self._mutex = threading.Lock()
        self._running = 0
        self._interrupted = 0
        self._is_dropped = False
        self._has_ended = threading.Event()
        self._verbs: dict[str, Callable[..., None]] = {
            "connect": self._connect,
            "execute": self._execute,
            "rows": self._rows,
            "row": self._row,
            "table": self._table,
            "reader": self._open_reader,
            "next": self._next,
            "end": self._end,
            "register_table": self._register_table,
            "register_stream": self._register_stream,
            "unregister": self._unregister,
            "statements": self._statements,
            "tree": self._tree,
        }

    def run(self) -> None:
        """Answer requests until the server closes the connection."""
        try:
            while True:
                number, verb, arguments = frames.receive_request(self._socket)
                self._answer(number, verb, arguments)
        except EOFError:
            pass
        finally:
            self._reader = None
            self._has_ended.set()
            if self._duckdb is not None:
                self._duckdb.close()
            self._socket.close()

    def refuse(self) -> None:
        """Answer the first request with an error, and close the connection."""
        self._number = 1
        with suppress(EOFError):
            self._reply(frames.error_answer(LimitError("The engine process has no memory for another connection.")))
        self._socket.close()

    def interrupt(self, number: int) -> None:
        """Interrupt the request of that number, also if it has not arrived yet."""
        with self._mutex:
            self._interrupted = max(self._interrupted, number)
            if self._running == number:
                self._interrupt()

    def drop(self) -> None:
        """Interrupt whatever runs, until the connection has ended: the server has closed it."""
        self._is_dropped = True
        while not self._has_ended.wait(_DROP_S):
            with self._mutex:
                self._interrupt()

    def _interrupt(self) -> None:
        if self._duckdb is not None:
            with suppress(duckdb.ConnectionException):
                self._duckdb.interrupt()

    def _answer(self, number: int, verb: str, arguments: tuple[Any, ...]) -> None:
        self._number = number
        with self._mutex:
            self._running = number
            is_stopped = self._interrupted >= number or self._is_dropped
        try:
            if is_stopped:
                raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")
            self._verbs[verb](*arguments)
        except frames.REPORTED as error:
            self._reply(frames.error_answer(error))
        finally:
            with self._mutex:
                self._running = 0

    def _reply(self, answer: frames.Answer, body: Any = b"") -> None:
        frames.send(self._socket, self._number, answer, body)

    @property
    def _raw(self) -> duckdb.DuckDBPyConnection:
        if self._duckdb is None:
            raise InvariantError("The connection has no database.")
        return self._duckdb

    # Requests.

    def _connect(self, number: int, database: EngineDatabase) -> None:
        made = self._databases.cursor(number, database)
        with self._mutex:
            self._duckdb = made
        self._reply({"thread": threading.get_native_id()})

    def _execute(self, text: str, parameters: Any) -> None:
        self._reader = None
        if parameters:
            self._raw.execute(text, parameters)
        else:
            self._raw.execute(text)
        self._reply({})

    def _rows(self) -> None:
        self._reply({}, frames.packed(self._raw.fetchall()))

    def _row(self) -> None:
        self._reply({}, frames.packed(self._raw.fetchone()))

    def _table(self, bytes_max: int) -> None:
        table = self._raw.to_arrow_table()
        if table.get_total_buffer_size() > bytes_max and table.nbytes > bytes_max:
            raise frames.too_large(bytes_max)
        self._reply({}, table.schema.serialize())
        for batch in table.to_batches():
            frames.send_batch(self._socket, self._number, batch)
        self._reply({"end": True})

    def _open_reader(self, batch_rows: int) -> None:
        self._reader = self._raw.to_arrow_reader(batch_rows)
        self._reply({}, self._reader.schema.serialize())

    def _next(self) -> None:
        try:
            batch = None if self._reader is None else self._reader.read_next_batch()
        except StopIteration:
            batch = self._reader = None
        if batch is None:
            self._reply({"end": True})
        else:
            frames.send_batch(self._socket, self._number, batch)

    def _end(self) -> None:
        # DuckDB's threads fill a buffer ahead of the reader, and search for rows until it is full.
        # While no batch is being read, an interrupt leaves the transaction as it is.
        self._reader = None
        self._interrupt()
        self._reply({})

    def _register_table(self, name: str) -> None:
        schema = self._received_schema()
        self._raw.register(name, pa.Table.from_batches(self._received(schema), schema))
        self._reply({})

    def _register_stream(self, name: str) -> None:
        schema = self._received_schema()
        reader = pa.RecordBatchReader.from_batches(schema, self._pulled(name, schema))
        # A bare capsule: DuckDB reads a RecordBatchReader object by a slower path.
        self._raw.register(name, reader.__arrow_c_stream__())
        self._reply({})

    def _unregister(self, name: str) -> None:
        self._raw.unregister(name)
        self._reply({})

    def _statements(self, text: str) -> None:
        found = [
            [int(statement.type), sorted(statement.named_parameters)]
            for statement in self._raw.extract_statements(text)
        ]
        self._reply({"statements": found})

    def _tree(self, text: str) -> None:
        # To the end: with a result open, DuckDB parses a PIVOT into other statements.
        ((tree,),) = self._raw.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
        self._reply({}, tree.encode())

    # Rows from the server.

    def _received_schema(self) -> pa.Schema:
        _, body = frames.receive(self._socket)
        return pa.ipc.read_schema(body)

    def _received(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        while True:
            answer, body = frames.receive(self._socket)
            if "error" in answer:
                raise frames.reported(answer)
            if "batch" not in answer:
                return
            yield frames.batch_of(answer, body, schema)

    def _pulled(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield rows that the server sends while a statement that reads them runs."""
        while True:
            self._reply({"pull": name})
            batches = list(self._received(schema))
            if not batches:
                return
            yield from batches


def _serve(control: socket.socket) -> None:
    databases, channels = Databases(), dict[int, Channel]()
    pings = 0
    while True:
        message, ends, _, _ = socket.recv_fds(control, _CONTROL_BYTES_MAX, 1)
        if not message:
            return
        order = json.loads(message)
        if "ping" in order:
            control.send(message)
            pings += 1
            if pings % _PINGS_PER_TRIM == 0:
                memory.give_back()
        elif "database" in order:
            # It waits while the database is being opened.
            _start(databases.close, order["database"])
        elif ends:
            channel = Channel(order["channel"], socket.socket(fileno=ends[0]), databases)
            channels[channel.number] = channel
            if not _start(_run, channel, channels):
                channels.pop(channel.number).refuse()
        elif (found := channels.get(order["channel"])) is not None:
            if "request" in order:
                found.interrupt(order["request"])
            else:
                _start(found.drop)
            # The server kills a process only if it has read what it does not react to.
            control.send(message)


def _start(function: Callable[..., None], *arguments: object) -> bool:
    """Run a function in a thread; return False if there is no memory for one."""
    try:
        threading.Thread(target=function, args=arguments, name="catchment-channel", daemon=True).start()
    except RuntimeError:
        return False
    return True


def _run(channel: Channel, channels: dict[int, Channel]) -> None:
    try:
        channel.run()
    finally:
        channels.pop(channel.number, None)


def _limit(data_bytes_max: int) -> None:
    """Limit the memory that the process may allocate; DuckDB reports an error, or the process ends.

    If the machine or its cgroup runs out of memory before that, this process ends, not the server.
    """
    with suppress(OSError):
        _OOM_SCORE_PATH.write_text(_OOM_SCORE_MAX, encoding="ascii")
    if data_bytes_max:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes_max, data_bytes_max))
    # No core dumps: a process of clients' data dies every day.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Serve until the server closes the control socket."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    control = socket.socket(fileno=int(sys.argv[1]))
    _limit(int(sys.argv[2]))
    memory.bound_arenas()
    with suppress(OSError):
        _serve(control)
    # Nothing needs to be closed: catalogs roll back what is open.
    os._exit(0)


if __name__ == "__main__":
    main()
