"""Defaults and sort keys that clients wrote are computed outside engines only if they are harmless."""

from datetime import timedelta

import pyarrow as pa
import pytest

from catchment.errors import NotSupportedError
from catchment.foundation.ids import TableId
from catchment.lake import Lake
from catchment.lake.commit import AddColumn, Commit, CreateTable
from catchment.lake.expressions import is_computable_default, is_computable_key
from catchment.lake.maintenance import Ages, maintain
from catchment.lake.tables import SortKey
from catchment.lake.types import Column

TABLE = TableId("main", "t")
YEAR = Ages(snapshot=timedelta(days=365), orphan=timedelta(days=365))
# It ends the process that computes it.
CRASHING = "json_structure(repeat('[', 100000))"


@pytest.mark.parametrize(
    "written",
    [
        *("-1", "'a''b(x'", "1.5 * 2", "(1 + 2) % 3", "true", "DATE '2024-01-01'", "INTERVAL 1 DAY", "'{}'::JSON"),
        *("current_date", "now()", "current_timestamp", "uuid()", "random()", "current_user"),
        *("CAST(1 AS DECIMAL(10, 2))", "upper('x') || lower('Y')", "coalesce(NULL, 'x')", r"'\x00'::BLOB"),
        *("CASE WHEN true THEN 1 ELSE 2 END", "'-- /* no comment'", "'json_structure(1)'"),
    ],
)
def test_usual_defaults_are_computed(written: str, sqlite_lake: Lake) -> None:
    with sqlite_lake.write() as connection:
        connection.execute(f"CREATE TABLE {sqlite_lake.name}.main.t (b INTEGER, a VARCHAR DEFAULT {written})")
    default = sqlite_lake.table(TABLE).columns[1].default
    assert default is not None
    assert is_computable_default(default)


@pytest.mark.parametrize(
    "default",
    [
        *(CRASHING, "repeat('a', 1000000000)", "levenshtein('a', 'b')", "main.upper('x')", "RANGE(9)"),
        *("\"json_structure\"('[')", "'a' || \"Repeat\" ('b', 9)", "/* ' */ json_structure('[') /* ' */"),
        *("1 -- '\n + json_structure('[') -- '", "E'\\' || json_structure(1) || '", "(SELECT 1)", "$$a$$"),
        *("[x for x in range(9)]", "'a'" * 500, "lower('a') || json_structure ('[')"),
    ],
)
def test_other_defaults_are_not(default: str) -> None:
    assert not is_computable_default(default)


@pytest.mark.parametrize("key", ["a", '"b c"', '"it\'s"', 'lower("b c")', "date_trunc('day', d)", "(a % 3)", "-(a)"])
def test_usual_sort_keys_are_computed(key: str) -> None:
    assert is_computable_key(key)


@pytest.mark.parametrize("key", ["levenshtein(a, b)", "CAST(a AS JSON)", "(a || a)", '"repeat"(a, 9)', "bucket(4, a)"])
def test_other_sort_keys_are_not(key: str) -> None:
    assert not is_computable_key(key)


@pytest.mark.parametrize(
    "change",
    [
        CreateTable(table=TABLE, columns=(Column(name="a", type="VARCHAR", default=CRASHING),)),
        CreateTable(table=TABLE, columns=(Column(name="a", type="VARCHAR"),), sort_by=(SortKey(expression="hex(a)"),)),
    ],
)
def test_no_table_with_such_an_expression_is_created_for_others(change: CreateTable, sqlite_lake: Lake) -> None:
    with pytest.raises(NotSupportedError, match="clients' own statements"):
        sqlite_lake.commit(Commit(message="create", changes=(change,)))


def test_rows_are_neither_inserted_nor_merged_where_such_an_expression_would_be_computed(sqlite_lake: Lake) -> None:
    with sqlite_lake.write() as connection:
        connection.execute(f"CREATE TABLE {sqlite_lake.name}.main.t (a VARCHAR)")
    for _ in range(2):
        sqlite_lake.insert(TABLE, pa.table({"a": ["x"] * 20}))
    with sqlite_lake.write() as connection:
        connection.execute(f"ALTER TABLE {sqlite_lake.name}.main.t SET SORTED BY (json_structure(a))")
    with pytest.raises(NotSupportedError, match="SORTED BY json_structure"):
        sqlite_lake.insert(TABLE, pa.table({"a": ["x"]}))
    column = Column(name="b", type="VARCHAR", default=CRASHING)
    with pytest.raises(NotSupportedError, match="DEFAULT json_structure"):
        sqlite_lake.commit(Commit(message="add", changes=(AddColumn(table=TABLE, column=column),)))
    merged = [step for step in maintain(sqlite_lake, YEAR).steps if step.name == "merge"]
    assert [(step.count, step.error) for step in merged] == [(0, None)]
