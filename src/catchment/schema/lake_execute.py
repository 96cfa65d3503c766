"""Running one script on a lake, inside a transaction that is open: what it may do, what it did, whether all is well.

DuckDB's own parser cuts a script into statements and says of what kind each is: kinds that are not listed are refused.
What a statement changes is read from its tokens by the place in which its grammar has a name, and must be a table of
the schema that is migrated. Even so nothing could leave the lake: a transaction of DuckDB writes to one database only.

A table with rows is dropped when a script says so, and is not made anew: it would be another one to the ledger, which
would let everything be delivered to it once more. Generated scripts make tables anew that are empty where they were
generated, and need not be where they are applied.
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

# What DuckDB says is about the statement, and not about the lake that it was to run on.
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
_ELSEWHERE = "a script changes the tables of its own schema only"
_REFUSED: dict[StatementType, str] = {
    StatementType.TRANSACTION: "begins or ends a transaction; Catchment runs a script in one of its own",
    StatementType.ATTACH: f"attaches another database; {_ELSEWHERE}",
    StatementType.DETACH: f"detaches a database; {_ELSEWHERE}",
    StatementType.SET: "changes a setting or the schema in use; those are Catchment's part",
    StatementType.VARIABLE_SET: "changes a setting; those are Catchment's part",
    StatementType.PRAGMA: "has a PRAGMA; settings are Catchment's part",
    StatementType.COPY: f"copies from or to files; {_ELSEWHERE}",
    StatementType.EXPORT: f"writes files; {_ELSEWHERE}",
    StatementType.CALL: "calls a function of DuckDB's own; those may not be undone",
    StatementType.LOAD: "loads or installs an extension; those are Catchment's part",
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
    """Which schema of which lake a script may change."""

    lake: str
    schema: str

    def owns(self, names: list[str]) -> bool:
        """Whether a name as it stands in a statement is one of a table in the schema."""
        *around, _ = [sql.fold(name) for name in names]
        lake, schema = sql.fold(self.lake), sql.fold(self.schema)
        return around in ([], [schema], [lake, schema]) or (around == [lake] and schema == "main")


def execute(connection: duckdb.DuckDBPyConnection, script: Script, place: ScriptScope) -> tuple[TableAccess, ...]:
    """Run every statement, and see that rows are as the script promises; the caller ends it all."""
    _refuse_tokens(script)
    statements = list(split(connection, script))
    before = inspect(connection, place.lake, place.schema)
    counted = _counts(connection, script, place)
    doing = [list(_acts(statement, place, before, script)) for _, statement in statements]
    for table, statement in _made_anew(before, [statement for _, statement in statements], doing).items():
        rows = count_rows(connection, sql.qualified(place.lake, place.schema, table))
        if rows:
            raise _failed(
                script,
                statement,
                f"it drops {table}, which has {rows} rows here, to make it anew; what was delivered to it would be "
                "delivered again.",
                hint=f"Delete the script, and generate it again where {table} has rows.",
            )
    for parsed, statement in statements:
        try:
            connection.execute(parsed)
        except STATEMENT_ERRORS as error:
            raise _failed(script, statement, _first_line(error)) from error
    for table, now in _counts(connection, script, place).items():
        if now != counted[table]:
            raise ScriptError(
                f"{script.filename} says that it keeps the rows of {table}; there were {counted[table]}, now {now}."
            )
    _read_retyped(connection, script, place, before)
    return tuple(act for acts in doing for act in acts)


def split(connection: duckdb.DuckDBPyConnection, script: Script) -> Iterator[tuple[duckdb.Statement, ScriptStatement]]:
    """The statements of a script, once it is certain that none is of a kind that is refused."""
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
            raise _failed(script, statement, f"it {_REFUSED.get(each.type, f'is a statement of the kind {kind}')}.")
        yield each, statement


def _acts(statement: ScriptStatement, place: ScriptScope, before: Structure, script: Script) -> Iterator[TableAccess]:
    """What a statement does, as far as its tokens say; refuses what a script may not change."""
    found = tokens(statement.text)
    called = _called(found, place)
    if called is not None:
        raise _failed(script, statement, f"it calls {called}, a function of DuckLake's own; those may not be undone.")
    start = _start_of_change(found)
    if start is None:
        return
    word = found[start].word
    names, behind = _target(found, start)
    why = _refusal(found[start:], word, names, place)
    if why is not None:
        raise _failed(script, statement, f"it {why}.")
    table = names[-1]
    for verb, column in _done(word, found, start, behind):
        to = _new_name(found) if verb is AccessKind.RENAME_TABLE else None
        yield TableAccess(verb=verb, table=table, column=column, to=to, line=statement.line)
    if word in ("INSERT", "CREATE"):
        yield from _copies(statement, before, table)


def _refusal(found: list[DdlToken], word: str, names: list[str], place: ScriptScope) -> str | None:
    words = [token.word for token in found]
    head = words[: words.index("TABLE")] if "TABLE" in words else words
    if word in ("CREATE", "ALTER", "DROP", "COMMENT") and not set(head) <= {word, "OR", "REPLACE"}:
        return f"has {' '.join(filter(None, words[:2]))}; a script of a lake changes tables, and none that is temporary"
    if not names:
        return "changes something that is not understood"
    if len(names) > 1 and sql.fold(names[-2]) == LEDGER_SCHEMA:
        return f"changes {'.'.join(names)}, which is Catchment's own"
    return None if place.owns(names) else f"changes {'.'.join(names)}; {_ELSEWHERE}"


def _start_of_change(found: list[DdlToken]) -> int | None:
    """Where a statement that changes something says so: at its start, or behind its WITH."""
    depth = 0
    for at, token in enumerate(found):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.word in _CHANGES:
            return at
        if depth == 0 and token.word in ("SELECT", "FROM", "VALUES"):
            return None
        if at == 0 and token.word == "COMMENT":
            # DuckDB takes COMMENT ON for an ALTER, which it is not by its grammar.
            return at
    return None


def _target(found: list[DdlToken], start: int) -> tuple[list[str], int]:
    """The name of what is changed, in its parts, and the place behind it."""
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


def _done(word: str, found: list[DdlToken], start: int, behind: int) -> Iterator[tuple[AccessKind, str | None]]:
    rest = found[behind:]
    words = [token.word for token in rest]
    match word:
        case "CREATE":
            if "REPLACE" in [token.word for token in found[start:behind]]:
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
    """What `ALTER TABLE … RENAME TO` calls the table."""
    return next(after.name for token, after in pairwise(found) if token.word == "TO")


def _assigned(rest: list[DdlToken]) -> Iterator[str]:
    """The columns that an UPDATE sets: names in front of an equals sign, behind SET or a comma."""
    depth, is_first = 0, False
    for at, token in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.word in ("FROM", "WHERE", "RETURNING"):
            return
        if is_first and at + 1 < len(rest) and rest[at + 1].text == "=":
            yield token.name
        is_first = depth == 0 and (token.word == "SET" or token.text == ",")


def _copies(statement: ScriptStatement, before: Structure, target: str) -> Iterator[TableAccess]:
    """The columns that are read into another table, as far as they are named."""
    every = any(token.text == "*" for token in tokens(statement.text))
    for table in before.tables:
        if sql.fold(table.name) == sql.fold(target) or not mentions(statement.text, table.name):
            continue
        for column in table.columns:
            if every or mentions(statement.text, column.name):
                yield TableAccess(verb=AccessKind.COPY, table=table.name, column=column.name, line=statement.line)


def _made_anew(
    before: Structure, statements: list[ScriptStatement], doing: list[list[TableAccess]]
) -> dict[str, ScriptStatement]:
    """The tables that are dropped while one of their name is there in the end, and the statement that drops each.

    Read from the statements, with every name followed through renames: the catalog does not tell tables apart before
    they are committed.
    """
    called: dict[str, str | None] = {sql.fold(table.name): table.name for table in before.tables}
    dropped: dict[str, ScriptStatement] = {}
    for statement, acts in zip(statements, doing, strict=True):
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


def _called(found: list[DdlToken], place: ScriptScope) -> str | None:
    """A function of DuckLake that the statement reads from: many of them change the lake."""
    for at, token in enumerate(found[:-1]):
        if found[at + 1].text != "(" or token.kind not in ("word", "quoted"):
            continue
        if sql.fold(token.name).startswith("ducklake_"):
            return token.name
        # `FROM lake.snapshots()`; in `INSERT INTO lake.t (a)` a parenthesis follows too.
        owner, before = found[max(at - 2, 0)], found[max(at - 3, 0)]
        is_owned = found[at - 1].text == "." and sql.fold(owner.name) == sql.fold(place.lake)
        if is_owned and before.word in ("FROM", "JOIN", ","):
            return f"{owner.name}.{token.name}"
    return None


def _counts(connection: duckdb.DuckDBPyConnection, script: Script, place: ScriptScope) -> dict[str, int]:
    try:
        return {
            table: count_rows(connection, sql.qualified(place.lake, place.schema, table))
            for table in script.keeps_rows()
        }
    except STATEMENT_ERRORS as error:
        raise ScriptError(f"{script.filename} says that it keeps the rows of a table: {_first_line(error)}") from error


def _read_retyped(connection: duckdb.DuckDBPyConnection, script: Script, place: ScriptScope, before: Structure) -> None:
    """Read every column whose type has changed: DuckLake converts when it is read, and a value may not bear it."""
    for table in inspect(connection, place.lake, place.schema).tables:
        was = before.find(table.name)
        for column in table.columns if was else ():
            old = was.find(column.name) if was else None
            if old is None or old.type == column.type:
                continue
            name = sql.qualified(place.lake, place.schema, table.name)
            try:
                connection.execute(f"SELECT count(hash({sql.identifier(column.name)})) FROM {name}").fetchall()
            except STATEMENT_ERRORS as error:
                raise ScriptError(
                    f"{script.filename} makes {table.name}.{column.name} a {column.type}, and a value is none: "
                    f"{_first_line(error)}",
                    filename=script.filename,
                ) from error


def _refuse_tokens(script: Script) -> None:
    if has_token(script.text):
        raise ScriptError(
            f"{script.filename} holds capitals in braces, such as {{DATA_PATH}}, which DuckLake would replace.",
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
