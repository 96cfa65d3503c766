"""The server's capabilities, by the codes that ODBC and JDBC drivers request.

Drivers request all of them at once when they connect, and some fail if one is missing, so every
code has a value. Its kind is the protocol's: limits are `int`, with 0 for "no known limit"; choices
and bit sets are `_Bits`.
"""

from functools import cache
from importlib import metadata

import duckdb
import pyarrow as pa

from catchment.flight_protocol.flight_sql_pb2 import SqlInfo
from catchment.foundation.settings import Settings
from catchment.lake import extensions
from catchment.server.encoding import messages
from catchment.server.sessions.session import PREPARED_MAX


class _Bits(int):
    """A 32-bit value: a set of bits, or one choice by its number."""


Value = str | bool | int | _Bits | list[str] | dict[int, list[int]]

_KINDS: tuple[tuple[str, pa.DataType], ...] = (
    ("string_value", pa.string()),
    ("bool_value", pa.bool_()),
    ("bigint_value", pa.int64()),
    ("int32_bitmask", pa.int32()),
    ("string_list", pa.list_(pa.string())),
    ("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
)
SCHEMA = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", pa.dense_union([pa.field(name, kind) for name, kind in _KINDS]), nullable=False),
    ]
)

_CASE_INSENSITIVE = 1
_NULLS_AT_END = 3
_TRANSACTIONS_ONLY = 1
_REPEATABLE_READ = 3
# Every type that drivers know can be cast to and from text; 19 is VARCHAR.
_VARCHAR = 19
_CONVERTIBLE = (0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 16, 17, 18)

_NUMERIC = [
    "abs", "acos", "asin", "atan", "atan2", "ceil", "ceiling", "cos", "cot", "degrees", "exp", "floor", "ln", "log",
    "log10", "log2", "mod", "pi", "pow", "power", "radians", "random", "round", "sign", "sin", "sqrt", "tan", "trunc",
]  # fmt: skip
_STRING = [
    "ascii", "bit_length", "chr", "concat", "contains", "instr", "lcase", "left", "length", "lower", "lpad", "ltrim",
    "position", "repeat", "replace", "reverse", "right", "rpad", "rtrim", "substr", "substring", "trim", "ucase",
    "upper",
]  # fmt: skip
_SYSTEM = ["coalesce", "current_catalog", "current_schema", "ifnull", "nullif", "version"]
_DATETIME = [
    "age", "current_date", "current_time", "current_timestamp", "date_add", "date_diff", "date_part", "date_trunc",
    "day", "dayname", "dayofmonth", "dayofweek", "dayofyear", "epoch", "extract", "hour", "last_day", "minute",
    "month", "monthname", "now", "quarter", "second", "strftime", "strptime", "today", "week", "year",
]  # fmt: skip


def table(codes: tuple[int, ...], settings: Settings) -> pa.Table:
    """Return the values of the codes; of all codes if none is given. Unknown codes are left out."""
    known = _values(settings)
    rows = {code: known[code] for code in codes or sorted(known) if code in known}
    kinds = [_kind(value) for value in rows.values()]
    children: list[list[Value]] = [[] for _ in _KINDS]
    offsets = []
    for kind, value in zip(kinds, rows.values(), strict=True):
        offsets.append(len(children[kind]))
        children[kind].append(value)
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(_plain(own), kind) for own, (_, kind) in zip(children, _KINDS, strict=True)],
        [name for name, _ in _KINDS],
    )
    return pa.table([pa.array(list(rows), pa.uint32()), union], schema=SCHEMA)


def _kind(value: Value) -> int:
    """Return the value's member of the union. Order matters, because a bool is also an int."""
    for kind, types in enumerate((str, bool, None, _Bits, list, dict)):
        if types is not None and isinstance(value, types):
            return kind
    return 2


def _plain(values: list[Value]) -> list[object]:
    return [list(value.items()) if isinstance(value, dict) else value for value in values]


def _values(settings: Settings) -> dict[int, Value]:
    return {**_server(settings), **_names(), **_syntax(), **_limits(settings), **_transactions()}


def _server(settings: Settings) -> dict[int, Value]:
    return {
        SqlInfo.FLIGHT_SQL_SERVER_NAME: "Catchment",
        # Clients that generate SQL for DuckDB look for its name at the beginning.
        SqlInfo.FLIGHT_SQL_SERVER_VERSION: f"duckdb v{duckdb.__version__} (catchment {metadata.version('catchment')})",
        SqlInfo.FLIGHT_SQL_SERVER_ARROW_VERSION: pa.__version__,
        SqlInfo.FLIGHT_SQL_SERVER_READ_ONLY: False,
        SqlInfo.FLIGHT_SQL_SERVER_SQL: True,
        SqlInfo.FLIGHT_SQL_SERVER_SUBSTRAIT: False,
        SqlInfo.FLIGHT_SQL_SERVER_SUBSTRAIT_MIN_VERSION: "",
        SqlInfo.FLIGHT_SQL_SERVER_SUBSTRAIT_MAX_VERSION: "",
        SqlInfo.FLIGHT_SQL_SERVER_TRANSACTION: _Bits(_TRANSACTIONS_ONLY),
        SqlInfo.FLIGHT_SQL_SERVER_CANCEL: True,
        SqlInfo.FLIGHT_SQL_SERVER_BULK_INGESTION: True,
        SqlInfo.FLIGHT_SQL_SERVER_INGEST_TRANSACTIONS_SUPPORTED: True,
        SqlInfo.FLIGHT_SQL_SERVER_STATEMENT_TIMEOUT: _Bits(_milliseconds(settings.server_session_idle_seconds)),
        SqlInfo.FLIGHT_SQL_SERVER_TRANSACTION_TIMEOUT: _Bits(_milliseconds(settings.server_transaction_idle_seconds)),
    }


def _names() -> dict[int, Value]:
    return {
        SqlInfo.SQL_IDENTIFIER_CASE: _Bits(_CASE_INSENSITIVE),
        SqlInfo.SQL_IDENTIFIER_QUOTE_CHAR: '"',
        SqlInfo.SQL_QUOTED_IDENTIFIER_CASE: _Bits(_CASE_INSENSITIVE),
        SqlInfo.SQL_KEYWORDS: _keywords(),
        SqlInfo.SQL_NUMERIC_FUNCTIONS: _NUMERIC,
        SqlInfo.SQL_STRING_FUNCTIONS: _STRING,
        SqlInfo.SQL_SYSTEM_FUNCTIONS: _SYSTEM,
        SqlInfo.SQL_DATETIME_FUNCTIONS: _DATETIME,
        SqlInfo.SQL_SEARCH_STRING_ESCAPE: "\\",
        SqlInfo.SQL_EXTRA_NAME_CHARACTERS: "",
        SqlInfo.SQL_SCHEMA_TERM: "schema",
        SqlInfo.SQL_PROCEDURE_TERM: "procedure",
        SqlInfo.SQL_CATALOG_TERM: "catalog",
        SqlInfo.SQL_CATALOG_AT_START: True,
        SqlInfo.SQL_SCHEMAS_SUPPORTED_ACTIONS: _bits(),
        SqlInfo.SQL_CATALOGS_SUPPORTED_ACTIONS: _bits(),
    }


def _syntax() -> dict[int, Value]:
    to_text = {code: [_VARCHAR] for code in _CONVERTIBLE}
    return {
        SqlInfo.SQL_DDL_CATALOG: False,
        SqlInfo.SQL_DDL_SCHEMA: True,
        SqlInfo.SQL_DDL_TABLE: True,
        SqlInfo.SQL_ALL_TABLES_ARE_SELECTABLE: True,
        SqlInfo.SQL_NULL_ORDERING: _Bits(_NULLS_AT_END),
        SqlInfo.SQL_SUPPORTS_COLUMN_ALIASING: True,
        SqlInfo.SQL_NULL_PLUS_NULL_IS_NULL: True,
        SqlInfo.SQL_SUPPORTS_CONVERT: {**to_text, _VARCHAR: list(_CONVERTIBLE)},
        SqlInfo.SQL_SUPPORTS_TABLE_CORRELATION_NAMES: True,
        SqlInfo.SQL_SUPPORTS_DIFFERENT_TABLE_CORRELATION_NAMES: False,
        SqlInfo.SQL_SUPPORTS_EXPRESSIONS_IN_ORDER_BY: True,
        SqlInfo.SQL_SUPPORTS_ORDER_BY_UNRELATED: True,
        SqlInfo.SQL_SUPPORTED_GROUP_BY: _bits(0, 1),
        SqlInfo.SQL_SUPPORTS_LIKE_ESCAPE_CLAUSE: True,
        SqlInfo.SQL_SUPPORTS_NON_NULLABLE_COLUMNS: True,
        SqlInfo.SQL_SUPPORTED_GRAMMAR: _bits(0, 1, 2),
        SqlInfo.SQL_ANSI92_SUPPORTED_LEVEL: _bits(0, 1),
        SqlInfo.SQL_SUPPORTS_INTEGRITY_ENHANCEMENT_FACILITY: False,
        # Limited and full; JDBC reads this as a set of bits.
        SqlInfo.SQL_OUTER_JOINS_SUPPORT_LEVEL: _bits(1, 2),
        SqlInfo.SQL_SUPPORTED_POSITIONED_COMMANDS: _bits(),
        SqlInfo.SQL_SELECT_FOR_UPDATE_SUPPORTED: False,
        SqlInfo.SQL_STORED_PROCEDURES_SUPPORTED: False,
        # In comparisons, in EXISTS, in IN and in quantified comparisons.
        SqlInfo.SQL_SUPPORTED_SUBQUERIES: _bits(0, 1, 2, 3),
        SqlInfo.SQL_CORRELATED_SUBQUERIES_SUPPORTED: True,
        SqlInfo.SQL_SUPPORTED_UNIONS: _bits(0, 1),
        SqlInfo.SQL_NAMED_PARAMETERS_SUPPORTED: False,
        SqlInfo.SQL_LOCATORS_UPDATE_COPY: False,
        SqlInfo.SQL_STORED_FUNCTIONS_USING_CALL_SYNTAX_SUPPORTED: False,
    }


def _limits(settings: Settings) -> dict[int, Value]:
    codes = range(SqlInfo.SQL_MAX_BINARY_LITERAL_LENGTH, SqlInfo.SQL_MAX_USERNAME_LENGTH + 1)
    unlimited: dict[int, Value] = dict.fromkeys(codes, 0)
    return {
        **unlimited,
        SqlInfo.SQL_MAX_CONNECTIONS: settings.server_sessions_max,
        SqlInfo.SQL_MAX_ROW_SIZE_INCLUDES_BLOBS: True,
        SqlInfo.SQL_MAX_STATEMENT_LENGTH: messages.STATEMENT_BYTES_MAX,
        SqlInfo.SQL_MAX_STATEMENTS: PREPARED_MAX,
    }


def _transactions() -> dict[int, Value]:
    forward_only, read_only = _bits(1), _bits(1)
    return {
        # A 64-bit number for JDBC, unlike the other choices.
        SqlInfo.SQL_DEFAULT_TRANSACTION_ISOLATION: _REPEATABLE_READ,
        SqlInfo.SQL_TRANSACTIONS_SUPPORTED: True,
        SqlInfo.SQL_SUPPORTED_TRANSACTIONS_ISOLATION_LEVELS: _bits(_REPEATABLE_READ),
        SqlInfo.SQL_DATA_DEFINITION_CAUSES_TRANSACTION_COMMIT: False,
        SqlInfo.SQL_DATA_DEFINITIONS_IN_TRANSACTIONS_IGNORED: False,
        SqlInfo.SQL_SUPPORTED_RESULT_SET_TYPES: forward_only,
        SqlInfo.SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_UNSPECIFIED: _bits(),
        SqlInfo.SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_FORWARD_ONLY: read_only,
        SqlInfo.SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_SCROLL_SENSITIVE: _bits(),
        SqlInfo.SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_SCROLL_INSENSITIVE: _bits(),
        SqlInfo.SQL_BATCH_UPDATES_SUPPORTED: True,
        SqlInfo.SQL_SAVEPOINTS_SUPPORTED: False,
    }


@cache
def _keywords() -> list[str]:
    with extensions.scratch() as connection:
        found = connection.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'")
        return sorted(name for (name,) in found.fetchall())


def _bits(*numbers: int) -> _Bits:
    return _Bits(sum(1 << number for number in numbers))


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1000), 2**31 - 1)
