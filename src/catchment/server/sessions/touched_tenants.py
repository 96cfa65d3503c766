"""Finds the tenants whose tables a statement touches, for users without a tenant.

A tenant's tables must be read on the shard of its primary. Another shard may have outdated ones, of
a tenant that has moved away, or incomplete ones, of a tenant that is moving in; the lake does not
distinguish them. So the names in a statement, and those in the views that it names, are looked up
among the schemas that the shard has on record.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from duckdb import StatementType
from sqlglot import exp

from catchment.errors import InputError
from catchment.foundation import sql
from catchment.foundation.clock import Clock
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.server.sessions.connections import Connection
from catchment.server.sql import sql_tokens as scanner
from catchment.server.sql.functions import DUCKLAKE, LAKE_FUNCTIONS, TABLE_READERS
from catchment.server.sql.functions import known as known_functions
from catchment.server.sql.sql_policy import names_only_its_target, tables_of
from catchment.server.sql.sql_tokens import Token
from catchment.server.sql.statement_plan import FRESH, QUEUE
from catchment.server.sql.syntax import SqlReading, macro_of, named, parse, query_tree
from catchment.server.sql.tenant_isolation import names_by_tokens
from catchment.server.values import running_call
from catchment.tenants.model import DEFAULT_TENANT, TenantId
from catchment.tenants.records import Residents

Name = tuple[str, ...]
_CACHED_MAX = 2_000
_CACHED_CHARACTERS_MAX = 2_000
_TEMP = "temp"
# Functions that name a table by a string.
_BY_STRING = frozenset({*TABLE_READERS, *LAKE_FUNCTIONS, *(DUCKLAKE + name for name in LAKE_FUNCTIONS)})
_ALL_TABLES = "__show_tables_expanded"
_TABLES = '"tables"'
_NOT_OF_A_SCHEMA = ('"databases"', '"schemas"', '"variables"')
_VIEWS_SECONDS_MAX = 10.0
# A macro hides tables from its callers as a view does from its readers.
_VIEWS = (
    "SELECT database_name, schema_name, view_name, sql FROM (FROM duckdb_views() UNION ALL BY NAME "
    "SELECT database_name, schema_name, internal, function_name AS view_name, macro_definition AS sql "
    "FROM duckdb_functions() WHERE macro_definition IS NOT NULL) "
    f"WHERE NOT internal AND database_name IN (?, '{_TEMP}')"
)


class Views:
    """The views that a session can name: the lake's, cached for a while, and its own. Thread-safe.

    No view over a tenant's tables can be created here while its primary is elsewhere. So the lake's
    views are read again after a tenant has moved away; at other times only because other processes
    may create some.
    """

    def __init__(self, lake: str, clock: Clock, *, is_current: Callable[[Connection], bool]) -> None:
        """`is_current` returns whether a connection sees the lake as it is now."""
        self.lake = lake
        self._is_current = is_current
        self._clock = clock
        self._known: tuple[Residents, float, dict[Name, str]] | None = None

    def of(self, residents: Residents, connection: Connection) -> dict[Name, str]:
        """Return the text of each view, by schema and name; temporary ones are in `temp`.

        The caller holds the connection's lock.
        """
        known, now_s = self._known, self._clock.monotonic_s()
        is_new = known is not None and known[0] is residents and now_s - known[1] < _VIEWS_SECONDS_MAX
        if known is not None and is_new and not connection.has_state:
            return known[2]
        found = connection.table(_VIEWS, running_call(), [self.lake]).to_pylist()
        views: dict[Name, str] = {}
        for view in found:
            place = (_place(view), sql.fold(view["view_name"]))
            # A macro may have several definitions, and the name of a view.
            views[place] = f"{views.get(place, '')} {view['sql']} ;"
        if self._is_current(connection):
            # Otherwise the connection may be older than the lake's availability, and see none of
            # its views.
            lakes = {place: text for place, text in views.items() if place[0] != _TEMP}
            self._known = (residents, now_s, lakes)
        return views


def _place(view: Mapping[str, Any]) -> str:
    return _TEMP if view["database_name"] == _TEMP else sql.fold(str(view["schema_name"]))


def touched(residents: Residents, views: Views, reading: SqlReading, connection: Connection) -> frozenset[TenantId]:
    """Return the tenants whose tables are named by the statement, or by views in it.

    The caller holds the connection's lock.
    """
    known = residents.known
    is_near = not known.isdisjoint(connection.search_path) or any(
        word.text in known or word.text in _BY_STRING for word in reading.tokens if word.is_name
    )
    # Only a view can lead to a schema that the statement does not name, which matters only for a
    # tenant whose primary is elsewhere.
    if reading.kind == StatementType.TRANSACTION or not (is_near or residents.away):
        return frozenset()
    compute = _cached if len(reading.text) <= _CACHED_CHARACTERS_MAX else _names
    names = compute(reading)
    seen = views.of(residents, connection) if names and residents.away else {}
    schemas = _schemas(names, views.lake, connection.search_path, seen)
    return frozenset(_tenant(schema) for schema in schemas & known)


def owner(residents: Residents, schema: str) -> frozenset[TenantId]:
    """Return the tenant among `residents` that owns the schema, if there is one."""
    folded = sql.fold(schema)
    return frozenset({_tenant(folded)}) if folded in residents.known else frozenset()


def _tenant(schema: str) -> TenantId:
    return DEFAULT_TENANT if schema == DEFAULT_SCHEMA else TenantId.parse(schema)


def _schemas(names: frozenset[Name], lake: str, path: tuple[str, ...], views: dict[Name, str]) -> set[str]:
    """Return the schemas in which the names may be, including the names in views."""
    found: set[str] = set()
    seen: set[Name] = set()
    waiting = [(name, path) for name in names]
    while waiting:
        name, where = waiting.pop()
        for place in _places(name, lake, where):
            schema = place[0]
            found.add(schema)
            if place in views and place not in seen:
                seen.add(place)
                # An unqualified name in a view is in the view's own schema.
                own = (DEFAULT_SCHEMA,) if schema == _TEMP else (schema,)
                words = scanner.read(views[place].encode())
                waiting += [(each, own) for each in (*names_by_tokens(words), *_called(words))]
    return found


def _places(name: Name, lake: str, path: tuple[str, ...]) -> list[Name]:
    """Return where a name may be, as schema and table; temporary tables are in `temp`."""
    *where, table = (sql.fold(part) for part in name)
    match where:
        case []:
            return [(schema, table) for schema in (_TEMP, *path)]
        case [schema] if schema in (sql.fold(lake), FRESH, QUEUE):
            # A catalog without a schema, or a schema with that name.
            return [(DEFAULT_SCHEMA, table), (schema, table)]
        case [first, *_] if first == _TEMP:
            return [(_TEMP, table)]
        case _:
            return [(where[-1], table)]


def _called(words: tuple[Token, ...]) -> Iterator[Name]:
    """Yield functions that are not DuckDB's own, and so may be macros."""
    for name in (*((each,) for each in scanner.calls(words)), *scanner.qualified_calls(words)):
        if name[-1] not in known_functions():
            yield name


@lru_cache(maxsize=_CACHED_MAX)
def _cached(reading: SqlReading) -> frozenset[Name]:
    return _names(reading)


def _names(reading: SqlReading) -> frozenset[Name]:
    """Return the names of tables and schemas in the statement; a schema has an empty last part."""
    kind, words = reading.kind, reading.tokens
    if kind == StatementType.EXPLAIN:
        return _names(reading.explained()[0])
    if kind in (StatementType.CALL, StatementType.VACUUM):
        # The SQL policy allows only those that name no table.
        return frozenset()
    macro = macro_of(reading)
    if macro is not None:
        return frozenset({macro.name, *_names(macro.query(reading))})
    if kind == StatementType.SELECT:
        tree = query_tree(reading)
        if tree is not None:
            return frozenset(_in_tree(tree))
    found = {*names_by_tokens(words), *_schema_names(words)}
    if kind != StatementType.SET and not names_only_its_target(kind, words):
        found.update(_in_sqlglot_tree(reading.text))
    return frozenset(found)


def _in_tree(tree: Any) -> Iterator[Name]:
    found = named(tree)
    yield from found.tables
    for called in (*found.table_functions, *found.functions):
        # A macro may name tables, as a view does.
        if called.name not in known_functions():
            yield (*called.where, called.name)
    for called in found.table_functions:
        yield from tables_of(called)
    for *where, what in found.shows:
        if what not in (_ALL_TABLES, *_NOT_OF_A_SCHEMA):
            # SHOW TABLES, of a schema or of the search path.
            yield (*where, "") if what == _TABLES else (*where, what, "")


def _in_sqlglot_tree(text: str) -> Iterator[Name]:
    try:
        trees = parse(text)
    except InputError:
        # A statement that cannot be parsed was refused by the SQL policy, or was allowed by its
        # tokens alone.
        return
    for tree in trees:
        for table in tree.find_all(exp.Table):
            if not isinstance(table.this, exp.Func):
                yield tuple(part.name for part in table.parts) or ("",)


def _schema_names(words: tuple[Token, ...]) -> Iterator[Name]:
    """Yield the schema of a CREATE, DROP or ALTER SCHEMA, or of a COMMENT ON SCHEMA."""
    at = next((i for i, word in enumerate(words[:5]) if word.text == "schema" and not word.is_quoted), None)
    if at is None or words[0].text == "set":
        return
    rest = [word.text for word in words[at + 1 :] if word.text not in ("if", "not", "exists", ".")]
    yield from ((*rest[:count], "") for count in (1, 2) if len(rest) >= count)
