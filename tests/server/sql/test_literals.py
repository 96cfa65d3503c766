"""Constants that are parsed without DuckDB are parsed as DuckDB does, or left to it."""

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.lake.types import Column
from catchment.server.sql import literals

TYPES = (
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    *("DOUBLE", "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP"),
)
NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(
        [str(sign * 2**bits + off) for bits in (7, 8, 15, 31, 63, 64) for off in (-1, 0) for sign in (-1, 1)]
    ),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda number: f"{number:f}"),
    st.sampled_from(["0", "-0", "0.0", "-0.0", "007", "1.", ".5", "1e3", "+1", "1_000", "0x10", "9" * 16]),
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8),
    st.dates().map(str),
    st.datetimes().map(str),
    st.sampled_from(
        ["2024-02-30", "2024-1-1", "0000-01-01", "1900-02-29", "infinity", "epoch", "TRUE", "12", "", "''"]
    ),
    st.sampled_from(
        [
            "2024-01-01 10:00",
            "2024-01-01T10:00:00",
            "2024-01-01t10:00:00",
            "2024-01-01 10:00:60",
            "2024-01-01 10:00:00.5",
            " 12 ",
        ]
    ),
    st.sampled_from(
        [
            "2024-01-01 24:00:00",
            "2024-01-01 10:00:00+02",
            "2024-01-01 10:00:00.123456",
            "\u0662\u0660\u0662\u0664-\u0660\u0661-\u0660\u0661",
        ]
    ),
).map(lambda text: "'" + text.replace("'", "''") + "'")
OTHERS = st.sampled_from(
    ["NULL", "null", "TRUE", "false", "DEFAULT", "1+1", "E'a'", "'a' 'b'", "x", "$$a$$", "DATE '2024-01-01'"]
)
CELLS = st.one_of(NUMBERS, TEXTS, OTHERS)


CONNECTION = duckdb.connect()


def by_duckdb(source: str, column: Column) -> pa.Table | None:
    CONNECTION.execute(f"CREATE OR REPLACE TABLE t (c {column.type})")
    try:
        return CONNECTION.execute(f"INSERT INTO t {source} RETURNING *").to_arrow_table()
    except duckdb.Error:
        return None


@pytest.mark.parametrize("type_", TYPES)
@settings(deadline=None)
@given(cells=st.lists(CELLS, min_size=1, max_size=3))
def test_constants_are_read_as_duckdb_reads_them(type_: str, cells: list[str]) -> None:
    column = Column(name="c", type=type_)
    source = "VALUES " + ", ".join(f"({cell})" for cell in cells)
    found = literals.rows(source, (), (column,))
    if found is not None:
        expected = by_duckdb(source, column)
        assert expected is not None
        assert found.schema.types == expected.schema.types
        assert repr(found.to_pylist()) == repr(expected.to_pylist())


COLUMNS = (Column(name="a", type="INTEGER"), Column(name="B", type="VARCHAR"), Column(name="d", type="DATE"))


def test_columns_are_found_by_name_in_any_order() -> None:
    found = literals.rows("values ( 'it''s' , -7 ), (NULL, 2)", ("b", "A"), COLUMNS)
    assert found is not None
    assert found.to_pylist() == [{"B": "it's", "a": -7}, {"B": None, "a": 2}]


@pytest.mark.parametrize(
    "source",
    [
        "VALUES (1, 'x')",
        "VALUES (1, 'x', '2024-01-01', 4)",
        "VALUES (1, 'x', '2024-01-01'), (1)",
        "VALUES (1, 'x', '2024-01-01') ON CONFLICT DO NOTHING",
        "VALUES (1, 'x', /* ) */ NULL)",
        "VALUES (1, 'x', NULL) -- end",
        "VALUES (1, 'x', NULL",
        "VALUES",
        "SELECT 1, 'x', NULL",
        "VALUES (1, upper('x'), NULL)",
        "VALUES (?, 'x', NULL)",
        "",
    ],
)
def test_anything_but_rows_of_constants_is_left_to_duckdb(source: str) -> None:
    assert literals.rows(source, (), COLUMNS) is None


@pytest.mark.parametrize("names", [("a", "a"), ("a", "x"), ("a",)])
def test_columns_that_do_not_fit_are_left_to_duckdb(names: tuple[str, ...]) -> None:
    assert literals.rows("VALUES (1, 2)", names, COLUMNS) is None


def test_characters_that_duckdb_refuses_are_left_to_it() -> None:
    column = Column(name="c", type="TIMESTAMP")
    assert literals.rows("VALUES ('2024-01-01T10:00:00')", (), (column,)) is not None
    assert literals.rows("VALUES ('2024-01-01t10:00:00')", (), (column,)) is None


def test_very_wide_rows_are_left_to_duckdb() -> None:
    for width, is_read in ((200, True), (201, False)):
        columns = tuple(Column(name=f"c{n}", type="INTEGER") for n in range(width))
        found = literals.rows(f"VALUES ({', '.join('1' * width)})", (), columns)
        assert (found is not None) is is_read
