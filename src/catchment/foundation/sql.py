"""SQL quoting: the only way to put names and values into SQL text."""

import re
import string
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

from catchment.errors import InvariantError

Value = str | int | float | bool | None

_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def identifier(name: str) -> str:
    """Quote a name as an identifier."""
    if "\x00" in name:
        raise InvariantError("A name contains a NUL character.")
    return '"' + name.replace('"', '""') + '"'


def fold(name: str) -> str:
    """Fold a name as DuckDB compares names: ASCII letters only."""
    return name.lower() if name.isascii() else name.translate(_ASCII_LOWER)


def folded(expression: str) -> str:
    """Fold an expression in the same way; DuckDB's own `lower` also folds other letters."""
    return f"translate({expression}, {literal(string.ascii_uppercase)}, {literal(string.ascii_lowercase)})"


def qualified(*names: str) -> str:
    """Quote names and join them by dots."""
    return ".".join(identifier(name) for name in names)


def identifiers(names: Iterable[str]) -> str:
    """Quote names as a comma-separated list."""
    return ", ".join(identifier(name) for name in names)


def literal(value: Value) -> str:
    """Quote a value as a literal."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # As text: DuckDB parses a bare number as a decimal first, and cannot parse infinity and
            # NaN.
            return f"'{value!r}'::DOUBLE"
        case str():
            if "\x00" in value:
                raise InvariantError("A text value contains a NUL character.")
            return "'" + value.replace("'", "''") + "'"


def literals(values: Iterable[str]) -> str:
    """Quote texts as a list literal."""
    return "[" + ", ".join(literal(value) for value in values) + "]"


def options(values: Mapping[str, Value]) -> str:
    """Format an option list in parentheses, for ATTACH and COPY; None omits an option."""
    given = [f"{name} {literal(value)}" for name, value in values.items() if value is not None]
    return f"({', '.join(given)})" if given else ""


def statement(package: str, name: str, **names: str) -> str:
    """Load `<package>/sql/<name>.sql` with each `{key}` replaced by its quoted identifier."""
    # In one pass, so that a name that looks like a placeholder is kept.
    return re.sub(r"\{(\w+)\}", lambda found: identifier(names[found[1]]), _resource(package, name))


@cache
def _resource(package: str, name: str) -> str:
    return resources.files(package).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
