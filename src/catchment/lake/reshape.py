"""Conversion of rows to a table's columns.

Rows from outside are matched by name, widened if nothing is lost, and get defaults. Rows that were
bound to the table when they were acknowledged are matched by DuckLake's field ids: if columns were
renamed, added, dropped or widened since, the result is the same as if the rows had been in the
table all the time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from catchment.errors import InvariantError
from catchment.foundation import sql
from catchment.lake import expressions, types
from catchment.lake.types import Column, DuckDBType, Field, Fit


def misfit(have: Sequence[Column], columns: Sequence[Column], *, cast: Collection[str] = ()) -> str | None:
    """Return why rows with columns `have` do not fit `columns` unchanged, or None.

    Columns in `cast` may be cast.
    """
    there = {sql.fold(column.name): column for column in have}
    want = {sql.fold(column.name): column for column in columns}
    if len(there) != len(have):
        return "two columns have the same name"
    extra = [column.name for column in have if sql.fold(column.name) not in want]
    if extra:
        return f"the table has no column {', '.join(map(repr, extra))}"
    free = {sql.fold(name) for name in cast}
    for key, column in want.items():
        if key not in there:
            if not column.nullable and column.default is None:
                return f"column {column.name!r} is missing, must not be NULL and has no default"
            if column.default is not None and not expressions.is_computable_default(column.default):
                return f"column {column.name!r} is missing, and its default is computed for clients' own INSERTs only"
        elif key not in free and types.fit(types.parse(there[key].type), types.parse(column.type)) is Fit.NONE:
            return f"column {column.name!r} is {there[key].type}, which does not go into {column.type} unchanged"
    return None


def select_list(have: Sequence[Column], columns: Sequence[Column]) -> list[str]:
    """Return expressions that convert a relation with columns `have` to `columns`."""
    there = {sql.fold(column.name): column for column in have}
    return [_expression(column, there.get(sql.fold(column.name))) for column in columns]


def are_bound(rows: Sequence[Column], columns: Sequence[Column]) -> bool:
    """Whether both are columns of the same table, with known field ids."""
    uuids = {column.table_uuid for column in (*rows, *columns)}
    return len(uuids) == 1 and all(column.lake_field is not None for column in (*rows, *columns))


def select_bound(rows: Sequence[Column], columns: Sequence[Column]) -> list[str]:
    """Return expressions that convert rows bound to earlier columns to a table's present ones."""
    before = {column.lake_field.id: column for column in rows if column.lake_field is not None}
    return [
        f"{_carried(before.get(column.lake_field.id), column)} AS {sql.identifier(column.name)}"
        for column in columns
        if column.lake_field is not None
    ]


def _carried(before: Column | None, now: Column) -> str:
    if before is None:
        return _initial(now.initial, types.parse(now.type))
    if before.lake_field is None or now.lake_field is None:
        raise InvariantError(f"Column {now.name!r} is not known to be a column of its table.")
    source = _Source(sql.identifier(before.name), types.parse(before.type), before.lake_field)
    return _converted(source, types.parse(now.type), now.lake_field, depth=0)


@dataclass(frozen=True, slots=True)
class _Source:
    """A value of an earlier shape: its expression, its type, and its DuckLake field."""

    expression: str
    kind: DuckDBType
    field: Field

    def inner(self) -> dict[int, tuple[str, DuckDBType, Field]]:
        """Return the nested values by field id, each with its name."""
        return {
            field.id: (name, kind, field)
            for (name, kind), field in zip(types.children(self.kind), self.field.inner, strict=True)
        }


def _converted(source: _Source, kind: DuckDBType, field: Field, *, depth: int) -> str:
    """Return the value in its present type: nested fields matched by id, leaves cast."""
    if source.field == field and str(source.kind) == str(kind):
        return source.expression
    match kind.id:
        case "struct":
            return _converted_struct(source, kind, field, depth=depth)
        case "list":
            ((_, element),) = types.children(kind)
            each = _inside(source, 0, f"x{depth}", element, field.inner[0], depth=depth + 1)
            return f"list_transform({source.expression}, lambda x{depth}: {each})"
        case "map":
            (_, key_type), (_, value_type) = types.children(kind)
            key = _inside(source, 0, f"x{depth}.key", key_type, field.inner[0], depth=depth + 1)
            value = _inside(source, 1, f"x{depth}.value", value_type, field.inner[1], depth=depth + 1)
            entry = f"lambda x{depth}: {{key: {key}, value: {value}}}"
            entries = f"list_transform(map_entries({source.expression}), {entry})"
            # An empty map does not determine its types.
            return f"CAST(map_from_entries({entries}) AS {kind})"
        case _:
            return source.expression if str(source.kind) == str(kind) else f"CAST({source.expression} AS {kind})"


def _converted_struct(source: _Source, kind: DuckDBType, field: Field, *, depth: int) -> str:
    before = source.inner()
    parts = []
    for (name, inner_kind), inner in zip(types.children(kind), field.inner, strict=True):
        if inner.id in before:
            old, old_kind, old_field = before[inner.id]
            value = f"struct_extract({source.expression}, {sql.literal(old)})"
            converted = _converted(_Source(value, old_kind, old_field), inner_kind, inner, depth=depth)
        else:
            converted = _initial(inner.initial, inner_kind)
        parts.append(f"{sql.identifier(name)} := {converted}")
    # A NULL struct stays NULL, and does not become a struct of NULLs.
    return f"CASE WHEN {source.expression} IS NULL THEN NULL ELSE struct_pack({', '.join(parts)}) END"


def _inside(source: _Source, at: int, expression: str, kind: DuckDBType, field: Field, *, depth: int) -> str:
    (_, old_kind), old_field = types.children(source.kind)[at], source.field.inner[at]
    return _converted(_Source(expression, old_kind, old_field), kind, field, depth=depth)


def _initial(text: str | None, kind: DuckDBType) -> str:
    return f"CAST({'NULL' if text is None else sql.literal(text)} AS {kind})"


def _expression(column: Column, source: Column | None) -> str:
    name = sql.identifier(column.name)
    if source is None:
        return f"CAST({column.default or 'NULL'} AS {column.type}) AS {name}"
    if types.normal(source.type) == types.normal(column.type):
        return f"{sql.identifier(source.name)} AS {name}"
    return f"CAST({sql.identifier(source.name)} AS {column.type}) AS {name}"
