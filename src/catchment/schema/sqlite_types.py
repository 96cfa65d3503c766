"""Declared types of SQLite columns: what SQLite makes of them, and which of them are one. Pure.

SQLite takes any words for a type, and goes by the letters in them. What a model wants is met by its own spelling and by
the `SYNONYMS` of it: common ones that SQLite treats alike and that mean the same to a reader. The `id` is an INTEGER by
that name only, because an INT PRIMARY KEY is not the number of the row.
"""

import re

from catchment.foundation import sql

# By the model's spelling. No type that a model of a lake has is among them: DuckLake tells FLOAT from DOUBLE.
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
    """What SQLite makes of a declared type, by https://www.sqlite.org/datatype3.html#determination_of_column_affinity."""
    folded = sql.fold(declared)
    if "int" in folded:
        return "INTEGER"
    if any(part in folded for part in ("char", "clob", "text")):
        return "TEXT"
    if "blob" in folded or not folded:
        return "BLOB"
    return "REAL" if any(part in folded for part in ("real", "floa", "doub")) else "NUMERIC"


def same_type(declared: str) -> str:
    """A declared type in the form that is compared."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(declared.upper().split()))


def meets(actual: str, expected: str) -> bool:
    """Whether a column of the one type is what a model means by the other."""
    given, wanted = same_type(actual), same_type(expected)
    # SQLite does not look at the length of a text.
    plain = _LENGTH.sub("", given) if wanted == "TEXT" else given
    return wanted in (given, plain) or plain in SYNONYMS.get(wanted, ())


def relation_type(model: str) -> str:
    """The type of a column that refers to a model: `User_ID`, or `Chart_ID INTEGER`.

    SQLite would find CHAR in `Chart_ID`, and REAL in `Realm_ID`, and keep numbers as texts, or lose their last digits.
    """
    plain = f"{model}_ID"
    return plain if affinity(plain) in ("INTEGER", "NUMERIC") else f"{plain} INTEGER"


def is_relation(declared: str) -> bool:
    """Whether it is the type of a column that refers to a model."""
    return _RELATION.fullmatch(declared) is not None
