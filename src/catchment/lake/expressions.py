"""Which expressions of a table Catchment computes itself: defaults and sort keys.

They are SQL that a client wrote, and some SQL ends the process that computes it, or never ends. The
server's engines may compute any expression; all other processes only constants, columns, arithmetic
and functions whose result is about as large as their arguments.
"""

import re

# A longer one may be nested too deeply.
_CHARACTERS_MAX = 1_000
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)\"""")
_PLAIN = re.compile(r"[\w\s.,()+\-*/%|']*", re.ASCII)
# Comments, queries, and strings with a prefix, such as E'…'.
_NOT_PLAIN = re.compile(r"--|/\*|\w''|\bselect\b", re.ASCII | re.IGNORECASE)
_CALL = re.compile(r"([\w.]+)\s*\(")
_CASTS = frozenset({"cast", "decimal", "numeric"})
_FUNCTIONS = frozenset(
    {
        *("case", "when", "then", "else", "and", "or", "not"),
        *("now", "today", "get_current_timestamp", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "random"),
        *("date_trunc", "date_part", "year", "quarter", "month", "week", "day", "hour", "minute", "second"),
        *("epoch", "epoch_ms", "epoch_us", "to_timestamp", "make_date", "make_timestamp", "strftime", "strptime"),
        *("to_years", "to_months", "to_weeks", "to_days", "to_hours", "to_minutes", "to_seconds"),
        *("abs", "ceil", "floor", "round", "trunc", "sign", "hash", "md5", "coalesce", "nullif", "greatest", "least"),
        *("lower", "upper", "trim", "ltrim", "rtrim", "length", "strlen", "substr", "substring", "left", "right"),
    }
)


def is_computable_default(expression: str) -> bool:
    """Return whether a column's default may be computed outside an engine."""
    return _is_computable(expression, _FUNCTIONS | _CASTS)


def is_computable_key(expression: str) -> bool:
    """Return whether a sort key may be computed outside an engine.

    Not with a cast or `||`: its values are rows, which can be large and deeply nested.
    """
    return "|" not in expression and _is_computable(expression, _FUNCTIONS)


def _is_computable(expression: str, functions: frozenset[str]) -> bool:
    bare = _QUOTED.sub(_unquoted, expression)
    return (
        len(expression) <= _CHARACTERS_MAX
        and _PLAIN.fullmatch(bare) is not None
        and _NOT_PLAIN.search(bare) is None
        and all(name.lower() in functions for name in _CALL.findall(bare))
    )


def _unquoted(quoted: re.Match[str]) -> str:
    """Return an empty string for a constant, and a plain name for a quoted one."""
    name = quoted[1]
    if name is None:
        return "''"
    return name if re.fullmatch(r"\w+", name, re.ASCII) else "quoted"
