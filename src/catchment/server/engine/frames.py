"""Messages between the server and an engine process, over a Unix socket.

    request   verb and arguments, pickled: an engine trusts the server
    answer    JSON, and a body: Arrow, or JSON with the values of rows

The server does not trust an engine, whose memory a client's statement may have corrupted: an answer
is text of a few forms or validated Arrow, of a bounded size.
"""

import datetime
import decimal
import fcntl
import io
import json
import pickle
import socket
import struct
import termios
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from catchment import errors
from catchment.errors import CatchmentError, InvariantError, LimitError
from catchment.foundation.settings import MIB
from catchment.server.encoding import wire

# The length of the header and that of the body.
_PREFIX = struct.Struct("<IQ")
_HEADER_BYTES_MAX = 64 * MIB
BODY_BYTES_MAX = 1024 * MIB
# Python's objects for values take many times their length.
_VALUES_BYTES_MAX = 64 * MIB
# A batch above this size is sent in pieces, so that the server holds little of a result at a time.
_PIECE_BYTES = 16 * MIB
_SOCKET_BYTES = 4 * MIB
# Longer texts of errors are cut: they quote the values that they are about.
_ERROR_CHARACTERS_MAX = 65_536
# Values that JSON lacks, each with a tag, as text.
_TO_TEXT: dict[type, tuple[str, Callable[[Any], str]]] = {
    datetime.datetime: ("datetime", datetime.datetime.isoformat),
    datetime.date: ("date", datetime.date.isoformat),
    datetime.time: ("time", datetime.time.isoformat),
    datetime.timedelta: ("seconds", lambda value: f"{value.days} {value.seconds} {value.microseconds}"),
    decimal.Decimal: ("decimal", str),
    uuid.UUID: ("uuid", str),
    bytes: ("bytes", bytes.hex),
}
_OF_TEXT: dict[str, Callable[[str], object]] = {
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "seconds": lambda text: datetime.timedelta(*map(int, text.split())),
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
    "bytes": bytes.fromhex,
}
_MAP = "map"
# What FIONREAD reports if no data has arrived.
_NOTHING = bytes(4)
_INT32_BITS = 32
# Types of columns whose check is remembered.
_STORED_MAX = 1_000

Answer = dict[str, Any]
# Errors of a statement or of its rows, which are reported; any other one is a defect.
REPORTED = (CatchmentError, duckdb.Error, pa.ArrowException, OSError, MemoryError, RuntimeError, TypeError, ValueError)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, with buffers for large batches."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
    return ends


def send_request(to: socket.socket, number: int, verb: str, arguments: tuple[object, ...]) -> None:
    """Send a request; `number` names it in an interrupt."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump((number, verb, arguments))
    _send(to, b"", buffer.getbuffer())


def receive_request(of: socket.socket) -> tuple[int, str, tuple[Any, ...]]:
    """Return the next request: number, verb and arguments."""
    _, body = _receive(of)
    number, verb, arguments = pickle.loads(body)
    return number, verb, arguments


def send(to: socket.socket, number: int, answer: Answer, body: Any = b"") -> None:
    """Send an answer to the request of that number, or a part of one."""
    _send(to, json.dumps({**answer, "number": number}).encode(), body)


def receive(of: socket.socket) -> tuple[Answer, pa.Buffer]:
    """Return the next answer and its body."""
    header, body = _receive(of)
    try:
        answer = json.loads(header)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise EOFError
    return answer, body


def has_arrived(of: socket.socket) -> bool:
    """Return whether data can be read; not at the end of the connection, and without reading it.

    Another thread may read it at this moment, which a peek would then wait for.
    """
    return fcntl.ioctl(of, termios.FIONREAD, _NOTHING) != _NOTHING


def send_batch(to: socket.socket, number: int, batch: pa.RecordBatch) -> None:
    """Send a batch, in pieces if it is large; `more` says whether another piece follows."""
    if any(pa.types.is_dictionary(field.type) or wire.has_dictionary(field.type) for field in batch.schema):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        _send_piece(to, number, sink.getvalue(), is_stream=True, has_more=False)
        return
    rows = batch.num_rows
    step = max(1, rows * _PIECE_BYTES // batch.nbytes) if batch.nbytes > _PIECE_BYTES else max(rows, 1)
    for at in range(0, max(rows, 1), step):
        body = (batch if step >= rows else batch.slice(at, step)).serialize()
        _send_piece(to, number, body, is_stream=False, has_more=at + step < rows)


def _send_piece(to: socket.socket, number: int, body: pa.Buffer, *, is_stream: bool, has_more: bool) -> None:
    if body.size > BODY_BYTES_MAX:
        raise LimitError(f"A row has over {BODY_BYTES_MAX:,} bytes.", hint="Read fewer columns at a time.")
    send(to, number, {"batch": is_stream, "more": has_more}, body)


def batch_of(answer: Answer, body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch that was received."""
    # A stream has dictionaries, which a batch alone lacks.
    is_stream = answer["batch"]
    batch = pa.ipc.open_stream(body).read_next_batch() if is_stream else pa.ipc.read_record_batch(body, schema)
    # Wrong offsets would have the server read beyond the buffers.
    batch.validate()
    for column in batch.columns:
        stored = _stored(column.type)
        (column if stored == column.type else column.view(stored)).validate(full=True)
    return batch


@lru_cache(maxsize=_STORED_MAX)
def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the type that the bytes of a type's values have.

    Arrow checks more of some types than their bytes: decimals have at most so many digits, times of
    day end before 24:00. DuckDB has such values, as 128-bit numbers and times.
    """
    if pa.types.is_decimal(kind):
        return pa.binary(kind.byte_width)
    if pa.types.is_time(kind):
        return pa.int32() if kind.bit_width == _INT32_BITS else pa.int64()
    if not pa.types.is_nested(kind):
        return kind
    fields = [field.with_type(_stored(field.type)) for field in map(kind.field, range(kind.num_fields))]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        key, item = (kind.key_field, kind.item_field)
        return pa.map_(key.with_type(_stored(key.type)), item.with_type(_stored(item.type)), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(fields[0])
    if pa.types.is_union(kind):
        return pa.union(fields, kind.mode, kind.type_codes)
    return kind


def too_large(bytes_max: int) -> LimitError:
    """Return the error for rows that do not fit into the server's memory."""
    return LimitError(
        f"The rows have more than {bytes_max:,} bytes, the maximum for one write to the queue and for rows that a "
        "write returns.",
        hint="Write fewer at a time; CATCHMENT_SERVER_WRITE_BYTES_MAX is the limit.",
    )


def packed(rows: object) -> bytes:
    """Return the values of rows as a body; LimitError if they are too large."""
    body = json.dumps(_tagged(rows)).encode()
    if len(body) > _VALUES_BYTES_MAX:
        raise too_large(_VALUES_BYTES_MAX)
    return body


def unpacked(body: pa.Buffer) -> Any:
    """Return the values of a body; InvariantError if it has any other form."""
    if body.size > _VALUES_BYTES_MAX:
        raise InvariantError(f"An engine has sent values of {body.size:,} bytes.")
    try:
        return _untagged(json.loads(body.to_pybytes()))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise InvariantError(f"An engine has sent values that cannot be read: {error}") from None


def _tagged(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_tagged(each) for each in value]
    if isinstance(value, dict):
        return {_MAP: [[_tagged(key), _tagged(each)] for key, each in value.items()]}
    found = _TO_TEXT.get(type(value))
    return value if found is None else {found[0]: found[1](value)}


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(each) for each in value]
    if isinstance(value, dict):
        ((tag, inner),) = value.items()
        if tag == _MAP:
            return {_untagged(key): _untagged(each) for key, each in inner}
        return _OF_TEXT[tag](inner)
    return value


def error_answer(error: BaseException) -> Answer:
    """Return the answer that reports an error."""
    if isinstance(error, CatchmentError):
        return {"error": [type(error).__name__, error.message[:_ERROR_CHARACTERS_MAX], error.hint]}
    return {"error": [type(error).__name__, str(error)[:_ERROR_CHARACTERS_MAX], None]}


def reported(answer: Answer) -> Exception:
    """Return the error that an answer reports, of the class that it had in the engine."""
    name, text, hint = (*answer["error"], None, None, None)[:3]
    for module, base in ((errors, CatchmentError), (duckdb, duckdb.Error), (pa, pa.ArrowException)):
        kind = getattr(module, str(name), None)
        if isinstance(kind, type) and issubclass(kind, base):
            error = kind(str(text))
            if isinstance(error, CatchmentError) and hint is not None:
                error.hint = str(hint)
            return error
    if name in ("OSError", "MemoryError"):
        return OSError(text) if name == "OSError" else MemoryError(text)
    return InvariantError(f"{name}: {text}")


def _send(to: socket.socket, header: bytes, body: Any) -> None:
    view = memoryview(body)
    try:
        to.sendall(_PREFIX.pack(len(header), view.nbytes) + header)
        if view.nbytes:
            to.sendall(view)
    except TimeoutError:
        raise
    except OSError:
        raise EOFError from None


def _receive(of: socket.socket) -> tuple[bytes, pa.Buffer]:
    header_bytes, body_bytes = _PREFIX.unpack(_exactly(of, _PREFIX.size))
    if header_bytes > _HEADER_BYTES_MAX or body_bytes > BODY_BYTES_MAX + MIB:
        raise EOFError
    return _exactly(of, header_bytes).to_pybytes(), _exactly(of, body_bytes)


def _exactly(of: socket.socket, size: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(size)
    view, at = memoryview(buffer).cast("B") if size else memoryview(b""), 0
    while at < size:
        try:
            count = of.recv_into(view[at:])
        except TimeoutError:
            raise
        except OSError:
            raise EOFError from None
        if not count:
            raise EOFError
        at += count
    return buffer


class _Pickler(pickle.Pickler):
    """Pickles DuckDB's values, which have a type that cannot be pickled, by the type's name."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, duckdb.Value):
            return _value, (obj.object, str(obj.type))
        return NotImplemented


def _value(value: object, kind: str) -> duckdb.Value:
    return duckdb.Value(value, duckdb.type(kind))
