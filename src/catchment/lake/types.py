"""Columns and types: what a lake can hold in registered files, and which source fits which column.

A registered file bypasses DuckLake's own writer, so a type counts as deliverable only where a value goes through
Parquet and comes back the same. The others are refused before anything is written.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

import duckdb
from duckdb import sqltypes

from catchment import sql
from catchment.errors import InputError, TypeConflictError

DuckDBType = sqltypes.DuckDBPyType

_NESTED = ("list", "struct", "map")
_DELIVERABLE = frozenset(
    {
        *("boolean", "tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint"),
        *("float", "double", "decimal", "varchar", "blob", "uuid", "date", "time"),
        *("timestamp", "timestamp_ms", "timestamp_ns", "timestamp with time zone"),
        *_NESTED,
    }
)

_REASONS = {
    "hugeint": "Parquet would store it as DOUBLE and lose digits",
    "uhugeint": "Parquet would store it as DOUBLE and lose digits",
    "interval": "Parquet keeps only milliseconds of it",
    "time with time zone": "Parquet loses its zone",
    "timestamp_s": "Parquet has no timestamps in seconds",
    "time_ns": "Parquet stores it as text",
    "variant": "DuckLake cannot register files that hold it",
    "geometry": "DuckLake cannot register files that hold it",
}

# For each type, the types that hold every value of it unchanged. Nested types and decimals are worked out by `fit`.
_WIDER: dict[str, frozenset[str]] = {
    "tinyint": frozenset({"smallint", "integer", "bigint", "float", "double"}),
    "smallint": frozenset({"integer", "bigint", "float", "double"}),
    "integer": frozenset({"bigint", "double"}),
    "utinyint": frozenset({"smallint", "integer", "bigint", "usmallint", "uinteger", "ubigint", "float", "double"}),
    "usmallint": frozenset({"integer", "bigint", "uinteger", "ubigint", "float", "double"}),
    "uinteger": frozenset({"bigint", "ubigint", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp", "timestamp_ms"}),
    "timestamp_s": frozenset({"timestamp", "timestamp_ms"}),
    "timestamp_ms": frozenset({"timestamp"}),
    "enum": frozenset({"varchar"}),
    "uuid": frozenset({"varchar"}),
}


class Fit(Enum):
    """How a source type goes into a column."""

    EXACT = "exact"
    WIDER = "wider"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a lake table; `type` is DuckDB's spelling, `default` an SQL expression.

    `initial` is the value, as text, that rows of a registered file read where the file lacks the column. `unbounded`
    says that DuckLake keeps no bounds of the column for the whole table; once a table has files that stays so, which is
    why it takes no part in comparing.
    """

    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    initial: str | None = None
    unbounded: bool = field(default=False, compare=False)

    @property
    def definition(self) -> str:
        """The column as CREATE TABLE has it."""
        default = "" if self.default is None else f" DEFAULT {self.default}"
        return f"{sql.identifier(self.name)} {self.type}{default}{'' if self.nullable else ' NOT NULL'}"


def parse(text: str) -> DuckDBType:
    """The type behind DuckDB's spelling of it."""
    try:
        return _parse(text)
    except duckdb.Error as error:
        raise InputError(f"{text!r} is not a type: {error}") from None


def normal(text: str) -> str:
    """DuckDB's own spelling of a type, so that equal types are equal texts."""
    return str(parse(text))


def holds(text: str, kinds: frozenset[str]) -> bool:
    """Whether a type is one of these kinds, or has one in it."""
    return _holds(parse(text), kinds)


def require_deliverable(column: Column) -> None:
    """Refuse a column whose values would not survive delivery."""
    culprit = _undeliverable(parse(column.type))
    if culprit is not None:
        reason = _REASONS.get(culprit.id, "DuckLake has no such type")
        raise TypeConflictError(
            f"Column {column.name!r} has type {column.type}: {culprit} cannot be delivered, because {reason}.",
            hint="Cast it in the source, for example to VARCHAR or DECIMAL(38,0).",
            column=column.name,
        )


def fit(source: DuckDBType, target: DuckDBType) -> Fit:
    """Whether every value of `source` can go into `target` unchanged."""
    if str(source) == str(target):
        return Fit.EXACT
    if source.id == "null" or (str(source), str(target)) == ("JSON", "VARCHAR"):
        return Fit.WIDER
    match source.id, target.id:
        case "decimal", "decimal":
            return _fit_decimal(_decimal(source), _decimal(target))
        case (("tinyint" | "smallint" | "integer" | "bigint" | "utinyint" | "usmallint" | "uinteger"), "decimal"):
            return _fit_decimal((_INTEGER_DIGITS[source.id], 0), _decimal(target))
        case (("list" | "array"), "list"):
            return _at_most(Fit.WIDER, _children(source)[0], _children(target)[0])
        case "map", "map":
            return _worst(fit(a, b) for a, b in zip(_children(source), _children(target), strict=True))
        case "struct", "struct":
            return _fit_struct(source, target)
        case _:
            return Fit.WIDER if target.id in _WIDER.get(source.id, ()) and str(target) != "JSON" else Fit.NONE


def common(one: str, other: str) -> str | None:
    """The narrowest type we know that holds every value of both unchanged, or None where there is none."""
    found = _common(parse(one), parse(other))
    return None if found is None else normal(found)


def _common(one: DuckDBType, other: DuckDBType) -> str | None:
    if fit(one, other) is not Fit.NONE:
        return str(other)
    if fit(other, one) is not Fit.NONE:
        return str(one)
    match one.id, other.id:
        case "struct", "struct":
            return _common_struct(one, other)
        case (("list" | "array"), ("list" | "array")):
            inner = _common(_children(one)[0], _children(other)[0])
            return None if inner is None else f"{inner}[]"
        case "map", "map":
            pairs = zip(_children(one), _children(other), strict=True)
            key, value = (_common(a, b) for a, b in pairs)
            return None if key is None or value is None else f"MAP({key}, {value})"
        case _:
            return _common_scalar(one, other)


def _common_struct(one: DuckDBType, other: DuckDBType) -> str | None:
    fields = {sql.fold(name): (name, _as_type(kind)) for name, kind in one.children}
    types = {key: str(kind) for key, (_, kind) in fields.items()}
    for name, child in other.children:
        mine = fields.setdefault(sql.fold(name), (name, _as_type(child)))
        both = _common(mine[1], _as_type(child))
        if both is None:
            return None
        types[sql.fold(name)] = both
    return f"STRUCT({', '.join(f'{sql.identifier(fields[key][0])} {kind}' for key, kind in types.items())})"


# Types that two others, of which none holds the other, may both go into; the narrowest first.
_SHARED = ("smallint", "integer", "bigint", "float", "double", "timestamp", "varchar")


def _common_scalar(one: DuckDBType, other: DuckDBType) -> str | None:
    if "decimal" in (one.id, other.id):
        return _common_decimal(one, other)
    both = _WIDER.get(one.id, frozenset({one.id})) & _WIDER.get(other.id, frozenset({other.id}))
    return next((kind.upper() for kind in _SHARED if kind in both), None)


def _common_decimal(one: DuckDBType, other: DuckDBType) -> str | None:
    """Two decimals, or a decimal and a whole number: room for the digits of both, before the point and behind it."""
    digits = [
        _decimal(kind) if kind.id == "decimal" else (_INTEGER_DIGITS.get(kind.id, 99), 0) for kind in (one, other)
    ]
    scale = max(scale for _, scale in digits)
    width = scale + max(width - scale for width, scale in digits)
    return f"DECIMAL({width},{scale})" if width <= 38 else None


_INTEGER_DIGITS = {
    "tinyint": 3, "smallint": 5, "integer": 10, "bigint": 19, "utinyint": 3, "usmallint": 5, "uinteger": 10,
}  # fmt: skip


@cache
def _parse(text: str) -> DuckDBType:
    return duckdb.sqltype(text)


def _holds(kind: DuckDBType, kinds: frozenset[str]) -> bool:
    return kind.id in kinds or (kind.id in _NESTED and any(_holds(child, kinds) for child in _children(kind)))


def _undeliverable(kind: DuckDBType) -> DuckDBType | None:
    if kind.id not in _DELIVERABLE:
        return kind
    if kind.id in _NESTED:
        return next((culprit for child in _children(kind) if (culprit := _undeliverable(child)) is not None), None)
    return None


def _children(kind: DuckDBType) -> list[DuckDBType]:
    return [child for _, child in kind.children if isinstance(child, DuckDBType)]


def _decimal(kind: DuckDBType) -> tuple[int, int]:
    facts = dict(kind.children)
    return int(str(facts["precision"])), int(str(facts["scale"]))


def _fit_decimal(source: tuple[int, int], target: tuple[int, int]) -> Fit:
    holds = target[1] >= source[1] and target[0] - target[1] >= source[0] - source[1]
    return Fit.WIDER if holds else Fit.NONE


def _fit_struct(source: DuckDBType, target: DuckDBType) -> Fit:
    # Fields match by name; a field that the source lacks reads as NULL, one that the target lacks would be dropped.
    have = {sql.fold(name): kind for name, kind in source.children}
    want = {sql.fold(name): kind for name, kind in target.children}
    if not set(have) <= set(want):
        return Fit.NONE
    worst = _worst(fit(_as_type(have[name]), _as_type(want[name])) for name in have)
    return worst if list(have) == list(want) or worst is Fit.NONE else Fit.WIDER


def _as_type(child: object) -> DuckDBType:
    assert isinstance(child, DuckDBType)
    return child


def _at_most(best: Fit, source: DuckDBType, target: DuckDBType) -> Fit:
    inner = fit(source, target)
    return inner if inner is Fit.NONE else best


def _worst(fits: Iterable[Fit]) -> Fit:
    seen = set(fits)
    return next((kind for kind in (Fit.NONE, Fit.WIDER) if kind in seen), Fit.EXACT)
