"""Rows of plain constants, read without DuckDB: the short way of the most frequent INSERT.

Only what has one meaning is read here: a whole number for a column of whole numbers that holds it, a text for a text, a
date as ISO has it. Whatever is not surely the same to DuckDB is left to DuckDB, errors among it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from catchment import sql
from catchment.lake.types import Column

# What DuckDB's scanner skips.
_BLANKS = r"[ \t\n\r\f]*"
_VALUES = re.compile(rf"{_BLANKS}VALUES{_BLANKS}\(", re.I)
_CELL = re.compile(
    rf"{_BLANKS}(?:(?P<null>NULL)|(?P<bool>TRUE|FALSE)|'(?P<text>(?:[^'\0]++|'')*+)'|(?P<number>-?\d+(?:\.\d+)?))"
    rf"{_BLANKS}(?P<end>[,)])",
    re.I | re.A,
)
_NEXT_ROW = re.compile(rf"{_BLANKS},{_BLANKS}\(")
_END = re.compile(rf"{_BLANKS}\Z")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.A)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{3}|\.\d{6})?", re.A)
_SHAPES_MAX = 1_000
# So many digits go into a DOUBLE and back.
_DIGITS_MAX = 15


class _LeftToDuckDbError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the cells of a row are read, column after column, and what they become."""

    names: tuple[str, ...]
    reads: tuple[Callable[[str, str], Any], ...]
    row_type: pa.StructType


def rows(source: str, names: tuple[str, ...], columns: tuple[Column, ...]) -> pa.Table | None:
    """The rows of a `VALUES …` for these columns, or for all; None where DuckDB has to read them."""
    shape = _shape(names, columns)
    if shape is None:
        return None
    width = len(shape.names)
    try:
        cells = _cells(source, width)
        if len(cells) == width:
            # A third of the time that arrays of one value take each.
            values = (read(*cell) for read, cell in zip(shape.reads, cells, strict=True))
            row = pa.array([dict(zip(shape.names, values, strict=True))], shape.row_type)
            return pa.Table.from_struct_array(row)
        arrays = [
            pa.array([read(*cell) for cell in cells[at::width]], shape.row_type[at].type)
            for at, read in enumerate(shape.reads)
        ]
    except (_LeftToDuckDbError, ValueError, OverflowError, pa.ArrowException):
        return None
    return pa.table(arrays, names=list(shape.names))


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(names: tuple[str, ...], columns: tuple[Column, ...]) -> _Shape | None:
    by_name = {sql.fold(column.name): column for column in columns}
    chosen = [by_name.get(sql.fold(name)) for name in names] if names else columns
    found = [column for column in chosen if column is not None and column.type in _READERS]
    if not found or len(found) != len(chosen) or len({column.name for column in found}) != len(found):
        return None
    readers = [_READERS[column.type] for column in found]
    return _Shape(
        names=tuple(column.name for column in found),
        reads=tuple(read for read, _ in readers),
        row_type=pa.struct([(column.name, type_) for column, (_, type_) in zip(found, readers, strict=True)]),
    )


def _cells(source: str, width: int) -> list[tuple[str, str]]:
    """All constants, row after row, each with its kind."""
    opening = _VALUES.match(source)
    found: list[tuple[str, str]] = []
    while opening is not None:
        at, row_start = opening.end(), len(found)
        while (cell := _CELL.match(source, at)) is not None:
            found.append(_kind_and_text(cell))
            at = cell.end()
            if cell["end"] == ")":
                break
        if cell is None or len(found) - row_start != width:
            raise _LeftToDuckDbError
        if _END.match(source, at):
            return found
        opening = _NEXT_ROW.match(source, at)
    raise _LeftToDuckDbError


def _kind_and_text(cell: re.Match[str]) -> tuple[str, str]:
    return next((kind, cell[kind]) for kind in ("null", "bool", "text", "number") if cell[kind] is not None)


def _whole(low: int, high: int) -> Callable[[str, str], int | None]:
    def read(kind: str, text: str) -> int | None:
        if kind == "null":
            return None
        if kind != "number" or "." in text or not low <= int(text) <= high:
            raise _LeftToDuckDbError
        return int(text)

    return read


def _double(kind: str, text: str) -> float | None:
    if kind == "null":
        return None
    if kind != "number" or len(text) > _DIGITS_MAX:
        raise _LeftToDuckDbError
    # There is no negative zero among DuckDB's numbers that are written so.
    return float(text) + 0.0


def _text(kind: str, text: str) -> str | None:
    if kind == "null":
        return None
    if kind != "text":
        raise _LeftToDuckDbError
    return text.replace("''", "'")


def _boolean(kind: str, text: str) -> bool | None:
    if kind == "null":
        return None
    if kind != "bool":
        raise _LeftToDuckDbError
    return text[0] in "tT"


def _date(kind: str, text: str) -> date | None:
    if kind == "null":
        return None
    if kind != "text" or not _DATE.fullmatch(text):
        raise _LeftToDuckDbError
    return date.fromisoformat(text)


def _timestamp(kind: str, text: str) -> datetime | None:
    if kind == "null":
        return None
    if kind != "text" or not _TIMESTAMP.fullmatch(text):
        raise _LeftToDuckDbError
    return datetime.fromisoformat(text)


WHOLE_NUMBERS = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
}


def _range(type_: pa.DataType) -> tuple[int, int]:
    bits = type_.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pa.types.is_signed_integer(type_) else (0, 2**bits - 1)


_READERS: dict[str, tuple[Callable[[str, str], Any], pa.DataType]] = {
    **{name: (_whole(*_range(type_)), type_) for name, type_ in WHOLE_NUMBERS.items()},
    "DOUBLE": (_double, pa.float64()),
    "VARCHAR": (_text, pa.string()),
    "BOOLEAN": (_boolean, pa.bool_()),
    "DATE": (_date, pa.date32()),
    "TIMESTAMP": (_timestamp, pa.timestamp("us")),
}
