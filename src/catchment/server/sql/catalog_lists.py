"""Catalog lists, limited to the rows that their reader may see.

DuckDB's lists are functions (such as `duckdb_tables`), views over these (`information_schema`,
`pg_catalog`), and SHOW. They show every schema, including Catchment's own and those of other
tenants. So each list in the text of a query is replaced by a subquery of the same columns with the
rows that the reader may see; a view is replaced by its definition, in which the functions are
replaced. All other parts of the text are unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from catchment.errors import NotAllowedError, NotSupportedError
from catchment.foundation import sql
from catchment.lake import extensions
from catchment.lake.tables import LEDGER_SCHEMA, metadata_of
from catchment.server.engine.parsing import LocalParser, Parser
from catchment.server.sql import functions
from catchment.server.sql.sql_tokens import Token, read, replaced
from catchment.server.sql.syntax import called_of, duckdb_tree, explained, name_at, nodes, show_parts, table_parts

# These have the columns `database_name` and `schema_name`.
_BY_SCHEMA = frozenset(
    {
        *("duckdb_columns", "duckdb_constraints", "duckdb_functions", "duckdb_indexes", "duckdb_schemas"),
        *("duckdb_sequences", "duckdb_tables", "duckdb_types", "duckdb_views"),
    }
)
_DATABASES = "duckdb_databases"
_OF_LAKE = frozenset({"snapshots", "table_info", "ducklake_snapshots", "ducklake_table_info"})
LISTS = _BY_SCHEMA | _OF_LAKE | {_DATABASES}
# Kinds of SHOW, by their name in DuckDB's syntax tree.
_SHOWS = {"__show_tables_expanded": "SHOW ALL TABLES", '"databases"': "SHOW DATABASES", '"schemas"': "SHOW SCHEMAS"}
LISTED_SHOWS = frozenset((name,) for name in _SHOWS)
_SHOW_COLUMNS = {"SHOW ALL TABLES": ('"database"', '"schema"'), "SHOW SCHEMAS": ("database_name", "schema_name")}
_SHOW_WORDS = {"all": "SHOW ALL TABLES", "databases": "SHOW DATABASES", "schemas": "SHOW SCHEMAS"}
_DESCRIBING = frozenset({"show", "describe", "desc", "summarize"})
_SHOW_ALL_VERBS = frozenset({"show", "describe", "desc"})
_SCHEMAS = frozenset({"information_schema", "pg_catalog"})
_SYSTEM = frozenset({"system", "temp", "main", "pg_catalog"})
_CACHED_MAX = 500
_CACHED_CHARACTERS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of the lists: a user of the lake or, with `own`, of the tenant of that schema."""

    lake: str
    own: str | None = None

    def sees(self, database: str = "database_name", schema: str = "schema_name") -> str:
        """Return the SQL condition for rows that the reader may see."""
        if self.own is not None:
            is_own = (
                f"lower({database}) = {sql.literal(sql.fold(self.lake))} AND lower({schema}) = {sql.literal(self.own)}"
            )
            return f"({database} IN ('system', 'temp') OR ({is_own}))"
        return f"lower({schema}) IS DISTINCT FROM {sql.literal(LEDGER_SCHEMA)}"


def is_list(parts: tuple[str, ...]) -> bool:
    """Whether the name of a table, in its parts, denotes one of DuckDB's lists."""
    return _view(parts) is not None


def limit_lists(text: str, tokens: tuple[Token, ...], reader: Reader, parser: Parser) -> str:
    """Return the query with every list in it limited to the rows that the reader may see."""
    if len(text) > _CACHED_CHARACTERS_MAX:
        return _limit_lists(text, tokens, reader, parser)
    return _cached(text, tokens, reader, parser)


@lru_cache(maxsize=_CACHED_MAX)
def _cached(text: str, tokens: tuple[Token, ...], reader: Reader, parser: Parser) -> str:
    return _limit_lists(text, tokens, reader, parser)


def _limit_lists(text: str, tokens: tuple[Token, ...], reader: Reader, parser: Parser) -> str:
    tree = duckdb_tree(explained(text, tokens).text, parser)
    if tree is None or any(_view((str(each["key"]),)) for node in nodes(tree) for each in _ctes(node)):
        raise NotSupportedError("Catalog lists can be read only by plain queries.", hint="PIVOT … ON … IN (…)")
    source, pieces = text.encode(), []
    places, found = {token.start: at for at, token in enumerate(tokens)}, set()
    for node in nodes(tree):
        replacement = _replacement(node, reader)
        if replacement is not None:
            begin = places.get(node["query_location"])
            if begin is None or name_at(tokens, begin)[-1:] != (sql.fold(_name(node)),) or begin in found:
                # Left in place, the list would show everything.
                raise NotSupportedError("The position of a catalog list in the query cannot be found.")
            found.add(begin)
            end = _end(tokens, begin, is_call=node["type"] == "TABLE_FUNCTION")
            # The argument of DESCRIBE cannot have an alias.
            is_bare = begin > 0 and tokens[begin - 1].text in _DESCRIBING
            alias = "" if node["alias"] or is_bare else f" AS {sql.identifier(_name(node))}"
            pieces.append((begin, end, f"({replacement}){alias} "))
    pieces += _shown(tree, tokens, reader)
    starts = [*(token.start for token in tokens), len(source)]
    return replaced(source, [(starts[begin], starts[end], each.encode()) for begin, end, each in pieces]).decode()


def _ctes(node: dict[str, Any]) -> list[dict[str, Any]]:
    found = node.get("cte_map")
    return found["map"] if isinstance(found, dict) else []


def _name(node: dict[str, Any]) -> str:
    return str(node["function"]["function_name"] if node["type"] == "TABLE_FUNCTION" else node["table_name"])


def _end(tokens: tuple[Token, ...], begin: int, *, is_call: bool) -> int:
    """Return the position after the name that starts at `begin`, or after its call."""
    end = begin + 1
    while end + 1 < len(tokens) and tokens[end].text == "." and tokens[end + 1].is_name:
        end += 2
    depth = 0
    while is_call and end < len(tokens):
        depth += {"(": 1, ")": -1}.get(tokens[end].text, 0)
        end += 1
        if depth == 0:
            break
    return end


def _replacement(node: dict[str, Any], reader: Reader) -> str | None:
    """Return the query that replaces a list; None if the node needs none."""
    match node.get("type"):
        case "BASE_TABLE":
            view = _view(table_parts(node))
            return None if view is None else _definition(view, reader)
        case "TABLE_FUNCTION":
            called = called_of(node["function"])
            if called.name.startswith(functions.DUCKLAKE) and called.arguments[:1] != (reader.lake,):
                raise NotAllowedError(
                    f"{called.name} must be called with the name of the lake.", hint=f"It is {reader.lake!r}."
                )
            return _function(called.name, reader)
    return None


def _function(name: str, reader: Reader) -> str | None:
    if name == _DATABASES:
        # Path and options would disclose where the server keeps its files.
        hidden = "NULL::VARCHAR AS path, MAP {} AS tags, MAP {} AS options"
        where = "" if reader.own is None else f" WHERE database_name IN ('system', 'temp', {sql.literal(reader.lake)})"
        return f"SELECT * REPLACE ({hidden}) FROM duckdb_databases(){where}"
    if name in _BY_SCHEMA:
        return f"SELECT * FROM {name}() WHERE {reader.sees()}"
    short = functions.of_lake(name) if name in _OF_LAKE else None
    if short is None:
        return None
    return _table_info(reader) if short == "table_info" else _snapshots(reader)


def _seen_ids(reader: Reader) -> str:
    metadata = sql.identifier(metadata_of(reader.lake))
    return (
        f"SELECT t.table_id FROM {metadata}.ducklake_table t JOIN {metadata}.ducklake_schema s USING (schema_id) "
        f"WHERE {reader.sees(sql.literal(reader.lake), 's.schema_name')}"
    )


def _table_info(reader: Reader) -> str:
    info = f"ducklake_table_info({sql.literal(reader.lake)})"
    return f"SELECT * FROM {info} WHERE table_id IN ({_seen_ids(reader)})"


def _snapshots(reader: Reader) -> str:
    """Return the snapshots with the changes that the reader may see.

    For a tenant's user, only snapshots with such changes.
    """
    # Changes are table ids, or names that begin with the schema.
    by_name = reader.sees(sql.literal(reader.lake), "replace(split_part(x, '.', 1), '\"', '')")
    seen = f"(list_contains(ids, x) OR (NOT regexp_full_match(x, '\\d+') AND {by_name}))"
    changes = (
        "map_from_entries(list_filter(list_transform(map_entries(changes), lambda e: "
        f"{{'key': e.key, 'value': list_filter(e.value, lambda x: {seen})}}), lambda e: len(e.value) > 0))"
    )
    where = "" if reader.own is None else " WHERE cardinality(changes) > 0"
    return (
        f"FROM (SELECT s.* REPLACE ({changes} AS changes) FROM ducklake_snapshots({sql.literal(reader.lake)}) s, "
        f"(SELECT coalesce(list(DISTINCT table_id::VARCHAR), []) AS ids FROM ({_seen_ids(reader)})) seen){where}"
    )


def _shown(tree: Any, tokens: tuple[Token, ...], reader: Reader) -> Iterator[tuple[int, int, str]]:
    """Yield every SHOW of a list. The tree has no positions for them, so the tokens are searched."""
    wanted = [show_parts(node) for node in nodes(tree) if node.get("type") == "SHOW_REF" and node.get("query") is None]
    count = sum(1 for parts in wanted if parts in LISTED_SHOWS)
    found = list(_show_places(tokens))
    if len(found) != count:
        raise NotSupportedError("The position of a SHOW in the query cannot be found.")
    for begin, end, what in found:
        if what == "SHOW DATABASES":
            seen = "true" if reader.own is None else f"database_name = {sql.literal(reader.lake)}"
        else:
            seen = reader.sees(*_SHOW_COLUMNS[what])
        yield begin, end, f"SELECT * FROM ({what}) WHERE {seen} "


def _show_places(tokens: tuple[Token, ...]) -> Iterator[tuple[int, int, str]]:
    for at, token in enumerate(tokens):
        is_first = at == 0 or tokens[at - 1].text in ("(", "explain", "analyze")
        if not is_first or token.is_quoted or token.text not in _SHOW_ALL_VERBS:
            continue
        following = tokens[at + 1] if at + 1 < len(tokens) else None
        if following is None or following.text == ")":
            yield at, at + 1, "SHOW ALL TABLES"
        elif token.text == "show" and following.text in _SHOW_WORDS and not following.is_quoted:
            # SHOW ALL is SHOW ALL TABLES.
            has_tables = following.text == "all" and [each.text for each in tokens[at + 2 : at + 3]] == ["tables"]
            yield at, at + (3 if has_tables else 2), _SHOW_WORDS[following.text]


def _view(parts: tuple[str, ...]) -> tuple[str, str] | None:
    """Return schema and name of the DuckDB view that a table's name denotes, or None."""
    *where, name = (sql.fold(part) for part in parts)
    if where and where[-1] in _SCHEMAS:
        return (where[-1], name) if (where[-1], name) in _definitions() else None
    if set(where) - _SYSTEM:
        return None
    return next(((schema, name) for schema in ("main", "pg_catalog") if (schema, name) in _definitions()), None)


@lru_cache(maxsize=_CACHED_MAX)
def _definition(view: tuple[str, str], reader: Reader) -> str:
    text = _definitions()[view]
    # DuckDB's own text.
    return _limit_lists(text, read(text.encode()), reader, LocalParser())


@cache
def _definitions() -> dict[tuple[str, str], str]:
    """Return the queries of DuckDB's own views, by schema and name."""
    with extensions.scratch() as connection:
        found = connection.execute(
            "SELECT lower(schema_name), lower(view_name), sql FROM duckdb_views() WHERE internal"
        ).fetchall()
    return {(schema, name): _query_of(text) for schema, name, text in found}


def _query_of(statement: str) -> str:
    """Return the query of a CREATE VIEW."""
    tokens = read(statement.encode())
    at = next(i for i, token in enumerate(tokens) if token.text == "as" and not token.is_quoted)
    return statement.encode()[tokens[at + 1].start :].decode().rstrip().rstrip(";")
