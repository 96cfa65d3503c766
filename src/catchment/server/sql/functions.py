"""Classifies DuckDB's functions by what a client's call of them can reach.

DuckDB reports each function's kind, the stability of its result, and the definition of a macro. A
function that is not known to be harmless by these is refused: table functions that are not listed
here and, for users of a tenant, scalar functions that read the catalog, which contains the tables
and views of all tenants.
"""

import re
from functools import cache

import duckdb

from catchment.lake import extensions

TABLE_FUNCTIONS = frozenset(
    {
        *("range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "summary"),
        *("duckdb_columns", "duckdb_constraints", "duckdb_functions", "duckdb_keywords", "duckdb_schemas"),
        *("duckdb_tables", "duckdb_types", "duckdb_views", "pragma_version", "pg_timezone_names"),
        *("duckdb_databases", "duckdb_indexes", "duckdb_sequences", "duckdb_variables"),
        *("icu_calendar_names", "test_all_types"),
    }
)
# Read-only functions of a lake, by their short names. They name their tables by constants.
LAKE_FUNCTIONS = frozenset(
    {
        *("snapshots", "table_info", "current_snapshot", "last_committed_snapshot"),
        *("table_changes", "table_insertions", "table_deletions"),
    }
)
# Functions whose argument is the name of a table.
TABLE_READERS = frozenset({"query_table", "pragma_table_info"})
# Table functions that show nothing of the catalog.
TENANT_TABLE_FUNCTIONS = frozenset(
    {
        *("range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "summary"),
        *("duckdb_keywords", "pragma_version", "pg_timezone_names", "icu_calendar_names", "test_all_types"),
        *("duckdb_variables",),
    }
)
# Scalar functions that are not harmless: they reach the server's settings, its log, or SQL in a
# string.
_SCALARS_REFUSED = frozenset(
    {"current_setting", "write_log", "json_execute_serialized_sql", "json_serialize_plan", "getenv"}
)
# Functions that are not stable, but depend only on time, chance, or the session itself.
_UNSTABLE_ALLOWED = frozenset(
    {
        *("now", "today", "current_date", "get_current_time", "get_current_timestamp", "transaction_timestamp"),
        *("random", "setseed", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "error", "current_query"),
        *("current_database", "current_schema", "current_schemas"),
    }
)
_STABLE = (None, "CONSISTENT")
DUCKLAKE = "ducklake_"
_CALLED = re.compile(r'"?(\w+)"?\s*\(')
_QUERY = re.compile(r"\b(from|select|table|pivot|describe|show|summarize)\b", re.I)


@cache
def refused() -> frozenset[str]:
    """Return table functions that may be harmful, except names that also have another kind."""
    with _all_loaded() as connection:
        found = connection.execute(
            "SELECT lower(function_name) FROM duckdb_functions() GROUP BY ALL "
            "HAVING bool_and(function_type IN ('table', 'table_macro', 'pragma')) "
            "AND bool_or(function_type != 'pragma')"
        ).fetchall()
    return frozenset(name for (name,) in found) - TABLE_FUNCTIONS | _SCALARS_REFUSED


@cache
def refused_short() -> frozenset[str]:
    """Return DuckLake's refused functions by their short names."""
    return frozenset(name.removeprefix(DUCKLAKE) for name in refused() if name.startswith(DUCKLAKE))


def refusal(name: str) -> str:
    """Return the error message for a function that clients may not call."""
    short = name.removeprefix(DUCKLAKE)
    if name in ("query", "json_execute_serialized_sql", "json_serialize_plan"):
        why = "runs SQL from a string, which cannot be checked"
    elif name.startswith(("sqlite_", "postgres_", "read_duckdb")):
        why = "opens another database"
    elif name.startswith(("read_", "parquet_", "glob", "sniff_")):
        why = "reads files, and clients may read only tables"
    elif short in refused_short() or name in refused_short():
        why = "changes the whole lake, or shows its files"
    else:
        why = "shows or changes the server itself, or returns no rows"
    return f"The function {name} {why}."


def of_lake(name: str) -> str | None:
    """Return the short name of a lake function that only reads; None for any other function."""
    short = name.removeprefix(DUCKLAKE)
    return short if short in LAKE_FUNCTIONS else None


@cache
def known() -> frozenset[str]:
    """Return all names of functions of DuckDB and of the extensions that the server loads."""
    with _all_loaded() as connection:
        found = connection.execute("SELECT DISTINCT lower(function_name) FROM duckdb_functions()").fetchall()
    names = {name for (name,) in found}
    return frozenset(names | {name.removeprefix(DUCKLAKE) for name in names})


@cache
def refused_to_tenants() -> frozenset[str]:
    """Return scalar functions and macros that may read the catalog or affect other sessions."""
    return frozenset(name for name, is_harmless in _scalars().items() if not is_harmless)


@cache
def allowed_to_tenants() -> frozenset[str]:
    """Return scalar functions and macros that depend only on arguments, time, chance or session."""
    return frozenset(name for name, is_harmless in _scalars().items() if is_harmless)


@cache
def _scalars() -> dict[str, bool]:
    """Return whether each scalar function, aggregate or macro is harmless in all its overloads."""
    with _all_loaded() as connection:
        found = connection.execute(
            "SELECT DISTINCT lower(function_name), stability, macro_definition FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro')"
        ).fetchall()
    known: dict[str, bool] = {}
    for name, stability, macro in found:
        is_harmless = name not in _SCALARS_REFUSED and (stability in _STABLE or name in _UNSTABLE_ALLOWED)
        known[name] = known.get(name, True) and is_harmless and (macro is None or _QUERY.search(macro) is None)
    while found:
        # A macro is as harmless as the functions that it calls; so are the macros that call it.
        worse = {name for name, _, macro in found if known[name] and macro and not all(_calls_known(macro, known))}
        if not worse:
            break
        known |= dict.fromkeys(worse, False)
    return known


def _calls_known(macro: str, known: dict[str, bool]) -> list[bool]:
    return [known.get(name.lower(), True) for name in _CALLED.findall(macro)]


def _all_loaded() -> duckdb.DuckDBPyConnection:
    connection = extensions.connect(threads=1)
    for name in extensions.KNOWN:
        extensions.load(connection, name)
    return connection
