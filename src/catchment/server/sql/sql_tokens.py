"""Splits a statement into tokens with DuckDB's own scanner, so that both agree on its meaning."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import duckdb

from catchment.errors import InputError

_WORD = re.compile(rb"[\w$\x80-\xff]+")
_QUOTED = re.compile(rb'"((?:[^"]|"")*)"')
_PUNCTUATION = frozenset(bytes([sign]) for sign in b";(),.?$'=")
# The time of DuckDB's scanner grows with the square, or the cube, of the length of these.
_SIGNS = re.compile(rb"[~!@#^&|`?+\-*/%<>=]{100,}")
_PLUSES = re.compile(rb"(?:\+|-(?!-)){100}")
_COMMENTS_IN_A_ROW_MAX = 50
# The time of DuckDB's parser grows with the square of the number of conditions in a row: 0.3 s for
# so many of them, 10 s and more for those that fit into a statement.
_CONDITIONS_MAX = 20_000
_CONNECTIVES = frozenset({"and", "or"})
# DuckLake parses macros and defaults in every process that opens the lake, the server included, and
# again after every change of the schema. That takes up to 6 ms with these limits, as long as for a
# table of 1,500 columns; 0.25 s with those of statements.
_STORED_CONDITIONS_MAX = 500
_STORED_TOKENS_MAX = 10_000
_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")
# Characters that DuckDB's scanner skips; Python would also strip vertical tabs, which are tokens
# for DuckDB.
_BLANKS = b" \t\n\r\f"
# Unicode categories of spaces and invisible characters.
_SPACES = frozenset({"Zs", "Zl", "Zp", "Cf", "Cc"})
_KINDS = {duckdb.token_type.identifier, duckdb.token_type.keyword}


class Token(NamedTuple):
    """One token: a name (`text` is folded, quoted or not), or the character that it starts with.

    A quoted name that is a single sign keeps its quotes, so that it is not taken for a bracket or a
    dot.
    """

    start: int
    text: str
    is_name: bool
    is_quoted: bool = False
    is_string: bool = False


def read(source: bytes) -> tuple[Token, ...]:
    """Return the tokens of a UTF-8 text without comments; `start` counts bytes."""
    require_short_signs(source)
    text = source.decode()
    tokens = _read(source, text)
    if _conditions(tokens) > _CONDITIONS_MAX:
        raise InputError(
            f"The statement has more than {_CONDITIONS_MAX:,} conditions.",
            hint="Use IN with a list, or join a temporary table of the values.",
        )
    if not text.isascii():
        _require_plain_spaces(text, tokens)
    return tokens


def _conditions(tokens: Iterable[Token]) -> int:
    return sum(token.text in _CONNECTIVES and token.is_name and not token.is_quoted for token in tokens)


def require_small_stored(tokens: Sequence[Token], what: str) -> None:
    """Refuse SQL that is too large to be parsed whenever the lake is opened: a macro, or defaults."""
    if _conditions(tokens) > _STORED_CONDITIONS_MAX:
        raise InputError(
            f"{what} may have at most {_STORED_CONDITIONS_MAX:,} conditions.",
            hint="Use IN with a list, or join a table of the values.",
        )
    if len(tokens) > _STORED_TOKENS_MAX:
        raise InputError(
            f"{what} may have at most {_STORED_TOKENS_MAX:,} words and signs, and not {len(tokens):,}.",
            hint="Store long lists of values in a table.",
        )


def defaults(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield the tokens of all DEFAULTs in a CREATE TABLE or ALTER TABLE, with their constraints."""
    depth: int | None = None
    for token in tokens:
        if depth is None:
            # A reserved word: a column of this name would be quoted.
            depth = 0 if token.is_name and token.text == "default" and not token.is_quoted else None
        elif depth == 0 and (token.text == "," or token.text in _CLOSING):
            depth = None
        else:
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
            yield token


def _read(source: bytes, text: str) -> tuple[Token, ...]:
    return tuple(_token(source, start, kind) for start, kind in duckdb.tokenize(text))


def require_short_signs(source: bytes) -> None:
    """Refuse long runs of signs: DuckDB's scanner blocks the whole process, for a minute with a few
    thousand plus signs.
    """
    for run in _SIGNS.finditer(source):
        if run[0].count(b"/*") > _COMMENTS_IN_A_ROW_MAX or _PLUSES.search(run[0]):
            raise InputError(
                "The statement contains a long run of signs.", hint="Pass values that contain such runs as parameters."
            )


def _require_plain_spaces(text: str, tokens: tuple[Token, ...]) -> None:
    """Refuse Unicode spaces outside of quotes, which are letters to DuckDB's scanner only."""
    spaces = {
        ord(character)
        for character in set(text)
        if not character.isascii() and unicodedata.category(character) in _SPACES
    }
    if not spaces:
        return
    # As many bytes as before, so that positions stay the same.
    plain = text.translate({space: " " * len(chr(space).encode()) for space in spaces})
    bare, others = ([token for token in each if not token.is_quoted] for each in (tokens, _read(plain.encode(), plain)))
    if bare != others:
        raise InputError("The statement contains a non-ASCII space.", hint="Replace it with a plain space.")


def replaced(source: bytes, pieces: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return the text with other bytes from begin to end of each piece, outermost pieces only."""
    out: list[bytes] = []
    last = 0
    for begin, end, other in sorted(pieces):
        if begin >= last:
            out += source[last:begin], other
            last = end
    return b"".join((*out, source[last:]))


def statements(source: bytes, tokens: tuple[Token, ...]) -> Iterator[tuple[bytes, tuple[Token, ...]]]:
    """Yield the statements of a text, each with its tokens, with positions from its own start."""
    first = 0
    for at in [*(i for i, token in enumerate(tokens) if token.text == ";"), len(tokens)]:
        own = tokens[first:at]
        first = at + 1
        if own:
            begin = own[0].start
            end = tokens[at].start if at < len(tokens) else len(source)
            moved = tuple(t._replace(start=t.start - begin) for t in own) if begin else own
            yield source[begin:end].rstrip(_BLANKS), moved


def calls(tokens: tuple[Token, ...]) -> Iterator[str]:
    """Yield names that are followed by a bracket, which include all functions that are called."""
    for token, following in pairwise(tokens):
        if token.is_name and following.text == "(":
            yield token.text


def qualified_calls(tokens: tuple[Token, ...]) -> Iterator[tuple[str, ...]]:
    """Yield qualified names that are followed by a bracket, in their parts."""
    at = 0
    while at < len(tokens):
        end = at + 1
        while tokens[at].is_name and end + 1 < len(tokens) and tokens[end].text == "." and tokens[end + 1].is_name:
            end += 2
        if end > at + 1 and end < len(tokens) and tokens[end].text == "(":
            yield tuple(token.text for token in tokens[at:end:2])
        at = end


def word_at(source: bytes, start: int) -> str:
    """Return the name that starts at `start`, as it is written."""
    word = _WORD.match(source, start)
    return "" if word is None else word[0].decode()


def _token(source: bytes, start: int, kind: object) -> Token:
    if kind in _KINDS:
        quoted = _QUOTED.match(source, start)
        if quoted is not None:
            name = quoted[0 if quoted[1] in _PUNCTUATION else 1].replace(b'""', b'"').decode().casefold()
            return Token(start, name, is_name=True, is_quoted=True)
        word = _WORD.match(source, start)
        if word is not None:
            return Token(start, word[0].decode().casefold(), is_name=True)
    is_string = kind == duckdb.token_type.string_const
    return Token(start, chr(source[start]) if start < len(source) else "", is_name=False, is_string=is_string)
