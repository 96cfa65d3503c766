"""Declared types of SQLite columns: their affinity, and which of them are equivalent. Pure.

SQLite accepts any words as a type, and derives an affinity from their substrings. A column's type
matches a model's type if it has the same spelling or is one of its `SYNONYMS`: common types that
SQLite treats alike and that mean the same to a reader. The `id` must be spelled INTEGER, because an
INT PRIMARY KEY is not an alias of the rowid.
"""

import re

from catchment.foundation import sql

# By the model's spelling. Types of a lake's models are not among them: DuckLake distinguishes FLOAT
# from DOUBLE.
SYNONYMS: dict[str, frozenset[str]] = {
    "INTEGER": frozenset({"INT"}),
    "REAL": frozenset({"DOUBLE", "DOUBLE PRECISION", "FLOAT"}),
    "TEXT": frozenset({"CHAR", "CHARACTER", "NCHAR", "VARCHAR", "NVARCHAR", "CHARACTER VARYING", "CLOB"}),
    "BOOL": frozenset({"BOOLEAN"}),
    "DATETIME": frozenset({"TIMESTAMP"}),
}
_RELATION = re.compile(r"\w+_ID( INTEGER)?", re.IGNORECASE)
_LENGTH = re.compile(r"\(\d+\)$")


def affinity(declared: str) -> str:
    """Return the affinity of a declared type.

    See https://www.sqlite.org/datatype3.html#determination_of_column_affinity.
    """
    folded = sql.fold(declared)
    if "int" in folded:
        return "INTEGER"
    if any(part in folded for part in ("char", "clob", "text")):
        return "TEXT"
    if "blob" in folded or not folded:
        return "BLOB"
    return "REAL" if any(part in folded for part in ("real", "floa", "doub")) else "NUMERIC"


def same_type(declared: str) -> str:
    """Return a declared type in the form used for comparison."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(declared.upper().split()))


def meets(actual: str, expected: str) -> bool:
    """Return whether a column of type `actual` matches a model's type `expected`."""
    given, wanted = same_type(actual), same_type(expected)
    # SQLite ignores the length of a text.
    plain = _LENGTH.sub("", given) if wanted == "TEXT" else given
    return wanted in (given, plain) or plain in SYNONYMS.get(wanted, ())


def relation_type(model: str) -> str:
    """Return the type of a column that refers to a model: `User_ID`, or `Chart_ID INTEGER`.

    SQLite would find CHAR in `Chart_ID`, and REAL in `Realm_ID`, and store numbers as texts, or
    lose their last digits.
    """
    plain = f"{model}_ID"
    return plain if affinity(plain) in ("INTEGER", "NUMERIC") else f"{plain} INTEGER"


def is_relation(declared: str) -> bool:
    """Return whether this is the type of a column that refers to a model."""
    return _RELATION.fullmatch(declared) is not None
