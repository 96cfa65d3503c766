"""Runs one script on a lake, inside an open transaction: restricts, records and verifies it.

DuckDB's own parser splits a script into statements and reports the kind of each: kinds that are not
listed are refused. The target of a statement is read from its tokens, by the position at which the
grammar has a name, and must be a table of the migrated schema. A script cannot write outside the
lake anyway: a DuckDB transaction writes to one database only.

A script may drop a table with rows, but not create it again: to the ledger that would be another
table, to which all units could be delivered again. Generated scripts recreate tables that were
empty in the developer's lake, but may have rows in the lake to which they are applied.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import duckdb
from duckdb import StatementType

from catchment.errors import ScriptError
from catchment.foundation import sql
from catchment.lake.placeholders import has_token
from catchment.lake.tables import LEDGER_SCHEMA
from catchment.schema.ddl import DdlToken, mentions, tokens
from catchment.schema.lake_inspect import count_rows, inspect
from catchment.schema.migratable import AccessKind, TableAccess
from catchment.schema.scripts import Script, ScriptStatement, past_comments
from catchment.schema.structure import Structure

# Errors of DuckDB that concern the statement, not the lake on which it runs.
STATEMENT_ERRORS = (duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError, duckdb.NotSupportedError)
_ALLOWED = (
    StatementType.SELECT,
    StatementType.INSERT,
    StatementType.UPDATE,
    StatementType.DELETE,
    StatementType.MERGE_INTO,
    StatementType.CREATE,
    StatementType.ALTER,
    StatementType.DROP,
)
_ELSEWHERE = "a script may change only tables of its own schema"
_REFUSED: dict[StatementType, str] = {
    StatementType.TRANSACTION: "begins or ends a transaction; Catchment runs a script in its own transaction",
    StatementType.ATTACH: f"attaches another database; {_ELSEWHERE}",
    StatementType.DETACH: f"detaches a database; {_ELSEWHERE}",
    StatementType.SET: "changes a setting or the schema in use; only Catchment may set those",
    StatementType.VARIABLE_SET: "changes a setting; only Catchment may set those",
    StatementType.PRAGMA: "has a PRAGMA; only Catchment may change settings",
    StatementType.COPY: f"copies from or to files; {_ELSEWHERE}",
    StatementType.EXPORT: f"writes files; {_ELSEWHERE}",
    StatementType.CALL: "calls a function of DuckDB; its effects might not be rolled back",
    StatementType.LOAD: "loads or installs an extension; only Catchment may do that",
}
_CHANGES = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "MERGE", "CREATE", "ALTER", "DROP")
_BEFORE_NAME = frozenset(
    {*_CHANGES, "INTO", "FROM", "TABLE", "OR", "REPLACE", "IGNORE", "IF", "NOT", "EXISTS", "TEMP", "TEMPORARY"}
)
_VERBS = {
    "INSERT": AccessKind.INSERT,
    "UPDATE": AccessKind.UPDATE,
    "DELETE": AccessKind.DELETE,
    "TRUNCATE": AccessKind.DELETE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptScope:
    """The schema of the lake that a script may change."""

    lake: str
    schema: str

    def owns(self, names: list[str]) -> bool:
        """Return whether a name, as written in a statement, refers to a table in the schema."""
        *qualifiers, _ = [sql.fold(name) for name in names]
        lake, schema = sql.fold(self.lake), sql.fold(self.schema)
        return qualifiers in ([], [schema], [lake, schema]) or (qualifiers == [lake] and schema == "main")


def execute(connection: duckdb.DuckDBPyConnection, script: Script, scope: ScriptScope) -> tuple[TableAccess, ...]:
    """Run every statement, then verify the row counts to keep; the caller ends the transaction."""
    _refuse_tokens(script)
    statements = list(split(connection, script))
    before = inspect(connection, scope.lake, scope.schema)
    rows_before = _counts(connection, script, scope)
    acts_by_statement = [list(_acts(statement, scope, before, script)) for _, statement in statements]
    for table, statement in _recreated(before, [statement for _, statement in statements], acts_by_statement).items():
        rows = count_rows(connection, sql.qualified(scope.lake, scope.schema, table))
        if rows:
            raise _failed(
                script,
                statement,
                f"it drops {table}, which has {rows} rows here, to create it again; everything delivered to "
                "it would be delivered again.",
                hint=f"Delete the script, and generate it again on a lake in which {table} has rows.",
            )
    for parsed, statement in statements:
        try:
            connection.execute(parsed)
        except STATEMENT_ERRORS as error:
            raise _failed(script, statement, _first_line(error)) from error
    for table, now in _counts(connection, script, scope).items():
        if now != rows_before[table]:
            raise ScriptError(
                f"{script.filename} claims to keep the rows of {table}; there were {rows_before[table]}, now {now}."
            )
    _read_retyped(connection, script, scope, before)
    return tuple(act for acts in acts_by_statement for act in acts)


def split(connection: duckdb.DuckDBPyConnection, script: Script) -> Iterator[tuple[duckdb.Statement, ScriptStatement]]:
    """Yield the statements of a script; ScriptError for a statement of a refused kind."""
    try:
        parsed = connection.extract_statements(script.text)
    except STATEMENT_ERRORS as error:
        raise ScriptError(f"{script.filename}: {_first_line(error)}", filename=script.filename) from error
    start = 0
    for each in parsed:
        begins = script.text.index(each.query, start)
        start = begins + len(each.query)
        first = past_comments(script.text, begins, start)
        statement = ScriptStatement(text=script.text[first:start].rstrip(), line=script.text.count("\n", 0, first) + 1)
        if each.type not in _ALLOWED:
            kind = each.type.name.replace("_", " ")
            raise _failed(script, statement, f"it {_REFUSED.get(each.type, f'is a statement of kind {kind}')}.")
        yield each, statement


def _acts(statement: ScriptStatement, scope: ScriptScope, before: Structure, script: Script) -> Iterator[TableAccess]:
    """Yield a statement's effects, read from its tokens; ScriptError if its target is forbidden."""
    found = tokens(statement.text)
    called = _called(found, scope)
    if called is not None:
        raise _failed(
            script, statement, f"it calls {called}, a function of DuckLake; its effects might not be rolled back."
        )
    start = _start_of_change(found)
    if start is None:
        return
    word = found[start].word
    names, end = _target(found, start)
    why = _refusal(found[start:], word, names, scope)
    if why is not None:
        raise _failed(script, statement, f"it {why}.")
    table = names[-1]
    for verb, column in _accesses(word, found, start, end):
        to = _new_name(found) if verb is AccessKind.RENAME_TABLE else None
        yield TableAccess(verb=verb, table=table, column=column, to=to, line=statement.line)
    if word in ("INSERT", "CREATE"):
        yield from _copies(statement, before, table)


def _refusal(found: list[DdlToken], word: str, names: list[str], scope: ScriptScope) -> str | None:
    words = [token.word for token in found]
    head = words[: words.index("TABLE")] if "TABLE" in words else words
    if word in ("CREATE", "ALTER", "DROP", "COMMENT") and not set(head) <= {word, "OR", "REPLACE"}:
        return (
            f"has {' '.join(filter(None, words[:2]))}; a script of a lake may change only tables, and no temporary ones"
        )
    if not names:
        return "changes an object that is not recognized"
    if len(names) > 1 and sql.fold(names[-2]) == LEDGER_SCHEMA:
        return f"changes {'.'.join(names)}, which belongs to Catchment"
    return None if scope.owns(names) else f"changes {'.'.join(names)}; {_ELSEWHERE}"


def _start_of_change(found: list[DdlToken]) -> int | None:
    """Return the position of the keyword of the change: at the statement's start, or after WITH."""
    depth = 0
    for at, token in enumerate(found):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.word in _CHANGES:
            return at
        if depth == 0 and token.word in ("SELECT", "FROM", "VALUES"):
            return None
        if at == 0 and token.word == "COMMENT":
            # DuckDB classifies COMMENT ON as an ALTER, although its grammar differs.
            return at
    return None


def _target(found: list[DdlToken], start: int) -> tuple[list[str], int]:
    """Return the parts of the changed object's name, and the position after it."""
    at = start
    while at < len(found) and found[at].word in _BEFORE_NAME:
        at += 1
    names: list[str] = []
    while at < len(found) and found[at].kind in ("word", "quoted", "text"):
        names.append(found[at].name)
        if at + 1 >= len(found) or found[at + 1].text != ".":
            return names, at + 1
        at += 2
    return names, at


def _accesses(word: str, found: list[DdlToken], start: int, end: int) -> Iterator[tuple[AccessKind, str | None]]:
    rest = found[end:]
    words = [token.word for token in rest]
    match word:
        case "CREATE":
            if "REPLACE" in [token.word for token in found[start:end]]:
                yield AccessKind.DROP_TABLE, None
            yield AccessKind.CREATE_TABLE, None
        case "DROP":
            yield AccessKind.DROP_TABLE, None
        case "ALTER" if words[:1] == ["DROP"]:
            named = [token for token in rest[1:] if token.word not in ("COLUMN", "IF", "EXISTS")]
            yield AccessKind.DROP_COLUMN, named[0].name if named else None
        case "ALTER":
            yield AccessKind.RENAME_TABLE if words[:2] == ["RENAME", "TO"] else AccessKind.ALTER_TABLE, None
        case "UPDATE":
            yield from ((AccessKind.UPDATE, column) for column in _assigned(rest))
        case "MERGE":
            yield from ((verb, None) for name, verb in _VERBS.items() if name in words)
        case _:
            yield _VERBS[word], None


def _new_name(found: list[DdlToken]) -> str:
    """Return the new name in `ALTER TABLE … RENAME TO`."""
    return next(after.name for token, after in pairwise(found) if token.word == "TO")


def _assigned(rest: list[DdlToken]) -> Iterator[str]:
    """Yield the columns that an UPDATE sets: names before an equals sign, after SET or a comma."""
    depth, is_first = 0, False
    for at, token in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.word in ("FROM", "WHERE", "RETURNING"):
            return
        if is_first and at + 1 < len(rest) and rest[at + 1].text == "=":
            yield token.name
        is_first = depth == 0 and (token.word == "SET" or token.text == ",")


def _copies(statement: ScriptStatement, before: Structure, target: str) -> Iterator[TableAccess]:
    """Yield the columns that are read into another table, as far as they are named."""
    every = any(token.text == "*" for token in tokens(statement.text))
    for table in before.tables:
        if sql.fold(table.name) == sql.fold(target) or not mentions(statement.text, table.name):
            continue
        for column in table.columns:
            if every or mentions(statement.text, column.name):
                yield TableAccess(verb=AccessKind.COPY, table=table.name, column=column.name, line=statement.line)


def _recreated(
    before: Structure, statements: list[ScriptStatement], acts_by_statement: list[list[TableAccess]]
) -> dict[str, ScriptStatement]:
    """Return dropped tables whose name exists in the end, with the statement that drops each.

    Names are followed through renames in the statements, because the catalog does not distinguish
    tables before they are committed.
    """
    called: dict[str, str | None] = {sql.fold(table.name): table.name for table in before.tables}
    dropped: dict[str, ScriptStatement] = {}
    for statement, acts in zip(statements, acts_by_statement, strict=True):
        for act in acts:
            name = sql.fold(act.table)
            match act.verb:
                case AccessKind.CREATE_TABLE:
                    called.setdefault(name, None)
                case AccessKind.RENAME_TABLE if name in called and act.to is not None:
                    called[sql.fold(act.to)] = called.pop(name)
                case AccessKind.DROP_TABLE:
                    was = called.pop(name, None)
                    dropped |= {was: statement} if was else {}
    return {table: statement for table, statement in dropped.items() if sql.fold(table) in called}


def _called(found: list[DdlToken], scope: ScriptScope) -> str | None:
    """Return a DuckLake function that the statement calls, or None; many change the lake."""
    for at, token in enumerate(found[:-1]):
        if found[at + 1].text != "(" or token.kind not in ("word", "quoted"):
            continue
        if sql.fold(token.name).startswith("ducklake_"):
            return token.name
        # `FROM lake.snapshots()`; in `INSERT INTO lake.t (a)` a parenthesis follows too.
        owner, before = found[max(at - 2, 0)], found[max(at - 3, 0)]
        is_owned = found[at - 1].text == "." and sql.fold(owner.name) == sql.fold(scope.lake)
        if is_owned and before.word in ("FROM", "JOIN", ","):
            return f"{owner.name}.{token.name}"
    return None


def _counts(connection: duckdb.DuckDBPyConnection, script: Script, scope: ScriptScope) -> dict[str, int]:
    try:
        return {
            table: count_rows(connection, sql.qualified(scope.lake, scope.schema, table))
            for table in script.keeps_rows()
        }
    except STATEMENT_ERRORS as error:
        raise ScriptError(f"{script.filename} claims to keep the rows of a table: {_first_line(error)}") from error


def _read_retyped(connection: duckdb.DuckDBPyConnection, script: Script, scope: ScriptScope, before: Structure) -> None:
    """Read every column whose type has changed: DuckLake converts on reading, which may fail."""
    for table in inspect(connection, scope.lake, scope.schema).tables:
        was = before.find(table.name)
        for column in table.columns if was else ():
            old = was.find(column.name) if was else None
            if old is None or old.type == column.type:
                continue
            name = sql.qualified(scope.lake, scope.schema, table.name)
            try:
                connection.execute(f"SELECT count(hash({sql.identifier(column.name)})) FROM {name}").fetchall()
            except STATEMENT_ERRORS as error:
                raise ScriptError(
                    f"{script.filename} makes {table.name}.{column.name} a {column.type}, "
                    f"but a value cannot be converted: {_first_line(error)}",
                    filename=script.filename,
                ) from error


def _refuse_tokens(script: Script) -> None:
    if has_token(script.text):
        raise ScriptError(
            f"{script.filename} contains a placeholder such as {{DATA_PATH}}, which DuckLake would replace.",
            filename=script.filename,
        )


def _failed(script: Script, statement: ScriptStatement, why: str, *, hint: str | None = None) -> ScriptError:
    return ScriptError(
        f"{script.filename}, line {statement.line}: {why}",
        hint=hint,
        filename=script.filename,
        line=statement.line,
        statement=statement.text,
    )


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n")[0].rstrip(".") + "."
