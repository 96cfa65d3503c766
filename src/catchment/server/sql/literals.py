"""Parses rows of plain constants without DuckDB: the fast path of the most frequent INSERT.

Only unambiguous constants are parsed here: an integer within the range of its integer column, a
text for a text, an ISO date. All others, including erroneous ones, are left to DuckDB.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from catchment.foundation import sql
from catchment.lake.types import Column

# Characters that DuckDB's scanner skips.
_BLANKS = r"[ \t\n\r\f]*"
_VALUES = re.compile(rf"{_BLANKS}VALUES{_BLANKS}\(", re.I)
_NEXT_ROW = re.compile(rf"{_BLANKS},{_BLANKS}\(")
_END = re.compile(rf"{_BLANKS}\Z")
_SHAPES_MAX = 1_000
# Compiling a pattern for this many columns takes some 20 ms.
_COLUMNS_MAX = 200
# This many digits survive a conversion to DOUBLE and back.
_DIGITS_MAX = 15


class _LeftToDuckDbError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Reader:
    """A type whose constants are parsed here: their pattern, and how to convert them."""

    pattern: str
    read: Callable[[str], Any]
    type: pa.DataType
    # The column's type, if `type` is only its storage.
    extension: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class _Shape:
    """A row of constants, after its parenthesis: one group per column, which is empty for NULL."""

    names: tuple[str, ...]
    row: re.Pattern[str]
    reads: tuple[Callable[[str], Any], ...]
    row_type: pa.StructType
    extensions: dict[int, pa.DataType]


def rows(source: str, names: tuple[str, ...], columns: tuple[Column, ...]) -> pa.Table | None:
    """Parse a `VALUES …` for these columns, or for all; None if DuckDB has to parse it."""
    opening = _VALUES.match(source)
    shape = _shape(names, columns) if opening else None
    if opening is None or shape is None:
        return None
    try:
        found = [dict(zip(shape.names, values, strict=True)) for values in _rows(source, opening, shape)]
        # For a single row, this takes a third of the time of an array per column.
        rows = pa.Table.from_struct_array(pa.array(found, shape.row_type))
    except (_LeftToDuckDbError, ValueError, OverflowError, RecursionError, pa.ArrowException):
        return None
    for at, extension in shape.extensions.items():
        (stored,) = rows.column(at).chunks
        rows = rows.set_column(at, rows.field(at).name, pa.ExtensionArray.from_storage(extension, stored))
    return rows


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(names: tuple[str, ...], columns: tuple[Column, ...]) -> _Shape | None:
    by_name = {sql.fold(column.name): column for column in columns}
    chosen = [by_name.get(sql.fold(name)) for name in names] if names else columns
    found = [column for column in chosen if column is not None and column.type in _READERS]
    if (
        not 0 < len(found) <= _COLUMNS_MAX
        or len(found) != len(chosen)
        or len({column.name for column in found}) != len(found)
    ):
        return None
    readers = [_READERS[column.type] for column in found]
    cells = (rf"{_BLANKS}(?:(?i:NULL)|{reader.pattern}){_BLANKS}" for reader in readers)
    return _Shape(
        names=tuple(column.name for column in found),
        row=re.compile(rf"{','.join(cells)}\)", re.A),
        reads=tuple(reader.read for reader in readers),
        row_type=pa.struct([(column.name, reader.type) for column, reader in zip(found, readers, strict=True)]),
        extensions={at: reader.extension for at, reader in enumerate(readers) if reader.extension is not None},
    )


def _rows(source: str, opening: re.Match[str] | None, shape: _Shape) -> Iterator[list[Any]]:
    """Yield the values of each row; the first begins after the opening."""
    while opening is not None and (row := shape.row.match(source, opening.end())) is not None:
        yield [None if text is None else read(text) for read, text in zip(shape.reads, row.groups(), strict=True)]
        if _END.match(source, row.end()):
            return
        opening = _NEXT_ROW.match(source, row.end())
    raise _LeftToDuckDbError


def _whole(type_: pa.DataType) -> _Reader:
    bits = type_.bit_width
    is_signed = pa.types.is_signed_integer(type_)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)

    def read(text: str) -> int:
        if not low <= int(text) <= high:
            raise _LeftToDuckDbError
        return int(text)

    return _Reader(r"(-?\d+)", read, type_)


def _double(text: str) -> float:
    if len(text) > _DIGITS_MAX:
        raise _LeftToDuckDbError
    # DuckDB has no negative zero in this notation.
    return float(text) + 0.0


def _text(text: str) -> str:
    return text.replace("''", "'")


def _json(text: str) -> str:
    text = _text(text)
    # DuckDB keeps the text as it is. Escapes and constants, which Python may accept and DuckDB not,
    # are left to DuckDB.
    if "\\u" in text:
        raise _LeftToDuckDbError
    json.loads(text, parse_constant=_no_constant)
    return text


def _no_constant(_: str) -> None:
    raise _LeftToDuckDbError


def _boolean(text: str) -> bool:
    return text[0] in "tT"


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

_DATE = r"\d{4}-\d\d-\d\d"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_TIME = r"\d\d:\d\d:\d\d(?:\.\d{3}|\.\d{6})?"

_READERS = {
    **{name: _whole(type_) for name, type_ in WHOLE_NUMBERS.items()},
    "DOUBLE": _Reader(r"(-?\d+(?:\.\d+)?)", _double, pa.float64()),
    "VARCHAR": _Reader(r"'((?:[^'\0]++|'')*+)'", _text, pa.string()),
    "JSON": _Reader(r"'((?:[^'\0]++|'')*+)'", _json, pa.string(), pa.json_()),
    "UUID": _Reader(rf"'({_UUID})'", lambda text: uuid.UUID(text).bytes, pa.binary(16), pa.uuid()),
    "BOOLEAN": _Reader(r"((?i:TRUE|FALSE))", _boolean, pa.bool_()),
    "DATE": _Reader(rf"'({_DATE})'", date.fromisoformat, pa.date32()),
    "TIMESTAMP": _Reader(rf"'({_DATE}[ T]{_TIME})'", datetime.fromisoformat, pa.timestamp("us")),
}
