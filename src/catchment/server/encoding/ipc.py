"""Reads the header of an Arrow IPC message before Arrow decodes the message.

Limits must be enforced before memory is used: the number of rows and the decoded size of compressed
buffers are in the message's header, a flatbuffer of which four tables matter here. Anything that
does not fit into the received bytes is an `InputError`; Arrow itself verifies the rest.
"""

import struct
from dataclasses import dataclass

from catchment.errors import InputError

SCHEMA = 1
DICTIONARY_BATCH = 2
RECORD_BATCH = 3

# The slots of the tables, in the order of their declaration.
_MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY_BYTES = 1, 2, 3
_DICTIONARY_DATA = 1
_BATCH_ROWS, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Header:
    """A message's header. `body_bytes` is its body's size, `decoded_bytes` that once decoded."""

    kind: int
    rows: int
    body_bytes: int
    decoded_bytes: int


def read_header(header: memoryview, body: memoryview) -> Header:
    """Parse the header of one message."""
    try:
        return _read(header, body)
    except (struct.error, IndexError, ValueError):
        raise InputError("The Arrow stream is damaged: a message's header cannot be read.") from None


def _read(header: memoryview, body: memoryview) -> Header:
    message = _follow(header, 0)
    kind = _scalar("<B", header, _slot(header, message, _MESSAGE_KIND))
    body_bytes = _scalar("<q", header, _slot(header, message, _MESSAGE_BODY_BYTES))
    if kind not in (RECORD_BATCH, DICTIONARY_BATCH):
        return Header(kind, 0, body_bytes, body_bytes)
    batch = _reference(header, message, _MESSAGE_HEADER)
    if kind == DICTIONARY_BATCH:
        batch = _reference(header, batch, _DICTIONARY_DATA)
    rows = _scalar("<q", header, _slot(header, batch, _BATCH_ROWS))
    compressed = _slot(header, batch, _BATCH_COMPRESSION) is not None
    return Header(kind, rows, body_bytes, _decoded_bytes(header, batch, body) if compressed else body_bytes)


def _decoded_bytes(header: memoryview, batch: int, body: memoryview) -> int:
    """Return the total decoded size of the buffers.

    A compressed buffer starts with its decoded length; -1, or an empty buffer, means not
    compressed.
    """
    vector = _reference(header, batch, _BATCH_BUFFERS)
    places = struct.unpack_from(f"<{2 * _scalar('<I', header, vector)}q", header, vector + 4)
    total = 0
    for start, length in zip(places[::2], places[1::2], strict=True):
        decoded = _scalar("<q", body, start) if length else 0
        total += length if decoded == -1 else decoded
    return total


def _slot(header: memoryview, table: int, slot: int) -> int | None:
    """Return the position of a table's field; None if it has its default."""
    layout = table - _scalar("<i", header, table)
    entry = 4 + 2 * slot
    if entry >= _scalar("<H", header, layout):
        return None
    return table + offset if (offset := _scalar("<H", header, layout + entry)) else None


def _reference(header: memoryview, table: int, slot: int) -> int:
    place = _slot(header, table, slot)
    if place is None:
        raise ValueError("a part is missing")
    return _follow(header, place)


def _follow(header: memoryview, place: int) -> int:
    return place + _scalar("<I", header, place)


def _scalar(form: str, data: memoryview, place: int | None) -> int:
    """Return the number at the position; 0 if a field has its default."""
    if place is None:
        return 0
    if place < 0:
        raise ValueError("a position before the start")
    return int(struct.unpack_from(form, data, place)[0])
