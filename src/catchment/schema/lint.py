"""Risks of a script, derived from its effects on a copy, not from its text. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from catchment.foundation import sql
from catchment.schema.migratable import AccessKind, TableAccess
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Structure

ROWS_BIG = 100_000


class Risk(StrEnum):
    """The kind of a risk."""

    DATA_LOSS = "data loss"
    LONG_LOCK = "long lock"
    NOT_NULL = "not null without default"
    IRREVERSIBLE = "irreversible"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """A risk, with the line of the script that causes it, if it is a single line."""

    risk: Risk
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Effects of a script: its acts in order, and the tables and their rows before and after it."""

    acts: tuple[TableAccess, ...]
    before: Structure
    after: Structure
    rows_before: Mapping[str, int]
    rows_after: Mapping[str, int]


def lint(effect: Effect, *, rows_big: int = ROWS_BIG) -> tuple[LintFinding, ...]:
    """Return all findings, by kind of risk."""
    return (
        *_data_loss(effect),
        *_long_locks(effect, rows_big),
        *_not_null(effect),
        *_irreversible(effect),
    )


def _data_loss(effect: Effect) -> Iterator[LintFinding]:
    for table in effect.before.tables:
        rows = effect.rows_before.get(table.name, 0)
        history = _history(effect, table)
        after = effect.after.find(history.name or table.name)
        if after is None:
            if history.name is None:
                message = f"The table {table.name} is dropped, with {_rows(rows)}."
                yield LintFinding(
                    risk=Risk.DATA_LOSS, message=message, line=_line(effect, history, AccessKind.DROP_TABLE)
                )
            continue
        for column in _lost_columns(effect, table, after, history):
            line = _line(effect, history, AccessKind.DROP_COLUMN)
            message = f"The column {table.name}.{column.name} is dropped, with its values in {_rows(rows)}."
            yield LintFinding(risk=Risk.DATA_LOSS, message=message, line=line)
        left = effect.rows_after.get(after.name, 0)
        if left < rows:
            message = f"{_rows(rows - left)} of {table.name} are deleted; {left} are left."
            yield LintFinding(risk=Risk.DATA_LOSS, message=message, line=_line(effect, history, AccessKind.DELETE))
    yield from _deletions(effect)
    yield from _replacements(effect)


def _replacements(effect: Effect) -> Iterator[LintFinding]:
    for act in _acts(effect, AccessKind.REPLACE):
        table = effect.before.find(act.table)
        if table is not None:
            message = f"Rows of {table.name} that conflict are replaced, and their values are lost."
            yield LintFinding(risk=Risk.DATA_LOSS, message=message, line=act.line)


def _deletions(effect: Effect) -> Iterator[LintFinding]:
    """Yield deletions without a visible effect on the copy: elsewhere they may remove rows."""
    for act in _acts(effect, AccessKind.DELETE):
        table = effect.before.find(act.table)
        if table is not None and effect.rows_after.get(table.name, 0) >= effect.rows_before.get(table.name, 0):
            message = f"Rows of {table.name} may be deleted; on the copy their number did not decrease."
            yield LintFinding(risk=Risk.DATA_LOSS, message=message, line=act.line)


def _lost_columns(
    effect: Effect, before: DeclaredTable, after: DeclaredTable, history: "_TableHistory"
) -> Iterator[DeclaredColumn]:
    """Yield lost columns: neither renamed in place, nor copied into a replacement of the table."""
    dropped, copied = (
        {_key(act.column or "") for act in _acts(effect, verb) if _key(act.table) in history.keys}
        for verb in (AccessKind.DROP_COLUMN, AccessKind.COPY)
    )
    for column in before.columns:
        if after.find(column.name) is not None:
            continue
        if _key(column.name) in dropped or (history.name is None and _key(column.name) not in copied):
            yield column


def _long_locks(effect: Effect, rows_big: int) -> Iterator[LintFinding]:
    for table in effect.before.tables:
        rows = effect.rows_before.get(table.name, 0)
        if rows < rows_big:
            continue
        history = _history(effect, table)
        what = {
            AccessKind.DROP_TABLE: "is rebuilt" if effect.after.find(table.name) else None,
            AccessKind.DROP_COLUMN: "is rewritten without a column",
            AccessKind.UPDATE: "is updated",
            AccessKind.DELETE: "has rows deleted",
            AccessKind.CREATE_INDEX: "is read completely for an index",
        }
        for verb, effect_text in what.items():
            line = _line(effect, history, verb)
            if effect_text and line is not None:
                message = f"{table.name} {effect_text}: {_rows(rows)}, and no other process can write in the meantime."
                yield LintFinding(risk=Risk.LONG_LOCK, message=message, line=line)


def _not_null(effect: Effect) -> Iterator[LintFinding]:
    for table in effect.after.tables:
        before = effect.before.find(table.name)
        for column in table.columns if before else ():
            was = before.find(column.name) if before else None
            is_new = was is None and len(table.columns) > len(before.columns if before else ())
            is_stricter = was is not None and was.nullable
            demands = not column.nullable and not column.primary_key and column.default is None
            if demands and (is_new or is_stricter):
                message = f"{table.name}.{column.name} may not be NULL and has no default: rows without a value fail."
                yield LintFinding(risk=Risk.NOT_NULL, message=message)


def _irreversible(effect: Effect) -> Iterator[LintFinding]:
    for act in _acts(effect, AccessKind.UPDATE):
        table = effect.before.find(act.table)
        if table is not None and table.find(act.column or ""):
            message = f"Values of {table.name}.{act.column} are overwritten; no script can bring them back."
            yield LintFinding(risk=Risk.IRREVERSIBLE, message=message, line=act.line)
    for table in effect.before.tables:
        after = effect.after.find(table.name)
        for column in table.columns if after else ():
            now = after.find(column.name) if after else None
            if now is not None and now.type.casefold() != column.type.casefold():
                message = f"{table.name}.{column.name} becomes {now.type or 'untyped'}, was {column.type or 'untyped'}."
                yield LintFinding(risk=Risk.IRREVERSIBLE, message=f"{message} Values may be converted.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableHistory:
    """A table's names over time, folded, and the last one, which is None once it is dropped."""

    keys: frozenset[str]
    name: str | None


def _history(effect: Effect, table: DeclaredTable) -> _TableHistory:
    name: str | None = table.name
    keys = {_key(table.name)}
    for act in effect.acts:
        if name is None or _key(act.table) != _key(name):
            continue
        if act.verb is AccessKind.DROP_TABLE:
            name = None
        elif act.verb is AccessKind.RENAME_TABLE and act.to is not None:
            name = act.to
            keys.add(_key(name))
    return _TableHistory(keys=frozenset(keys), name=name)


def _acts(effect: Effect, verb: AccessKind) -> Sequence[TableAccess]:
    return [act for act in effect.acts if act.verb is verb]


def _line(effect: Effect, history: _TableHistory, verb: AccessKind) -> int | None:
    return next((act.line for act in _acts(effect, verb) if _key(act.table) in history.keys), None)


def _key(name: str) -> str:
    return sql.fold(name)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
