"""Which columns a table gets and which leaves stay out: independent of the order of files."""

from dataclasses import dataclass
from itertools import permutations

import pytest

from catchment.lake.types import Column
from catchment.pipeline.legacy.survey import FileShape
from catchment.pipeline.legacy.table_columns import TableColumns, decide_columns

ITEM = "STRUCT(arn VARCHAR, kind VARCHAR)"
WIDER_ITEM = "STRUCT(arn VARCHAR, kind VARCHAR, note VARCHAR)"


def _columns(text: str) -> tuple[Column, ...]:
    """`a INTEGER | b VARCHAR`."""
    pairs = (each.strip().partition(" ") for each in text.split("|") if each.strip())
    return tuple(Column(name=name, type=kind) for name, _, kind in pairs)


def _shape(text: str, *leaves: str) -> FileShape:
    files = tuple((leaf, f"{n}.parquet") for n, leaf in enumerate(leaves or ("leaf",)))
    return FileShape(columns=_columns(text), files=files, rows=(1,) * len(files))


def _types(columns: tuple[Column, ...]) -> dict[str, str]:
    return {column.name: column.type for column in columns}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a view expects, what files have, and what comes of it."""

    expected: str
    files: str
    columns: dict[str, str]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    conflict: str | None = None


CASES = {
    "the same": Case(
        expected="a INTEGER | b VARCHAR", files="b VARCHAR | a INTEGER", columns={"a": "INTEGER", "b": "VARCHAR"}
    ),
    "names in other letters": Case(expected="Name VARCHAR", files="name VARCHAR", columns={"Name": "VARCHAR"}),
    "missing": Case(
        expected="a INTEGER | b VARCHAR", files="a INTEGER", columns={"a": "INTEGER", "b": "VARCHAR"}, missing=("b",)
    ),
    "extra": Case(
        expected="a INTEGER", files="a INTEGER | b VARCHAR[]", columns={"a": "INTEGER", "b": "VARCHAR[]"}, extra=("b",)
    ),
    "a wider number in the files": Case(expected="a INTEGER", files="a BIGINT", columns={"a": "BIGINT"}),
    "a narrower number in the files": Case(
        expected="a BIGINT", files="a INTEGER", columns={"a": "BIGINT"}, widened=("a (INTEGER to BIGINT)",)
    ),
    "a number that fits neither way": Case(
        expected="a INTEGER", files="a UINTEGER", columns={"a": "BIGINT"}, widened=("a (UINTEGER to BIGINT)",)
    ),
    "a list of structs with one field more": Case(
        expected=f"a {ITEM}[]", files=f"a {WIDER_ITEM}[]", columns={"a": f"{WIDER_ITEM}[]"}
    ),
    "a list of structs with one field less": Case(
        expected=f"a {WIDER_ITEM}[]",
        files=f"a {ITEM}[]",
        columns={"a": f"{WIDER_ITEM}[]"},
        widened=(f"a ({ITEM}[] to {WIDER_ITEM}[])",),
    ),
    "structs that each have a field of their own": Case(
        expected="a STRUCT(x INTEGER, y INTEGER)",
        files="a STRUCT(x BIGINT, z VARCHAR)",
        columns={"a": "STRUCT(x BIGINT, y INTEGER, z VARCHAR)"},
        widened=("a (STRUCT(x BIGINT, z VARCHAR) to STRUCT(x BIGINT, y INTEGER, z VARCHAR))",),
    ),
    "a text that is a struct": Case(
        expected="a VARCHAR",
        files="a STRUCT(code INTEGER)",
        columns={"a": "VARCHAR"},
        conflict="column 'a' is STRUCT(code INTEGER), which does not go into VARCHAR unchanged",
    ),
    "a conflict deep inside": Case(
        expected="a STRUCT(b STRUCT(c VARCHAR)[])[]",
        files="a STRUCT(b STRUCT(c DATE)[])[]",
        columns={"a": "STRUCT(b STRUCT(c VARCHAR)[])[]"},
        conflict="column 'a' is STRUCT(b STRUCT(c DATE)[])[], which does not go into",
    ),
    "a type that no lake can hold": Case(
        expected="a INTEGER",
        files="a INTEGER | b BIT",
        columns={"a": "INTEGER"},
        extra=("b",),
        conflict="Column 'b' has type BIT",
    ),
    "a key that a file has as well": Case(
        expected="a INTEGER", files="a INTEGER | day VARCHAR", columns={"a": "INTEGER"}
    ),
}


def _settle(case: Case, *shapes: FileShape) -> TableColumns:
    return decide_columns(_columns(case.expected), shapes, keys=("day",), table=None)


@pytest.mark.parametrize("name", CASES)
def test_one_set_of_files_against_what_the_view_expects(name: str) -> None:
    case = CASES[name]
    settled = _settle(case, _shape(case.files, "one", "other"))
    assert {key: kind for key, kind in _types(settled.columns).items() if key != "day"} == case.columns
    told = [(found.missing, found.extra, found.widened) for found in settled.findings]
    wanted = (case.missing, case.extra, case.widened)
    assert told == ([wanted] if any(wanted) or case.conflict else [])
    if case.conflict is None:
        assert settled.conflicts() == {}
    else:
        assert set(settled.conflicts()) == {"one", "other"}
        assert all(case.conflict in sentence for sentence in settled.conflicts().values())


@pytest.mark.parametrize("name", CASES)
def test_files_that_are_as_expected_go_in_whatever_the_others_are(name: str) -> None:
    case = CASES[name]
    settled = _settle(case, _shape(case.expected, "good"), _shape(case.files, "odd"))
    assert "good" not in settled.conflicts()
    assert ("odd" in settled.conflicts()) is (case.conflict is not None)


MIXTURES = {
    "numbers": ("a INTEGER", "a BIGINT", "a SMALLINT"),
    "numbers with and without sign": ("a TINYINT", "a UTINYINT", "a FLOAT"),
    "whole numbers and real ones": ("a FLOAT", "a INTEGER", "a DOUBLE"),
    "fields": ("a STRUCT(x INTEGER)", "a STRUCT(y INTEGER)", "a STRUCT(x BIGINT, z VARCHAR)"),
    "a tie that cannot both go in": ("a VARCHAR", "a STRUCT(x INTEGER)", "b INTEGER"),
    "extra columns": ("a INTEGER | b INTEGER", "a INTEGER | c VARCHAR", "a INTEGER | d DATE"),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_the_order_in_which_files_are_found_does_not_matter(name: str) -> None:
    shapes = [_shape(text, f"leaf {text}") for text in MIXTURES[name]]
    ways = [decide_columns((), order, keys=("day",), table=None) for order in permutations(shapes)]
    assert len({tuple(sorted(_types(each.columns).items())) for each in ways}) == 1
    assert len({tuple(sorted(each.conflicts().items())) for each in ways}) == 1


def test_of_two_incompatible_shapes_the_one_with_more_files_is_imported() -> None:
    few, many = _shape("a VARCHAR", "few"), _shape("a STRUCT(x INTEGER)", "one", "two")
    for order in ((few, many), (many, few)):
        settled = decide_columns((), order, keys=(), table=None)
        assert _types(settled.columns) == {"a": "STRUCT(x INTEGER)"}
        assert set(settled.conflicts()) == {"few"}


def test_a_leaf_with_one_conflicting_file_stays_out_whole() -> None:
    settled = decide_columns(
        _columns("a VARCHAR"), [_shape("a VARCHAR", "leaf"), _shape("a DATE", "leaf", "other")], keys=(), table=None
    )
    assert set(settled.conflicts()) == {"leaf", "other"}


def test_a_conflicting_file_adds_no_column() -> None:
    shapes = [_shape("a VARCHAR", "good"), _shape("a DATE | more INTEGER", "bad")]
    assert _types(decide_columns(_columns("a VARCHAR"), shapes, keys=(), table=None).columns) == {"a": "VARCHAR"}


def test_an_existing_table_keeps_its_columns_and_gets_what_it_lacks() -> None:
    table = _columns("b BIGINT | own DATE | day DATE")
    settled = decide_columns(
        _columns("a VARCHAR | b INTEGER"), [_shape("a VARCHAR | b SMALLINT | c TIME")], keys=("day",), table=table
    )
    assert _types(settled.columns) == {"b": "BIGINT", "own": "DATE", "day": "DATE", "a": "VARCHAR", "c": "TIME"}
    assert [column.name for column in settled.added] == ["a", "c"]
    (found,) = settled.findings
    assert found.missing == ("own",)
    assert found.widened == ("b (SMALLINT to BIGINT)",)


def test_an_existing_table_is_not_widened_and_the_leaf_stays_out() -> None:
    settled = decide_columns(
        (), [_shape("b BIGINT", "wide"), _shape("b INTEGER", "same")], keys=(), table=_columns("b INTEGER")
    )
    assert _types(settled.columns) == {"b": "INTEGER"}
    assert settled.conflicts() == {"wide": "column 'b' is BIGINT, which does not go into INTEGER unchanged"}


def test_a_column_with_a_default_is_not_missing() -> None:
    expected = (Column(name="tp_table", type="VARCHAR", default="'log'"), *_columns("a INTEGER"))
    settled = decide_columns(expected, [_shape("a INTEGER")], keys=(), table=None)
    assert settled.findings == ()
    assert settled.columns[0].default == "'log'"


def test_a_column_that_must_not_be_null_and_is_missing_keeps_the_leaf_out() -> None:
    table = (*_columns("a INTEGER"), Column(name="must", type="DATE", nullable=False))
    settled = decide_columns(
        (), [_shape("a INTEGER", "lacks"), _shape("a INTEGER | must DATE", "has")], keys=(), table=table
    )
    assert settled.conflicts() == {"lacks": "column 'must' is missing, must not be NULL and has no default"}
