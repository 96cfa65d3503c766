"""The digest of rows ignores order and files, and detects every changed value."""

from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from catchment.lake import digest
from catchment.lake.types import Column

# A busy machine is not a failure.
UNHURRIED = settings(deadline=None)

COLUMNS = (
    Column(name="id", type="BIGINT"),
    Column(name="kind", type="VARCHAR"),
    Column(name="old kind", type="VARCHAR"),
)
SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("old kind", pa.string())])
Row = tuple[int | None, str | None, str | None]

NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5)
ROWS = st.lists(st.tuples(NUMBERS, TEXTS, TEXTS), max_size=8)
SOME_ROWS = st.lists(st.tuples(NUMBERS, TEXTS, TEXTS), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def _digest(
    connection: duckdb.DuckDBPyConnection, rows: Sequence[Row], columns: Sequence[Column] = COLUMNS, extra: str = ""
) -> str:
    names = SCHEMA.names
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=SCHEMA)
    connection.register("given", table)
    found = connection.execute(f"SELECT {digest.rows_digest(columns)} FROM (SELECT * {extra} FROM given)").fetchone()
    assert found is not None
    return digest.text(found[0])


@UNHURRIED
@given(data=st.data(), rows=ROWS)
def test_the_order_of_rows_does_not_matter(
    connection: duckdb.DuckDBPyConnection, data: st.DataObject, rows: list[Row]
) -> None:
    shuffled = data.draw(st.permutations(rows))
    assert _digest(connection, shuffled) == _digest(connection, rows)


@UNHURRIED
@given(rows=ROWS)
def test_the_order_of_columns_does_not_matter(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> None:
    assert _digest(connection, rows, COLUMNS[::-1]) == _digest(connection, rows)


@UNHURRIED
@given(rows=ROWS, at=st.integers(0, 8))
def test_the_digests_of_a_split_add_up(connection: duckdb.DuckDBPyConnection, rows: list[Row], at: int) -> None:
    parts = [_digest(connection, rows[:at]), _digest(connection, rows[at:])]
    assert digest.add(parts) == _digest(connection, rows)


@UNHURRIED
@given(rows=ROWS)
def test_a_column_that_is_null_throughout_changes_nothing(
    connection: duckdb.DuckDBPyConnection, rows: list[Row]
) -> None:
    later = Column(name="added later", type="DOUBLE")
    extra = ', NULL::DOUBLE AS "added later"'
    assert _digest(connection, rows, (later, *COLUMNS), extra) == _digest(connection, rows)


@UNHURRIED
@given(rows=ROWS)
def test_the_case_of_a_column_s_name_does_not_matter(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> None:
    shouting = [Column(name=column.name.upper(), type=column.type) for column in COLUMNS]
    assert _digest(connection, rows, shouting) == _digest(connection, rows)


@UNHURRIED
@given(data=st.data(), rows=SOME_ROWS)
def test_a_changed_value_changes_the_digest(
    connection: duckdb.DuckDBPyConnection, data: st.DataObject, rows: list[Row]
) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    changed: Row = data.draw(st.tuples(NUMBERS, TEXTS, TEXTS).filter(lambda row: row != rows[at]))
    assert _digest(connection, [*rows[:at], changed, *rows[at + 1 :]]) != _digest(connection, rows)


@UNHURRIED
@given(data=st.data(), rows=SOME_ROWS)
def test_a_lost_row_and_a_doubled_row_change_the_digest(
    connection: duckdb.DuckDBPyConnection, data: st.DataObject, rows: list[Row]
) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    whole = _digest(connection, rows)
    assert _digest(connection, [*rows[:at], *rows[at + 1 :]]) != whole
    assert _digest(connection, [*rows, rows[at]]) != whole


@UNHURRIED
@given(rows=SOME_ROWS)
def test_values_swapped_between_two_columns_change_the_digest(
    connection: duckdb.DuckDBPyConnection, rows: list[Row]
) -> None:
    swapped: list[Row] = [(id_, old, kind) for id_, kind, old in rows]
    assume(sorted(map(repr, swapped)) != sorted(map(repr, rows)))
    assert _digest(connection, swapped) != _digest(connection, rows)


def test_values_swapped_between_two_rows_change_the_digest(connection: duckdb.DuckDBPyConnection) -> None:
    rows: list[Row] = [(1, "a", None), (2, "b", None)]
    swapped: list[Row] = [(1, "b", None), (2, "a", None)]
    assert _digest(connection, swapped) != _digest(connection, rows)


def test_the_same_value_in_two_columns_does_not_cancel_out(connection: duckdb.DuckDBPyConnection) -> None:
    assert _digest(connection, [(1, "a", "a")]) != _digest(connection, [(1, "b", "b")])


def test_null_is_neither_zero_nor_empty(connection: duckdb.DuckDBPyConnection) -> None:
    rows: list[Row] = [(None, None, None), (0, None, None), (None, "", None), (None, None, "")]
    assert len({_digest(connection, [row]) for row in rows}) == 4


def test_no_rows_have_the_digest_zero_and_a_row_of_nulls_has_not(connection: duckdb.DuckDBPyConnection) -> None:
    assert digest.number(_digest(connection, [])) == 0
    assert digest.number(_digest(connection, [(None, None, None)])) != 0


def test_the_sum_of_many_rows_is_that_of_their_hashes_modulo_2_to_the_64(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    columns = [Column(name="i", type="BIGINT")]
    hashes = connection.execute(f"SELECT {digest.row_hash(columns)} FROM range(100_000) r(i)").fetchall()
    total = connection.execute(f"SELECT {digest.rows_digest(columns)} FROM range(100_000) r(i)").fetchone()
    assert sum(row[0] for row in hashes) > 2**64
    assert total == (sum(row[0] for row in hashes) % 2**64,)


@UNHURRIED
@given(number=st.integers(0, 2**64 - 1))
def test_a_recorded_digest_is_read_back(number: int) -> None:
    assert digest.number(digest.text(number)) == number
    assert len(digest.text(number)) == len(digest.text(0))


def test_the_addition_of_digests_wraps_around() -> None:
    assert digest.add([digest.text(2**64 - 1), digest.text(3)]) == digest.text(2)
    assert digest.add([]) == digest.text(0)


def test_a_digest_is_unknown_if_that_of_a_part_is_unknown() -> None:
    assert digest.add([digest.text(1), None]) is None


def test_digests_have_the_values_that_ledgers_hold(connection: duckdb.DuckDBPyConnection) -> None:
    """Recorded digests are compared with later ones: a change of these two needs another prefix."""
    mixed = [
        Column(name="id", type="BIGINT"),
        Column(name="Old kind", type="VARCHAR"),
        Column(name="at", type="STRUCT(x INTEGER, y VARCHAR[])"),
    ]
    rows = "(1::BIGINT, 'a', {'x': 1, 'y': ['p', NULL]}), (2, NULL, NULL), (NULL, 'b', {'x': NULL, 'y': []})"
    query = f"""SELECT {digest.rows_digest(mixed)} FROM (VALUES {rows}) t(id, "Old kind", "at")"""
    assert digest.text(_one(connection, query)) == "duckdb1.5:b67a8ffd51a125ad"
    query = f"SELECT {digest.rows_digest(_wide(100))} FROM ({_wide_rows(100)})"
    assert digest.text(_one(connection, query)) == "duckdb1.5:f6cdba3c526627d3"


def test_a_table_may_have_thousands_of_columns(connection: duckdb.DuckDBPyConnection) -> None:
    """As a chain of as many links, DuckDB refuses the expression for its depth."""
    assert _one(connection, f"SELECT {digest.rows_digest(_wide(2_000))} FROM ({_wide_rows(2_000)})") > 0


def _wide(count: int) -> list[Column]:
    return [Column(name=f"c{number}", type="INTEGER") for number in range(count)]


def _wide_rows(count: int) -> str:
    return f"SELECT {', '.join(f'i + {number} AS c{number}' for number in range(count))} FROM range(3) r(i)"


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])
