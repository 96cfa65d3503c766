"""Cases of an INSERT through the queue: types, shapes of tables, changes, and ways to write."""

from dataclasses import dataclass
from typing import Any

import adbc_driver_manager
import duckdb
import pyarrow as pa

Error = adbc_driver_manager.Error


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A table with a column `k` and another one, its rows, and changes between two writes."""

    name: str
    type: str
    values: tuple[str, ...]
    more: str = ""
    after_create: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    column: str = "v"

    def rows(self, first: int) -> str:
        """Rows as VALUES has them, numbered from `first` on."""
        return ", ".join(f"({first + at}, {value})" for at, value in enumerate(self.values))


def _type(name: str, *values: str) -> Case:
    return Case(name=name, type=name, values=(*values, "NULL"))


def _shape(name: str, *after_create: str) -> Case:
    return Case(name=name, type="INTEGER", values=("3", "1", "2"), after_create=after_create)


def _partitioned(by: str, kind: str, *values: str) -> Case:
    after = f"ALTER TABLE {{}} SET PARTITIONED BY ({by})"
    return Case(name=f"{kind} partitioned by {by}", type=kind, values=(*values, "NULL"), after_create=(after,))


def _change(name: str, kind: str, value: str, *between: str) -> Case:
    return Case(name=name, type=kind, values=(value,), between=tuple(f"ALTER TABLE {{}} {each}" for each in between))


# A single row of text like {SNAPSHOT_ID} is left out: DuckLake itself fails to commit it, and the
# queue does not.
TYPES = [
    _type("BOOLEAN", "true", "false"),
    _type("TINYINT", "-128", "127"),
    _type("SMALLINT", "-32768"),
    _type("INTEGER", "-2147483648", "12"),
    _type("BIGINT", "9223372036854775807"),
    _type("UTINYINT", "255"),
    _type("USMALLINT", "65535"),
    _type("UINTEGER", "4294967295"),
    _type("UBIGINT", "18446744073709551615"),
    _type("HUGEINT", "12", "-5"),
    _type("UHUGEINT", "12"),
    _type("FLOAT", "'nan'", "'inf'", "'-inf'", "'-0.0'", "'1.5'"),
    _type("DOUBLE", "'nan'", "'inf'", "'-inf'", "'-0.0'", "'1e308'", "'0.1'"),
    Case(name="DOUBLE from numbers", type="DOUBLE", values=("1.5", "0.1", "-2.0")),
    Case(name="INTEGER from texts", type="INTEGER", values=("'12'", "' 7 '")),
    _type("DECIMAL(38,10)", "1234567890123456789012345678.0123456789", "-0.0000000001"),
    _type("DECIMAL(4,2)", "99.99", "1.005"),
    _type("VARCHAR", "''", "'it''s'", "'ÄöÜ 🦆'", "' '", "'NULL'"),
    _type("BLOB", r"'\xAA\x00'::BLOB", "''::BLOB"),
    _type("UUID", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    _type("JSON", """'{"a": [1, null, "ü"]}'""", "'null'", "'1e999'", """'"\\u00e9"'"""),
    _type("DATE", "'2024-02-29'", "'0001-01-01'", "'infinity'", "'-infinity'", "'5000000-01-01'", "'4000-01-01 (BC)'"),
    _type("TIME", "'12:34:56.789012'", "'00:00:00'"),
    _type("TIMESTAMP", "'2024-02-29 12:34:56.789012'", "'0001-01-01 00:00:00'", "'infinity'", "'290000-01-01'"),
    _type("TIMESTAMP_S", "'2024-02-29 12:34:56'"),
    _type("TIMESTAMP_MS", "'2024-02-29 12:34:56.789'"),
    _type("TIMESTAMP_NS", "'2024-02-29 12:34:56.789012345'"),
    _type("TIMESTAMPTZ", "'2024-02-29 12:34:56+05:30'", "'0001-01-01 00:00:00+00'"),
    _type("TIMETZ", "'12:34:56+00'"),
    _type("INTERVAL", "INTERVAL '3.5 seconds'"),
    _type("GEOMETRY", "'POINT (1 2)'"),
    _type("INTEGER[]", "[1, NULL, 3]", "[]"),
    _type("VARCHAR[][]", "[['a', NULL], [], NULL]"),
    _type("UUID[]", "['00000000-0000-0000-0000-000000000001', NULL]"),
    _type("JSON[]", """['{"a":1}', NULL]"""),
    _type("STRUCT(a INTEGER, b VARCHAR)", "{a: 1, b: 'x'}", "{a: NULL, b: NULL}"),
    _type("STRUCT(u UUID, j JSON, l UUID[])", """{u: uuid_of(1), j: '{"a":1}', l: [uuid_of(2)]}"""),
    _type("STRUCT(a STRUCT(b STRUCT(c INTEGER[])))", "{a: {b: {c: [1, NULL]}}}", "{a: {b: NULL}}", "{a: NULL}"),
    _type("MAP(VARCHAR, INTEGER)", "MAP {'a': 1, 'b': NULL}", "MAP {}"),
    _type("MAP(UUID, JSON)", """MAP {uuid_of(1): '{"a":1}'}"""),
    _type("MAP(VARCHAR, STRUCT(u UUID)[])", "MAP {'a': [{u: uuid_of(1)}, NULL]}"),
]
_AT = ("'2024-02-29 12:34:56'", "'1969-12-31 23:59:59'", "'0001-01-01 00:00:00'")
SHAPES = [
    _partitioned("v", "INTEGER", "1", "2"),
    _partitioned("v", "VARCHAR", "'a/b=c'", "''", "'ü'"),
    _partitioned("v", "DATE", "'2024-02-29'"),
    _partitioned("v", "UUID", "'00000000-0000-0000-0000-000000000001'"),
    *(_partitioned(f"{part}(v)", "TIMESTAMP", *_AT) for part in ("year", "month", "day", "hour")),
    _partitioned("year(v), month(v)", "TIMESTAMP", *_AT),
    _partitioned("year(v), k", "TIMESTAMP", *_AT),
    _partitioned("bucket(4, v)", "BIGINT", "1", "-7", "100"),
    _partitioned("bucket(4, v)", "VARCHAR", "'a'", "''"),
    _shape("sorted", "ALTER TABLE {} SET SORTED BY (v DESC)"),
    _shape("commented", "COMMENT ON TABLE {} IS 'it''s'", "COMMENT ON COLUMN {}.v IS 'ü'"),
    _shape("inlined rows", "INSERT INTO {} VALUES (1000, 1), (1001, 2)", "DELETE FROM {} WHERE k = 1000"),
    Case(name="not null", type="INTEGER NOT NULL", values=("1", "2")),
    Case(name="not null refused", type="INTEGER NOT NULL", values=("1", "NULL")),
    Case(name="defaults", type="INTEGER", values=("1",), more=", d VARCHAR DEFAULT 'it''s', e INTEGER DEFAULT 7"),
    Case(name="other columns", type="INTEGER", values=("1",), more=", j JSON, u UUID, s STRUCT(u UUID)"),
    Case(name="a keyword for a name", type="INTEGER", values=("1",), column='"select"'),
    Case(name="a name that is not ASCII", type="INTEGER", values=("1",), column='"Ünïcödé 列"'),
    Case(name="a name with quotes", type="INTEGER", values=("1",), column='"a ""b"" c"'),
    Case(name="a name in capitals", type="INTEGER", values=("1",), column="VALUE_IN_CAPITALS"),
]
_PAIR = "STRUCT(a INTEGER, b INTEGER)"
CHANGES = [
    _change("renamed", "INTEGER", "1", "RENAME COLUMN v TO w"),
    _change("exchanged", "INTEGER", "1", "RENAME COLUMN v TO w", "RENAME COLUMN k TO v", "RENAME COLUMN w TO k"),
    _change("dropped and added", "INTEGER", "1", "DROP COLUMN v", "ADD COLUMN v INTEGER"),
    _change("widened", "INTEGER", "1", "ALTER v SET DATA TYPE BIGINT"),
    _change("default set", "INTEGER", "1", "ALTER v SET DEFAULT 9"),
    _change("added with a default", "INTEGER", "1", "ADD COLUMN d UUID DEFAULT '00000000-0000-0000-0000-000000000001'"),
    _change("nested renamed", _PAIR, "{a: 1, b: 2}", "RENAME COLUMN v.a TO z"),
    _change("nested added", _PAIR, "{a: 1, b: 2}", "ADD COLUMN v.z UUID"),
    _change("nested dropped", _PAIR, "{a: 1, b: 2}", "DROP COLUMN v.b"),
    _change("partitioned later", "INTEGER", "1", "SET PARTITIONED BY (v)"),
    Case(
        name="replaced",
        type="INTEGER",
        values=("1",),
        between=("DROP TABLE {}", "CREATE TABLE {} (v INTEGER, k INTEGER)"),
    ),
]
WAYS = ("literal", "select", "parameters", "executemany", "ingest")


def write(cursor: Any, case: Case, way: str, *, queue: str, table: str, first: int) -> str | None:
    """Write a case's rows into a table, or its queue; return the error, if it failed."""
    insert = f"INSERT INTO {queue}.{table}" if queue else f"INSERT INTO {table}"
    insert += f" (k, {case.column})"
    try:
        match way:
            case "literal":
                cursor.execute(f"{insert} VALUES {plain(case.rows(first))}")
            case "select":
                cursor.execute(f"{insert} SELECT * FROM (VALUES {plain(case.rows(first))})")
            case "parameters":
                for row in _python(case, first):
                    cursor.execute(f"{insert} VALUES (?, ?)", row)
            case "executemany":
                cursor.executemany(f"{insert} VALUES (?, ?)", _python(case, first))
            case "ingest":
                cursor.adbc_ingest(table, _arrow(case, first), mode="append", db_schema_name=queue or "main")
    except (Error, pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        return str(error) or type(error).__name__
    return None


def plain(text: str) -> str:
    """SQL that needs no macro of ours."""
    for number in (1, 2):
        text = text.replace(f"uuid_of({number})", f"'00000000-0000-0000-0000-00000000000{number}'")
    return text


def _python(case: Case, first: int) -> list[tuple[int, Any]]:
    """The rows as a program would bind them: texts as texts, and all else as Python has it."""
    with duckdb.connect() as connection:
        return [
            (first + at, connection.execute(f"SELECT {plain(value)}").fetchall()[0][0])
            for at, value in enumerate(case.values)
        ]


def _arrow(case: Case, first: int) -> pa.Table:
    """The rows in plain Arrow, as clients make it from a column of the type."""
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE given (k INTEGER, {case.column} {case.type.removesuffix(' NOT NULL')})")
        connection.execute(f"INSERT INTO given VALUES {plain(case.rows(first))}")
        return connection.execute("FROM given").to_arrow_table()
