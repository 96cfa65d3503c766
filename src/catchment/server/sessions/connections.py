"""A session's DuckDB connection, and the one result that it can have open.

DuckDB streams a result from its connection, so the next statement on it would end the stream. Rows
that the client has not read by then are read into memory, up to a limit. A larger result is
discarded, and its reader gets an error.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress

import duckdb
import pyarrow as pa

from catchment.errors import CancelledError, EngineFailedError, InputError, LimitError, StateError, TimedOutError
from catchment.foundation.clock import Clock
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.lake.instance import Origin, has_failed_inside
from catchment.lake.types import Column
from catchment.server.encoding import wire
from catchment.server.engine.engine_process import EngineStatement
from catchment.server.engine.engines import Suspects
from catchment.server.engine.parsing import ParsedStatement, Parser
from catchment.server.engine.remote_connection import RemoteConnection
from catchment.server.values import Call

# Errors that DuckDB raises if a table's lake is unavailable, or was so when the connection was
# opened.
_NOT_FOUND = (duckdb.CatalogException, duckdb.IOException, duckdb.BinderException)
# Errors of statements that did not start to run.
_NOT_BEGUN = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)
# Binder errors concern names of every kind; those with this prefix are about a catalog.
_BINDING_CATALOG = "Binder Error: Catalog "
# DuckDB's vectors have 2,048 rows; the wire splits batches by bytes.
_BATCH_ROWS = 32 * 2_048

Parameters = Sequence[object] | dict[str, object]


def by_position_or_name(names: Collection[str], bound: Sequence[str], values: Sequence[object]) -> Parameters:
    """Return values for a statement with these parameters, by position if the names are numbers."""
    if len(names) != len(values):
        raise InputError(f"The statement has {len(names)} parameters, but {len(values)} values are bound.")
    return values if all(name.isdigit() for name in names) else dict(zip(bound, values, strict=True))


def require_row(bound: pa.Table | None) -> None:
    """Refuse a query if parameters are bound, but no row of them."""
    if bound is not None and not bound.num_rows:
        raise InputError("No row of parameters is bound.")


def parameter_row(statement: ParsedStatement, bound: pa.Table, at: int) -> Parameters:
    """Return one bound row, by position or by name, as the statement's parameters require."""
    values = [python_values(column.slice(at, 1))[0] for column in bound.columns]
    return by_position_or_name(statement.named_parameters, bound.column_names, values)


def python_values(column: pa.ChunkedArray) -> list[object]:
    """Return values for DuckDB's Python API; InputError if Python has none (after year 9999)."""
    try:
        values: list[object] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise InputError(f"A bound value cannot be used: {error}") from None
    return [_with_intervals(value) for value in values] if _has_interval(column.type) else values


def _has_interval(kind: pa.DataType) -> bool:
    fields = (kind.field(at) for at in range(kind.num_fields))
    return pa.types.is_interval(kind) or any(_has_interval(field.type) for field in fields)


def _with_intervals(value: object) -> object:
    """Replace intervals, at any depth; DuckDB's Python API would read Arrow's three numbers as a
    list.
    """
    match value:
        case pa.MonthDayNano():
            return _interval(value)
        case list():
            return [_with_intervals(each) for each in value]
        case tuple():
            return tuple(_with_intervals(each) for each in value)
        case dict():
            return {key: _with_intervals(each) for key, each in value.items()}
        case _:
            return value


def _interval(value: pa.MonthDayNano) -> duckdb.Value:
    text = f"{value.months} months {value.days} days {value.nanoseconds // 1_000} microseconds"
    return duckdb.Value(text, duckdb.sqltypes.INTERVAL)


class Connection:
    """One DuckDB connection. Used by one thread at a time, which holds `lock`."""

    def __init__(
        self,
        raw: duckdb.DuckDBPyConnection,
        *,
        origin: Origin,
        parser: Parser,
        require_lake: Callable[[], None],
        clock: Clock,
        bytes_max: int = wire.RESULT_BYTES_MAX,
        suspects: Suspects | None = None,
    ) -> None:
        """`raw` is DuckDB's own connection, or one in an engine process, from which a statement's
        whole result is read if it has at most `bytes_max`.

        `require_lake` is called if a name or a file is not found; it raises LakeUnavailableError if
        the lake is the cause. `suspects` are the statements that ended engines.
        """
        self._require_lake = require_lake
        self._suspects = suspects
        self.clock = clock
        self.raw = raw
        found: object = raw
        self._remote = found if isinstance(found, RemoteConnection) else None
        self.origin = origin
        self.parser = parser
        self._bytes_max = bytes_max
        # Whether it has state that a new connection would lack: USE, variables, temporary tables.
        self.has_state = False
        # Whether a statement failed while it ran. On an instance that errors do not invalidate,
        # DuckDB then continues the transaction, which may contain half of the statement's changes.
        self.has_failed = False
        self.lock = threading.RLock()
        self._live: LiveResult | None = None
        # The temporary tables through which rows for the queue pass, by target; a rollback drops
        # those made in its transaction.
        self.shapes: dict[TableId, tuple[Column, ...]] = {}
        # The schemas in which unqualified names are looked up.
        self.search_path: tuple[str, ...] = (DEFAULT_SCHEMA,)
        # How many changes of the session's settings it has.
        self.settings_changes = 0

    def run(self, statement: str, call: Call, parameters: Parameters | None = None) -> duckdb.DuckDBPyConnection:
        """Run a statement to its first row. The caller holds the lock."""
        self.park_result(call)
        with self.interruptible(call):
            return self.raw.execute(statement, parameters) if parameters else self.raw.execute(statement)

    def table(self, statement: str, call: Call, parameters: Parameters | None = None) -> pa.Table:
        """Run a statement and return its whole result; LimitError if it is too large. The caller
        holds the lock.
        """
        self.park_result(call)
        with self.interruptible(call):
            executed = self.raw.execute(statement, parameters) if parameters else self.raw.execute(statement)
            if self._remote is None:
                return executed.to_arrow_table()
            try:
                return self._remote.to_arrow_table(self._bytes_max)
            except LimitError:
                # The statement has run: its changes must not be committed.
                self.has_failed = True
                raise

    def stream(
        self,
        statement: str,
        call: Call,
        parameters: Parameters | None = None,
        *,
        on_close: Callable[[], None] | None = None,
    ) -> "LiveResult":
        """Run a query whose rows are read later; `on_close` is called once they are."""
        with self.lock:
            self.run(statement, call, parameters)
            self._live = LiveResult(self, self.raw.to_arrow_reader(_BATCH_ROWS), on_close)
            return self._live

    @contextmanager
    def registered(self, name: str, rows: pa.Table | pa.RecordBatchReader, call: Call) -> Iterator[None]:
        """Register rows as a temporary view while the block runs. The caller holds the lock."""
        self.park_result(call)
        is_local_stream = self._remote is None and isinstance(rows, pa.RecordBatchReader)
        # A bare capsule: DuckDB reads a RecordBatchReader object by a slower path.
        self.raw.register(name, rows.__arrow_c_stream__() if is_local_stream else rows)
        try:
            yield
        finally:
            self.raw.unregister(name)

    def park_result(self, call: Call) -> None:
        """Read the rest of the open result into memory, to free the connection."""
        if self._live is None:
            return
        with self.stoppable(call):
            live, self._live = self._live, None
            live.park(wire.RESULT_BYTES_MAX)
        call.refuse_stopped()

    def abandon(self, reason: str) -> None:
        """Discard the open result, if there is one; its reader gets the reason as an error."""
        if self._live is not None:
            live, self._live = self._live, None
            live.give_up(StateError(reason))

    def expire_result(self, before_s: float) -> None:
        """Discard the open result if it was last read before that time: DuckDB may compute ahead
        for it without end.
        """
        live = self._live
        if live is None or live.touched_s >= before_s or not self.lock.acquire(blocking=False):
            return
        try:
            if self._live is live and live.touched_s < before_s:
                self._live = None
                live.give_up(TimedOutError("The result was not read before the statement's timeout."))
        finally:
            self.lock.release()

    def end_stream(self, reader: pa.RecordBatchReader) -> None:
        """End a stream that is not read to its end, and what DuckDB computes for it."""
        with suppress(duckdb.Error, EngineFailedError):
            reader.close()
            if self._remote is None:
                self.raw.interrupt()

    def succeed(self) -> None:
        """Record that the client's statement has run to its end."""
        if self._suspects is not None and (statement := self._statement) is not None:
            self._suspects.clear(statement)

    def note(self, error: BaseException) -> None:
        """Have the DuckDB instance replaced if the error is internal, and suspect the statement."""
        is_suspect = self._suspects is not None and has_failed_inside(error)
        if is_suspect and self._suspects is not None and (statement := self._statement) is not None:
            self._suspects.accuse([statement])
        self.origin.note(error)

    @property
    def _statement(self) -> EngineStatement | None:
        return None if self._remote is None else self._remote.statement

    def forget(self, live: "LiveResult") -> None:
        """Forget the result, because it has ended."""
        if self._live is live:
            self._live = None

    def close(self) -> None:
        """Close the connection once no other thread uses it."""
        with self.lock:
            self.abandon("The session has ended.")
            self.raw.close()

    def close_when_read(self) -> None:
        """Close the connection once its open result is read; immediately if it has none."""
        with self.lock:
            if self._live is None:
                self.raw.close()
            else:
                self._live.and_then(self.raw.close)

    def roll_back(self) -> None:
        """Roll back the connection's transaction, if it has one. The caller holds the lock."""
        try:
            self.raw.execute("ROLLBACK")
        except EngineFailedError:
            # It was rolled back with its engine.
            return
        except duckdb.Error as error:
            # DuckDB fails if there is nothing to roll back.
            self.origin.note(error)

    def lock_or_interrupt(self) -> bool:
        """Take the lock if it is free and return True; else interrupt the running statement."""
        is_taken = self.lock.acquire(blocking=False)
        if not is_taken:
            self.interrupt()
        return is_taken

    def close_if_idle(self) -> bool:
        """Close a lost connection; False if a statement runs, which is interrupted."""
        if not self.lock_or_interrupt():
            return False
        try:
            if self._live is not None:
                live, self._live = self._live, None
                live.give_up(EngineFailedError())
            with suppress(duckdb.Error):
                self.raw.close()
        finally:
            self.lock.release()
        return True

    def interrupt(self) -> None:
        """Interrupt the running statement."""
        with suppress(duckdb.ConnectionException):
            # It was closed at this very moment: nothing runs on it.
            self.raw.interrupt()

    @contextmanager
    def stoppable(self, call: Call) -> Iterator[None]:
        """Interrupt what runs in the block if the call stops."""
        with nullcontext() if self._remote is None else self._remote.stoppable(), call.interruptible(self.interrupt):
            yield

    @property
    def is_broken(self) -> bool:
        """Whether it was closed because its exchange with the engine failed."""
        return self._remote is not None and self._remote.is_closed

    @contextmanager
    def interruptible(self, call: Call) -> Iterator[None]:
        """Run a statement that is interrupted if the call stops. The caller holds the lock."""
        if self._remote is not None:
            self._remote.statement = None if call.text is None else EngineStatement.current(call.text)
        with self.stoppable(call):
            try:
                yield
            except duckdb.InterruptException:
                self.has_failed = True
                call.refuse_stopped()
                self.origin.refuse_lost()
                raise CancelledError from None
            except (duckdb.InternalException, duckdb.FatalException) as error:
                self.note(error)
                raise
            except _NOT_FOUND as error:
                self.has_failed = self.has_failed or not isinstance(error, _NOT_BEGUN)
                if not isinstance(error, duckdb.BinderException) or str(error).startswith(_BINDING_CATALOG):
                    self._require_lake()
                raise
            except duckdb.Error as error:
                self.has_failed = self.has_failed or not isinstance(error, _NOT_BEGUN)
                raise


class LiveResult:
    """The rows of a query, streamed by DuckDB. Can be read once."""

    def __init__(
        self, connection: Connection, reader: pa.RecordBatchReader, on_close: Callable[[], None] | None
    ) -> None:
        self.schema: pa.Schema = reader.schema
        # When its client last read of it.
        self.touched_s = connection.clock.monotonic_s()
        self._connection = connection
        self._reader: pa.RecordBatchReader | None = reader
        self._parked: list[pa.RecordBatch] = []
        self._failure: Exception | None = None
        self._is_taken = False
        self._cleanup = ExitStack()
        if on_close is not None:
            self._cleanup.callback(on_close)

    def and_then(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the result ends."""
        self._cleanup.callback(callback)

    def batches(self, call: Call) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Can be called once."""
        if self._is_taken:
            raise StateError("This result has already been read.")
        self._is_taken = True
        try:
            while (batch := self._next(call)) is not None:
                yield batch
        finally:
            self.close()

    def _next(self, call: Call) -> pa.RecordBatch | None:
        with self._connection.lock:
            if self._parked:
                return self._parked.pop(0)
            if self._failure is not None:
                raise self._failure
            if self._reader is None:
                return None
            with self._connection.stoppable(call):
                try:
                    return self._reader.read_next_batch()
                except StopIteration:
                    self._connection.succeed()
                    self._end(is_read=True)
                    return None
                except EngineFailedError:
                    self._end()
                    raise
                except (duckdb.Error, pa.ArrowException, OSError) as error:
                    self._end()
                    self._connection.has_failed = True
                    self._connection.note(error)
                    if "INTERRUPT" in str(error):
                        call.refuse_stopped()
                        self._connection.origin.refuse_lost()
                        raise CancelledError from None
                    raise
                finally:
                    self.touched_s = self._connection.clock.monotonic_s()

    def park(self, bytes_max: int) -> None:
        """Read the rest into memory. The caller holds the connection's lock."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        size = 0
        try:
            for batch in reader:
                size += batch.nbytes
                if size > bytes_max:
                    self.give_up(
                        LimitError(
                            f"The result was not read before the next statement, and it has over {bytes_max:,} bytes.",
                            hint="Read it to its end first, or use a second connection.",
                        )
                    )
                    break
                self._parked.append(batch)
        except EngineFailedError as error:
            self._failure = error
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            self._connection.has_failed = True
            self._connection.note(error)
            self._failure = error
        else:
            if self._failure is None:
                self._connection.succeed()
        finally:
            self._cleanup.close()

    def give_up(self, reason: Exception) -> None:
        """Discard the rows; the reader gets `reason` as an error. The caller holds the lock."""
        self._parked, self._failure = [], reason
        self._end()

    def close(self) -> None:
        """Discard unread rows."""
        with self._connection.lock:
            self._parked = []
            self._end()

    def _end(self, *, is_read: bool = False) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._connection.forget(self)
            if not is_read:
                self._connection.end_stream(reader)
        self._cleanup.close()
