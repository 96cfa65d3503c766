"""Runs one script on SQLite, inside an open transaction: restricts, records and verifies it."""

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from catchment.errors import ScriptError
from catchment.foundation import sql
from catchment.schema import applied_scripts, ddl, triggers
from catchment.schema.migratable import AccessKind, TableAccess
from catchment.schema.scripts import Script, ScriptStatement
from catchment.schema.sqlite_files import is_about_storage

# These only report something.
_PRAGMAS = frozenset(
    {
        "table_info",
        "table_xinfo",
        "table_list",
        "index_list",
        "index_info",
        "index_xinfo",
        "foreign_key_list",
        "foreign_key_check",
        "integrity_check",
        "quick_check",
    }
)
# These only report something if they have no value. SQLite's full-text indexes query them at every
# write.
_PRAGMAS_UNSET = frozenset({"page_size", "data_version"})
_REFUSED: dict[int, str] = {
    sqlite3.SQLITE_TRANSACTION: "begins or ends a transaction ({0}); Catchment runs a script in its own transaction",
    sqlite3.SQLITE_SAVEPOINT: "uses a savepoint; Catchment runs a script in its own transaction",
    sqlite3.SQLITE_ATTACH: "attaches another database; a script may change only its own",
    sqlite3.SQLITE_DETACH: "detaches a database; a script may change only its own",
    sqlite3.SQLITE_PRAGMA: "has PRAGMA {0}; only Catchment may change settings, because some are not rolled back",
}
_VERBS: dict[int, AccessKind] = {
    sqlite3.SQLITE_CREATE_TABLE: AccessKind.CREATE_TABLE,
    sqlite3.SQLITE_DROP_TABLE: AccessKind.DROP_TABLE,
    sqlite3.SQLITE_INSERT: AccessKind.INSERT,
    sqlite3.SQLITE_UPDATE: AccessKind.UPDATE,
    sqlite3.SQLITE_DELETE: AccessKind.DELETE,
}
# In these, the second name is the table's, and the first is that of the index or trigger.
_ON_TABLE = frozenset(
    {
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_TRIGGER,
        sqlite3.SQLITE_ALTER_TABLE,
    }
)
# Objects that could shadow a table of that name, or be mistaken for it.
_NAMING = frozenset(
    {
        sqlite3.SQLITE_CREATE_TEMP_TABLE,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_VIEW,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_CREATE_VTABLE,
    }
)
_TELLING = re.compile("rename|replace", re.IGNORECASE)
_FLAWS_MAX = 1_000
_FLAWS_SAID = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Health:
    """Problems of a database: dangling references and other flaws.

    In the order of the fields: numbers of rows with dangling references, foreign keys that cannot
    be checked, failing triggers, and other flaws.
    """

    orphans: Counter[tuple[str, str]]
    mismatches: frozenset[str]
    triggers: dict[str, str]
    flaws: Counter[str]


def execute(connection: sqlite3.Connection, script: Script) -> tuple[TableAccess, ...]:
    """Run every statement, then verify rows and references; the caller ends the transaction."""
    rows_before = _counts(connection, script)
    before = _health(connection)
    acts: list[TableAccess] = []
    for statement in script.statements():
        acts += _run(connection, script, statement)
    if not connection.in_transaction:
        raise ScriptError(f"{script.filename} has ended the transaction in which it ran.")
    _verify(connection, script, rows_before=rows_before, before=before)
    return tuple(acts)


class _Watch:
    """Authorizer: SQLite calls it for every action of a statement, before executing it."""

    def __init__(self, line: int) -> None:
        self.refusal: str | None = None
        self._line = line
        self._acts: list[TableAccess] = []
        self._reads: list[TableAccess] = []

    def __call__(self, action: int, first: str | None, second: str | None, third: str | None, _: str | None) -> int:
        self.refusal = self.refusal or _refusal(action, first or "", second or "")
        if self.refusal:
            return sqlite3.SQLITE_DENY
        self._note(action, first or "", second, third)
        return sqlite3.SQLITE_OK

    def acts(self) -> list[TableAccess]:
        """Return the statement's acts, each once; reads count only if the statement inserts."""
        inserts = any(act.verb is AccessKind.INSERT for act in self._acts)
        found = dict.fromkeys(self._acts + (self._reads if inserts else []))
        # SQLite reports dropping a table also as deleting its rows; here it is one act.
        dropped = {act.table for act in found if act.verb is AccessKind.DROP_TABLE}
        return [act for act in found if not (act.verb is AccessKind.DELETE and act.table in dropped)]

    def _note(self, action: int, first: str, second: str | None, third: str | None) -> None:
        if action == sqlite3.SQLITE_ALTER_TABLE:
            # Here the table comes second, and there is a third name only with DROP COLUMN.
            self._add(AccessKind.DROP_COLUMN if third else AccessKind.ALTER_TABLE, second or "", third)
        elif action == sqlite3.SQLITE_CREATE_INDEX:
            self._add(AccessKind.CREATE_INDEX, second or "")
        elif action == sqlite3.SQLITE_FUNCTION and second == "sqlite_rename_table":
            self._acts = [replace(act, verb=AccessKind.RENAME_TABLE) for act in self._acts]
        elif action == sqlite3.SQLITE_READ and not first.startswith("sqlite_"):
            self._reads.append(TableAccess(verb=AccessKind.COPY, table=first, column=second, line=self._line))
        elif action in _VERBS and not first.startswith("sqlite_"):
            self._add(_VERBS[action], first, second)

    def _add(self, verb: AccessKind, table: str, column: str | None = None) -> None:
        self._acts.append(TableAccess(verb=verb, table=table, column=column, line=self._line))


def _refusal(action: int, first: str, second: str) -> str | None:
    """Return why a script may not do this; None if it may."""
    if action == sqlite3.SQLITE_PRAGMA and (
        first.lower() in _PRAGMAS or (first.lower() in _PRAGMAS_UNSET and not second)
    ):
        return None
    if action in _REFUSED:
        return _REFUSED[action].format(first)
    table = second if action in _ON_TABLE else first
    is_named = action in _NAMING and sql.fold(first) == applied_scripts.TABLE
    if is_named or (action in (*_VERBS, *_ON_TABLE) and sql.fold(table) == applied_scripts.TABLE):
        return f"changes {applied_scripts.TABLE}, which is Catchment's own"
    return None


def _run(connection: sqlite3.Connection, script: Script, statement: ScriptStatement) -> list[TableAccess]:
    watch = _Watch(statement.line)
    connection.set_authorizer(watch)
    try:
        # Fetch to the end: an INSERT … RETURNING has not inserted everything before its rows are
        # fetched.
        for _ in connection.execute(statement.text):
            pass
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        if watch.refusal is None and isinstance(error, sqlite3.Error) and is_about_storage(error):
            raise
        why = watch.refusal or str(error)
        raise ScriptError(
            f"{script.filename}, line {statement.line}: {'it ' if watch.refusal else ''}{why}.",
            filename=script.filename,
            line=statement.line,
            statement=statement.text,
        ) from error
    finally:
        connection.set_authorizer(None)
    return _with_words(watch.acts(), statement)


def _with_words(acts: list[TableAccess], statement: ScriptStatement) -> list[TableAccess]:
    """Return the acts, with new names of tables and replaced rows, which SQLite does not report."""
    if not _TELLING.search(statement.text):
        return acts
    words = ddl.tokens(statement.text)
    pairs = [(one.word, other.word) for one, other in pairwise(words)]
    if ("RENAME", "TO") in pairs:
        name = words[pairs.index(("RENAME", "TO")) + 2].name
        acts = [replace(act, to=name) if act.verb is AccessKind.RENAME_TABLE else act for act in acts]
    if {("OR", "REPLACE"), ("REPLACE", "INTO")}.intersection(pairs):
        # Tables that a trigger writes to are included: it resolves conflicts as the statement does.
        written = dict.fromkeys(act.table for act in acts if act.verb in (AccessKind.INSERT, AccessKind.UPDATE))
        acts += [TableAccess(verb=AccessKind.REPLACE, table=table, line=statement.line) for table in written]
    return acts


def _verify(connection: sqlite3.Connection, script: Script, *, rows_before: dict[str, int], before: _Health) -> None:
    for table, now in _counts(connection, script).items():
        if now != rows_before[table]:
            raise ScriptError(
                f"{script.filename} claims to keep the rows of {table}; there were {rows_before[table]}, now {now}."
            )
    after = _health(connection)
    for text in sorted(after.mismatches - before.mismatches):
        raise ScriptError(f"The foreign keys cannot be checked: {text}.")
    for (table, parent), count in (after.orphans - before.orphans).items():
        refer = "1 row that refers" if count == 1 else f"{count} rows that refer"
        raise ScriptError(f"{script.filename} leaves {table} with {refer} to a missing row of {parent}.")
    flaws = [*(after.flaws - before.flaws)][:_FLAWS_SAID]
    if flaws:
        raise ScriptError(f"{script.filename} is not committed, because the database is not sound: {'; '.join(flaws)}.")
    failing = [said for name, said in after.triggers.items() if name not in before.triggers][:_FLAWS_SAID]
    if failing:
        raise ScriptError(
            f"{script.filename} leaves a trigger that always fails: {'; '.join(failing)}. Drop it in the same script, "
            "or create it again without the missing objects."
        )


def _health(connection: sqlite3.Connection) -> _Health:
    """Return the current problems, to be compared: only new ones are a reason to refuse a script.

    Rows with dangling references are counted, not listed, because a rebuild renumbers rows.
    """
    orphans: Counter[tuple[str, str]] = Counter()
    mismatches: set[str] = set()
    tables = connection.execute("SELECT DISTINCT tbl_name FROM main.sqlite_schema WHERE type = 'table'").fetchall()
    for (name,) in tables:
        try:
            rows = connection.execute(f"PRAGMA main.foreign_key_check({sql.identifier(name)})")
            orphans.update((table, parent) for table, _, parent, _ in rows)
        except sqlite3.OperationalError as error:
            if is_about_storage(error):
                raise
            # The foreign key refers to columns that are not a key: SQLite can never check it.
            mismatches.add(str(error))
    found = connection.execute(f"PRAGMA main.integrity_check({_FLAWS_MAX})")
    flaws = Counter(text for (text,) in found if text != "ok")
    return _Health(
        orphans=orphans, mismatches=frozenset(mismatches), triggers=triggers.failing(connection), flaws=flaws
    )


def _counts(connection: sqlite3.Connection, script: Script) -> dict[str, int]:
    tables = script.keeps_rows()
    try:
        return dict(zip(tables, count_rows(connection, tables), strict=True))
    except sqlite3.OperationalError as error:
        if is_about_storage(error):
            raise
        raise ScriptError(f"{script.filename} claims to keep the rows of a table: {error}.") from error


def count_rows(connection: sqlite3.Connection, tables: Iterable[str]) -> list[int]:
    """Return the number of rows of each table."""
    return [
        connection.execute(f"SELECT count(*) FROM {sql.qualified('main', table)}").fetchone()[0] for table in tables
    ]
