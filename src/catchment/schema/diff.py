"""The difference between models and a database: a pure function of two structures.

A model specifies columns, their types, whether they may be NULL, their defaults if it declares any,
and relations. Anything that it cannot specify is not a difference: the order of columns, additional
computed columns, ON DELETE, keys of several columns, and a default if the model has none, because a
hand-written ADD COLUMN … NOT NULL needs one.

A rename is guessed from the state before the script, when the new column does not exist yet. For a
column, the guess uses its type, its position, its name, and whether values of the old column fit
the new type; for a table, the columns that both have by name and kind.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from catchment.foundation import sql
from catchment.schema.ddl import Aspect
from catchment.schema.sqlite_types import affinity, is_relation, meets, same_type
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Reference, Structure

# Values of columns that are not in the models any more, by table and column, to score a rename.
Samples = Mapping[tuple[str, str], Collection[object]]

_WEIGHTS = {"type": 0.4, "position": 0.2, "name": 0.2, "data": 0.2}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_TEXT_TYPES = frozenset({"DATE", "DATETIME", "JSON", "TIMESTAMP"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """A column that both sides have, and the aspects that differ."""

    expected: DeclaredColumn
    actual: DeclaredColumn
    aspects: frozenset[Aspect]
    expected_reference: Reference | None = None
    actual_reference: Reference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameCandidate:
    """A possible rename of `old`, only in the database, to `new`, only in the models; 1 is best."""

    old: str
    new: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """Differences in a table that both sides have; `renames` are ordered best first."""

    table: str
    added: tuple[DeclaredColumn, ...] = ()
    dropped: tuple[DeclaredColumn, ...] = ()
    changed: tuple[ColumnChange, ...] = ()
    renames: tuple[RenameCandidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDiff:
    """Changes that make a database match the models.

    `missing` tables are only in the models, `extra` ones only in the database; `renames` are pairs
    of those.
    """

    missing: tuple[DeclaredTable, ...] = ()
    extra: tuple[DeclaredTable, ...] = ()
    tables: tuple[TableDiff, ...] = ()
    renames: tuple[RenameCandidate, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.missing or self.extra or self.tables)

    def describe(self) -> tuple[str, ...]:
        """Return one line for each difference, for the operator."""
        lines = [f"{table.name}: the table is missing" for table in self.missing]
        lines += [f"{table.name}: the table is in no model" for table in self.extra]
        lines += [f"{each.old}: the table may have become {each.new}" for each in self.renames]
        for table in self.tables:
            lines += [f"{table.table}.{column.name}: the column is missing" for column in table.added]
            lines += [f"{table.table}.{column.name}: the column is in no model" for column in table.dropped]
            lines += [f"{table.table}.{each.old}: the column may have become {each.new}" for each in table.renames]
            lines += [f"{table.table}.{change.actual.name}: {_description(change)}" for change in table.changed]
        return tuple(lines)


def diff(expected: Structure, actual: Structure, *, samples: Samples | None = None) -> ModelDiff:
    """Return missing, additional and differing tables and columns of the database."""
    missing = tuple(table for table in expected.tables if actual.find(table.name) is None)
    extra = tuple(table for table in actual.tables if expected.find(table.name) is None)
    changes: list[TableDiff] = []
    for table in expected.tables:
        present = actual.find(table.name)
        if present is not None:
            found = _table_diff(table, present, expected=expected, actual=actual, samples=samples or {})
            if found.added or found.dropped or found.changed:
                changes.append(found)
    pairs = [(_likeness(old, new), old.name, new.name) for old in extra for new in missing]
    renames = tuple(
        RenameCandidate(old=old, new=new, score=score)
        for score, old, new in sorted(pairs, key=_best_first)
        if score > 0
    )
    return ModelDiff(missing=missing, extra=extra, tables=tuple(changes), renames=renames)


def differing(
    expected: DeclaredColumn,
    actual: DeclaredColumn,
    *,
    expected_reference: Reference | None = None,
    actual_reference: Reference | None = None,
) -> frozenset[Aspect]:
    """Return the aspects in which a column differs from the model; references are resolved."""
    found = set()
    is_key = bool(expected.primary_key)
    if same_type(expected.type) != same_type(actual.type) if is_key else not meets(actual.type, expected.type):
        found.add(Aspect.TYPE)
    if actual.generated and not expected.generated:
        found.add(Aspect.GENERATED)
    # An INTEGER PRIMARY KEY is never NULL, even if it is declared as nullable.
    if expected.nullable != actual.nullable and not expected.primary_key:
        found.add(Aspect.NULLABILITY)
    if expected.default is not None and same_default(expected.default) != same_default(actual.default):
        found.add(Aspect.DEFAULT)
    if expected.primary_key != actual.primary_key:
        found.add(Aspect.PRIMARY_KEY)
    if _target(expected_reference) != _target(actual_reference):
        found.add(Aspect.REFERENCES)
    return frozenset(found)


def same_default(text: str | None) -> str:
    """Return a default in comparable form: no outer parentheses, uniform quotes, plain numbers."""
    given = (text or "NULL").strip()
    while given.startswith("(") and _closes_last(given):
        given = given[1:-1].strip()
    folded = given.upper()
    if folded in ("TRUE", "FALSE"):
        return "1" if folded == "TRUE" else "0"
    if _NUMBER.fullmatch(given):
        return str(int(given)) if re.fullmatch(r"[+-]?\d+", given) else _real(float(given))
    # SQLite reads a name in double quotes as a text here, because a default cannot name a column.
    if re.fullmatch(r'"(?:[^"]|"")*"', given):
        return "'" + given[1:-1].replace('""', '"').replace("'", "''") + "'"
    if re.fullmatch(r"X'[0-9A-F]*'", folded) or re.fullmatch(r"\w+", given):
        return folded
    return given


def _real(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _closes_last(text: str) -> bool:
    """Return whether the first parenthesis is closed by the last character."""
    depth, quote = 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
            if depth == 0:
                return place == len(text) - 1
    return False


def _table_diff(
    expected_table: DeclaredTable,
    actual_table: DeclaredTable,
    *,
    expected: Structure,
    actual: Structure,
    samples: Samples,
) -> TableDiff:
    added = tuple(column for column in expected_table.columns if actual_table.find(column.name) is None)
    # Computed columns cannot be in models, and stay.
    dropped = tuple(
        column for column in actual_table.columns if expected_table.find(column.name) is None and not column.generated
    )
    changed: list[ColumnChange] = []
    for column in expected_table.columns:
        present = actual_table.find(column.name)
        if present is None:
            continue
        wanted = reference_of(expected_table, column.name, expected)
        kept = _counting(reference_of(actual_table, column.name, actual, like=wanted), wanted, present)
        aspects = differing(column, present, expected_reference=wanted, actual_reference=kept)
        if aspects:
            changed.append(
                ColumnChange(
                    expected=column, actual=present, aspects=aspects, expected_reference=wanted, actual_reference=kept
                )
            )
    return TableDiff(
        table=actual_table.name,
        added=added,
        dropped=dropped,
        changed=tuple(changed),
        renames=_renames(expected_table, actual_table, added=added, dropped=dropped, samples=samples),
    )


def reference_of(
    table: DeclaredTable, column: str, structure: Structure, *, like: Reference | None = None
) -> Reference | None:
    """Return the foreign key of this column alone, resolved; of several, the one like `like`."""
    found: list[Reference] = []
    for reference in table.references:
        if len(reference.columns) == 1 and sql.fold(reference.columns[0]) == sql.fold(column):
            other = structure.find(reference.table)
            keys = tuple(each.name for each in other.columns if each.primary_key) if other is not None else ()
            found.append(
                Reference(
                    columns=reference.columns, table=reference.table, targets=reference.targets or keys or ("id",)
                )
            )
    alike = [reference for reference in found if _target(reference) == _target(like)]
    return next(iter([*alike, *found]), None)


def _counting(kept: Reference | None, wanted: Reference | None, column: DeclaredColumn) -> Reference | None:
    """Return the reference, or None if it was added by hand to a plain column of the model."""
    return kept if wanted is not None or is_relation(column.type) else None


def _target(reference: Reference | None) -> tuple[str, tuple[str, ...]] | None:
    if reference is None:
        return None
    return sql.fold(reference.table), tuple(sql.fold(target) for target in reference.targets)


def _renames(
    expected: DeclaredTable,
    actual: DeclaredTable,
    *,
    added: tuple[DeclaredColumn, ...],
    dropped: tuple[DeclaredColumn, ...],
    samples: Samples,
) -> tuple[RenameCandidate, ...]:
    known = {(sql.fold(table), sql.fold(column)): values for (table, column), values in samples.items()}
    pairs = [
        (_score(old, new, expected=expected, actual=actual, samples=known), old.name, new.name)
        for old in dropped
        for new in added
        if _families(old.type) & _families(new.type) and bool(old.primary_key) == bool(new.primary_key)
    ]
    return tuple(RenameCandidate(old=old, new=new, score=score) for score, old, new in sorted(pairs, key=_best_first))


def _best_first(pair: tuple[float, str, str]) -> tuple[float, str, str]:
    score, old, new = pair
    return -score, old, new


def _families(declared: str) -> frozenset[str]:
    """Return the kinds of values that this type can store, to compare columns for a rename."""
    if same_type(declared) in _TEXT_TYPES:
        return frozenset({"text"})
    match affinity(declared):
        case "TEXT":
            return frozenset({"number"} if is_relation(declared) else {"text"})
        case "INTEGER" | "REAL":
            return frozenset({"number"})
        case "BLOB" if declared:
            return frozenset({"blob"})
        case _:
            return frozenset({"number"} if _is_number(declared) else {"text", "number", "blob"})


def _is_number(declared: str) -> bool:
    return same_type(declared) in ("BOOL", "BOOLEAN") or is_relation(declared)


def _score(
    old: DeclaredColumn, new: DeclaredColumn, *, expected: DeclaredTable, actual: DeclaredTable, samples: Samples
) -> float:
    """Score up to 1: same type and position, similar names, old values that fit the new type."""
    last = max(len(expected.columns), len(actual.columns)) - 1 or 1
    apart = abs(actual.columns.index(old) - expected.columns.index(new))
    alike = meets(old.type, new.type)
    parts = {
        "type": (0.8 if alike else 0.4) + (0.2 if old.nullable == new.nullable else 0),
        "position": max(0.0, 1 - apart / last),
        "name": difflib.SequenceMatcher(None, sql.fold(old.name), sql.fold(new.name)).ratio(),
    }
    values = samples.get((sql.fold(actual.name), sql.fold(old.name)), ())
    if values:
        parts["data"] = sum(_fits(value, new) for value in values) / len(values)
    total = sum(_WEIGHTS[part] for part in parts)
    return round(sum(_WEIGHTS[part] * value for part, value in parts.items()) / total, 3)


def _fits(value: object, column: DeclaredColumn) -> bool:
    if value is None:
        return column.nullable
    families = _families(column.type)
    if isinstance(value, int | float):
        return "number" in families
    return ("blob" if isinstance(value, bytes) else "text") in families


def _likeness(old: DeclaredTable, new: DeclaredTable) -> float:
    """Return the share of columns, besides `id`, that two tables have in common by name and kind."""
    names = {sql.fold(column.name) for table in (old, new) for column in table.columns} - {"id"}
    shared = [
        name
        for name in names
        if (one := old.find(name)) and (other := new.find(name)) and _families(one.type) & _families(other.type)
    ]
    return round(len(shared) / len(names), 3) if names else 0.0


def _description(change: ColumnChange) -> str:
    """Describe the difference, the database's side first."""
    parts: list[str] = []
    for aspect in sorted(change.aspects):
        match aspect:
            case Aspect.TYPE:
                parts.append(f"{change.actual.type or 'no type'} in the database, {change.expected.type} in the model")
            case Aspect.NULLABILITY:
                parts.append(
                    "may be NULL in the database only" if change.actual.nullable else "may be NULL in the model"
                )
            case Aspect.DEFAULT:
                parts.append(f"default {change.actual.default or 'NULL'}, in the model {change.expected.default}")
            case Aspect.GENERATED:
                parts.append("computed in the database, a plain column in the model")
            case Aspect.PRIMARY_KEY:
                parts.append("the primary key is different")
            case Aspect.REFERENCES:
                before, after = change.actual_reference, change.expected_reference
                there, here = (each.table if each else "nothing" for each in (before, after))
                parts.append(f"refers to {there}, in the model to {here}")
    return "; ".join(parts)
