"""Columns that a table needs to import every leaf unchanged, and conflicting leaves. Pure.

The expected columns are those of the table if the lake has it, otherwise those of the view. Files
may lack columns (they read as NULL), have additional ones (they are added), or have a type that
widens without loss. Anything else is a conflict of their leaves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from catchment.errors import TypeConflictError
from catchment.foundation import sql
from catchment.lake import types
from catchment.lake.types import Column, Fit
from catchment.pipeline.legacy.survey import FileShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDrift:
    """How the columns of some files differ from the expected ones."""

    leaves: tuple[str, ...]
    files: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.missing or self.extra or self.widened or self.conflicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The table's future columns, those that the lake lacks, and the drift of each set of files."""

    columns: tuple[Column, ...]
    added: tuple[Column, ...]
    findings: tuple[ColumnDrift, ...]

    def conflicts(self) -> dict[str, str]:
        """Return the leaves that cannot be imported, with a sentence each."""
        return {leaf: "; ".join(each.conflicts) for each in self.findings for leaf in each.leaves if each.conflicts}


def decide_columns(
    expected: Sequence[Column], shapes: Sequence[FileShape], *, keys: Iterable[str], table: Sequence[Column] | None
) -> TableColumns:
    """Decide on the columns. `keys` are found in folders; `table` has fixed columns of the lake."""
    fixed = {sql.fold(key) for key in keys} | {sql.fold(column.name) for column in table or ()}
    columns = {sql.fold(column.name): column for column in (*(table or ()), *expected)}
    columns |= {sql.fold(column.name): column for column in table or ()}
    known = set(columns)
    # The most frequent first: if two sets of files conflict, the smaller one is not imported.
    # Columns widened by one set may accept another set that conflicted before, so those are tried
    # again.
    left = sorted(
        shapes, key=lambda shape: (-len(shape.files), [(column.name, column.type) for column in shape.columns])
    )
    tried = len(left) + 1
    while len(left) < tried:
        tried, stuck = len(left), []
        for shape in left:
            merged = _merged(columns, shape, fixed)
            columns = merged or columns
            stuck += [shape] if merged is None else []
        left = stuck
    if known <= {sql.fold(key) for key in keys}:
        # Nothing was expected, so no column is an additional one.
        known = set(columns)
    there = {sql.fold(column.name) for column in table or ()}
    added = tuple(column for name, column in columns.items() if name not in there)
    findings = [_finding(shape, columns, {sql.fold(key) for key in keys}, known) for shape in shapes]
    return TableColumns(
        columns=tuple(columns.values()),
        added=added,
        findings=tuple(each for each in findings if not each.is_empty),
    )


def _merged(columns: dict[str, Column], shape: FileShape, fixed: set[str]) -> dict[str, Column] | None:
    """Return the columns extended by the shape's, or None if one of them conflicts."""
    merged = dict(columns)
    for column in shape.columns:
        name = sql.fold(column.name)
        mine = merged.get(name)
        if mine is None and _undeliverable(column) is not None:
            return None
        if mine is None:
            merged[name] = Column(name=column.name, type=types.normal(column.type))
        elif name not in fixed:
            wider = types.common(mine.type, column.type)
            if wider is None:
                return None
            merged[name] = Column(name=mine.name, type=wider, default=mine.default)
    return merged


def _finding(shape: FileShape, columns: dict[str, Column], keys: set[str], known: set[str]) -> ColumnDrift:
    present = {sql.fold(column.name): column for column in shape.columns if sql.fold(column.name) not in keys}
    widened: list[str] = []
    conflicts = [refusal for column in columns.values() if (refusal := _undeliverable(column)) is not None]
    for name, column in present.items():
        target = columns.get(name)
        if target is None:
            # It is added unless it, or another column of these files, cannot be.
            refusal = _undeliverable(column)
            conflicts += [refusal] if refusal is not None else []
            continue
        match types.fit(types.parse(column.type), types.parse(target.type)):
            case Fit.NONE:
                conflicts.append(
                    f"column {column.name!r} is {column.type}, which does not go into {target.type} unchanged"
                )
            case Fit.WIDER:
                widened.append(f"{target.name} ({column.type} to {target.type})")
    absent = [column for name, column in columns.items() if name not in present and name not in keys]
    lacking = [column.name for column in absent if column.default is None]
    conflicts += [
        f"column {column.name!r} is missing, must not be NULL and has no default"
        for column in absent
        if column.default is None and not column.nullable
    ]
    return ColumnDrift(
        leaves=shape.leaves,
        files=len(shape.files),
        missing=tuple(lacking),
        extra=tuple(column.name for name, column in present.items() if name not in known),
        widened=tuple(widened),
        conflicts=tuple(conflicts),
    )


def _undeliverable(column: Column) -> str | None:
    try:
        types.require_deliverable(column)
    except TypeConflictError as error:
        return error.message
    return None
