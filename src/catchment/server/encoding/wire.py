"""Arrow on the wire: converts FlightData messages to batches, and batches to FlightData messages.

Both directions parse and build FlightData by hand, because protobuf would copy every body twice.
Received data is not trusted: limits are checked before a message is decoded, and every batch is
fully validated before it is used, so that no offset in it can lead outside of its buffers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from catchment.errors import CatchmentError, InputError, LimitError
from catchment.foundation.settings import MIB
from catchment.server.encoding import decoded_size, ipc

# Clients refuse larger messages than they expect: Grafana's limit is 4 MiB, that of ADBC's driver
# 16 MiB.
MESSAGE_BYTES = 2 * MIB
# Rows in one batch of an upload. A column of Arrow's null type has rows and no bytes.
BATCH_ROWS_MAX = 1_000_000
# A result that is kept in memory: the rest of one that was not read before its session's next
# statement, the rows of a write, or those that another server sends. It bounds what one session
# takes from the process, beside DuckDB's own memory.
RESULT_BYTES_MAX = 256 * MIB

_CONTINUATION = b"\xff\xff\xff\xff"
_PREFIX_BYTES = 8
_EMPTY = memoryview(b"")
# Numbers and keys of FlightData's fields, as protobuf encodes them.
_DESCRIPTOR, _HEADER, _BODY = 1, 2, 1000
_HEADER_KEY = b"\x12"
_BODY_KEY = b"\xc2\x3e"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_READING = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)


@dataclass(frozen=True, slots=True)
class FlightData:
    """One message, as views into the received bytes."""

    descriptor: memoryview = _EMPTY
    header: memoryview = _EMPTY
    body: memoryview = _EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one message, and of the rows that are kept of all of them."""

    batch_rows: int
    message_bytes: int
    kept_bytes: int


class Upload:
    """The Arrow stream, if any, that a client sends in one call; it is read as it arrives."""

    def __init__(self, first: FlightData, messages: Iterator[bytes], limits: Limits) -> None:
        """`messages` are those that follow the first."""
        # The error of a read by another component, such as DuckDB, which keeps only the error's
        # text.
        self.failure: CatchmentError | None = None
        self._limits = limits
        self._feed = _Feed(first, messages, limits)

    def rows(self) -> pa.RecordBatchReader | None:
        """Return the following rows, once; None if no Arrow stream follows."""
        if not self._feed.advance():
            return None
        try:
            stream = pa.ipc.open_stream(pa.PythonFile(self._feed, mode="r"), options=_READING)
            _require_text(stream.schema)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise _damaged(error) from None
        _refuse_negative_scales(stream.schema)
        return pa.RecordBatchReader.from_batches(stream.schema, self._batches(stream))

    def table(self) -> pa.Table | None:
        """Return all following rows, within the limit; None if no Arrow stream follows."""
        reader = self.rows()
        if reader is None:
            return None
        batches: list[pa.RecordBatch] = []
        kept_bytes = 0
        for batch in reader:
            kept_bytes += decoded_size.size_of(batch)
            if kept_bytes > self._limits.kept_bytes:
                raise LimitError(
                    f"The rows have more than {self._limits.kept_bytes:,} bytes.", hint="Send fewer at a time."
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)

    def _batches(self, stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        expands = any(decoded_size.expands(field.type) for field in stream.schema)
        try:
            for batch in stream:
                batch.validate(full=True)
                if expands:
                    self._refuse_large(decoded_size.size_of(batch))
                yield batch
        except CatchmentError as error:
            self.failure = error
            raise
        except (pa.ArrowException, OSError) as error:
            self.failure = _damaged(error)
            raise self.failure from None

    def _refuse_large(self, size: int) -> None:
        if size > self._limits.kept_bytes:
            raise LimitError(
                f"A batch has {size:,} bytes when decoded; the maximum is {self._limits.kept_bytes:,}.",
                hint="Send smaller batches; CATCHMENT_SERVER_WRITE_BYTES_MAX is the limit.",
            )


def parse(message: bytes) -> FlightData:
    """Return the relevant parts of a FlightData message."""
    try:
        fields = dict(_fields(memoryview(message)))
    except IndexError:
        raise InputError("A message is cut off.") from None
    return FlightData(fields.get(_DESCRIPTOR, _EMPTY), fields.get(_HEADER, _EMPTY), fields.get(_BODY, _EMPTY))


def encode_schema(schema: pa.Schema) -> bytes:
    """Return a schema as an IPC message, as FlightInfo and table metadata contain it."""
    encoded: bytes = plain_schema(schema).serialize().to_pybytes()
    return encoded


def stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield FlightData messages: the schema, then the batches in pieces that all clients accept."""
    plain = plain_schema(schema)
    yield _flight_data(plain.serialize())
    for batch in batches:
        for piece in _pieces(batch if plain is schema else _plain_batch(batch, plain)):
            yield _flight_data(piece.serialize())


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without dictionaries; the same object if there are none."""
    fields = list(schema)
    plain = [_plain_field(field) for field in fields]
    if all(new is old for new, old in zip(plain, fields, strict=True)):
        return schema
    return pa.schema(plain, schema.metadata)


class _Feed:
    """A file from which Arrow reads a stream of messages as they arrive; keeps one in memory."""

    closed = False

    def __init__(self, first: FlightData, messages: Iterator[bytes], limits: Limits) -> None:
        self._messages = messages
        self._limits = limits
        self._chunks: list[memoryview] = []
        if first.header:
            self._accept(first)

    def advance(self) -> bool:
        """Make the next message readable; False if there is none."""
        while not self._chunks:
            message = next(self._messages, None)
            if message is None:
                return False
            data = parse(message)
            # A message without a header contains only application metadata.
            if data.header:
                self._accept(data)
        return True

    def read(self, size: int = -1) -> memoryview:
        # Arrow reads prefix, header and body in one call each; it treats a short read as an error,
        # and never continues with the next message.
        if not self.advance():
            return _EMPTY
        chunk = self._chunks.pop(0)
        if 0 <= size < len(chunk):
            self._chunks.insert(0, chunk[size:])
            return chunk[:size]
        return chunk

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the call owns the messages."""

    def _accept(self, data: FlightData) -> None:
        header = ipc.read_header(data.header, data.body)
        if header.rows > self._limits.batch_rows:
            raise LimitError(
                f"A batch has {header.rows:,} rows; the maximum is {self._limits.batch_rows:,}.",
                hint="Send smaller batches.",
            )
        if header.decoded_bytes > self._limits.message_bytes:
            raise LimitError(
                f"A batch has {header.decoded_bytes:,} bytes; the maximum is {self._limits.message_bytes:,}.",
                hint="Send smaller batches.",
            )
        if not 0 <= header.body_bytes <= len(data.body):
            raise InputError("The Arrow stream is damaged: a message's body is cut off.")
        padding = -len(data.header) % 8
        prefix = _CONTINUATION + (len(data.header) + padding).to_bytes(4, "little")
        padded = memoryview(bytes(data.header) + bytes(padding)) if padding else data.header
        self._chunks = [memoryview(prefix), padded]
        if header.body_bytes:
            self._chunks.append(data.body[: header.body_bytes])


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the length-delimited fields of a protobuf message; all others are skipped."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _BYTES:
            size, place = _varint(message, place)
            if place + size > len(message):
                raise IndexError
            yield key >> 3, message[place : place + size]
            place += size
        elif kind == _VARINT:
            _, place = _varint(message, place)
        elif kind in (_FIXED32, _FIXED64):
            place += 4 if kind == _FIXED32 else 8
        else:
            raise InputError("A message is not FlightData.")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise InputError("A message is not FlightData.")


def _to_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _flight_data(encapsulated: pa.Buffer) -> bytes:
    """Return the FlightData of an IPC message, whose prefix contains the length of its header."""
    message = memoryview(encapsulated)
    end = _PREFIX_BYTES + int.from_bytes(message[4:_PREFIX_BYTES], "little")
    header, body = message[_PREFIX_BYTES:end], message[end:]
    return b"".join((_HEADER_KEY, _to_varint(len(header)), header, _BODY_KEY, _to_varint(len(body)), body))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= MESSAGE_BYTES or batch.num_rows == 1:
        yield batch
        return
    rows = max(1, min(batch.num_rows * MESSAGE_BYTES // batch.nbytes, batch.num_rows // 2))
    # Rows have different sizes, so a piece with the right number of rows may still be too large.
    for start in range(0, batch.num_rows, rows):
        yield from _pieces(batch.slice(start, rows))


def _plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_field(field: pa.Field) -> pa.Field:
    kind = _plain_type(field.type)
    return field if kind is field.type else field.with_type(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries, at any depth; the same object if there are none."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if not pa.types.is_nested(kind) or not has_dictionary(kind):
        return kind
    fields = [_plain_field(kind.field(index)) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(fields[0])
    if pa.types.is_list(kind):
        return pa.list_(fields[0])
    return kind


def has_dictionary(kind: pa.DataType) -> bool:
    """Return whether a type, which is not a dictionary, contains one."""
    children = (kind.field(index).type for index in range(kind.num_fields))
    return any(pa.types.is_dictionary(child) or has_dictionary(child) for child in children)


def _require_text(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeError if a name is not text, at any depth: Arrow accepts any bytes."""
    for field in fields:
        _ = field.name
        _require_text(field.type.field(index) for index in range(field.type.num_fields))


def _refuse_negative_scales(schema: pa.Schema) -> None:
    """Refuse decimals with a negative scale, which DuckDB lacks: it fails internally on some, and
    reads others as smaller numbers.
    """
    for field in schema:
        if _has_negative_scale(field.type):
            raise InputError(
                f"Column {field.name!r} has decimals with a negative scale, which DuckDB does not support.",
                hint="Cast it to a decimal with scale 0.",
            )


def _has_negative_scale(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.scale < 0)
    inner = [kind.value_type] if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) else []
    inner += [kind.field(index).type for index in range(kind.num_fields)]
    return any(_has_negative_scale(each) for each in inner)


def _damaged(error: Exception) -> InputError:
    return InputError(
        f"The Arrow stream is damaged: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    )
