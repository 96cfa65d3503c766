"""Parses a client's statement: DuckDB's own tree of a query, sqlglot's tree of everything else.

DuckDB serialises the tree of a query and of nothing else. A PIVOT without values is not one query to it either, but
with values it is; its tree is taken with values put in. For the rest there is sqlglot, whose opinion is not DuckDB's.
So a text that DuckDB could read as the name of a file has to stand where DuckDB's parser takes any expression, and
therefore no table: that does not depend on anybody's list of places where tables stand.
"""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import duckdb
import sqlglot
from sqlglot import TokenType, exp

from catchment.errors import InputError, NotAllowedError
from catchment.lake import extensions
from catchment.server.sql_tokens import Token, read

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
_EXPLAIN_OPTIONS = frozenset({"analyze", "format"})
_MACRO_WORDS = frozenset({"macro", "function"})
_MADE_WORDS = frozenset({"table", "view", "schema"})
_TABLE = frozenset({"table"})
# sqlglot does not know that NULL takes a comment away.
_COMMENT_ENDED = re.compile(r"(\A\s*COMMENT\s.*\sIS\s+)NULL(?=\s*;?\s*\Z)", re.I | re.S)
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
    tree = duckdb_tree(text)
    if tree is None and any(_is_word(token, _PIVOTS) for token in tokens):
        tree = duckdb_tree(_with_pivot_values(text, tokens))
    return tree


def duckdb_tree(text: str) -> Any:
    """The tree of the very text, in which places are those of the text; None if DuckDB gives none."""
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


@dataclass(frozen=True, slots=True)
class Called:
    """A function that a query calls: its name, what it is qualified with, and its arguments, None if not constant."""

    name: str
    where: tuple[str, ...]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """What a query names: tables in their parts, table functions, other functions, and what it shows by SHOW."""

    tables: tuple[tuple[str, ...], ...]
    table_functions: tuple[Called, ...]
    functions: tuple[Called, ...]
    shows: tuple[tuple[str, ...], ...]


def named(tree: Any) -> Named:
    """What the tree of a query names."""
    tables, shows, inner = [], [], []
    called: list[dict[str, Any]] = []
    for node in nodes(tree):
        match node.get("type"):
            case "BASE_TABLE":
                tables.append(table_parts(node))
            case "TABLE_FUNCTION":
                inner.append(node["function"])
            case "FUNCTION" if "function_name" in node:
                called.append(node)
            case "SHOW_REF" if node.get("query") is None:
                shows.append(show_parts(node))
    of_tables = {id(node) for node in inner}
    outer = [called_of(node) for node in called if id(node) not in of_tables]
    return Named(tuple(tables), tuple(called_of(node) for node in inner), tuple(outer), tuple(shows))


def table_parts(node: dict[str, Any]) -> tuple[str, ...]:
    """The name of a table in a tree."""
    return tuple(filter(None, (node["catalog_name"], node["schema_name"], node["table_name"]))) or ("",)


def show_parts(node: dict[str, Any]) -> tuple[str, ...]:
    """What a SHOW is about: the catalog and schema that it is FROM, or its word in quotes."""
    return tuple(filter(None, (node["catalog_name"], node["schema_name"], node["table_name"])))


def called_of(node: dict[str, Any]) -> Called:
    """The function that a node of a tree calls."""
    where = tuple(str(part).casefold() for part in (node.get("catalog"), node.get("schema")) if part)
    return Called(str(node["function_name"]).casefold(), where, tuple(_constant(each) for each in node["children"]))


def _constant(node: dict[str, Any]) -> Any:
    """The value of an argument, a tuple for a list of constants; None if it is not constant."""
    if node.get("type") == "VALUE_CONSTANT":
        return node["value"].get("value")
    if node.get("type") == "FUNCTION" and node.get("function_name") == "list_value":
        values = tuple(_constant(each) for each in node["children"])
        return None if None in values else values
    return None


def name_at(tokens: tuple[Token, ...], at: int) -> tuple[str, ...]:
    """The name that begins there, in its parts; () if none does."""
    if at >= len(tokens) or not tokens[at].is_name:
        return ()
    end = at + 1
    while end + 1 < len(tokens) and tokens[end].text == "." and tokens[end + 1].is_name:
        end += 2
    return tuple(token.text for token in tokens[at:end:2])


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro that is made: its name, its parameters, and where the query or expression begins that it stands for."""

    name: tuple[str, ...]
    parameters: tuple[Token, ...]
    begin: int
    is_table: bool

    @property
    def has_plain_parameters(self) -> bool:
        """Whether nothing is called to have the parameters' defaults."""
        return not any(token.text == "(" for token in self.parameters)

    def query(self, text: str) -> tuple[str, tuple[Token, ...]]:
        """The query that the macro stands for, and its words."""
        body = text.encode()[self.begin :].decode()
        query = body if self.is_table else f"SELECT {body}"
        return query, read(query.encode())


def macro_of(kind: duckdb.StatementType, tokens: tuple[Token, ...]) -> Macro | None:
    """The macro that a statement makes; None if it makes none."""
    at = next((i for i, token in enumerate(tokens[:8]) if _is_word(token, _MACRO_WORDS)), None)
    if kind != duckdb.StatementType.CREATE or at is None or any(_is_word(t, _MADE_WORDS) for t in tokens[:at]):
        return None
    at += 4 if [token.text for token in tokens[at + 1 : at + 4]] == ["if", "not", "exists"] else 1
    name = name_at(tokens, at)
    after = at + 2 * len(name) - 1
    end = next((i for i, token in enumerate(tokens) if i > after and token.text == "as" and not token.is_quoted), None)
    if not name or end is None or tokens[after].text != "(":
        raise InputError("The macro cannot be understood.")
    is_table = _is_word(tokens[min(end + 1, len(tokens) - 1)], _TABLE)
    begin = end + 1 + is_table
    if begin >= len(tokens):
        raise InputError("The macro stands for nothing.")
    return Macro(name, tokens[after + 1 : end], tokens[begin].start, is_table)


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
    body = _COMMENT_ENDED.sub(r"\1''", explained(text, read(text.encode())).text)
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


@dataclass(frozen=True, slots=True)
class Explained:
    """What an EXPLAIN is about, in the place where it stands, and whether it is run."""

    text: str
    tokens: tuple[Token, ...]
    is_run: bool

    @property
    def kind(self) -> duckdb.StatementType:
        """What kind of statement it is."""
        return kind_of(self.text)


def explained(text: str, tokens: tuple[Token, ...]) -> Explained:
    """The statement that an EXPLAIN is about, or the statement itself if it is not an EXPLAIN."""
    if not tokens or tokens[0].text != "explain":
        return Explained(text, tokens, is_run=True)
    at = 1
    if len(tokens) > 2 and tokens[1].text == "(" and _is_word(tokens[2], _EXPLAIN_OPTIONS):
        at = next((i for i, token in enumerate(tokens) if token.text == ")"), len(tokens) - 1) + 1
    elif len(tokens) > 1 and _is_word(tokens[1], _EXPLAIN_OPTIONS):
        at = 2
    if at >= len(tokens):
        raise InputError("EXPLAIN is about a statement.")
    start = tokens[at].start
    is_run = any(token.text == "analyze" for token in tokens[1:at])
    return Explained(" " * start + text.encode()[start:].decode(), tokens[at:], is_run=is_run)


def kind_of(text: str) -> duckdb.StatementType:
    """What kind of statement a text is to DuckDB's parser."""
    with extensions.scratch() as parser:
        return parser.extract_statements(text)[-1].type
