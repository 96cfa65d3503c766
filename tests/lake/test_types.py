"""Types: `fit` is checked against DuckDB, and deliverable types against Parquet itself."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import InputError, TypeConflictError
from catchment.foundation import sql
from catchment.lake import extensions, types
from catchment.lake.types import Column, Fit

# A busy machine is not a failure.
UNHURRIED = settings(deadline=None)

INTEGERS = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
}
_MOMENTS = ("290309-12-22 (BC) 00:00:00", "1969-12-31 23:59:59", "294247-01-10 04:00:54", "infinity", "-infinity")

# For each scalar type, values at its edges, as texts that DuckDB casts to it.
VALUES: dict[str, tuple[str, ...]] = {
    **{name: (str(low), str(high), "1") for name, (low, high) in INTEGERS.items()},
    "BOOLEAN": ("true", "false"),
    "FLOAT": ("3.4028235e38", "1.4e-45", "0.1", "-0.0", "inf", "-inf", "nan"),
    "DOUBLE": ("1.7976931348623157e308", "5e-324", "0.1", "-0.0", "inf", "-inf", "nan"),
    "DECIMAL(4,1)": ("999.9", "-999.9", "0.1"),
    "DECIMAL(9,9)": ("0.999999999", "-0.000000001"),
    "DECIMAL(19,0)": ("9" * 19, "-" + "9" * 19),
    "DECIMAL(38,0)": ("9" * 38, "-" + "9" * 38),
    "DECIMAL(38,10)": ("9" * 28 + "." + "9" * 10, "-0.0000000001"),
    "VARCHAR": ("", "NULL", "ä\u200b😀\n'\"", "x" * 10_000),
    "JSON": ("{}", '{"a": [1, null]}', '"text"', "null"),
    "BLOB": ("", "\\x00\\xFF\\x27", "abc"),
    "UUID": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "DATE": ("290309-12-22 (BC)", "1969-12-31", "294247-01-09", "infinity", "-infinity"),
    "TIME": ("00:00:00", "23:59:59.999999", "24:00:00"),
    "TIMESTAMP_S": _MOMENTS,
    "TIMESTAMP_MS": (*_MOMENTS, "294247-01-10 04:00:54.775", "2026-01-01 00:00:00.001"),
    "TIMESTAMP": (*_MOMENTS, "294247-01-10 04:00:54.775806", "2026-01-01 00:00:00.000001"),
    "TIMESTAMP_NS": ("1677-09-22 00:00:00.000000001", "2262-04-11 23:47:16.854775806"),
    "TIMESTAMP WITH TIME ZONE": ("2026-01-01 00:00:00.000001+00", "infinity", "-infinity"),
    "ENUM('a', 'B c')": ("a", "B c"),
    "HUGEINT": (str(-(2**127)), str(2**127 - 1)),
    "UHUGEINT": ("0", str(2**128 - 1)),
    "INTERVAL": ("1 month 2 days 0.000001 seconds",),
    "TIME WITH TIME ZONE": ("00:00:00+15:59:59",),
    "TIME_NS": ("23:59:59.999999999",),
    "BIT": ("0101",),
}
PAIRS = list(product(VALUES, VALUES))
WIDER = [pair for pair in PAIRS if types.fit(*map(types.parse, pair)) is Fit.WIDER]
DELIVERABLE_SCALARS = (
    *(*INTEGERS, "BOOLEAN", "FLOAT", "DOUBLE", "VARCHAR", "JSON", "BLOB", "UUID", "DATE", "TIME"),
    *("DECIMAL(4,1)", "DECIMAL(9,9)", "DECIMAL(19,0)", "DECIMAL(38,0)", "DECIMAL(38,10)"),
    *("TIMESTAMP", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with extensions.connect() as connection:
        yield connection


def _survives(connection: duckdb.DuckDBPyConnection, value: str, source: str, target: str) -> bool:
    """Whether the value is the same after it went into the target and back."""
    before = f"CAST({sql.literal(value)} AS {source})"
    there = f"CAST({before} AS {target})"
    if "TIMESTAMP" in target:
        # DuckDB has no way back from some timestamps but through text.
        there = f"CAST({there} AS VARCHAR)"
    try:
        row = connection.execute(
            f"SELECT CAST({before} AS VARCHAR), CAST(CAST({there} AS {source}) AS VARCHAR)"
        ).fetchone()
    except (duckdb.ConversionException, duckdb.OutOfRangeException):
        return False
    assert row is not None
    return bool(row[0] == row[1])


@pytest.mark.parametrize(("source", "target"), WIDER)
def test_every_value_goes_into_a_wider_type_and_comes_back_unchanged(
    connection: duckdb.DuckDBPyConnection, source: str, target: str
) -> None:
    assert [value for value in VALUES[source] if not _survives(connection, value, source, target)] == []


@pytest.mark.parametrize("kind", VALUES)
def test_a_type_fits_itself_exactly(kind: str) -> None:
    assert types.fit(types.parse(kind), types.parse(kind)) is Fit.EXACT


@pytest.mark.parametrize(("source", "target"), list(product(INTEGERS, (*INTEGERS, "FLOAT", "DOUBLE"))))
def test_an_integer_is_refused_exactly_if_a_value_would_not_survive(
    connection: duckdb.DuckDBPyConnection, source: str, target: str
) -> None:
    # 2^n + 1 for n beyond a mantissa is the least number that a floating type rounds.
    values = [*VALUES[source], *(str(2**bits + 1) for bits in (24, 53) if 2**bits < INTEGERS[source][1])]
    fits = types.fit(types.parse(source), types.parse(target)) is not Fit.NONE
    assert fits is all(_survives(connection, value, source, target) for value in values)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("VARCHAR", "INTEGER"),
        ("VARCHAR", "JSON"),
        ("VARCHAR", "UUID"),
        ("UUID", "BLOB"),
        ("BLOB", "VARCHAR"),
        ("DOUBLE", "FLOAT"),
        ("DOUBLE", "DECIMAL(38,10)"),
        ("DECIMAL(4,1)", "DOUBLE"),
        ("BOOLEAN", "INTEGER"),
        ("TIMESTAMP", "DATE"),
        ("TIMESTAMP", "TIMESTAMP_MS"),
        ("TIMESTAMP_NS", "TIMESTAMP"),
        ("TIMESTAMP", "TIMESTAMP_NS"),
        ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
        ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP"),
        ("ENUM('a', 'B c')", "JSON"),
        ("ENUM('a')", "ENUM('a', 'b')"),
    ],
)
def test_a_type_whose_values_might_change_does_not_fit(source: str, target: str) -> None:
    assert types.fit(types.parse(source), types.parse(target)) is Fit.NONE


@pytest.mark.parametrize(
    ("source", "target"),
    [("JSON", "VARCHAR"), ("UUID", "VARCHAR"), ("DATE", "TIMESTAMP"), ("FLOAT", "DOUBLE"), ("ENUM('a')", "VARCHAR")],
)
def test_common_widenings_fit(source: str, target: str) -> None:
    assert types.fit(types.parse(source), types.parse(target)) is Fit.WIDER


@pytest.mark.parametrize("target", [*VALUES, "INTEGER[]", "STRUCT(a INTEGER)"])
def test_a_column_of_nothing_but_null_fits_every_type(target: str) -> None:
    assert types.fit(types.parse("NULL"), types.parse(target)) is Fit.WIDER


@pytest.mark.parametrize("target", ["TIMESTAMP", "TIMESTAMP_MS"])
@pytest.mark.parametrize("value", ["5881580-07-10", "5877642-06-25 (BC)"])
def test_a_date_that_no_timestamp_can_hold_fails_instead_of_changing(
    connection: duckdb.DuckDBPyConnection, value: str, target: str
) -> None:
    with pytest.raises(duckdb.ConversionException):
        connection.execute(f"SELECT DATE {sql.literal(value)}::{target}")


DECIMALS = st.integers(1, 38).flatmap(lambda width: st.tuples(st.just(width), st.integers(0, width)))


def _edges(width: int, scale: int) -> tuple[str, ...]:
    nines = "9" * width
    largest = f"{nines[: width - scale] or '0'}.{nines[width - scale :]}".rstrip(".")
    smallest = f"0.{'0' * (scale - 1)}1" if scale else "1"
    return largest, f"-{largest}", smallest


@UNHURRIED
@given(source=DECIMALS, target=DECIMALS)
def test_a_decimal_fits_exactly_if_its_extremes_survive(
    connection: duckdb.DuckDBPyConnection, source: tuple[int, int], target: tuple[int, int]
) -> None:
    one, other = (f"DECIMAL({width},{scale})" for width, scale in (source, target))
    fits = types.fit(types.parse(one), types.parse(other)) is not Fit.NONE
    assert fits is all(_survives(connection, value, one, other) for value in _edges(*source))


@UNHURRIED
@given(source=st.sampled_from(sorted(set(INTEGERS) - {"UBIGINT"})), target=DECIMALS)
def test_an_integer_fits_into_a_decimal_exactly_if_its_extremes_survive(
    connection: duckdb.DuckDBPyConnection, source: str, target: tuple[int, int]
) -> None:
    other = f"DECIMAL({target[0]},{target[1]})"
    fits = types.fit(types.parse(source), types.parse(other)) is not Fit.NONE
    assert fits is all(_survives(connection, value, source, other) for value in VALUES[source])


NESTED = [
    ("[1, NULL]", "INTEGER[]", "BIGINT[]", Fit.WIDER, [1, None]),
    ("[[1], []]", "INTEGER[][]", "BIGINT[][]", Fit.WIDER, [[1], []]),
    ("[1, 2]", "INTEGER[2]", "BIGINT[]", Fit.WIDER, [1, 2]),
    ("[1, 2]", "INTEGER[2]", "INTEGER[]", Fit.WIDER, [1, 2]),
    ("MAP {1: 2}", "MAP(INTEGER, SMALLINT)", "MAP(BIGINT, SMALLINT)", Fit.WIDER, {1: 2}),
    ("{'a': 1}", "STRUCT(a INTEGER)", "STRUCT(A INTEGER)", Fit.EXACT, {"A": 1}),
    ("{'a': 1}", "STRUCT(a INTEGER)", "STRUCT(a BIGINT)", Fit.WIDER, {"a": 1}),
    ("{'a': 1}", "STRUCT(a INTEGER)", "STRUCT(b VARCHAR, a INTEGER)", Fit.WIDER, {"a": 1, "b": None}),
    ("{'a': 1, 'b': 2}", "STRUCT(a INTEGER, b INTEGER)", "STRUCT(b INTEGER, a INTEGER)", Fit.WIDER, {"a": 1, "b": 2}),
    ("[{'a': {'b': 1}}]", "STRUCT(a STRUCT(b INTEGER))[]", "STRUCT(a STRUCT(c DATE, b DOUBLE))[]", Fit.WIDER,
     [{"a": {"b": 1.0, "c": None}}]),
    ("MAP {'k': {'a': 1}}", "MAP(VARCHAR, STRUCT(a INTEGER))", "MAP(VARCHAR, STRUCT(z INTEGER, a BIGINT))", Fit.WIDER,
     {"k": {"a": 1, "z": None}}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "source", "target", "fit", "there"), NESTED)
def test_a_nested_value_goes_over_by_the_names_of_its_fields(
    connection: duckdb.DuckDBPyConnection, value: str, source: str, target: str, fit: Fit, there: object
) -> None:
    assert types.fit(types.parse(source), types.parse(target)) is fit
    row = connection.execute(f"SELECT CAST(CAST({value} AS {source}) AS {target})").fetchone()
    assert row == (there,)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("BIGINT[]", "INTEGER[]"),
        ("INTEGER[]", "INTEGER[2]"),
        ("INTEGER[]", "INTEGER"),
        ("INTEGER", "INTEGER[]"),
        ("STRUCT(a INTEGER, b INTEGER)", "STRUCT(a INTEGER)"),
        ("STRUCT(a INTEGER)", "STRUCT(b INTEGER)"),
        ("STRUCT(a BIGINT)", "STRUCT(a INTEGER)"),
        ("STRUCT(a BIGINT)[]", "STRUCT(a INTEGER, b INTEGER)[]"),
        ("MAP(VARCHAR, BIGINT)", "MAP(VARCHAR, INTEGER)"),
        ("MAP(BIGINT, VARCHAR)", "MAP(INTEGER, VARCHAR)"),
        ("MAP(VARCHAR, INTEGER)", "STRUCT(a INTEGER)"),
        ("STRUCT(a INTEGER)", "JSON"),
    ],
)
def test_a_nested_type_that_would_lose_something_does_not_fit(source: str, target: str) -> None:
    assert types.fit(types.parse(source), types.parse(target)) is Fit.NONE


@pytest.mark.parametrize("kind", DELIVERABLE_SCALARS)
def test_every_value_of_a_deliverable_type_survives_parquet(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path, kind: str
) -> None:
    types.require_deliverable(Column(name="c", type=kind))
    path = sql.literal(str(tmp_path / "a.parquet"))
    values = ", ".join(f"({at}, CAST({sql.literal(value)} AS {kind}))" for at, value in enumerate(VALUES[kind]))
    connection.execute(f"COPY (SELECT * FROM (VALUES {values}, (-1, NULL)) t(i, c)) TO {path} (FORMAT parquet)")
    back = connection.execute(f"SELECT CAST(CAST(c AS {kind}) AS VARCHAR) FROM {path} ORDER BY i").fetchall()
    before = connection.execute(f"SELECT CAST(c AS VARCHAR) FROM (VALUES {values}) t(i, c) ORDER BY i").fetchall()
    assert back == [(None,), *before]


@pytest.mark.parametrize(
    ("kind", "culprit", "reason"),
    [
        ("TIME_NS", "TIME_NS", "cannot write it"),
        ("BIT", "BIT", "no such type"),
        ("ENUM('a')", "ENUM('a')", "no such type"),
        ("UNION(a INTEGER)", "UNION(a INTEGER)", "no such type"),
        ("INTEGER[3]", "INTEGER[3]", "no such type"),
        ("VARIANT[]", "VARIANT", "a top-level column"),
        ("STRUCT(a INTEGER, b STRUCT(c GEOMETRY[]))", "GEOMETRY", "a top-level column"),
        ("MAP(VARCHAR, BIT)", "BIT", "no such type"),
    ],
)
def test_types_that_would_not_survive_delivery_are_refused_with_the_reason(
    kind: str, culprit: str, reason: str
) -> None:
    with pytest.raises(TypeConflictError) as raised:
        types.require_deliverable(Column(name="amount", type=kind))
    assert "'amount'" in raised.value.message
    assert f"{culprit} cannot be delivered, because" in raised.value.message
    assert reason in raised.value.message.partition("because")[2]
    assert raised.value.hint
    assert raised.value.facts == {"column": "amount"}


@pytest.mark.parametrize(
    ("kind", "is_inserted"),
    [
        ("INTEGER", False),
        ("TIMESTAMP_S", False),
        ("STRUCT(a INTEGER, b VARCHAR[])", False),
        ("HUGEINT", True),
        ("VARIANT", True),
        ("GEOMETRY", True),
        ("STRUCT(a INTEGER, b MAP(VARCHAR, INTERVAL[]))", True),
    ],
)
def test_a_column_says_why_its_values_have_to_be_inserted(kind: str, is_inserted: bool) -> None:
    reason = types.insert_reason(Column(name="amount", type=kind))
    expected = f"column 'amount' is {kind}, which registered files cannot carry"
    assert reason == (expected if is_inserted else None)


def test_most_types_need_no_condition_on_their_values() -> None:
    for kind in ("INTEGER", "VARIANT", "GEOMETRY", "STRUCT(a DOUBLE[], b MAP(DATE, TIME))"):
        assert types.kept(Column(name="c", type=kind)) is None


@pytest.mark.parametrize("kind", ["INTEGER[]", "STRUCT(a INTEGER, b VARCHAR[])", "MAP(VARCHAR, STRUCT(a DATE))"])
def test_nested_types_of_deliverable_ones_are_deliverable(kind: str) -> None:
    types.require_deliverable(Column(name="c", type=kind))


@pytest.mark.parametrize("text", ["", "INTEGERS", "DECIMAL(39,0)", "STRUCT(a", "INTEGER; DROP TABLE t"])
def test_a_text_that_is_not_a_type_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a type"):
        types.parse(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("int4", "INTEGER"),
        ("text", "VARCHAR"),
        ("numeric(10, 2)", "DECIMAL(10,2)"),
        ("timestamptz", "TIMESTAMP WITH TIME ZONE"),
        ('struct("a" int, "b c" text)', 'STRUCT(a INTEGER, "b c" VARCHAR)'),
    ],
)
def test_equal_types_have_one_spelling(text: str, normal: str) -> None:
    assert types.normal(text) == normal
    assert types.normal(normal) == normal


@pytest.mark.parametrize("one", VALUES)
def test_the_common_type_of_two_types_holds_every_value_of_both(
    connection: duckdb.DuckDBPyConnection, one: str
) -> None:
    for other in VALUES:
        found = types.common(one, other)
        assert found == types.common(other, one)
        if found is not None:
            assert types.fit(types.parse(one), types.parse(found)) is not Fit.NONE
            assert [value for value in VALUES[one] if not _survives(connection, value, one, found)] == []


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("INTEGER", "BIGINT", "BIGINT"),
        ("TINYINT", "UTINYINT", "SMALLINT"),
        ("SMALLINT", "USMALLINT", "INTEGER"),
        ("INTEGER", "UINTEGER", "BIGINT"),
        ("INTEGER", "FLOAT", "DOUBLE"),
        ("BIGINT", "UBIGINT", None),
        ("BIGINT", "DOUBLE", None),
        ("DECIMAL(4,1)", "DECIMAL(9,9)", "DECIMAL(12,9)"),
        ("DECIMAL(4,1)", "INTEGER", "DECIMAL(11,1)"),
        ("DECIMAL(38,0)", "DECIMAL(38,10)", None),
        ("DECIMAL(4,1)", "DOUBLE", None),
        ("UUID", "ENUM('a')", "VARCHAR"),
        ("JSON", "VARCHAR", "VARCHAR"),
        ("VARCHAR", "INTEGER", None),
        ("DATE", "TIMESTAMP", "TIMESTAMP"),
        ("TIMESTAMP", "TIMESTAMP_NS", None),
        ("INTEGER[]", "BIGINT[]", "BIGINT[]"),
        ("TINYINT[2]", "UTINYINT[]", "SMALLINT[]"),
        ("STRUCT(a INTEGER)", "STRUCT(b VARCHAR)", "STRUCT(a INTEGER, b VARCHAR)"),
        ("STRUCT(a INTEGER)", "STRUCT(A BIGINT, b DATE)", "STRUCT(A BIGINT, b DATE)"),
        ("STRUCT(a INTEGER)[]", "STRUCT(a UINTEGER, b DATE)[]", "STRUCT(a BIGINT, b DATE)[]"),
        ("STRUCT(a INTEGER)", "STRUCT(a VARCHAR)", None),
        ("MAP(VARCHAR, TINYINT)", "MAP(VARCHAR, UTINYINT)", "MAP(VARCHAR, SMALLINT)"),
        ("MAP(VARCHAR, INTEGER)", "MAP(INTEGER, INTEGER)", None),
        ("STRUCT(a INTEGER)", "INTEGER[]", None),
        ("STRUCT(a INTEGER)", "VARCHAR", None),
        ('STRUCT("a b" INTEGER)', 'STRUCT("c, d" DATE)', 'STRUCT("a b" INTEGER, "c, d" DATE)'),
    ],
)
def test_the_narrowest_type_that_holds_both_is_found(one: str, other: str, common: str | None) -> None:
    assert types.common(one, other) == common


def _nested(kind: str, depth: int) -> str:
    text = "INTEGER"
    for _ in range(depth):
        text = {"list": f"{text}[]", "map": f"MAP(VARCHAR, {text})", "struct": f"STRUCT(a {text})"}[kind]
    return text


@pytest.mark.parametrize(
    "kinds",
    [
        [_nested("list", 16)],
        [_nested("map", 16)],
        [_nested("struct", 50)],
        ["INTEGER"] * 2_000,
        [f"STRUCT({', '.join(f'f{n} INTEGER' for n in range(1_000))})[]"] * 2,
    ],
)
def test_columns_within_the_bounds_are_taken(kinds: list[str]) -> None:
    types.require_bounded([Column(name=f"c{at}", type=kind) for at, kind in enumerate(kinds)])


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (["INTEGER", _nested("list", 17)], "'c1' nests lists or maps 17 deep, and the limit is 16"),
        ([_nested("map", 17)], "nests lists or maps 17 deep"),
        ([f"{_nested('list', 16)}[3]"], "nests lists or maps 17 deep"),
        ([_nested("struct", 51)], "nested 51 deep, and the limit is 50"),
        (["INTEGER"] * 2_001, "2,001 columns"),
        ([f"STRUCT({', '.join(f'f{n} INTEGER' for n in range(1_001))})"] * 2, "2,002 columns"),
    ],
)
def test_columns_that_are_too_many_or_too_deep_are_refused_with_the_bound(kinds: list[str], reason: str) -> None:
    with pytest.raises(TypeConflictError, match=reason):
        types.require_bounded([Column(name=f"c{at}", type=kind) for at, kind in enumerate(kinds)])
