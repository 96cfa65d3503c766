"""Parses a client's statement: DuckDB's own tree of a query, sqlglot's tree of everything else.

DuckDB serialises the tree of a query and of nothing else. A PIVOT without values is not one query to it either, but
with values it is; its tree is taken with values put in. For the rest there is sqlglot, whose opinion is not DuckDB's.
So a text that DuckDB could read as the name of a file has to stand where DuckDB's parser takes any expression, and
therefore no table: that does not depend on anybody's list of places where tables stand.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import duckdb
import sqlglot
from sqlglot import TokenType, exp

from catchment.errors import InputError, NotAllowedError
from catchment.lake import extensions
from catchment.server.tokens import Token, read

# It would tell the log of every statement that it cannot parse, and quote it.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

# What DuckDB reads as a file if no table has the name.
_FILE = re.compile(r"\.(parquet|csv|tsv|json|jsonl|ndjson|db|duckdb|ddb|sqlite|arrow|txt|xlsx)\b", re.I)
# No table's name follows these: what does is a constant. A text after any other word or sign is tried.
_BEFORE_CONSTANTS = frozenset(
    {
        *(
            "date",
            "time",
            "timestamp",
            "timestamptz",
            "timestamp_s",
            "timestamp_ms",
            "timestamp_ns",
            "interval",
            "zone",
        ),
        *("is", "like", "ilike", "glob", "escape", "and", "or", "not", "between", "when", "then", "else", "to"),
        *("select", "default", "by", "=", "<", ">", "!", "|", "+", "-", "*", "/", "%", "{", "["),
    }
)
# Any expression, and never a table.
_EXPRESSION = b" (NULL) "
_PIVOTS = frozenset({"pivot", "pivot_wider"})
# All are reserved: none is a column that a PIVOT is on.
_PIVOT_ENDS = frozenset({"using", "group", "order", "limit", "offset", "union", "intersect", "except"})
_QUOTED_KINDS = frozenset(
    {
        *(TokenType.STRING, TokenType.RAW_STRING, TokenType.HEREDOC_STRING, TokenType.NATIONAL_STRING),
        *(TokenType.UNICODE_STRING, TokenType.BYTE_STRING, TokenType.HEX_STRING, TokenType.BIT_STRING),
    }
)


def query_tree(text: str, tokens: tuple[Token, ...]) -> Any:
    """The tree of a query in JSON as DuckDB reads it, or None if it gives none."""
    tree = _duckdb_tree(text)
    if tree is None and any(_is_word(token, _PIVOTS) for token in tokens):
        tree = _duckdb_tree(_with_pivot_values(text, tokens))
    return tree


def _duckdb_tree(text: str) -> Any:
    with extensions.scratch() as parser:
        row = parser.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
    try:
        tree = json.loads(row[0]) if row else {"error": True}
    except RecursionError:
        raise InputError("The statement is nested too deeply.") from None
    return None if tree["error"] else tree


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """The objects in a tree of JSON."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def _with_pivot_values(text: str, tokens: tuple[Token, ...]) -> str:
    """The query with `(x) IN (NULL)` for every `x` that a PIVOT is on: all that it names stays in it."""
    source, signs = text.encode(), []
    for begin, end in _pivot_columns(tokens):
        after = tokens[end].start if end < len(tokens) else len(source)
        # On a line of its own: a comment may come before it.
        signs += [(tokens[begin].start, b"("), (after, b"\n) IN (NULL) ")]
    for at, sign in sorted(signs, reverse=True):
        source = source[:at] + sign + source[at:]
    return source.decode()


def _pivot_columns(tokens: tuple[Token, ...]) -> Iterator[tuple[int, int]]:
    """Where each column begins and ends that a PIVOT is on."""
    # By bracket: whether a PIVOT is in it, and where the columns begin after its last ON.
    frames: list[tuple[bool, list[int]]] = [(False, [])]
    for at, token in enumerate(tokens):
        is_pivot, begins = frames[-1]
        if _is_word(token, _PIVOTS):
            frames[-1] = (True, [])
        elif token.text == "(":
            frames.append((False, []))
        elif is_pivot and token.text == "on" and not token.is_quoted:
            # An earlier one was that of a join.
            begins[:] = [at + 1]
        elif begins and token.text == ",":
            begins.append(at + 1)
        elif token.text == ")" or (begins and _is_word(token, _PIVOT_ENDS)):
            yield from _spans(begins, at)
            frames[-1] = (False, [])
            if token.text == ")" and len(frames) > 1:
                frames.pop()
    for _, begins in frames:
        yield from _spans(begins, len(tokens))


def _spans(begins: list[int], end: int) -> Iterator[tuple[int, int]]:
    """The parts of a list whose parts begin there: a comma stands before each but the first."""
    for begin, following in pairwise([*begins, end + 1]):
        if begin < following - 1:
            yield begin, following - 1


def _is_word(token: Token, words: frozenset[str]) -> bool:
    return token.is_name and not token.is_quoted and token.text in words


def refuse_texts_as_tables(text: str, tokens: tuple[Token, ...]) -> None:
    """Refuse a statement in which a text, or a name like a file's, stands where a table could.

    DuckDB's parser tells: the statement has to be one with any expression in the place of each.
    """
    source, ends = text.encode(), [*(token.start for token in tokens[1:]), len(text.encode())]
    out, last = b"", 0
    for begin, end in _unproven(tokens):
        out += source[last : tokens[begin].start] + _EXPRESSION
        last = ends[end - 1]
    if not last:
        return
    try:
        with extensions.scratch() as parser:
            parser.extract_statements((out + source[last:]).decode())
    except duckdb.Error:
        raise NotAllowedError(
            "A text stands where a table could, and would be read as a file.",
            hint="Clients read tables only. Bind texts in other places as parameters.",
        ) from None


def _unproven(tokens: tuple[Token, ...]) -> Iterator[tuple[int, int]]:
    """Where texts begin and end that are not sure to be constants, and names like those of files."""
    at = 0
    while at < len(tokens):
        token, end = tokens[at], at + 1
        if token.is_string:
            before, after = tokens[at - 1] if at else None, tokens[end].text if end < len(tokens) else ""
            is_constant = before is not None and not before.is_quoted and before.text in _BEFORE_CONSTANTS
            # Before a colon it is a key, or an alias.
            if not is_constant and after != ":":
                yield at, end
        elif token.is_name:
            while end + 1 < len(tokens) and tokens[end].text == "." and tokens[end + 1].is_name:
                end += 2
            if _FILE.search(".".join(each.text for each in tokens[at:end:2])):
                yield at, end
        at = end


def function_name(function: exp.Func) -> str:
    """The name that a function is called by."""
    return (function.name if isinstance(function, exp.Anonymous) else function.sql_name()).casefold()


def parse(text: str) -> list[exp.Expr]:
    """The statement as sqlglot reads it; InputError where it reads nothing in it."""
    body = explained(text)
    dialect = sqlglot.Dialect.get_or_raise("duckdb")
    try:
        words = dialect.tokenize(body)
        _require_agreement(body, words)
        trees = [tree for tree in dialect.parser().parse(words, body) if tree is not None]
    except (sqlglot.ParseError, sqlglot.errors.TokenError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise InputError(f"The statement cannot be understood: {first}") from None
    if not trees or any(isinstance(tree, exp.Command) for tree in trees):
        raise NotAllowedError("The statement is of a kind that clients of a server cannot use.")
    return trees


def _require_agreement(text: str, words: list[sqlglot.Token]) -> None:
    """See that sqlglot's scanner sees the words and texts that DuckDB's does, each where it begins."""
    source = text.encode()
    places = range(len(source) + 1) if text.isascii() else _places(text)
    seen = bytearray(len(text) + 1)
    for word in words:
        seen[word.start : word.end + 1] = b"\1" * (word.end + 1 - word.start)
    quoted = {word.start for word in words if word.token_type in _QUOTED_KINDS or text[word.start] == '"'}
    tokens = read(source)
    if quoted != {places[t.start] for t in tokens if t.is_string or t.is_quoted} or any(
        not seen[places[t.start]] for t in tokens if t.is_name
    ):
        raise InputError("The statement cannot be understood: its texts and comments are not clear.")


def _places(text: str) -> list[int]:
    """For each byte, the letter that it belongs to."""
    return [at for at, letter in enumerate(f"{text} ") for _ in letter.encode()]


_EXPLAIN: Callable[[str], re.Match[str] | None] = re.compile(r"\s*EXPLAIN(\s+ANALYZE)?\s", re.I).match


def explained(text: str) -> str:
    """What an EXPLAIN is about, where it stands: sqlglot does not look into it."""
    found = _EXPLAIN(text)
    return " " * found.end() + text[found.end() :] if found else text
