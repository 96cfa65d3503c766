"""A connection to a DuckDB instance in an engine process, with DuckDB's methods.

Only those methods that Catchment uses, with the same meaning and the same errors: a caller does not
need to know where DuckDB runs. If the process ends, every method raises EngineFailedError.
"""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import duckdb
import grpc
import pyarrow as pa

from catchment.errors import EngineFailedError
from catchment.foundation.settings import MIB
from catchment.server.encoding import wire
from catchment.server.engine import frames
from catchment.server.engine.databases import EngineDatabase
from catchment.server.engine.engine_process import EngineProcess, EngineStatement

Parameters = Sequence[object] | dict[str, object]
# Requests that run no statement of a client end within this time, or the engine is broken.
# Attaching a lake takes as long as its catalog takes to answer.
_SECONDS_MAX = {"connect": 180.0, "unregister": 60.0, "end": 60.0, "statements": 60.0, "tree": 60.0}
# What Arrow's encoding of rows may add to them, beside a quarter of their size.
_ENCODING_BYTES_MAX = 16 * MIB


class RemoteConnection:
    """One connection. Used by one thread at a time; `interrupt` and `close` by any."""

    def __init__(self, process: EngineProcess, number: int, database: EngineDatabase) -> None:
        """Connect to the database of that number, which the first connection opens."""
        # The client's statement that runs, to recognize one that ends its engine again and again.
        self.statement: EngineStatement | None = None
        self._process = process
        # Guards the fields below: an interrupt must not hit a later request.
        self._mutex = threading.Lock()
        self._number = 0
        self._is_running = False
        # A block of requests that can be stopped together: its number, and whether it was stopped.
        self._block = 0
        self._is_stopped = False
        # While the server sends rows, the engine waits for them, and cannot react to an interrupt.
        self._is_sending = False
        self._sources: dict[str, Iterator[pa.RecordBatch]] = {}
        self._reader: RemoteReader | None = None
        self._channel = process.number_channel()
        self._socket, theirs = frames.pair()
        # If its owner forgets it.
        weakref.finalize(self, self._socket.close)
        try:
            with theirs:
                process.open_channel(self._channel, self, theirs)
            # The engine's thread that runs this connection's statements.
            self._thread = int(self._ask("connect", number, database)[0]["thread"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_computing(self) -> bool:
        """Whether the engine computes the answer to a request."""
        return self._running() is not None

    def _running(self, *, block: int | None = None) -> tuple[int, int] | None:
        """Return channel and number of the request that the engine computes, or None.

        With `block`, only a request of that block: a later one must not be interrupted.
        """
        with self._mutex:
            is_of_block = block in (None, self._block)
            number = self._number if is_of_block and self._is_running and not self._is_sending else None
        # An answer that was not read yet: a client may be slow to read.
        return None if number is None or self._is_answered() else (self._channel, number)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Make the requests of the block a unit, which `interrupt` stops: the next ones fail, too."""
        with self._mutex:
            self._block, self._is_stopped = self._block + 1, False
        try:
            yield
        finally:
            with self._mutex:
                self._block, self._is_stopped = self._block + 1, False

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed."""
        return self._socket.fileno() < 0

    def execute(self, text: str, parameters: Parameters | None = None) -> Self:
        """Run a statement to its first row."""
        self._ask("execute", text, parameters)
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows of the last statement."""
        return [tuple(row) for row in frames.unpacked(self._ask("rows")[1])]

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row of the last statement; None after the last."""
        row = frames.unpacked(self._ask("row")[1])
        return None if row is None else tuple(row)

    def to_arrow_table(self, bytes_max: int = wire.RESULT_BYTES_MAX) -> pa.Table:
        """Return the rows of the last statement as Arrow; LimitError if they are larger."""
        with self._request("table", bytes_max):
            schema = pa.ipc.read_schema(self._answer()[1])
            batches: list[pa.RecordBatch] = []
            size = 0
            while True:
                answer, body = self._answer()
                if "batch" not in answer:
                    return pa.Table.from_batches(batches, schema)
                size += body.size
                # The engine has checked that; encoding adds little.
                if size > bytes_max + bytes_max // 4 + _ENCODING_BYTES_MAX:
                    raise frames.too_large(bytes_max)
                batches.append(frames.batch_of(answer, body, schema))

    def to_arrow_reader(self, batch_rows: int) -> "RemoteReader":
        """Return a stream of the rows of the last statement; the next request ends it."""
        schema = pa.ipc.read_schema(self._ask("reader", batch_rows)[1])
        self._reader = RemoteReader(self, schema)
        return self._reader

    def end_stream(self) -> None:
        """End the stream of the last statement, and what DuckDB computes for it."""
        self._ask("end")

    def register(self, name: str, rows: pa.Table | pa.RecordBatchReader) -> None:
        """Register rows as a temporary view: a table, or a stream that one statement can read."""
        is_table = isinstance(rows, pa.Table)
        with self._request("register_table" if is_table else "register_stream", name):
            frames.send(self._socket, self._number, {}, rows.schema.serialize())
            if is_table:
                for batch in rows.to_batches():
                    frames.send_batch(self._socket, self._number, batch)
                frames.send(self._socket, self._number, {"end": True})
            else:
                self._sources[name] = iter(rows)
            self._answer()

    def unregister(self, name: str) -> None:
        """Remove a registered view, if it has not ended with its connection."""
        self._sources.pop(name, None)
        # Callers remove views while they clean up, also after an error of the connection.
        with suppress(EngineFailedError, duckdb.ConnectionException):
            self._ask("unregister", name)

    def statements(self, text: str) -> list[tuple[int, list[str]]]:
        """Return the type and the parameters of each statement in a text, as DuckDB parses it."""
        answer, _ = self._ask("statements", text)
        return [(int(kind), [str(name) for name in names]) for kind, names in answer["statements"]]

    def tree(self, text: str) -> str:
        """Return DuckDB's tree of a text, as JSON."""
        return str(self._ask("tree", text)[1].to_pybytes(), "utf-8")

    def interrupt(self) -> None:
        """Stop the current block; the process is killed if it goes on."""
        with self._mutex:
            self._is_stopped, block = True, self._block
        self._process.stop(
            lambda: self._running(block=block),
            lambda: self._block != block or self.is_closed,
            self.statement,
            self._thread,
        )

    def close(self) -> None:
        """Close the connection, and interrupt what it runs."""
        self._process.drop(self._channel)
        self._socket.close()

    def _is_answered(self) -> bool:
        """Whether an answer has arrived that was not read yet: a client may be slow to read it."""
        try:
            return frames.has_arrived(self._socket)
        except (OSError, ValueError):
            # It was closed.
            return True

    def _ask(self, verb: str, *arguments: object) -> tuple[frames.Answer, pa.Buffer]:
        with self._request(verb, *arguments):
            return self._answer()

    @contextmanager
    def _request(self, verb: str, *arguments: object) -> Iterator[None]:
        """Send a request; inside the block, its answers are read."""
        if self._reader is not None:
            # Of a large batch, a part may be on its way.
            reader, self._reader = self._reader, None
            reader.discard()
        self.begin(verb, *arguments)
        try:
            with self._exchanging():
                yield
        finally:
            self.finish()

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, TimeoutError) as error:
            raise self._failed(error) from None
        except BaseException:
            if self._is_running:
                # Thrown here, in the middle of an exchange: the rest of it cannot be told apart.
                self.close()
            raise

    def begin(self, verb: str, *arguments: object) -> None:
        """Send a request, and leave its answer to be read."""
        with self._mutex:
            if self._is_stopped:
                raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")
            self._number += 1
            self._is_running = True
        try:
            self._socket.settimeout(_SECONDS_MAX.get(verb))
            frames.send_request(self._socket, self._number, verb, arguments)
        except BaseException as error:
            self.finish()
            if isinstance(error, EOFError | OSError):
                failed = self._failed(error)
                if isinstance(failed, EngineFailedError):
                    failed.may_have_run = False
                raise failed from None
            raise

    def finish(self) -> None:
        """Mark the request as answered."""
        with self._mutex:
            self._is_running = False

    def receive(self) -> tuple[frames.Answer, pa.Buffer]:
        """Return the next answer to a request that was begun."""
        with self._exchanging():
            return self._answer()

    def _answer(self) -> tuple[frames.Answer, pa.Buffer]:
        """Return the next answer, and send the rows that the engine asks for until then."""
        while True:
            answer, body = frames.receive(self._socket)
            if answer.get("number") != self._number:
                raise EOFError
            if "error" in answer:
                # The last answer to the request.
                self.finish()
                raise frames.reported(answer)
            if "pull" not in answer:
                return answer, body
            self._send_rows(str(answer["pull"]))

    def _send_rows(self, name: str) -> None:
        """Send one batch of a stream. If reading it fails, its statement reports that."""
        self._is_sending = True
        try:
            batch = next(self._sources[name], None)
        except (*frames.REPORTED, grpc.RpcError) as error:
            frames.send(self._socket, self._number, frames.error_answer(error))
            return
        except BaseException:
            # The engine waits for rows that will never come.
            self._socket.close()
            raise
        finally:
            self._is_sending = False
        if batch is not None:
            frames.send_batch(self._socket, self._number, batch)
        frames.send(self._socket, self._number, {"end": True})

    def _failed(self, error: BaseException) -> Exception:
        # Its owner may have closed it because the process has ended, which callers should see.
        if self.is_closed and self._process.is_running:
            return duckdb.ConnectionException("Connection Error: Connection already closed!")
        if not self.is_closed and not isinstance(error, EOFError):
            self._process.kill("it did not answer")
        return self._process.lost()


class RemoteReader:
    """A stream of rows. The engine computes a batch when it is asked for, and none ahead."""

    def __init__(self, connection: RemoteConnection, schema: pa.Schema) -> None:
        self.schema = schema
        self._connection = connection
        self._is_open = True
        # Whether a batch has been asked for, and more of it will arrive.
        self._is_arriving = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self.read_next_batch()

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next rows; StopIteration after the last."""
        if not self._is_open:
            raise StopIteration
        if not self._is_arriving:
            self._connection.begin("next")
        answer, body = self._receive()
        if "batch" not in answer:
            self._is_open = False
            raise StopIteration
        return frames.batch_of(answer, body, self.schema)

    def close(self) -> None:
        """End the stream, and what DuckDB computes for it."""
        if self._is_open:
            self._connection.end_stream()

    def discard(self) -> None:
        """End the stream, because another request follows; discard the rest of a batch."""
        while self._is_arriving:
            try:
                self._receive()
            except EngineFailedError:
                raise
            except frames.REPORTED:
                # An error of rows that no reader wants.
                break
        self._is_open = False

    def _receive(self) -> tuple[frames.Answer, pa.Buffer]:
        self._is_arriving = False
        try:
            answer, body = self._connection.receive()
        except BaseException:
            self._is_open = False
            self._connection.finish()
            raise
        self._is_arriving = bool(answer.get("more"))
        if not self._is_arriving:
            self._connection.finish()
        return answer, body
