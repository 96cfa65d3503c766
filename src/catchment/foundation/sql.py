"""Quoting: the one way in which a name or a value becomes SQL text."""

import re
import string
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

from catchment.errors import InvariantError

Value = str | int | float | bool | None

_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def identifier(name: str) -> str:
    """A name as a quoted identifier."""
    if "\x00" in name:
        raise InvariantError("A name holds a NUL character.")
    return '"' + name.replace('"', '""') + '"'


def fold(name: str) -> str:
    """The form in which DuckDB compares names: it takes the letters of ASCII alike, and no others."""
    return name.lower() if name.isascii() else name.translate(_ASCII_LOWER)


def folded(expression: str) -> str:
    """The same for an expression: DuckDB's own `lower` takes other letters alike too."""
    return f"translate({expression}, {literal(string.ascii_uppercase)}, {literal(string.ascii_lowercase)})"


def qualified(*names: str) -> str:
    """Names joined by dots, each quoted."""
    return ".".join(identifier(name) for name in names)


def identifiers(names: Iterable[str]) -> str:
    """Names as a comma-separated list."""
    return ", ".join(identifier(name) for name in names)


def literal(value: Value) -> str:
    """A value as a literal."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # As text: DuckDB reads a bare number as a decimal first, and infinity and NaN not at all.
            return f"'{value!r}'::DOUBLE"
        case str():
            if "\x00" in value:
                raise InvariantError("A text value holds a NUL character.")
            return "'" + value.replace("'", "''") + "'"


def literals(values: Iterable[str]) -> str:
    """Texts as a list literal."""
    return "[" + ", ".join(literal(value) for value in values) + "]"


def options(values: Mapping[str, Value]) -> str:
    """A parenthesised option list, as ATTACH and COPY take it; None leaves an option out."""
    given = [f"{name} {literal(value)}" for name, value in values.items() if value is not None]
    return f"({', '.join(given)})" if given else ""


def statement(package: str, name: str, **names: str) -> str:
    """The statement kept in `<package>/sql/<name>.sql`, with `{key}` replaced by the quoted identifier given for it."""
    # In one pass, so that a name which looks like a place holder stays as it is.
    return re.sub(r"\{(\w+)\}", lambda found: identifier(names[found[1]]), _resource(package, name))


@cache
def _resource(package: str, name: str) -> str:
    return resources.files(package).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
