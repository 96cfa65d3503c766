"""Parses a client's statement: by DuckDB's own tree for a query, by sqlglot's tree for all others.

DuckDB serializes only the tree of a query. A PIVOT without values is not a single query to DuckDB;
with values it is, so its tree is taken with values inserted. All other statements are parsed with
sqlglot, which may disagree with DuckDB. So a string that DuckDB could read as the name of a file is
allowed only where DuckDB's parser accepts any expression, and therefore no table. That does not
depend on a list of the places where tables can occur.
"""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import duckdb
import sqlglot
from duckdb import StatementType
from sqlglot import TokenType, exp

from catchment.errors import InputError, NotAllowedError
from catchment.foundation.settings import MIB
from catchment.server.engine.parsing import Parser
from catchment.server.sql.sql_tokens import Token, read, replaced

# sqlglot would log every statement that it cannot parse, including its text.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

# Names that DuckDB reads as a file if no table has them.
_FILE = re.compile(r"\.(parquet|csv|tsv|json|jsonl|ndjson|db|duckdb|ddb|sqlite|arrow|txt|xlsx)\b", re.I)
# A constant, never a table's name, follows these. A string after any other token is tested.
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
# Trees are built and read by this process, at the cost of its other threads, and nothing can stop
# that: 16 MiB of DuckDB's take 0.3 s and 80 MB, so many tokens 1.4 s in sqlglot.
_TREE_CHARACTERS_MAX = 16 * MIB
_TREE_TOKENS_MAX = 100_000
_TOO_LARGE = "The statement is too large to be checked"
_SMALLER = "Bind values as parameters, or ingest them into a temporary table and join it."
# An expression that is never a table.
_EXPRESSION = b" (NULL) "
_EXPLAIN_OPTIONS = frozenset({"analyze", "format"})
_MACRO_WORDS = frozenset({"macro", "function"})
_CREATED_WORDS = frozenset({"table", "view", "schema"})
_TABLE = frozenset({"table"})
# sqlglot does not know that NULL removes a comment.
_COMMENT_REMOVED = re.compile(r"(\A\s*COMMENT\s.*\sIS\s+)NULL(?=\s*;?\s*\Z)", re.I | re.S)
_PIVOTS = frozenset({"pivot", "pivot_wider"})
# All of them are reserved: none can be a column of a PIVOT.
_PIVOT_ENDS = frozenset({"using", "group", "order", "limit", "offset", "union", "intersect", "except"})
_QUOTED_KINDS = frozenset(
    {
        *(TokenType.STRING, TokenType.RAW_STRING, TokenType.HEREDOC_STRING, TokenType.NATIONAL_STRING),
        *(TokenType.UNICODE_STRING, TokenType.BYTE_STRING, TokenType.HEX_STRING, TokenType.BIT_STRING),
    }
)


@dataclass(frozen=True, slots=True)
class SqlReading:
    """A statement as the SQL policy, tenant isolation and rewriting read it: text, tokens and type.

    Equal for equal statements, so that what was decided about one can be remembered.
    """

    kind: StatementType
    text: str
    tokens: tuple[Token, ...]
    parser: Parser = field(compare=False, repr=False)

    @classmethod
    def of(cls, text: str, parser: Parser, tokens: tuple[Token, ...] | None = None) -> "SqlReading":
        """Read a text, as DuckDB would run it: its last statement; duckdb.Error if it is none."""
        return cls(parser.statements(text)[-1].type, text, read(text.encode()) if tokens is None else tokens, parser)

    def explained(self) -> tuple["SqlReading", bool]:
        """Return the statement of an EXPLAIN, and whether the EXPLAIN executes it."""
        inner = explained(self.text, self.tokens)
        return SqlReading.of(inner.text, self.parser, inner.tokens), inner.is_run

    def query(self, text: str) -> "SqlReading":
        """Return the reading of a query that the statement contains."""
        return SqlReading(StatementType.SELECT, text, read(text.encode()), self.parser)


def query_tree(reading: SqlReading) -> Any:
    """Return DuckDB's tree of a query, from JSON; None if DuckDB returns none."""
    tree = duckdb_tree(reading.text, reading.parser)
    if tree is None and any(_is_word(token, _PIVOTS) for token in reading.tokens):
        tree = duckdb_tree(_with_pivot_values(reading.text, reading.tokens), reading.parser)
    return tree


def duckdb_tree(text: str, parser: Parser) -> Any:
    """Return the tree of exactly this text, with its positions; None if DuckDB returns none."""
    found = parser.tree(text)
    if len(found) > _TREE_CHARACTERS_MAX:
        raise InputError(
            f"{_TOO_LARGE}: its syntax tree has {len(found):,} characters, and the limit is {_TREE_CHARACTERS_MAX:,}.",
            hint=_SMALLER,
        )
    try:
        tree = json.loads(found)
    except RecursionError:
        raise InputError("The statement is nested too deeply.") from None
    return None if tree["error"] else tree


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a JSON tree."""
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
    """A function that a query calls: name, qualifiers, and arguments, None if not constant."""

    name: str
    where: tuple[str, ...]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """The names in a query: tables in their parts, table functions, other functions, and SHOWs."""

    tables: tuple[tuple[str, ...], ...]
    table_functions: tuple[Called, ...]
    functions: tuple[Called, ...]
    shows: tuple[tuple[str, ...], ...]


def named(tree: Any) -> Named:
    """Return the names in the tree of a query."""
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
    """Return the parts of a table's name in a tree."""
    return tuple(filter(None, (node["catalog_name"], node["schema_name"], node["table_name"]))) or ("",)


def show_parts(node: dict[str, Any]) -> tuple[str, ...]:
    """Return the object of a SHOW: the catalog and schema of its FROM, or its keyword in quotes."""
    return tuple(filter(None, (node["catalog_name"], node["schema_name"], node["table_name"])))


def called_of(node: dict[str, Any]) -> Called:
    """Return the function that a node of a tree calls."""
    where = tuple(str(part).casefold() for part in (node.get("catalog"), node.get("schema")) if part)
    return Called(str(node["function_name"]).casefold(), where, tuple(_constant(each) for each in node["children"]))


def _constant(node: dict[str, Any]) -> Any:
    """Return the value of an argument, a tuple for a list; None if it is not constant."""
    if node.get("type") == "VALUE_CONSTANT":
        return node["value"].get("value")
    if node.get("type") == "FUNCTION" and node.get("function_name") == "list_value":
        values = tuple(_constant(each) for each in node["children"])
        return None if None in values else values
    return None


def name_at(tokens: tuple[Token, ...], at: int) -> tuple[str, ...]:
    """Return the name that begins at `at`, in its parts; () if none does."""
    if at >= len(tokens) or not tokens[at].is_name:
        return ()
    end = at + 1
    while end + 1 < len(tokens) and tokens[end].text == "." and tokens[end + 1].is_name:
        end += 2
    return tuple(token.text for token in tokens[at:end:2])


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro that is created: its name, its parameters, and where its body begins."""

    name: tuple[str, ...]
    parameters: tuple[Token, ...]
    begin: int
    is_table: bool

    @property
    def has_plain_parameters(self) -> bool:
        """Whether the parameters' defaults contain no calls."""
        return not any(token.text == "(" for token in self.parameters)

    def query(self, reading: SqlReading) -> SqlReading:
        """Return the query that the macro stands for."""
        body = reading.text.encode()[self.begin :].decode()
        return reading.query(body if self.is_table else f"SELECT {body}")


def macro_of(reading: SqlReading) -> Macro | None:
    """Return the macro that a statement creates; None if it creates none."""
    tokens = reading.tokens
    at = next((i for i, token in enumerate(tokens[:8]) if _is_word(token, _MACRO_WORDS)), None)
    if reading.kind != StatementType.CREATE or at is None or any(_is_word(t, _CREATED_WORDS) for t in tokens[:at]):
        return None
    at += 4 if [token.text for token in tokens[at + 1 : at + 4]] == ["if", "not", "exists"] else 1
    name = name_at(tokens, at)
    after = at + 2 * len(name) - 1
    end = next((i for i, token in enumerate(tokens) if i > after and token.text == "as" and not token.is_quoted), None)
    if not name or end is None or tokens[after].text != "(":
        raise InputError("The macro cannot be parsed.")
    is_table = _is_word(tokens[min(end + 1, len(tokens) - 1)], _TABLE)
    begin = end + 1 + is_table
    if begin >= len(tokens):
        raise InputError("The macro has no body.")
    return Macro(name, tokens[after + 1 : end], tokens[begin].start, is_table)


def _with_pivot_values(text: str, tokens: tuple[Token, ...]) -> str:
    """Replace every column `x` of a PIVOT by `(x) IN (NULL)`: all names of the query stay in it."""
    source, signs = text.encode(), []
    for begin, end in _pivot_columns(tokens):
        after = tokens[end].start if end < len(tokens) else len(source)
        # On a line of its own: a comment may precede it.
        signs += [(tokens[begin].start, b"("), (after, b"\n) IN (NULL) ")]
    return replaced(source, [(at, at, sign) for at, sign in signs]).decode()


def _pivot_columns(tokens: tuple[Token, ...]) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each column of a PIVOT."""
    # For each bracket: whether it contains a PIVOT, and where the columns begin after its last ON.
    frames: list[tuple[bool, list[int]]] = [(False, [])]
    for at, token in enumerate(tokens):
        is_pivot, begins = frames[-1]
        if _is_word(token, _PIVOTS):
            frames[-1] = (True, [])
        elif token.text == "(":
            frames.append((False, []))
        elif is_pivot and token.text == "on" and not token.is_quoted:
            # An earlier ON belonged to a join.
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
    """Yield the items of a list, given where they begin: a comma precedes each but the first."""
    for begin, following in pairwise([*begins, end + 1]):
        if begin < following - 1:
            yield begin, following - 1


def _is_word(token: Token, words: frozenset[str]) -> bool:
    return token.is_name and not token.is_quoted and token.text in words


def refuse_strings_as_tables(reading: SqlReading) -> None:
    """Refuse a statement with a string, or a name like a file's, in the place of a table.

    DuckDB's parser decides: the statement must be valid with any expression in place of each.
    """
    source, tokens = reading.text.encode(), reading.tokens
    ends = [*(token.start for token in tokens[1:]), len(source)]
    pieces = [(tokens[begin].start, ends[end - 1], _EXPRESSION) for begin, end in _unproven(tokens)]
    if not pieces:
        return
    try:
        reading.parser.statements(replaced(source, pieces).decode())
    except duckdb.Error:
        raise NotAllowedError(
            "A string in the place of a table would be read as a file.",
            hint="Clients can read only tables. Pass strings in other places as parameters.",
        ) from None


def _unproven(tokens: tuple[Token, ...]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of strings that may not be constants, and of names like files'."""
    at = 0
    while at < len(tokens):
        token, end = tokens[at], at + 1
        if token.is_string:
            before, after = tokens[at - 1] if at else None, tokens[end].text if end < len(tokens) else ""
            is_constant = before is not None and not before.is_quoted and before.text in _BEFORE_CONSTANTS
            # Before a colon, it is a key or an alias.
            if not is_constant and after != ":":
                yield at, end
        elif token.is_name:
            while end + 1 < len(tokens) and tokens[end].text == "." and tokens[end + 1].is_name:
                end += 2
            if _FILE.search(".".join(each.text for each in tokens[at:end:2])):
                yield at, end
        at = end


def function_name(function: exp.Func) -> str:
    """Return the name by which a function is called."""
    return (function.name if isinstance(function, exp.Anonymous) else function.sql_name()).casefold()


def parse(text: str) -> list[exp.Expr]:
    """Parse the statement with sqlglot; InputError if that fails."""
    tokens = read(text.encode())
    if len(tokens) > _TREE_TOKENS_MAX:
        raise InputError(
            f"{_TOO_LARGE}: it has {len(tokens):,} words and signs, and the limit is {_TREE_TOKENS_MAX:,}.",
            hint=_SMALLER,
        )
    body = _COMMENT_REMOVED.sub(r"\1''", explained(text, tokens).text)
    dialect = sqlglot.Dialect.get_or_raise("duckdb")
    try:
        words = dialect.tokenize(body)
        _require_agreement(body, words)
        trees = [tree for tree in dialect.parser().parse(words, body) if tree is not None]
    except (sqlglot.ParseError, sqlglot.errors.TokenError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise InputError(f"The statement cannot be parsed: {first}") from None
    if not trees or any(isinstance(tree, exp.Command) for tree in trees):
        raise NotAllowedError("Clients of a server cannot use this kind of statement.")
    return trees


def _require_agreement(text: str, words: list[sqlglot.Token]) -> None:
    """Check that sqlglot's scanner finds names and strings where DuckDB's does."""
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
        raise InputError("The statement cannot be parsed: its strings and comments are ambiguous.")


def _places(text: str) -> list[int]:
    """Return, for each byte, the index of its character."""
    return [at for at, character in enumerate(f"{text} ") for _ in character.encode()]


@dataclass(frozen=True, slots=True)
class Explained:
    """The statement of an EXPLAIN, at its original position, and whether it is executed."""

    text: str
    tokens: tuple[Token, ...]
    is_run: bool


def explained(text: str, tokens: tuple[Token, ...]) -> Explained:
    """Return the statement of an EXPLAIN, or the statement itself if it is not an EXPLAIN."""
    if not tokens or tokens[0].text != "explain":
        return Explained(text, tokens, is_run=True)
    at = 1
    if len(tokens) > 2 and tokens[1].text == "(" and _is_word(tokens[2], _EXPLAIN_OPTIONS):
        at = next((i for i, token in enumerate(tokens) if token.text == ")"), len(tokens) - 1) + 1
    elif len(tokens) > 1 and _is_word(tokens[1], _EXPLAIN_OPTIONS):
        at = 2
    if at >= len(tokens):
        raise InputError("EXPLAIN requires a statement.")
    start = tokens[at].start
    is_run = any(token.text == "analyze" for token in tokens[1:at])
    return Explained(" " * start + text.encode()[start:].decode(), tokens[at:], is_run=is_run)
