"""Columns and types: which types a lake stores, and how, and which source type fits which column.

    registered   registered files preserve every value
    inserted     DuckLake stores it, but refuses or misreads registered files with it: use an INSERT
    refused      DuckLake has no such type, or cannot write it

Of some inserted types DuckLake's files preserve only some values. Others would change silently:
`kept` returns a condition that distinguishes them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Any

import duckdb
from duckdb import sqltypes

from catchment.errors import InputError, TypeConflictError
from catchment.foundation import sql

DuckDBType = sqltypes.DuckDBPyType

# Measured with DuckDB 1.5: 20 nested lists take 0.2 s to read from Parquet, and each further one
# doubles that.
LISTS_NESTED_MAX = 16
# Arrow accepts at most 64 levels, and a MAP is two.
NESTING_MAX = 50
# DuckDB's Parquet writer needs 256 KiB for each: 3,000 do not fit into a task's default memory of 1
# GiB.
LEAVES_MAX = 2_000
NESTED = frozenset({"list", "struct", "map"})
_REGISTERED = frozenset(
    {
        *("boolean", "tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint"),
        *("float", "double", "decimal", "varchar", "blob", "uuid", "date", "time"),
        *("timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone"),
        *NESTED,
    }
)

_INSERTED = frozenset({"hugeint", "uhugeint", "interval", "time with time zone", "variant", "geometry"})
# DuckDB writes them to Parquet, or reads them back, only as top-level columns.
_NEVER_NESTED = frozenset({"variant", "geometry"})
_REASONS = {
    "time_ns": "DuckDB cannot write it to Parquet",
    "variant": "DuckDB writes it to Parquet only as a top-level column, not inside another type",
    "geometry": "DuckDB reads it back from Parquet only as a top-level column, not inside another type",
}

# For each type, the types that can represent each of its values. `fit` handles nested types and
# decimals.
_WIDER: dict[str, frozenset[str]] = {
    "tinyint": frozenset({"smallint", "integer", "bigint", "hugeint", "float", "double"}),
    "smallint": frozenset({"integer", "bigint", "hugeint", "float", "double"}),
    "integer": frozenset({"bigint", "hugeint", "double"}),
    "bigint": frozenset({"hugeint"}),
    "utinyint": frozenset(
        {"smallint", "integer", "bigint", "hugeint", "usmallint", "uinteger", "ubigint", "uhugeint", "float", "double"}
    ),
    "usmallint": frozenset({"integer", "bigint", "hugeint", "uinteger", "ubigint", "uhugeint", "float", "double"}),
    "uinteger": frozenset({"bigint", "hugeint", "ubigint", "uhugeint", "double"}),
    "ubigint": frozenset({"hugeint", "uhugeint"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp", "timestamp_ms"}),
    "timestamp_s": frozenset({"timestamp", "timestamp_ms"}),
    "timestamp_ms": frozenset({"timestamp"}),
    "enum": frozenset({"varchar"}),
    "uuid": frozenset({"varchar"}),
}


_GEOMETRY_OF_PARQUET = "GEOMETRY('OGC:CRS84')"


class Fit(Enum):
    """How a source type fits a column."""

    EXACT = "exact"
    WIDER = "wider"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Field:
    """DuckLake's identity of a column, or of a field inside one, independent of its name.

    `initial` is the value, as text, of rows that are older than the field. `inner` are the fields
    of a struct, the element of a list, or key and value of a map, in the order of the column's
    type.
    """

    id: int
    initial: str | None = None
    inner: tuple["Field", ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Field":
        """Return the field from the output of `dataclasses.asdict`."""
        return cls(data["id"], data["initial"], tuple(cls.from_json(each) for each in data["inner"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a lake table; `type` is DuckDB's spelling, `default` an SQL expression.

    `initial` is the value, as text, that rows of a registered file have if the file lacks the
    column. If `unbounded`, DuckLake keeps no bounds of the column for the whole table; that cannot
    change once the table has files, so it is not compared. `table_uuid` and `lake_field` identify
    the table and the column through all renames; None if it is not a column of a table, or not
    known to be.
    """

    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    initial: str | None = None
    unbounded: bool = field(default=False, compare=False)
    table_uuid: str | None = None
    lake_field: Field | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Column":
        """Return the column from the output of `asdict`, of this or an earlier version."""
        known = data.get("lake_field")
        return cls(**{**data, "lake_field": None if known is None else Field.from_json(known)})

    @property
    def unbound(self) -> "Column":
        """The column without the identity of its table and field."""
        return replace(self, table_uuid=None, lake_field=None)

    @property
    def definition(self) -> str:
        """The column as written in CREATE TABLE."""
        default = "" if self.default is None else f" DEFAULT {self.default}"
        return f"{sql.identifier(self.name)} {self.type}{default}{'' if self.nullable else ' NOT NULL'}"


def table_of(columns: Sequence[Column]) -> str | None:
    """Return the uuid of the columns' table, if it is known."""
    return columns[0].table_uuid if columns else None


def parse(text: str) -> DuckDBType:
    """Parse DuckDB's spelling of a type."""
    try:
        return _parse(text)
    except duckdb.Error as error:
        raise InputError(f"{text!r} is not a type: {error}") from None


def normal(text: str) -> str:
    """Return DuckDB's own spelling of a type, so that equal types are equal texts."""
    return str(parse(text))


# Types that Arrow, as DuckDB writes it for clients, represents as text only, or without all digits.
_CARRIED_AS_TEXT = frozenset({"uuid", "hugeint", "uhugeint", "time with time zone"})


@cache
def carrier(text: str) -> str:
    """Return a type's form in plain Arrow: itself, or text for parts that Arrow lacks.

    A cast there and back gives the same value.
    """
    return _carrier(parse(text))


def _carrier(kind: DuckDBType) -> str:
    if kind.id in _CARRIED_AS_TEXT or str(kind) == "JSON":
        return "VARCHAR"
    match kind.id:
        case "list":
            return f"{_carrier(_children(kind)[0])}[]"
        case "map":
            key, value = map(_carrier, _children(kind))
            return f"MAP({key}, {value})"
        case "struct":
            return f"STRUCT({', '.join(f'{sql.identifier(name)} {_carrier(inner)}' for name, inner in children(kind))})"
        case _:
            return str(kind)


def holds(text: str, kinds: frozenset[str]) -> bool:
    """Return whether a type is one of these kinds, or contains one."""
    return _holds(parse(text), kinds)


def require_deliverable(column: Column) -> None:
    """Raise TypeConflictError if DuckLake can neither register nor insert the column's type."""
    culprit = _unstorable(parse(column.type))
    if culprit is not None:
        reason = _REASONS.get(culprit.id, "DuckLake has no such type")
        raise TypeConflictError(
            f"Column {column.name!r} has type {column.type}: {culprit} cannot be delivered, because {reason}.",
            hint="Cast it in the source, for example to VARCHAR.",
            column=column.name,
        )


def insert_reason(column: Column) -> str | None:
    """Return why values must be inserted instead of registered as files; None if files will do."""
    culprit = _find(parse(column.type), lambda kind: kind.id not in _REGISTERED)
    return None if culprit is None else f"column {column.name!r} is {column.type}, which registered files cannot carry"


def kept(column: Column, *, inserted: bool = False) -> str | None:
    """Return an SQL condition under which the lake keeps a value unchanged; None if it always does.

    If rows are `inserted`, text must not contain a placeholder of DuckLake: in a bound of the
    column it would be replaced, and filters would then miss other rows.
    """
    return _kept(sql.identifier(column.name), parse(column.type), _KEPT | _TOKENLESS if inserted else _KEPT)


def require_bounded(columns: Sequence[Column]) -> None:
    """Raise TypeConflictError if there are too many columns, or too deep ones, for Parquet."""
    for column in columns:
        depth, lists = _nesting(parse(column.type))
        if lists > LISTS_NESTED_MAX:
            raise TypeConflictError(
                f"Column {column.name!r} nests lists or maps {lists} deep, and the limit is {LISTS_NESTED_MAX}: "
                "each further one doubles the time to read it from Parquet.",
                hint="Keep such values as JSON text.",
                column=column.name,
            )
        if depth > NESTING_MAX:
            raise TypeConflictError(
                f"Column {column.name!r} is nested {depth} deep, and the limit is {NESTING_MAX}.",
                hint="Keep such values as JSON text.",
                column=column.name,
            )
    leaves = sum(_leaves(parse(column.type)) for column in columns)
    if leaves > LEAVES_MAX:
        raise TypeConflictError(
            f"The table has {leaves:,} columns, fields of STRUCTs included, and the limit is {LEAVES_MAX:,}: "
            "each needs its own memory while its file is written.",
            hint="Split the table, or keep seldom used fields in one MAP or JSON text.",
        )


def fit(source: DuckDBType, target: DuckDBType) -> Fit:
    """Return whether every value of `source` fits `target` unchanged, and how."""
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
        case "geometry", "geometry":
            # DuckDB writes geometries to Parquet with Parquet's default coordinate system.
            return Fit.WIDER if (str(source), str(target)) == (_GEOMETRY_OF_PARQUET, "GEOMETRY") else Fit.NONE
        case _:
            return Fit.WIDER if target.id in _WIDER.get(source.id, ()) and str(target) != "JSON" else Fit.NONE


def common(one: str, other: str) -> str | None:
    """Return the narrowest known type that represents every value of both unchanged, or None."""
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


# Types that may represent two others, neither of which fits into the other; the narrowest first.
_SHARED = ("smallint", "integer", "bigint", "float", "double", "timestamp", "varchar")


def _common_scalar(one: DuckDBType, other: DuckDBType) -> str | None:
    if "decimal" in (one.id, other.id):
        return _common_decimal(one, other)
    both = _WIDER.get(one.id, frozenset({one.id})) & _WIDER.get(other.id, frozenset({other.id}))
    return next((kind.upper() for kind in _SHARED if kind in both), None)


def _common_decimal(one: DuckDBType, other: DuckDBType) -> str | None:
    """Return a decimal with the digits of both: two decimals, or a decimal and a whole number."""
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
    return kind.id in kinds or (kind.id in NESTED and any(_holds(child, kinds) for child in _children(kind)))


def _nesting(kind: DuckDBType) -> tuple[int, int]:
    """Return a type's depth in Arrow, and the largest number of lists or maps on one path."""
    if kind.id not in (*NESTED, "array"):
        return 0, 0
    inner = [_nesting(child) for child in _children(kind)]
    depth, lists = max(depth for depth, _ in inner), max(lists for _, lists in inner)
    return depth + (2 if kind.id == "map" else 1), lists + (kind.id != "struct")


def _leaves(kind: DuckDBType) -> int:
    return sum(map(_leaves, _children(kind))) if kind.id in (*NESTED, "array") else 1


def _find(kind: DuckDBType, matches: Callable[[DuckDBType], bool]) -> DuckDBType | None:
    """Return the type itself, or the first one inside it, that `matches`."""
    if matches(kind):
        return kind
    inner = _children(kind) if kind.id in NESTED else ()
    return next((found for child in inner if (found := _find(child, matches)) is not None), None)


def _unstorable(kind: DuckDBType) -> DuckDBType | None:
    if kind.id in _NEVER_NESTED:
        return None
    return _find(kind, lambda each: each.id not in (_REGISTERED | _INSERTED) - _NEVER_NESTED)


# For each type of which DuckLake's Parquet files keep only some values, the condition that a value
# is one of them. Whole numbers of 128 bits are stored as DOUBLE, intervals as months, days and
# milliseconds without a sign, and times of day with a zone in UTC.
_KEPT = {
    "hugeint": "TRY_CAST({0}::DOUBLE AS HUGEINT) IS NOT DISTINCT FROM {0}",
    "uhugeint": "TRY_CAST({0}::DOUBLE AS UHUGEINT) IS NOT DISTINCT FROM {0}",
    "time with time zone": "date_part('timezone', {0}) = 0",
    "interval": (
        "date_part('year', {0}) >= 0 AND date_part('month', {0}) >= 0 AND date_part('day', {0}) >= 0 "
        "AND date_part('hour', {0}) >= 0 AND date_part('minute', {0}) >= 0 AND date_part('microsecond', {0}) >= 0 "
        "AND date_part('microsecond', {0}) % 1000 = 0 AND date_part('hour', {0}) * 3600000 "
        "+ date_part('minute', {0}) * 60000 + date_part('microsecond', {0}) // 1000 <= 4294967295"
    ),
}


# The regular expression runs only on texts with a brace, which few have.
_TOKEN = "coalesce(NOT contains({0}, '{{') OR NOT regexp_matches({0}, '\\{{[A-Z_]+\\}}'), true)"
_TOKENLESS = {
    "varchar": _TOKEN,
    "variant": _TOKEN.replace("{0}", "{0}::VARCHAR"),
    "blob": _TOKEN.replace("{0}", "{0}::VARCHAR"),
}


def _kept(value: str, kind: DuckDBType, conditions: Mapping[str, str], depth: int = 0) -> str | None:
    item = f"item{depth}"
    match kind.id:
        case "list":
            lists = [(value, _children(kind)[0])]
        case "map":
            lists = list(zip((f"map_keys({value})", f"map_values({value})"), _children(kind), strict=True))
        case "struct":
            fields = ((f"struct_extract({value}, {sql.literal(name)})", child) for name, child in kind.children)
            parts = [inner for each, child in fields if (inner := _kept(each, _as_type(child), conditions, depth))]
            return f"({' AND '.join(parts)})" if parts else None
        case _:
            condition = conditions.get(kind.id)
            return None if condition is None else f"coalesce({condition.format(value)}, true)"
    parts = [
        f"coalesce(len(list_filter({each}, lambda {item}: NOT ({inner}))) = 0, true)"
        for each, child in lists
        if (inner := _kept(item, child, conditions, depth + 1))
    ]
    return f"({' AND '.join(parts)})" if parts else None


def children(kind: DuckDBType) -> list[tuple[str, DuckDBType]]:
    """Return the types inside a nested type with their names, such as a struct's fields."""
    return [(name, child) for name, child in kind.children if isinstance(child, DuckDBType)]


def _children(kind: DuckDBType) -> list[DuckDBType]:
    return [child for _, child in children(kind)]


def _decimal(kind: DuckDBType) -> tuple[int, int]:
    facts = dict(kind.children)
    return int(str(facts["precision"])), int(str(facts["scale"]))


def _fit_decimal(source: tuple[int, int], target: tuple[int, int]) -> Fit:
    holds = target[1] >= source[1] and target[0] - target[1] >= source[0] - source[1]
    return Fit.WIDER if holds else Fit.NONE


def _fit_struct(source: DuckDBType, target: DuckDBType) -> Fit:
    # Fields match by name; a field that the source lacks is NULL, one that the target lacks would
    # be dropped.
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
