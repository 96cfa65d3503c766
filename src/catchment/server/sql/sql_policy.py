"""The SQL policy: decides whether a client's statement is allowed, before it runs.

DuckDB's sandbox limits the instance that clients share to files in the lake's data folder, and
locks its settings. The policy covers the remaining gaps: extensions that open files by
themselves, the lake's metadata, raw files in the data folder, and functions that name a file, a
query or a memory address. It allows known forms and refuses all others. `syntax` describes how the
names in a statement are found.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from itertools import pairwise, takewhile
from typing import Any

from duckdb import StatementType
from sqlglot import exp

from catchment.errors import NotAllowedError, NotSupportedError
from catchment.lake import extensions
from catchment.lake.tables import LEDGER_SCHEMA
from catchment.server.sql import functions, session_settings, sql_forms, sql_tokens
from catchment.server.sql.catalog_lists import LISTED_SHOWS, LISTS, is_list
from catchment.server.sql.functions import TABLE_FUNCTIONS
from catchment.server.sql.sql_tokens import Token, calls
from catchment.server.sql.syntax import (
    Called,
    Macro,
    SqlReading,
    function_name,
    macro_of,
    name_at,
    named,
    parse,
    query_tree,
    refuse_strings_as_tables,
)
from catchment.server.values import Principal, Role
from catchment.tenants.model import TenantId

_SYSTEM_VIEW = re.compile(r"(duckdb|pragma)_.*")
_VIEWS = frozenset({"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema"})
_VIEWS_REFUSED = frozenset({"pg_settings", "pg_prepared_statements"})
_METADATA = "__ducklake_metadata"
_BEFORE_TARGETS = frozenset({"into", "table", "exists"})
_OWN_DATABASE = "memory"
_SHOW_WORDS = frozenset({"show", "describe", "desc"})
_PATH = re.compile(r"[/\\*?\[:]|\.(parquet|csv|tsv|json|jsonl|ndjson|db|duckdb|sqlite|arrow|txt|gz|zst|xlsx)$", re.I)
_CREATABLE = frozenset({"table", "view", "schema", "macro", "function"})
_MACROS = frozenset({"macro", "function"})
_BEFORE_DROPPED = frozenset({"table", "if", "exists"})
_CREATE_HOW = frozenset({"or", "replace", "temp", "temporary", "local", "global", "recursive", "persistent"})
_TEMPORARY = frozenset({"temp", "temporary"})
_PERMISSIONS_MAX = 2_000
# Longer texts are not cached: a cached one takes many times its length.
_CACHED_CHARACTERS_MAX = 2_000
_PLAIN_NAME = re.compile(r"\w+(\.\w+){0,2}")
_CURRENT_SETTING = "current_setting"
_WORDS_REFUSED = frozenset({"pragma", "call", "checkpoint", "import", "force"})
# Without one of these words, a statement names no table but its target.
_NAMES_TABLES = frozenset(
    {"select", "from", "table", "with", "join", "using", "pivot", "unpivot", "describe", "show", "summarize", "desc"}
)
# Tokens of a commit message, besides strings.
_MESSAGE_WORDS = frozenset({"(", ")", ",", "=", "extra_info", "null"})


class StatementKind(Enum):
    """How a statement is executed."""

    READ = "read"
    WRITE = "write"
    # Changes only how the session's later statements are interpreted.
    SESSION = "session"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Permission:
    """A statement that may run: its kind, and the required role.

    `touched` are the tenants whose tables it names, if its user has no tenant.
    """

    kind: StatementKind
    role: Role
    counts: bool = False
    touched: frozenset[TenantId] = frozenset()
    # Whether it would have no effect outside a transaction.
    in_transaction: bool = False
    # Whether it reads catalog lists, which show more than some callers may see.
    lists: bool = False
    # Tables that it names by strings, in their parts, and table functions that must be macros.
    tables: tuple[tuple[str, ...], ...] = ()
    macros: frozenset[str] = frozenset()


_KINDS = {
    StatementType.SELECT: Permission(StatementKind.READ, Role.READER),
    StatementType.EXPLAIN: Permission(StatementKind.READ, Role.READER),
    StatementType.INSERT: Permission(StatementKind.WRITE, Role.WRITER, counts=True),
    StatementType.UPDATE: Permission(StatementKind.WRITE, Role.WRITER, counts=True),
    StatementType.DELETE: Permission(StatementKind.WRITE, Role.WRITER, counts=True),
    StatementType.MERGE_INTO: Permission(StatementKind.WRITE, Role.WRITER, counts=True),
    StatementType.CREATE: Permission(StatementKind.WRITE, Role.WRITER, counts=True),
    StatementType.DROP: Permission(StatementKind.WRITE, Role.WRITER),
    StatementType.ALTER: Permission(StatementKind.WRITE, Role.WRITER),
    StatementType.SET: Permission(StatementKind.SESSION, Role.READER),
}
_TRANSACTIONS = {
    "begin": StatementKind.BEGIN,
    "start": StatementKind.BEGIN,
    "commit": StatementKind.COMMIT,
    "end": StatementKind.COMMIT,
    "rollback": StatementKind.ROLLBACK,
    "abort": StatementKind.ROLLBACK,
}


def transaction_kind(tokens: Sequence[Token]) -> StatementKind | None:
    """Return how a statement begins or ends a transaction; None if it does neither."""
    return _TRANSACTIONS.get(tokens[0].text) if tokens else None


def authorize(reading: SqlReading, principal: Principal) -> Permission:
    """Return the statement's permission; NotAllowedError if the caller may not run it."""
    compute = _cached if len(reading.text) <= _CACHED_CHARACTERS_MAX else _permit
    permission = compute(reading)
    if principal.role < permission.role:
        raise NotAllowedError(f"{principal.name} may only read.", hint="The role `writer` is required.")
    names = {token.text for token in reading.tokens if token.is_name}.union(*permission.tables)
    if LEDGER_SCHEMA in map(str.casefold, names) and (
        permission.kind is not StatementKind.READ or principal.role < Role.ADMIN
    ):
        raise NotAllowedError(f"{LEDGER_SCHEMA} is reserved for Catchment.", hint="`catchment lake audit` reads it.")
    if permission.lists and permission.kind is not StatementKind.READ and principal.role < Role.ADMIN:
        raise NotAllowedError(sql_forms.LISTS_IN_QUERIES, hint="SELECT from them.")
    return permission


@lru_cache(maxsize=_PERMISSIONS_MAX)
def _cached(reading: SqlReading) -> Permission:
    return _permit(reading)


def _permit(reading: SqlReading) -> Permission:
    kind, text, tokens = reading.kind, reading.text, reading.tokens
    first = tokens[0].text if tokens else ""
    if kind == StatementType.TRANSACTION:
        control = transaction_kind(tokens)
        if control is None:
            # If a PIVOT has to look up its values first, DuckDB turns it into several statements.
            raise NotSupportedError("A PIVOT inside a statement must list its values.", hint="PIVOT … ON … IN (…)")
        return Permission(control, Role.READER)
    if kind == StatementType.EXPLAIN:
        return _permit_explained(*reading.explained())
    if kind == StatementType.CALL and _is_commit_message(tokens):
        return Permission(StatementKind.WRITE, Role.WRITER, in_transaction=True)
    if kind == StatementType.VACUUM and first == "analyze" and len(tokens) == 1:
        return Permission(StatementKind.SESSION, Role.READER)
    permission = _KINDS.get(kind)
    # DuckDB's parser returns the statement that a PRAGMA stands for, often a SELECT.
    if permission is None or first in _WORDS_REFUSED:
        raise NotAllowedError(sql_forms.reason(first))
    _refuse_metadata(tokens)
    if kind == StatementType.SELECT:
        return _permit_query(reading, permission)
    if kind == StatementType.SET and not session_settings.is_variable(tokens):
        session_settings.require_harmless(text, tokens)
        return permission
    if kind in (StatementType.CREATE, StatementType.DROP):
        _require_creatable(tokens)
    macro = macro_of(reading)
    _require_small_stored(kind, tokens, macro)
    if macro is not None:
        return _permit_macro(reading, macro)
    refuse_calls(tokens, functions.refused())
    if names_only_its_target(kind, tokens):
        _refuse_table(target(kind, tokens))
        return permission
    refuse_strings_as_tables(reading)
    refuse_calls(tokens, functions.refused_short())
    tables, called = _in_sqlglot_tree(text)
    for table in tables:
        _refuse_table(table)
    for function in called:
        if function not in TABLE_FUNCTIONS:
            raise NotAllowedError(functions.refusal(function))
    lists = any(is_list(table) for table in tables) or any(each in LISTS for each in called) or _shows(tokens)
    return replace(permission, lists=lists)


def _permit_explained(about: SqlReading, is_run: bool) -> Permission:
    inner = _permit(about)
    if inner.kind is StatementKind.READ:
        return inner
    if inner.kind is not StatementKind.WRITE or is_run:
        raise NotAllowedError(
            "EXPLAIN ANALYZE runs its statement, so it is limited to queries.", hint="EXPLAIN runs nothing."
        )
    return replace(inner, kind=StatementKind.READ, counts=False, in_transaction=False)


def _permit_query(reading: SqlReading, permission: Permission) -> Permission:
    tree = query_tree(reading)
    if tree is None:
        raise NotSupportedError("The server cannot check a query of this form.", hint="PIVOT … ON … IN (…)")
    found = named(tree)
    for parts in found.tables:
        _refuse_table(parts)
    for show in found.shows:
        _refuse_table((show[-1].strip('"'),))
    by_text = [table for called in found.table_functions for table in tables_of(called)]
    for parts in by_text:
        _refuse_table(parts)
    settings = [each for each in found.functions if each.name == _CURRENT_SETTING]
    if not all(each.arguments and str(each.arguments[0]).casefold() in session_settings.READABLE for each in settings):
        raise NotAllowedError(
            "The server's settings are not available to clients.",
            hint="Clients can read those of their session: TimeZone, …",
        )
    checked = {called.name for called in found.table_functions} | {_CURRENT_SETTING}
    refuse_calls(reading.tokens, functions.refused() - checked)
    lists = any(is_list(parts) for parts in found.tables) or any(show in LISTED_SHOWS for show in found.shows)
    lists |= any(called.name in LISTS for called in found.table_functions)
    macros = frozenset(called.name for called in found.table_functions if called.name not in functions.known())
    return replace(permission, lists=lists, tables=tuple(by_text), macros=macros)


def _require_small_stored(kind: StatementType, tokens: tuple[Token, ...], macro: Macro | None) -> None:
    """Refuse a large macro, and large defaults of a table, unless they are temporary."""
    if kind not in (StatementType.CREATE, StatementType.ALTER):
        return
    how = takewhile(lambda token: token.text in _CREATE_HOW, tokens[1:])
    if _TEMPORARY.isdisjoint(token.text for token in how):
        stored = tuple(sql_tokens.defaults(tokens)) if macro is None else tokens
        sql_tokens.require_small_stored(stored, "The defaults of a statement" if macro is None else "A macro")


def _permit_macro(reading: SqlReading, macro: Macro) -> Permission:
    """Authorize a macro as the query that it stands for: its parameters can only be values."""
    _refuse_table(macro.name)
    name = macro.name[-1]
    if name in functions.known():
        # It would replace DuckDB's own function in other clients' statements, and in the server's.
        raise NotAllowedError(f"DuckDB already has a function {name}.", hint="Give the macro another name.")
    if not macro.has_plain_parameters:
        raise NotAllowedError("The defaults of a macro's parameters must be constants.")
    return _permit_query(macro.query(reading), Permission(StatementKind.WRITE, Role.WRITER))


def tables_of(called: Called) -> list[tuple[str, ...]]:
    """Return the tables that a table function names by strings; NotAllowedError if refused."""
    if called.name in TABLE_FUNCTIONS or called.name not in functions.known():
        return []
    if called.name in functions.TABLE_READERS:
        return [parts for given in _flat(called.arguments[:1]) for parts in _spelled(given)]
    short = functions.of_lake(called.name)
    if short is None:
        raise NotAllowedError(functions.refusal(called.name))
    if not short.startswith("table_") or short == "table_info":
        return []
    given = called.arguments[: 1 if called.name == short else 3]
    if not given or not all(isinstance(each, str) for each in given):
        raise NotAllowedError(f"{called.name} accepts the names of its table only as string constants.")
    return [(*called.where, *given)] if called.name == short else [tuple(given)]


def _flat(arguments: tuple[Any, ...]) -> list[str]:
    given = [each for argument in arguments for each in (argument if isinstance(argument, tuple) else (argument,))]
    if not given or not all(isinstance(each, str) for each in given):
        raise NotAllowedError("The name of a table must be a string constant.")
    return given


def _spelled(given: str) -> list[tuple[str, ...]]:
    """Return the possible parts of a table's name in a string: DuckDB reads it as one name, or as
    several with dots.
    """
    if not _PLAIN_NAME.fullmatch(given):
        raise NotAllowedError(f"{given!r} is not a plain table name.")
    return [(given,), tuple(given.split("."))]


def _is_commit_message(tokens: tuple[Token, ...]) -> bool:
    """Whether it is CALL [lake.]set_commit_message(…), or its long name, with strings or NULL."""
    chain = name_at(tokens, 1)
    rest = tokens[2 * len(chain) :]
    is_name = chain[-1:] in (("set_commit_message",), ("ducklake_set_commit_message",)) and len(chain) <= 3
    return is_name and all(t.is_string or t.text in _MESSAGE_WORDS for t in rest)


def _require_creatable(tokens: tuple[Token, ...]) -> None:
    what = next((token.text for token in tokens[1:] if token.text not in _CREATE_HOW), "")
    if what not in _CREATABLE:
        why = sql_forms.OBJECT_REASONS.get(what, "A lake has no such object.")
        raise NotAllowedError(f"{tokens[0].text.upper()} {what.upper()}: {why}")


def target(kind: StatementType, tokens: tuple[Token, ...]) -> tuple[str, ...]:
    """Return the name of the table that an INSERT, ALTER or DROP changes, in its parts."""
    if kind == StatementType.DROP:
        at = next((i for i, token in enumerate(tokens) if i > 1 and token.text not in _BEFORE_DROPPED), len(tokens))
    elif kind == StatementType.ALTER:
        at = 4 if [token.text for token in tokens[2:4]] == ["if", "exists"] else 2
    else:
        at = next((i for i, token in enumerate(tokens) if token.text == "into"), len(tokens)) + 1
    found = name_at(tokens, at)
    if not found:
        raise NotAllowedError("The target of the statement must be a name.")
    return found


def _refuse_metadata(tokens: tuple[Token, ...]) -> None:
    """Refuse names of metadata anywhere in the statement, whatever they mean there."""
    for token in tokens:
        if token.is_name and token.text.startswith(_METADATA):
            raise NotAllowedError("The lake's metadata is not available to clients.")
        if token.is_name and token.text in _refused_views():
            raise NotAllowedError(f"{token.text} is not available to clients.")


def refuse_calls(tokens: tuple[Token, ...], names: frozenset[str], whose: str = "") -> None:
    """Refuse a statement that may call a function with one of these names."""
    refused = names.intersection(calls(_without_targets(tokens)))
    if refused:
        message = (
            f"The function {min(refused)} is not available to {whose}." if whose else functions.refusal(min(refused))
        )
        raise NotAllowedError(message)


def _without_targets(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Remove names that are created or written to: a bracket after these contains columns."""
    kept: list[Token] = []
    is_target = False
    for last, token in pairwise((None, *tokens)):
        is_after = last is not None and last.text in _BEFORE_TARGETS and not last.is_quoted
        is_target = token is not None and (is_after or (is_target and "." in (token.text, last and last.text)))
        if token is not None and not is_target:
            kept.append(token)
    return tuple(kept)


@cache
def _refused_views() -> frozenset[str]:
    """Return DuckDB's own views, except those about tables and their columns."""
    with extensions.scratch() as connection:
        found = connection.execute(
            "SELECT lower(view_name) FROM duckdb_views() "
            "WHERE internal AND schema_name NOT IN ('information_schema', 'pg_catalog')"
        ).fetchall()
    return frozenset(name for (name,) in found) - TABLE_FUNCTIONS - _VIEWS | _VIEWS_REFUSED


def names_only_its_target(kind: StatementType, tokens: tuple[Token, ...]) -> bool:
    """Whether it is a DROP MACRO, or an INSERT or ALTER TABLE that names only its target."""
    if kind == StatementType.DROP and tokens[1].text in _MACROS:
        return True
    if kind == StatementType.ALTER and [token.text for token in tokens[:2]] == ["alter", "table"]:
        # SET SORTED BY (a DESC): as a query, DESC would follow an opening bracket.
        words = pairwise(tokens[1:])
        return not any(_names_table(each) and (each.text != "desc" or last.text == "(") for last, each in words)
    return kind == StatementType.INSERT and not any(map(_names_table, tokens))


def _names_table(token: Token) -> bool:
    return token.is_name and token.text in _NAMES_TABLES


def _shows(tokens: tuple[Token, ...]) -> bool:
    """Whether a SHOW follows a bracket: only there can it be a part of another statement."""
    words = pairwise(tokens)
    return any(last.text == "(" and not each.is_quoted and each.text in _SHOW_WORDS for last, each in words)


def _refuse_table(parts: tuple[str, ...]) -> None:
    name = parts[-1]
    # The instance's own database would be shared by all sessions, and not kept.
    if _OWN_DATABASE in [part.casefold() for part in parts[:-1]][:1]:
        raise NotAllowedError(
            "Tables must be in the lake or temporary.", hint="CREATE TEMP TABLE creates a temporary one."
        )
    # DuckDB looks for a file by all parts together: "/folder/file".parquet is one.
    if any(_PATH.search(part) for part in parts):
        raise NotAllowedError(f"{name!r} would be read as a file.", hint="Clients can read only tables.")
    if any(part.casefold().startswith(_METADATA) for part in parts):
        raise NotAllowedError("The lake's metadata is not available to clients.")
    folded = name.casefold()
    if _SYSTEM_VIEW.fullmatch(folded) and folded not in TABLE_FUNCTIONS:
        raise NotAllowedError(f"{name} is not available to clients.")


def _in_sqlglot_tree(text: str) -> tuple[list[tuple[str, ...]], list[str]]:
    tables: list[tuple[str, ...]] = []
    functions: list[str] = []
    for tree in parse(text):
        for node in tree.walk():
            if isinstance(node, exp.Table):
                if isinstance(node.this, exp.Func):
                    functions.append(function_name(node.this))
                else:
                    tables.append(tuple(part.name for part in node.parts) or ("",))
            elif isinstance(node, exp.Lateral):
                functions.extend(function_name(each) for each in node.this.find_all(exp.Func, bfs=False))
    return tables, functions
