"""Quoting: DuckDB reads back exactly the quoted name or value."""

import math
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catchment.errors import InvariantError
from catchment.foundation import sql

# A busy machine is not a failure.
UNHURRIED = settings(deadline=None)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
AWKWARD = "'; DROP TABLE t; -- \" \\ {lake} $1 ? \n"


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def _value(connection: duckdb.DuckDBPyConnection, expression: str) -> object:
    row = connection.execute(f"SELECT {expression}").fetchone()
    assert row is not None
    return row[0]


@UNHURRIED
@given(text=TEXTS)
@example(text=AWKWARD)
def test_any_text_comes_back_from_its_literal(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    assert _value(connection, sql.literal(text)) == text


@UNHURRIED
@given(texts=st.lists(TEXTS))
def test_any_texts_come_back_from_their_list_literal(connection: duckdb.DuckDBPyConnection, texts: list[str]) -> None:
    assert _value(connection, f"{sql.literals(texts)}::VARCHAR[]") == texts


@UNHURRIED
@given(name=TEXTS.filter(bool))
@example(name=AWKWARD)
@example(name="select")
def test_any_name_comes_back_from_its_identifier(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    found = connection.execute(f"SELECT 1 AS {sql.identifier(name)}")
    assert [column[0] for column in found.description or []] == [name]


def test_a_qualified_name_reaches_a_table_whose_names_hold_dots_and_quotes(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    schema, table, columns = 'a."b', 'c".d', ['e"f', "g.h"]
    connection.execute(f"CREATE SCHEMA {sql.identifier(schema)}")
    listed = ", ".join(f"{sql.identifier(column)} INTEGER" for column in columns)
    connection.execute(f"CREATE TABLE {sql.qualified(schema, table)} ({listed})")
    connection.execute(f"INSERT INTO {sql.qualified('memory', schema, table)} VALUES (1, 2)")
    found = connection.execute(f"SELECT {sql.identifiers(columns)} FROM {sql.qualified(schema, table)}").fetchall()
    assert found == [(1, 2)]


@UNHURRIED
@given(number=st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_any_whole_number_comes_back_from_its_literal(connection: duckdb.DuckDBPyConnection, number: int) -> None:
    assert _value(connection, sql.literal(number)) == number


@UNHURRIED
@given(number=st.floats())
@example(number=0.0009314520020893595)
@example(number=math.inf)
@example(number=math.nan)
def test_any_floating_number_comes_back_from_its_literal(connection: duckdb.DuckDBPyConnection, number: float) -> None:
    found = _value(connection, f"{sql.literal(number)}::DOUBLE")
    assert isinstance(found, float)
    assert found == number or (math.isnan(found) and math.isnan(number))


@pytest.mark.parametrize("value", [None, True, False])
def test_null_and_truth_come_back_from_their_literals(
    connection: duckdb.DuckDBPyConnection, value: bool | None
) -> None:
    assert _value(connection, sql.literal(value)) is value


def test_a_nul_character_is_refused_because_no_statement_can_carry_it() -> None:
    with pytest.raises(InvariantError):
        sql.literal("a\x00b")
    with pytest.raises(InvariantError):
        sql.identifier("a\x00b")


def test_options_leave_out_what_is_none_and_vanish_when_nothing_is_left() -> None:
    given_options: dict[str, sql.Value] = {"FORMAT": "par'quet", "LEVEL": 3, "GONE": None, "FAST": True}
    assert sql.options(given_options) == "(FORMAT 'par''quet', LEVEL 3, FAST true)"
    assert sql.options({"GONE": None}) == ""


def test_names_are_quoted_in_statements_of_sql_files() -> None:
    text = sql.statement("catchment.lake", "audit_rows", lake='la"ke', schema="main", table="t")
    assert 'FROM "la""ke"."main"."t"' in text


def test_a_name_that_looks_like_a_placeholder_is_still_a_name() -> None:
    text = sql.statement("catchment.lake", "audit_rows", lake="lake", schema="{table}", table="t")
    assert 'FROM "lake"."{table}"."t"' in text
