"""Typed models of tables: the columns that a database should have, on any engine.

A model is a class whose annotations are its columns. `fields_of` reads them independently of any
dialect, and `sqlite_structure` translates them for SQLite: a relation to `User` is a column of type
`User_ID`, and one to `Chart`, whose name SQLite would read as a text type, of type `Chart_ID
INTEGER`. This is a model for migrations, not an ORM: an instance is just a typed row. Annotations
are resolved on use, so that models may name each other in any order.
"""

import copy
import inspect
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ClassVar, Final, Union, dataclass_transform, get_args, get_origin, get_type_hints

from catchment.errors import InputError
from catchment.foundation import sql
from catchment.schema.sqlite_types import relation_type
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Reference, Structure

SUPPORTED: Final = "str, int, float, bytes, bool, date, datetime, list, dict, another TableRow, each also with `| None`"
_RESERVED_PREFIXES = ("sqlite_", "_new_")
_RESERVED_TABLES = frozenset({"_migrations"})


class FieldKind(StrEnum):
    """The kind of a field's values, independent of a dialect."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"
    BLOB = "blob"
    BOOL = "bool"
    DATE = "date"
    DATETIME = "datetime"
    JSON = "json"
    RELATION = "relation"


_KINDS: dict[object, FieldKind] = {
    str: FieldKind.TEXT,
    int: FieldKind.INTEGER,
    float: FieldKind.REAL,
    bytes: FieldKind.BLOB,
    bool: FieldKind.BOOL,
    date: FieldKind.DATE,
    datetime: FieldKind.DATETIME,
    list: FieldKind.JSON,
    dict: FieldKind.JSON,
}

# By exact type: True is not an INTEGER, and a datetime is not a DATE, although Python treats them
# as such.
_DEFAULTS_OF: dict[FieldKind, tuple[type, ...]] = {
    FieldKind.TEXT: (str,),
    FieldKind.INTEGER: (int,),
    FieldKind.REAL: (float, int),
    FieldKind.BLOB: (bytes,),
    FieldKind.BOOL: (bool,),
    FieldKind.DATE: (date,),
    FieldKind.DATETIME: (datetime,),
    FieldKind.JSON: (list, dict),
    FieldKind.RELATION: (),
}


@dataclass_transform(kw_only_default=True)
class _Row:
    """Behaviour of instances. Separate: type checkers see only fields of derived classes."""

    def __init__(self, **values: Any) -> None:
        names = _annotations(type(self))
        unknown = [name for name in values if name not in names]
        missing = [name for name in names if name not in values and not hasattr(type(self), name)]
        if unknown or missing:
            problems = [f"no field {name!r}" for name in unknown] + [
                f"a value for {name!r} is needed" for name in missing
            ]
            raise TypeError(f"{type(self).__name__}: {', '.join(problems)}")
        for name in names:
            # Copied, so that rows do not share a mutable default.
            value = values[name] if name in values else copy.copy(getattr(type(self), name))
            setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class TableRow(_Row):
    """A row of a table, and by its annotations the table itself.

    The table has the name of the class, unless `__tablename__` is set. Every table has an `id`. A
    relation to another model is a field annotated with its class.
    """

    __tablename__: ClassVar[str]

    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelField:
    """A field of a model: its kind, and the default for rows that omit it, if `has_default`."""

    name: str
    kind: FieldKind
    nullable: bool
    has_default: bool = False
    default: Any = None
    relation: type[TableRow] | None = None


def table_name(model: type[TableRow]) -> str:
    """Return the name of the model's table."""
    name = vars(model).get("__tablename__", model.__name__)
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InputError(f"{model.__name__}: `__tablename__` is {name!r}, which cannot name a table.")
    if sql.fold(name).startswith(_RESERVED_PREFIXES) or sql.fold(name) in _RESERVED_TABLES:
        raise InputError(f"{model.__name__}: a table cannot be called {name}: the name is reserved for migrations.")
    return name


def fields_of(model: type[TableRow], *, among: Iterable[type[TableRow]] = ()) -> tuple[ModelField, ...]:
    """Return the model's fields, `id` first.

    Names in annotations are looked up `among` those models, then in the module.
    """
    known: dict[str, Any] = {each.__name__: each for each in (model, *among)}
    fields = [_field(model, name, _resolve(model, name, owner, known)) for name, owner in _annotations(model).items()]
    seen: dict[str, str] = {}
    for field in fields:
        other = seen.setdefault(sql.fold(field.name), field.name)
        if other != field.name:
            raise InputError(f"{model.__name__}: {other} and {field.name} are the same name in a database.")
    return tuple(fields)


def checked(models: Sequence[type[TableRow]]) -> tuple[tuple[type[TableRow], tuple[ModelField, ...]], ...]:
    """Return each model with its fields; InputError if the models contradict each other."""
    names: dict[str, type[TableRow]] = {}
    for model in models:
        other = names.setdefault(sql.fold(table_name(model)), model)
        if other is not model:
            raise InputError(
                f"{other.__name__} and {model.__name__} both describe the table {table_name(model)}.",
                hint="Give one of them another `__tablename__`.",
            )
    found = tuple((model, fields_of(model, among=models)) for model in names.values())
    for model, fields in found:
        for field in fields:
            if field.relation is not None and field.relation not in names.values():
                other_name = field.relation.__name__
                raise InputError(
                    f"{model.__name__}.{field.name} refers to {other_name}, which is not among the models.",
                    hint=f"Add {other_name} to the same list of models.",
                )
    return found


def sqlite_structure(models: Sequence[type[TableRow]]) -> Structure:
    """Return the tables that the models describe, as SQLite declares them."""
    return Structure(tables=tuple(_sqlite_table(model, fields) for model, fields in checked(models)))


def _annotations(model: type[_Row]) -> dict[str, type]:
    """Return the field names, `id` and inherited ones first, with the class that annotates each."""
    found: dict[str, type] = {"id": TableRow}
    for base in reversed(model.__mro__):
        names = inspect.get_annotations(base)
        found |= {name: base for name in names if not name.startswith("__") and not _is_class_variable(names[name])}
    return found


def _is_class_variable(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.replace("typing.", "").startswith("ClassVar")
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def _resolve(model: type[TableRow], name: str, owner: type, known: dict[str, Any]) -> Any:
    holder = SimpleNamespace(__annotations__={name: inspect.get_annotations(owner)[name]})
    try:
        return get_type_hints(holder, vars(sys.modules[owner.__module__]), known)[name]
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise InputError(
            f"{model.__name__}.{name}: the annotation cannot be read: {error}.", hint=f"Use one of {SUPPORTED}."
        ) from error


def _field(model: type[TableRow], name: str, annotation: Any) -> ModelField:
    given = [annotation]
    if get_origin(annotation) in (Union, UnionType):
        given = [each for each in get_args(annotation) if each is not NoneType]
    nullable = NoneType in get_args(annotation)
    plain = get_origin(given[0]) or given[0]
    is_model = isinstance(plain, type) and issubclass(plain, TableRow) and plain is not TableRow
    kind = FieldKind.RELATION if is_model else _KINDS.get(plain) if isinstance(plain, type) else None
    if kind is None or len(given) != 1 or (name == "id" and kind is not FieldKind.INTEGER):
        only = "An `id` is an `int | None`" if name == "id" else f"Supported are {SUPPORTED}"
        raise InputError(f"{model.__name__}.{name}: {_type_text(annotation)} cannot be a column. {only}.")
    if name == "id":
        return ModelField(name=name, kind=kind, nullable=True)
    has_default = hasattr(model, name)
    default = getattr(model, name, None)
    if has_default:
        _check_default(model, name, kind=kind, nullable=nullable, default=default)
    relation = plain if is_model else None
    return ModelField(
        name=name, kind=kind, nullable=nullable, has_default=has_default, default=default, relation=relation
    )


def _type_text(annotation: Any) -> str:
    return annotation.__name__ if type(annotation) is type else str(annotation)


def _check_default(model: type[TableRow], name: str, *, kind: FieldKind, nullable: bool, default: Any) -> None:
    fits = nullable if default is None else type(default) in _DEFAULTS_OF[kind]
    if fits and isinstance(default, float):
        fits = math.isfinite(default)
    if fits and isinstance(default, str):
        # Scripts are normalised to one kind of line end, so the other kind would be lost.
        fits = "\x00" not in default and "\r" not in default
    if fits and isinstance(default, list | dict):
        fits = _is_json(default)
    if not fits:
        raise InputError(
            f"{model.__name__}.{name}: the default {default!r} is not a literal that the column can store.",
            hint="Use a plain value of the field's type, or no default.",
        )


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _sqlite_table(model: type[TableRow], fields: tuple[ModelField, ...]) -> DeclaredTable:
    return DeclaredTable(
        name=table_name(model),
        columns=tuple(_sqlite_column(field) for field in fields),
        references=tuple(
            Reference(columns=(field.name,), table=table_name(field.relation), targets=("id",))
            for field in fields
            if field.relation is not None
        ),
    )


def _sqlite_column(field: ModelField) -> DeclaredColumn:
    if field.name == "id":
        return DeclaredColumn(name="id", type="INTEGER", primary_key=1)
    return DeclaredColumn(
        name=field.name,
        type=relation_type(field.relation.__name__) if field.relation is not None else field.kind.value.upper(),
        nullable=field.nullable,
        default=_sqlite_literal(field.default) if field.has_default else None,
    )


def _sqlite_literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return repr(value)
        case bytes():
            return f"x'{value.hex()}'"
        case datetime():
            text = value.isoformat(sep=" ")
        case date():
            text = value.isoformat()
        case list() | dict():
            text = json.dumps(value)
        case _:
            text = str(value)
    return "'" + text.replace("'", "''") + "'"
