"""Tenant isolation: a tenant's users can see only the tables in that tenant's schema.

Two barriers separate tenants. A session's search path contains temporary tables and the tenant's
schema, with the temporary ones first: DuckDB always adds `main` of the first catalog, which must
not be the lake's. And every schema that a statement names must be the tenant's own. Statements are
refused by the name alone, with DuckDB's message for a schema that does not exist, so that the error
does not disclose which schemas exist.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import duckdb
from duckdb import StatementType
from sqlglot import exp

from catchment.errors import CatchmentError, NotAllowedError, TableMissingError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake import extensions
from catchment.lake.tables import LEDGER_SCHEMA, metadata_of
from catchment.server.sql import functions, session_settings
from catchment.server.sql.catalog_lists import LISTED_SHOWS, LISTS, is_list
from catchment.server.sql.functions import TENANT_TABLE_FUNCTIONS
from catchment.server.sql.sql_forms import SCHEMAS_REFUSED
from catchment.server.sql.sql_policy import names_only_its_target, refuse_calls
from catchment.server.sql.sql_tokens import Token, qualified_calls
from catchment.server.sql.syntax import Called, SqlReading, explained, function_name, macro_of, named, parse, query_tree
from catchment.tenants.model import TenantId

_CACHED_MAX = 2_000
_CACHED_CHARACTERS_MAX = 2_000
_TEMP = "temp"
_OF_ONE_TABLE = frozenset({"table_changes", "table_insertions", "table_deletions"})
_LISTS = frozenset({"information_schema", "pg_catalog"})
_SYSTEM = "duckdb_"
_HINT = "SHOW TABLES lists your tables, and DESCRIBE their columns."
_TABLE_WORDS = frozenset(
    {
        *("from", "join", "into", "update", "using", "lateral", "table", "only", "view", "exists", "references"),
        *("truncate", "macro", "function"),
        *("describe", "desc", "show", "summarize", "pivot", "pivot_wider", "unpivot", "pivot_longer"),
    }
)
# After these, a comma is followed by another table.
_LIST_WORDS = frozenset({"from", "join", "using"})
# All of them are reserved: none can be an alias.
_LIST_ENDS = frozenset(
    {
        *("where", "group", "having", "order", "limit", "offset", "window", "qualify", "union", "intersect", "except"),
        *("returning", "select", "when"),
    }
)
_SHOWS = frozenset({"show", "describe", "desc", "summarize"})
# Functions with a FROM between their arguments.
_FROM_WITHIN = frozenset({"extract", "substring", "trim", "overlay"})
_QUERY_BEGINS = frozenset({"(", "select", "from", "with", "table", "values", *_SHOWS})
_BEFORE_QUERIES = frozenset({"(", "as", "from"})
_CREATE_TEMP = frozenset({"temp", "temporary"})
_PATH_GIVEN = re.compile(r"SET\s+(?:SESSION\s+)?(?:schema|search_path)\s*(?:=|\sTO\s)\s*'?([^']*)'?", re.I)
Names = frozenset[str]
_CANDIDATES = re.compile(r"\n?Did you mean .*?(?=\n\nLINE |\Z)", re.S)


@dataclass(frozen=True, slots=True)
class TenantScope:
    """One tenant's part of a lake."""

    tenant: TenantId
    lake: str

    @property
    def schema(self) -> str:
        """The tenant's schema."""
        return self.tenant.schema

    @property
    def set_path(self) -> str:
        """The statement that limits unqualified names to the scope and temporary tables."""
        path = f"{sql.qualified(_TEMP, 'main')},{sql.qualified(self.lake, self.schema)}"
        return f"SET search_path = {sql.literal(path)}"

    def own(self, table: TableId) -> TableId:
        """Return the table if it is in the scope; TableMissingError for any other."""
        if sql.fold(table.schema) != self.schema:
            raise TableMissingError(f"There is no table {table}.")
        return TableId(self.schema, table.name)

    def own_schema(self, given: str | None, table: str) -> str:
        """Return the tenant's schema if `given` is None or that schema; otherwise raise an error."""
        return self.schema if given is None else self.own(TableId(given, table)).schema

    def examine(self, reading: SqlReading, *, fresh: Names | None = None) -> None:
        """Refuse a statement that names anything outside the scope; the SQL policy has allowed it.

        Names in `fresh` are replaced before it runs.
        """
        compute = _cached if len(reading.text) <= _CACHED_CHARACTERS_MAX else _examine
        compute(self, reading, fresh)

    def allows_search_path(self, text: str, tokens: tuple[Token, ...]) -> bool:
        """Whether a SET changes the search path to the tenant's schema; refuses any other path."""
        if not tokens or session_settings.is_variable(tokens) or not session_settings.is_path(tokens):
            return False
        if tokens[0].text == "reset":
            return True
        if tokens[0].text == "use":
            given = "".join(token.text for token in tokens[1:])
        elif (found := _PATH_GIVEN.fullmatch(text.strip())) is not None:
            given = found[1]
        else:
            return False
        here = {self.schema, f"{sql.fold(self.lake)}.{self.schema}"} - {sql.fold(self.lake)}
        if sql.fold(given) not in here:
            raise duckdb.CatalogException(f'Catalog Error: SET schema: No catalog + schema named "{given}" found.')
        return True

    def qualify_created(self, text: str, tokens: tuple[Token, ...]) -> str:
        """Return the statement with the tenant's schema before the created name, if it has none."""
        tokens = explained(text, tokens).tokens
        at = _created_name_at(tokens)
        if at is None or (at + 1 < len(tokens) and tokens[at + 1].text == "."):
            return text
        source, start = text.encode(), tokens[at].start
        place = sql.qualified(self.lake, self.schema) + "."
        return (source[:start] + place.encode() + source[start:]).decode()

    def require_calls(self, tokens: tuple[Token, ...]) -> None:
        """Check that a qualified function is DuckDB's own, or in the tenant's schema."""
        lake, own = sql.fold(self.lake), self.schema
        for chain in qualified_calls(tokens):
            *where, name = chain
            of_lake = functions.of_lake(name) is not None or name == "set_commit_message"
            is_own = where in ([own], [lake, own], [_TEMP], [_TEMP, "main"]) or (of_lake and where == [lake])
            # A name of DuckDB's own functions denotes no other: macros with such names are refused.
            if not is_own and (of_lake or name not in functions.known()):
                raise duckdb.CatalogException(
                    f'Catalog Error: Function with name "{name}" does not exist '
                    f'because schema "{where[-1]}" does not exist.'
                )

    @contextmanager
    def redact_errors(self) -> Iterator[None]:
        """Remove other tenants' tables from error messages."""
        try:
            yield
        except duckdb.Error as error:
            text = str(error)
            if (kept := _CANDIDATES.sub("", text)) == text:
                raise
            raise type(error)(kept) from None
        except CatchmentError as error:
            error.message = _CANDIDATES.sub("", error.message)
            if isinstance(error, TableMissingError):
                # The original hint lists existing tables.
                error.hint = _HINT
            raise

    def require(self, parts: tuple[str, ...], fresh: Names | None = None, *, lists_limited: bool = False) -> None:
        """Check that a name, in its parts, can only denote a table of the scope or a temporary one.

        With `lists_limited`, catalog lists are limited before they are read.
        """
        *where, name = (sql.fold(part) for part in parts)
        if is_list(parts) and not lists_limited:
            raise NotAllowedError(f"{'.'.join(parts)} can be read by users of a tenant only in a query.", hint=_HINT)
        if is_list(parts):
            return
        if name in _system_views() or name.startswith(_SYSTEM) or _LISTS.intersection(where):
            raise NotAllowedError(f"{'.'.join(parts)} is not available to users of a tenant.", hint=_HINT)
        lake = sql.fold(self.lake)
        is_own = where in ([], [lake, self.schema], [_TEMP], [_TEMP, "main"]) or any(
            where in ([each], [each, self.schema]) for each in fresh or ()
        )
        # In a lake with the tenant's name, this would be `main` of the lake.
        if not is_own and (where != [self.schema] or lake == self.schema):
            schema, table = parts[-2:]
            raise duckdb.CatalogException(
                f'Catalog Error: Table with name "{schema}.{table}" does not exist '
                f'because schema "{schema}" does not exist.'
            )


@contextmanager
def hide_internal_tables() -> Iterator[None]:
    """Remove DuckDB's suggestions from errors if internal tables are among them."""
    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        is_own = any(name in text for name in (LEDGER_SCHEMA, metadata_of("")))
        if not is_own or (kept := _CANDIDATES.sub("", text)) == text:
            raise
        raise type(error)(kept) from None


@lru_cache(maxsize=_CACHED_MAX)
def _cached(scope: TenantScope, reading: SqlReading, fresh: Names | None) -> None:
    _examine(scope, reading, fresh)


def _examine(scope: TenantScope, reading: SqlReading, fresh: Names | None) -> None:
    kind, tokens = reading.kind, reading.tokens
    if kind == StatementType.TRANSACTION:
        return
    if kind == StatementType.EXPLAIN:
        _examine(scope, reading.explained()[0], fresh)
        return
    scope.require_calls(tokens)
    if kind == StatementType.CALL:
        # The SQL policy allows one that names no table.
        return
    tree = query_tree(reading) if kind == StatementType.SELECT else None
    # The settings that the SQL policy allows in a query are the session's own.
    refused = functions.refused_to_tenants() - ({"current_setting"} if tree is not None else set())
    refuse_calls(tokens, refused, "users of a tenant")
    if tree is not None:
        _examine_tree(scope, tree, fresh)
        return
    macro = macro_of(reading)
    if macro is not None:
        scope.require(macro.name)
        # Catalog lists in a macro would not be limited: they are refused, as in a fresh read.
        _examine(scope, macro.query(reading), fresh or frozenset())
        return
    # Two independent checks, because DuckDB has no tree for these: by tokens, and by sqlglot.
    _refuse_schemas(kind, tokens)
    for parts in names_by_tokens(tokens):
        scope.require(parts, fresh)
    is_setting = kind == StatementType.SET and not session_settings.is_variable(tokens)
    if not is_setting and not names_only_its_target(kind, tokens):
        _refuse_shows(tokens)
        _examine_sqlglot(scope, reading.text, fresh)


def _examine_tree(scope: TenantScope, tree: Any, fresh: Names | None) -> None:
    found = named(tree)
    for parts in found.tables:
        scope.require(parts, fresh, lists_limited=fresh is None)
    for called in found.table_functions:
        if fresh is not None and called.name in LISTS:
            raise NotAllowedError(f"Users of a tenant can read {called.name} only by a separate query.", hint=_HINT)
        _require_table_function(scope, called)
    for show in found.shows:
        is_listed = show in LISTED_SHOWS and fresh is None
        is_own = show in (('"tables"',), ('"variables"',), (scope.lake, scope.schema))
        if not is_listed and not is_own:
            raise NotAllowedError("The statement would show objects outside the tenant's schema.", hint=_HINT)


def _require_table_function(scope: TenantScope, called: Called) -> None:
    """Check that a table function reads tables of the scope, or limited catalog lists."""
    short = functions.of_lake(called.name)
    if called.name in functions.TABLE_READERS:
        for given in called.arguments[:1]:
            for name in given if isinstance(given, tuple) else (given,):
                scope.require(tuple(str(name).split(".")))
    elif short is not None:
        if called.name != short:
            # By its long name, its arguments are the lake, the schema and the table.
            schema = called.arguments[1:2] if short in _OF_ONE_TABLE else (scope.schema,)
            if called.where or tuple(map(str.casefold, map(str, schema))) != (scope.schema,):
                raise NotAllowedError(f"{called.name} can read only tables of the tenant.", hint=_HINT)
    elif called.name in LISTS or called.name not in functions.known():
        # A list is limited; `require_calls` has checked any other function.
        return
    elif called.where or called.name not in TENANT_TABLE_FUNCTIONS:
        raise NotAllowedError(f"The table function {called.name} is not available to users of a tenant.", hint=_HINT)


def _examine_sqlglot(scope: TenantScope, text: str, fresh: Names | None) -> None:
    for tree in parse(text):
        for node in tree.walk():
            if isinstance(node, exp.Table) and isinstance(node.this, exp.Func):
                _require_function(function_name(node.this), node.db)
            elif isinstance(node, exp.Table):
                scope.require(tuple(part.name for part in node.parts) or ("",), fresh)
            elif isinstance(node, exp.Lateral):
                for each in node.this.find_all(exp.Func, bfs=False):
                    _require_function(function_name(each), None)


def _require_function(name: str, schema: str | None) -> None:
    if schema or name.casefold() not in TENANT_TABLE_FUNCTIONS:
        raise NotAllowedError(f"The table function {name} is not available to users of a tenant.", hint=_HINT)


def _refuse_schemas(kind: StatementType, tokens: tuple[Token, ...]) -> None:
    """Refuse to create, drop or alter schemas: a tenant has one, created and dropped with it."""
    words = [token.text for token in tokens[:8] if not token.is_quoted]
    makes = kind in (StatementType.CREATE, StatementType.DROP) and "schema" in words[: _object_word_at(words) + 1]
    alters = kind == StatementType.ALTER and words[1:2] not in (["table"], ["view"]) and words[:1] != ["comment"]
    if makes or alters:
        raise NotAllowedError(SCHEMAS_REFUSED)


def _object_word_at(words: list[str]) -> int:
    """Return the position of the word for the kind of object that is created or dropped."""
    found = (at for at, word in enumerate(words) if word in ("table", "view", "schema"))
    return next(found, 0)


def _refuse_shows(tokens: tuple[Token, ...]) -> None:
    for last, token in pairwise(tokens):
        if last.text in _BEFORE_QUERIES and token.is_name and not token.is_quoted and token.text in _SHOWS:
            raise NotAllowedError(
                f"{token.text.upper()} can be used by users of a tenant only as a separate statement."
            )


def names_by_tokens(tokens: tuple[Token, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the names at all positions where a table is possible, and at some where it is not."""
    if [token.text for token in tokens[:3]] == ["comment", "on", "column"]:
        yield _chain(tokens, 3)[:-1] or ("",)
    for at in _table_places(tokens):
        yield _chain(tokens, at)


def _table_places(tokens: tuple[Token, ...]) -> Iterator[int]:
    # For each bracket: whether a comma in it is followed by a table, and where it opens.
    lists, openings = [False], [0]
    is_table, place = False, -1
    for at, token in enumerate(tokens):
        word = token.text if token.is_name and not token.is_quoted else ""
        if token.text == "(":
            lists.append(is_table)
            openings.append(at)
        elif token.text == ")":
            if len(lists) > 1:
                lists.pop()
                openings.pop()
            is_table = False
        elif token.text == ",":
            is_table = lists[-1]
        elif token.text == ":":
            # The name before a colon is an alias: FROM x: t.
            is_table = place == at - 1
        else:
            if is_table and token.is_name:
                place = at
                yield at
            is_table = word in _TABLE_WORDS and not (word == "from" and _is_inside_expression(tokens, at, openings[-1]))
            if is_table and word in _LIST_WORDS:
                lists[-1] = True
            elif word in _LIST_ENDS:
                lists[-1] = False


def _is_inside_expression(tokens: tuple[Token, ...], at: int, opening: int) -> bool:
    """Whether a FROM belongs to a function such as `extract(… FROM …)`, or to IS DISTINCT FROM."""
    before = [token.text for token in tokens[max(0, at - 2) : at]]
    if before in (["is", "distinct"], ["not", "distinct"]):
        return True
    is_call = opening > 0 and tokens[opening - 1].text in _FROM_WITHIN
    # A table may have the name of such a function: INSERT INTO extract (FROM …).
    return is_call and tokens[opening + 1].text not in _QUERY_BEGINS


def _chain(tokens: tuple[Token, ...], at: int) -> tuple[str, ...]:
    """Return the name that begins at `at`, in its parts."""
    end = at + 1
    while end + 1 < len(tokens) and tokens[end].text == "." and tokens[end + 1].is_name:
        end += 2
    return tuple(token.text for token in tokens[at:end:2])


def _created_name_at(tokens: tuple[Token, ...]) -> int | None:
    """Return the position of the name that a CREATE creates, unless it is temporary."""
    if tokens[0].text != "create":
        return None
    at = next(
        (i for i, token in enumerate(tokens) if token.text in ("table", "view", "macro", "function")), len(tokens)
    )
    if _CREATE_TEMP.intersection(token.text for token in tokens[:at]):
        return None
    at += 1
    if [token.text for token in tokens[at : at + 3]] == ["if", "not", "exists"]:
        at += 3
    return at if at < len(tokens) and tokens[at].is_name else None


@cache
def _system_views() -> frozenset[str]:
    """Return DuckDB's own views, which show the tables of all tenants."""
    with extensions.scratch() as connection:
        found = connection.execute(
            "SELECT lower(view_name) FROM duckdb_views() WHERE internal AND schema_name <> 'information_schema'"
        ).fetchall()
    return frozenset(name for (name,) in found)
