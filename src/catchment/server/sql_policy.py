"""The gate: what a client's statement may be, and so what it can reach.

The wall is DuckDB's own: the instance that clients share may open files in the lake's data folder and nowhere else, and
its settings are locked. The gate closes what that leaves open: extensions that open files by themselves, the lake's
metadata, raw files in the data folder, and functions that name a file, a query or an address in memory. It lets
through what it knows and refuses the rest. What a statement names is found as `syntax` says.
"""

import re
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import duckdb
from duckdb import StatementType
from sqlglot import exp

from catchment.errors import NotAllowedError, NotSupportedError
from catchment.lake import extensions
from catchment.lake.tables import LEDGER_SCHEMA
from catchment.server import functions, session_settings, sql_forms
from catchment.server.catalog_lists import LISTED_SHOWS, LISTS, is_list
from catchment.server.functions import TABLE_FUNCTIONS
from catchment.server.sql_tokens import Token, calls
from catchment.server.syntax import (
    Called,
    Explained,
    Macro,
    explained,
    function_name,
    macro_of,
    name_at,
    named,
    parse,
    query_tree,
    refuse_texts_as_tables,
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
_VERDICTS_MAX = 2_000
# Longer texts are judged anew: what is remembered takes many times their length.
_REMEMBERED_LETTERS_MAX = 2_000
_PLAIN_NAME = re.compile(r"\w+(\.\w+){0,2}")
_CURRENT_SETTING = "current_setting"
_WORDS_REFUSED = frozenset({"pragma", "call", "checkpoint", "import", "force"})
# Words without which no table but the target is named.
_NAMES_TABLES = frozenset(
    {"select", "from", "table", "with", "join", "using", "pivot", "unpivot", "describe", "show", "summarize", "desc"}
)
# What a commit message may consist of, besides texts.
_MESSAGE_WORDS = frozenset({"(", ")", ",", "=", "extra_info", "null"})


class StatementKind(Enum):
    """What becomes of a statement."""

    READ = "read"
    WRITE = "write"
    # Changes only how the session's later statements are read.
    SESSION = "session"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Permission:
    """A statement that may run: what it is, and who may run it.

    `touched` are the tenants whose tables it names, where its user has no tenant.
    """

    kind: StatementKind
    role: Role
    counts: bool = False
    touched: frozenset[TenantId] = frozenset()
    # Without an open transaction it would have no effect.
    in_transaction: bool = False
    # Whether it reads lists of what the catalog has, which show more than some callers may see.
    lists: bool = False
    # Tables that it names by texts, in their parts, and table functions that have to be macros.
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


def authorize(statement: duckdb.Statement, text: str, tokens: tuple[Token, ...], principal: Principal) -> Permission:
    """What the statement is, if this caller may run it; else NotAllowedError."""
    look = _remembered if len(text) <= _REMEMBERED_LETTERS_MAX else _judge
    verdict = look(statement.type, text, tokens)
    if principal.role < verdict.role:
        raise NotAllowedError(f"{principal.name} may only read.", hint="It takes the role `writer`.")
    names = {token.text for token in tokens if token.is_name}.union(*verdict.tables)
    if LEDGER_SCHEMA in map(str.casefold, names) and (
        verdict.kind is not StatementKind.READ or principal.role < Role.ADMIN
    ):
        raise NotAllowedError(f"{LEDGER_SCHEMA} is Catchment's own.", hint="`catchment lake audit` reads it.")
    if verdict.lists and verdict.kind is not StatementKind.READ and principal.role < Role.ADMIN:
        raise NotAllowedError(sql_forms.LISTS_IN_QUERIES, hint="SELECT from them.")
    return verdict


@lru_cache(maxsize=_VERDICTS_MAX)
def _remembered(kind: StatementType, text: str, tokens: tuple[Token, ...]) -> Permission:
    return _judge(kind, text, tokens)


def _judge(kind: StatementType, text: str, tokens: tuple[Token, ...]) -> Permission:
    first = tokens[0].text if tokens else ""
    if kind == StatementType.TRANSACTION:
        if first not in _TRANSACTIONS:
            # Where a PIVOT has to look for its values first, DuckDB makes several statements of one.
            raise NotSupportedError("A PIVOT within a statement names its values.", hint="PIVOT … ON … IN (…)")
        return Permission(_TRANSACTIONS[first], Role.READER)
    if kind == StatementType.EXPLAIN:
        return _judge_explained(explained(text, tokens))
    if kind == StatementType.CALL and _is_commit_message(tokens):
        return Permission(StatementKind.WRITE, Role.WRITER, in_transaction=True)
    if kind == StatementType.VACUUM and first == "analyze" and len(tokens) == 1:
        return Permission(StatementKind.SESSION, Role.READER)
    verdict = _KINDS.get(kind)
    # A PRAGMA comes out of DuckDB's parser as what it stands for, often a SELECT.
    if verdict is None or first in _WORDS_REFUSED:
        raise NotAllowedError(sql_forms.reason(first))
    _refuse_metadata(tokens)
    if kind == StatementType.SELECT:
        return _judge_query(text, tokens, verdict)
    if kind == StatementType.SET and not session_settings.is_variable(tokens):
        session_settings.require_harmless(text, tokens)
        return verdict
    if kind in (StatementType.CREATE, StatementType.DROP):
        _require_creatable(tokens)
    macro = macro_of(kind, tokens)
    if macro is not None:
        return _judge_macro(text, macro)
    refuse_calls(tokens, functions.refused())
    if names_only_its_target(kind, tokens):
        _refuse_table(target(kind, tokens))
        return verdict
    refuse_texts_as_tables(text, tokens)
    refuse_calls(tokens, functions.refused_short())
    tables, called = _in_sqlglot_tree(text)
    for table in tables:
        _refuse_table(table)
    for function in called:
        if function not in TABLE_FUNCTIONS:
            raise NotAllowedError(functions.refusal(function))
    lists = any(is_list(table) for table in tables) or any(each in LISTS for each in called) or _shows(tokens)
    return replace(verdict, lists=lists)


def _judge_explained(about: Explained) -> Permission:
    inner = _judge(about.kind, about.text, about.tokens)
    if inner.kind is StatementKind.READ:
        return inner
    if inner.kind is not StatementKind.WRITE or about.is_run:
        raise NotAllowedError(
            "EXPLAIN ANALYZE runs what it explains, and is for queries.", hint="EXPLAIN runs nothing."
        )
    return replace(inner, kind=StatementKind.READ, counts=False, in_transaction=False)


def _judge_query(text: str, tokens: tuple[Token, ...], verdict: Permission) -> Permission:
    tree = query_tree(text, tokens)
    if tree is None:
        raise NotSupportedError("The query is of a form that the server cannot check.", hint="PIVOT … ON … IN (…)")
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
        raise NotAllowedError("The server's settings are not for clients.", hint="A session sees its own: TimeZone, …")
    judged = {called.name for called in found.table_functions} | {_CURRENT_SETTING}
    refuse_calls(tokens, functions.refused() - judged)
    lists = any(is_list(parts) for parts in found.tables) or any(show in LISTED_SHOWS for show in found.shows)
    lists |= any(called.name in LISTS for called in found.table_functions)
    macros = frozenset(called.name for called in found.table_functions if called.name not in functions.known())
    return replace(verdict, lists=lists, tables=tuple(by_text), macros=macros)


def _judge_macro(text: str, macro: Macro) -> Permission:
    """A macro is judged as the query that it stands for: its parameters can be values, and nothing else."""
    _refuse_table(macro.name)
    name = macro.name[-1]
    if name in functions.known():
        # It would take the place of DuckDB's own in the statements of others, and of the server.
        raise NotAllowedError(f"DuckDB has a function {name}.", hint="Give the macro another name.")
    if not macro.has_plain_parameters:
        raise NotAllowedError("The defaults of a macro's parameters are constants.")
    return _judge_query(*macro.query(text), Permission(StatementKind.WRITE, Role.WRITER))


def tables_of(called: Called) -> list[tuple[str, ...]]:
    """The tables that a table function names by texts; NotAllowedError if it is not one for clients."""
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
        raise NotAllowedError(f"{called.name} takes the names of its table as plain texts.")
    return [(*called.where, *given)] if called.name == short else [tuple(given)]


def _flat(arguments: tuple[Any, ...]) -> list[str]:
    given = [each for argument in arguments for each in (argument if isinstance(argument, tuple) else (argument,))]
    if not given or not all(isinstance(each, str) for each in given):
        raise NotAllowedError("The name of a table is a plain text.")
    return given


def _spelled(given: str) -> list[tuple[str, ...]]:
    """The parts that DuckDB may read in the name of a table in a text: it is one name, or several with dots."""
    if not _PLAIN_NAME.fullmatch(given):
        raise NotAllowedError(f"{given!r} is not the plain name of a table.")
    return [(given,), tuple(given.split("."))]


def _is_commit_message(tokens: tuple[Token, ...]) -> bool:
    """CALL [lake.]set_commit_message('…', '…'), or the same by its long name: plain texts, or NULL."""
    chain = name_at(tokens, 1)
    rest = tokens[2 * len(chain) :]
    is_name = chain[-1:] in (("set_commit_message",), ("ducklake_set_commit_message",)) and len(chain) <= 3
    return is_name and all(t.is_string or t.text in _MESSAGE_WORDS for t in rest)


def _require_creatable(tokens: tuple[Token, ...]) -> None:
    what = next((token.text for token in tokens[1:] if token.text not in _CREATE_HOW), "")
    if what not in _CREATABLE:
        why = sql_forms.OBJECT_REASONS.get(what, "It is nothing that a lake has.")
        raise NotAllowedError(f"{tokens[0].text.upper()} {what.upper()}: {why}")


def target(kind: StatementType, tokens: tuple[Token, ...]) -> tuple[str, ...]:
    """The name that an INSERT goes to, or that an ALTER changes, in its parts."""
    if kind == StatementType.DROP:
        at = next((i for i, token in enumerate(tokens) if i > 1 and token.text not in _BEFORE_DROPPED), len(tokens))
    elif kind == StatementType.ALTER:
        at = 4 if [token.text for token in tokens[2:4]] == ["if", "exists"] else 2
    else:
        at = next((i for i, token in enumerate(tokens) if token.text == "into"), len(tokens)) + 1
    found = name_at(tokens, at)
    if not found:
        raise NotAllowedError("The target of the statement is not a name.")
    return found


def _refuse_metadata(tokens: tuple[Token, ...]) -> None:
    """By its words alone, whatever the rest of it means."""
    for token in tokens:
        if token.is_name and token.text.startswith(_METADATA):
            raise NotAllowedError("The lake's metadata is not for clients of a server.")
        if token.is_name and token.text in _refused_views():
            raise NotAllowedError(f"{token.text} is not for clients of a server.")


def refuse_calls(tokens: tuple[Token, ...], names: frozenset[str], whose: str = "") -> None:
    """Refuse a statement that may call a function of one of these names."""
    refused = names.intersection(calls(_without_targets(tokens)))
    if refused:
        message = f"The function {min(refused)} is not for {whose}." if whose else functions.refusal(min(refused))
        raise NotAllowedError(message)


def _without_targets(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Without the names that are made or written to: a bracket after these holds columns."""
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
    """DuckDB's own views, but for those about tables and their columns."""
    with extensions.scratch() as connection:
        found = connection.execute(
            "SELECT lower(view_name) FROM duckdb_views() "
            "WHERE internal AND schema_name NOT IN ('information_schema', 'pg_catalog')"
        ).fetchall()
    return frozenset(name for (name,) in found) - TABLE_FUNCTIONS - _VIEWS | _VIEWS_REFUSED


def names_only_its_target(kind: StatementType, tokens: tuple[Token, ...]) -> bool:
    """Whether it is a DROP MACRO, or an INSERT or ALTER TABLE that names no table but its target."""
    if kind == StatementType.DROP and tokens[1].text in _MACROS:
        return True
    if kind == StatementType.ALTER and [token.text for token in tokens[:2]] == ["alter", "table"]:
        # SET SORTED BY (a DESC): as a query, DESC begins a bracket.
        words = pairwise(tokens[1:])
        return not any(_names_table(each) and (each.text != "desc" or last.text == "(") for last, each in words)
    return kind == StatementType.INSERT and not any(map(_names_table, tokens))


def _names_table(token: Token) -> bool:
    return token.is_name and token.text in _NAMES_TABLES


def _shows(tokens: tuple[Token, ...]) -> bool:
    """Whether a SHOW stands in brackets: nowhere else can it be a part of a statement."""
    words = pairwise(tokens)
    return any(last.text == "(" and not each.is_quoted and each.text in _SHOW_WORDS for last, each in words)


def _refuse_table(parts: tuple[str, ...]) -> None:
    name = parts[-1]
    # The instance's own database would be shared by all sessions, and kept by none.
    if _OWN_DATABASE in [part.casefold() for part in parts[:-1]][:1]:
        raise NotAllowedError("Tables are in the lake, or temporary.", hint="CREATE TEMP TABLE makes a temporary one.")
    # DuckDB looks for a file by all parts together: "/folder/file".parquet is one.
    if any(_PATH.search(part) for part in parts):
        raise NotAllowedError(f"{name!r} would be read as a file.", hint="Clients read tables only.")
    if any(part.casefold().startswith(_METADATA) for part in parts):
        raise NotAllowedError("The lake's metadata is not for clients of a server.")
    folded = name.casefold()
    if _SYSTEM_VIEW.fullmatch(folded) and folded not in TABLE_FUNCTIONS:
        raise NotAllowedError(f"{name} is not for clients of a server.")


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
