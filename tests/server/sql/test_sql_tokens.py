"""Tokens of a statement are DuckDB's, each with its position in bytes."""

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import InputError
from catchment.server.sql import sql_tokens


def words(text: str) -> list[str]:
    return [token.text for token in sql_tokens.read(text.encode())]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a FROM T", ["select", "a", "from", "t"]),
        ('SELECT "A b", "x""y"', ["select", "a b", ",", 'x"y']),
        ("f /* ( */ (1) -- (", ["f", "(", "1", ")"]),
        ("/* /* */ x */ a", ["a"]),
        ("'x' E'\\'' $$ ' $$ $q$ $$ $q$ b", ["'", "e", "$", "$", "b"]),
        ('";" "(" "." "é"', ['";"', '"("', '"."', "é"]),
        ("ÜBER übung", ["über", "übung"]),
    ],
)
def test_tokens_are_read_as_duckdb_reads_them(text: str, expected: list[str]) -> None:
    assert [word.casefold() for word in words(text)] == expected


def test_positions_count_bytes() -> None:
    source = "SELECT 'é', \"ß\", 日本 FROM t".encode()
    found = sql_tokens.read(source)
    assert [source[token.start :].decode()[:2] for token in found if token.is_name] == ["SE", '"ß', "日本", "FR", "t"]
    assert [token.is_string for token in found].count(True) == 1
    assert [token.is_quoted for token in found].count(True) == 1


def test_a_name_before_a_bracket_is_a_call() -> None:
    found = sql_tokens.read(b'f(1), "G" /* x */ (2), h, 3 (4), x.i()')
    assert list(sql_tokens.calls(found)) == ["f", "g", "i"]


@pytest.mark.parametrize("space", ["\u00a0", "\u2003", "\u3000", "\u200b", "\ufeff"])
def test_a_space_that_only_the_parser_takes_for_one_is_refused(space: str) -> None:
    for text in (f"SELECT f{space}(1)", f"SELECT{space}1", f"SELECT 1 {space}", f'SELECT "a"{space}FROM t'):
        with pytest.raises(InputError, match="space"):
            sql_tokens.read(text.encode())


@pytest.mark.parametrize(
    "text", ["SELECT '\u00a0'", 'SELECT "a\u00a0b"', "SELECT 1 -- \u00a0", "/* \u00a0 */ SELECT 1"]
)
def test_any_kind_of_space_is_accepted_inside_of_texts(text: str) -> None:
    assert sql_tokens.read(text.encode())


@pytest.mark.parametrize("signs", ["+" * 4_000, "+-" * 2_000, "<" * 100 + "+" * 4_000, "*/" * 50_000, "/*" * 50_000])
def test_signs_that_the_scanner_takes_long_for_are_refused(signs: str) -> None:
    with pytest.raises(InputError, match="signs"):
        sql_tokens.read(f"SELECT {signs} 1".encode())


@pytest.mark.parametrize(
    "signs", ["-- " + "-" * 500, "/" + "*" * 500 + "/", "'" + "=" * 500 + "'", "'" + "+-----" * 50 + "'"]
)
def test_comment_rulers_are_accepted(signs: str) -> None:
    assert sql_tokens.read(f"SELECT 1 {signs}".encode())


def test_more_conditions_than_the_parser_can_take_are_refused() -> None:
    most = "SELECT a" + " AND a OR a" * 10_000
    assert sql_tokens.read(most.encode())
    assert sql_tokens.read(f"{most}, '{' and ' * 100_000}'".encode())
    with pytest.raises(InputError, match="conditions"):
        sql_tokens.read(f"{most} AND a".encode())


def test_columns_that_are_named_like_conditions_do_not_count_as_such() -> None:
    columns = ", ".join(['"and"'] * 20_001)
    assert sql_tokens.read(f"SELECT {columns} FROM t".encode())


def test_pieces_of_a_text_are_replaced_and_outer_ones_take_inner_ones_along() -> None:
    assert sql_tokens.replaced(b"abcdef", [(4, 5, b"E"), (1, 1, b"-"), (1, 3, b"BC")]) == b"a-BCdEf"
    assert sql_tokens.replaced(b"abcdef", [(2, 3, b"C"), (1, 4, b"?")]) == b"a?ef"
    assert sql_tokens.replaced(b"abc", []) == b"abc"


@given(st.text(alphabet="ab ;'\"$-/*\n\\e(é", max_size=40))
def test_a_text_is_cut_into_as_many_statements_as_duckdb_sees(text: str) -> None:
    source = text.encode()
    cut = [own for own, _ in sql_tokens.statements(source, sql_tokens.read(source))]
    try:
        seen = duckdb.extract_statements(text)
    except duckdb.Error:
        return
    assert len(cut) == len(seen)
