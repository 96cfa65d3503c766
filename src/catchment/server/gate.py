"""The gate: what a client's statement may be, and so what it can reach.

The wall is DuckDB's own: the instance that clients share may open files in the lake's data folder and nowhere else, and
its settings are locked. The gate closes what that leaves open: extensions that open files by themselves, the lake's
metadata, raw files in the data folder, and functions that name a file, a query or an address in memory. It lets
through what it knows and refuses the rest. What a statement names is found as `syntax` says.
"""

import re
from dataclasses import dataclass
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
from catchment.server import functions
from catchment.server.functions import TABLE_FUNCTIONS
from catchment.server.model import Principal, Role
from catchment.server.syntax import explained, function_name, nodes, parse, query_tree, refuse_texts_as_tables
from catchment.server.tokens import Token, calls
from catchment.tenants.model import TenantId

_SYSTEM_VIEW = re.compile(r"(duckdb|pragma)_.*")
_VIEWS = frozenset({"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema"})
_VIEWS_REFUSED = frozenset({"pg_settings", "pg_prepared_statements"})
_METADATA = "__ducklake_metadata"
_BEFORE_TARGETS = frozenset({"into", "table", "exists"})
_OWN_DATABASE = "memory"
_PATH = re.compile(r"[/\\*?\[:]|\.(parquet|csv|tsv|json|jsonl|ndjson|db|duckdb|sqlite|arrow|txt|gz|zst|xlsx)$", re.I)
_CREATABLE = frozenset({"table", "view", "schema"})
_CREATE_HOW = frozenset({"or", "replace", "temp", "temporary", "local", "global", "recursive", "persistent"})
_VERDICTS_MAX = 2_000
# Longer texts are judged anew: what is remembered takes many times their length.
_REMEMBERED_LETTERS_MAX = 2_000
_SET_PATH = re.compile(r"SET\s+(schema|search_path)\s*(=|\sTO\s)\s*('[^']*'|[\w.]+)", re.I)
_SET_VARIABLE = ["set", "variable"]
# Words without which no table but the target is named.
_NAMES_TABLES = frozenset(
    {"select", "from", "table", "with", "join", "using", "pivot", "unpivot", "describe", "show", "summarize", "desc"}
)


class Kind(Enum):
    """What becomes of a statement."""

    READ = "read"
    WRITE = "write"
    # Changes only how the session's later statements are read.
    SESSION = "session"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A statement that may run: what it is, and who may run it.

    `touched` are the tenants whose tables it names, where its user has no tenant.
    """

    kind: Kind
    role: Role
    counts: bool = False
    touched: frozenset[TenantId] = frozenset()


_KINDS = {
    StatementType.SELECT: Verdict(Kind.READ, Role.READER),
    StatementType.EXPLAIN: Verdict(Kind.READ, Role.READER),
    StatementType.INSERT: Verdict(Kind.WRITE, Role.WRITER, counts=True),
    StatementType.UPDATE: Verdict(Kind.WRITE, Role.WRITER, counts=True),
    StatementType.DELETE: Verdict(Kind.WRITE, Role.WRITER, counts=True),
    StatementType.MERGE_INTO: Verdict(Kind.WRITE, Role.WRITER, counts=True),
    StatementType.CREATE: Verdict(Kind.WRITE, Role.WRITER, counts=True),
    StatementType.DROP: Verdict(Kind.WRITE, Role.WRITER),
    StatementType.ALTER: Verdict(Kind.WRITE, Role.WRITER),
    StatementType.SET: Verdict(Kind.SESSION, Role.READER),
}
_TRANSACTIONS = {
    "begin": Kind.BEGIN, "start": Kind.BEGIN, "commit": Kind.COMMIT, "end": Kind.COMMIT,
    "rollback": Kind.ROLLBACK, "abort": Kind.ROLLBACK,
}  # fmt: skip


def judge(statement: duckdb.Statement, text: str, tokens: tuple[Token, ...], principal: Principal) -> Verdict:
    """What the statement is, if this caller may run it; else NotAllowedError."""
    look = _remembered if len(text) <= _REMEMBERED_LETTERS_MAX else _judge
    verdict = look(statement.type, text, tokens)
    if principal.role < verdict.role:
        raise NotAllowedError(f"{principal.name} may only read.", hint="It takes the role `writer`.")
    named = {token.text for token in tokens if token.is_name}
    if LEDGER_SCHEMA in named and (verdict.kind is not Kind.READ or principal.role < Role.ADMIN):
        raise NotAllowedError(f"{LEDGER_SCHEMA} is Catchment's own.", hint="`catchment lake audit` reads it.")
    return verdict


@lru_cache(maxsize=_VERDICTS_MAX)
def _remembered(kind: StatementType, text: str, tokens: tuple[Token, ...]) -> Verdict:
    return _judge(kind, text, tokens)


def _judge(kind: StatementType, text: str, tokens: tuple[Token, ...]) -> Verdict:
    first = tokens[0].text if tokens else ""
    if kind == StatementType.TRANSACTION:
        if first not in _TRANSACTIONS:
            # Where a PIVOT has to look for its values first, DuckDB makes several statements of one.
            raise NotSupportedError("A PIVOT within a statement names its values.", hint="PIVOT … ON … IN (…)")
        return Verdict(_TRANSACTIONS[first], Role.READER)
    verdict = _KINDS.get(kind)
    # A PRAGMA comes out of DuckDB's parser as what it stands for, often a SELECT.
    if verdict is None or first in ("pragma", "call", "checkpoint", "import", "force"):
        raise NotAllowedError(f"{first.upper()} is not for clients of a server.")
    if kind == StatementType.SET:
        _require_harmless_set(text, tokens)
    _refuse_names(tokens)
    if kind in (StatementType.CREATE, StatementType.DROP):
        _require_creatable(tokens)
    if names_only_its_target(kind, tokens):
        _refuse_table(_target(tokens))
    else:
        if kind not in (StatementType.SELECT, StatementType.EXPLAIN):
            refuse_texts_as_tables(text, tokens)
            refuse_calls(tokens, functions.refused_short())
        tables, called = _relations(kind, text, tokens)
        for table in tables:
            _refuse_table(table)
        for function in called:
            if function not in TABLE_FUNCTIONS:
                raise NotAllowedError(f"The table function {function} is not for clients of a server.")
    return verdict


def _require_harmless_set(text: str, tokens: tuple[Token, ...]) -> None:
    if [token.text for token in tokens[:2]] == _SET_VARIABLE:
        return
    is_use = tokens[0].text == "use" and all(token.is_name or token.text == "." for token in tokens)
    # One plain text: what an expression or an escape comes to, nobody has read.
    if not is_use and not _SET_PATH.fullmatch(text.strip()):
        raise NotAllowedError("The server's settings are locked.", hint="USE and SET schema choose where names count.")
    require_harmless_path(text)


def require_harmless_path(path: str) -> None:
    """See that a search path leads to tables of the lake, or temporary ones."""
    if any(word in path.casefold() for word in (LEDGER_SCHEMA, _METADATA, _OWN_DATABASE)):
        raise NotAllowedError("Names count in the lake's own schemas.")


def _require_creatable(tokens: tuple[Token, ...]) -> None:
    what = next((token.text for token in tokens[1:] if token.text not in _CREATE_HOW), "")
    if what not in _CREATABLE:
        raise NotAllowedError(f"{tokens[0].text.upper()} {what.upper()} is not for clients of a server.")


def _target(tokens: tuple[Token, ...]) -> tuple[str, ...]:
    """The name that an INSERT goes to, in its parts."""
    at = next((i for i, token in enumerate(tokens) if token.text == "into"), len(tokens)) + 1
    if not any(token.is_name for token in tokens[at : at + 1]):
        raise NotAllowedError("The target of the INSERT is not a name.")
    end = at + 1
    while end + 1 < len(tokens) and tokens[end].text == ".":
        end += 2
    return tuple(token.text for token in tokens[at:end:2])


def _refuse_names(tokens: tuple[Token, ...]) -> None:
    """By its words alone, whatever the rest of it means."""
    for token in tokens:
        if token.is_name and token.text.startswith(_METADATA):
            raise NotAllowedError("The lake's metadata is not for clients of a server.")
        if token.is_name and token.text in _refused_views():
            raise NotAllowedError(f"{token.text} is not for clients of a server.")
    refuse_calls(tokens, functions.refused())


def refuse_calls(tokens: tuple[Token, ...], names: frozenset[str], whose: str = "clients of a server") -> None:
    """Refuse a statement that may call a function of one of these names."""
    refused = names.intersection(calls(_without_targets(tokens)))
    if refused:
        raise NotAllowedError(f"The function {min(refused)} is not for {whose}.")


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
    """Whether it is an INSERT in which no table is named but the one that it goes to."""
    return kind == StatementType.INSERT and not any(t.is_name and t.text in _NAMES_TABLES for t in tokens)


def _refuse_table(parts: tuple[str, ...]) -> None:
    name = parts[-1]
    # The instance's own database would be shared by all sessions, and kept by none.
    if _OWN_DATABASE in [part.casefold() for part in parts[:-1]][:1]:
        raise NotAllowedError("Tables are in the lake, or temporary.", hint="CREATE TEMP TABLE makes a temporary one.")
    # DuckDB looks for a file by all parts together: "/folder/file".parquet is one.
    if any(_PATH.search(part) for part in parts):
        raise NotAllowedError(f"{name!r} would be read as a file.", hint="Clients read tables only.")
    folded = name.casefold()
    if _SYSTEM_VIEW.fullmatch(folded) and folded not in TABLE_FUNCTIONS:
        raise NotAllowedError(f"{name} is not for clients of a server.")


def _relations(kind: StatementType, text: str, tokens: tuple[Token, ...]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The tables and table functions that the statement names."""
    if kind not in (StatementType.SELECT, StatementType.EXPLAIN):
        return _in_sqlglot_tree(text)
    tree = query_tree(explained(text), tokens)
    if tree is not None:
        return _in_duckdb_tree(tree)
    if kind == StatementType.EXPLAIN:
        # EXPLAIN ANALYZE runs what it explains.
        raise NotAllowedError("EXPLAIN is for queries.")
    raise NotSupportedError("The query is of a form that the server cannot check.", hint="PIVOT … ON … IN (…)")


def _in_duckdb_tree(tree: Any) -> tuple[list[tuple[str, ...]], list[str]]:
    tables: list[tuple[str, ...]] = []
    functions: list[str] = []
    for node in nodes(tree):
        match node.get("type"):
            case "BASE_TABLE":
                parts = (node["catalog_name"], node["schema_name"], node["table_name"])
                tables.append(tuple(filter(None, parts)) or ("",))
            case "TABLE_FUNCTION":
                functions.append(str(node["function"]["function_name"]).casefold())
            case "SHOW_REF" if node.get("table_name"):
                tables.append((str(node["table_name"]).strip('"'),))
    return tables, functions


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
