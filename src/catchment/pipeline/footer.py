"""Parquet footers: changes column bounds in place if their text must not reach a catalog.

DuckLake replaces its placeholders in the statistics it reads from a footer, and without statistics
it discards those of the whole table: later filters then miss rows. So the bounds stay, moved
outwards by one character: the closing brace of a placeholder becomes the character before it in a
minimum, and the one after it in a maximum. Both are still bounds, have the same length, and contain
no placeholder. Parquet calls such bounds inexact, and has a flag for that.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import InvariantError
from catchment.foundation import files
from catchment.lake.placeholders import PATTERN

_MAGIC = b"PAR1"
_TOKEN = re.compile(b"(" + PATTERN.encode().removesuffix(rb"\}") + rb")\}")
# FileMetaData.row_groups[].columns[].meta_data.statistics, by the field numbers of the Parquet
# format.
_STATISTICS = (4, 1, 3, 12)
_MAXIMA, _MINIMA, _EXACT = (1, 5), (2, 6), (7, 8)
_BLANK = ord(" ")
_TRUE, _FALSE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _DOUBLE, _BYTE = 1, 2, 8, 9, 10, 11, 12, 7, 3


def blur(path: Path) -> None:
    """Move bounds that contain a placeholder outwards, and flag them as inexact."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        size, magic = int.from_bytes(file.read(4), "little"), file.read(4)
        if magic != _MAGIC:
            raise InvariantError(f"{path} does not end like a Parquet file.")
        start = file.seek(-8 - size, os.SEEK_END)
        footer = bytearray(file.read(size))
    for fields in _statistics(bytes(footer)):
        _blur(footer, fields)
    files.overwrite(path, start, bytes(footer))


@dataclass(frozen=True, slots=True)
class _Field:
    """Position of a field's content; for a bool, of its header, which contains the value."""

    start: int
    end: int


def _blur(footer: bytearray, fields: dict[int, _Field]) -> None:
    bounds = [fields[number] for number in (*_MAXIMA, *_MINIMA) if number in fields]
    if not any(_TOKEN.search(footer[field.start : field.end]) for field in bounds):
        return
    for field in (fields[number] for number in _MAXIMA if number in fields):
        footer[field.start : field.end] = _TOKEN.sub(rb"\1~", footer[field.start : field.end])
    for field in (fields[number] for number in _MINIMA if number in fields):
        footer[field.start : field.end] = _TOKEN.sub(rb"\1|", footer[field.start : field.end])
        # Lower still: DuckLake also replaces a placeholder in a query's filter, by text that sorts
        # before letters.
        if field.start < field.end:
            footer[field.start] = min(footer[field.start], _BLANK)
    for flag in (fields[number] for number in _EXACT if number in fields):
        footer[flag.start] = footer[flag.start] & 0xF0 | _FALSE


def _statistics(footer: bytes) -> Iterator[dict[int, _Field]]:
    """Yield the fields of every statistics structure."""
    found: dict[int, dict[int, _Field]] = {}
    for owner, path, field in _Walk(footer).fields():
        if path[:-1] == _STATISTICS:
            found.setdefault(owner, {})[path[-1]] = field
    yield from found.values()


class _Walk:
    """Walks a structure in Thrift's compact encoding and reports the position of each plain field."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def fields(self, path: tuple[int, ...] = ()) -> Iterator[tuple[int, tuple[int, ...], _Field]]:
        """Yield each field, after the position of its structure and the path of field numbers."""
        owner, number = self._at, 0
        while (header := self._byte()) != 0:
            at = self._at - 1
            number = number + (header >> 4) if header >> 4 else self._zigzag()
            kind = header & 0x0F
            if kind in (_TRUE, _FALSE):
                yield owner, (*path, number), _Field(at, at + 1)
            else:
                yield from self._value(kind, owner, (*path, number))

    def _value(self, kind: int, owner: int, path: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...], _Field]]:
        match kind:
            case _ if kind == _STRUCT:
                yield from self.fields(path)
            case _ if kind in (_LIST, _SET):
                header = self._byte()
                count = header >> 4 if header >> 4 != 15 else self._varint()
                for _ in range(count):
                    yield from self._value(header & 0x0F, owner, path)
            case _ if kind == _MAP:
                raise InvariantError("A Parquet footer must not contain a map.")
            case _:
                start = self._skip(kind)
                yield owner, path, _Field(start, self._at)

    def _skip(self, kind: int) -> int:
        """Skip a plain value and return where its content starts."""
        length = {_BYTE: 1, _TRUE: 1, _FALSE: 1, _DOUBLE: 8}.get(kind)
        if kind == _BINARY:
            length = self._varint()
        start = self._at
        if length is None:
            self._varint()
        else:
            self._at += length
        return start

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
