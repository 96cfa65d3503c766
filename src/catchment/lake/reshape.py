"""Bringing rows into a table's columns: matched by name, widened where nothing is lost, with defaults."""

from collections.abc import Collection, Sequence

from catchment import sql
from catchment.lake import types
from catchment.lake.types import Column, Fit


def misfit(have: Sequence[Column], columns: Sequence[Column], *, cast: Collection[str] = ()) -> str | None:
    """Why rows with columns `have` cannot go into `columns` unchanged, or None; those named in `cast` may be cast."""
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
        elif key not in free and types.fit(types.parse(there[key].type), types.parse(column.type)) is Fit.NONE:
            return f"column {column.name!r} is {there[key].type}, which does not go into {column.type} unchanged"
    return None


def select_list(have: Sequence[Column], columns: Sequence[Column]) -> list[str]:
    """Expressions that turn a relation with columns `have` into `columns`."""
    there = {sql.fold(column.name): column for column in have}
    return [_expression(column, there.get(sql.fold(column.name))) for column in columns]


def _expression(column: Column, source: Column | None) -> str:
    name = sql.identifier(column.name)
    if source is None:
        return f"CAST({column.default or 'NULL'} AS {column.type}) AS {name}"
    if types.normal(source.type) == types.normal(column.type):
        return f"{sql.identifier(source.name)} AS {name}"
    return f"CAST({sql.identifier(source.name)} AS {column.type}) AS {name}"
