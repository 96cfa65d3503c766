"""Makes time travel to a NULL version an error of the statement instead of a failure of DuckDB.

DuckLake fails internally on `AT (VERSION => NULL)`, which would end the open transactions of all
sessions. Whether a version is NULL is known only when the statement is bound: a variable may be
unset. So the text is changed to check it.
"""

from catchment.server.sql.sql_tokens import Token

_BEGINNING = ("at", "(", "version", "=")
_NULL = b"), error('The version is NULL.'))"
_DEPTH = {"(": 1, "[": 1, ")": -1, "]": -1}


def guard_versions(source: bytes, tokens: tuple[Token, ...]) -> bytes:
    """Wrap every version that is not a constant, so that NULL is refused with an error message."""
    pieces = []
    for at in range(len(tokens) - len(_BEGINNING)):
        words = tokens[at : at + len(_BEGINNING)]
        if tuple(word.text for word in words) != _BEGINNING or any(word.is_quoted for word in words):
            continue
        begin = at + len(_BEGINNING)
        end = _end(tokens, begin)
        if end is not None and not (end == begin + 1 and _is_literal(tokens[begin])):
            pieces.append((tokens[begin].start, tokens[end].start))
    for begin, end in reversed(pieces):
        # A line break first, because the version may end in a comment.
        source = source[:begin] + b"coalesce((" + source[begin:end] + b"\n" + _NULL + source[end:]
    return source


def _is_literal(token: Token) -> bool:
    return token.is_string or token.text.isdigit()


def _end(tokens: tuple[Token, ...], begin: int) -> int | None:
    """Return the position of the bracket that closes the version's."""
    depth = 0
    for at in range(begin, len(tokens)):
        depth += _DEPTH.get(tokens[at].text, 0)
        if depth < 0:
            return at if at > begin else None
    return None
