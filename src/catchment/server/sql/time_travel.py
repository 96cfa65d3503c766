"""Makes time travel to a NULL version an error of the statement instead of a failure of DuckDB.

DuckLake fails internally on `AT (VERSION => NULL)`, which would end the open transactions of all
sessions. Whether a version is NULL is known only when the statement is bound: a variable may be
unset. So the text is changed to check it.
"""

from catchment.server.sql.sql_tokens import Token, replaced

_BEGINNING = ("at", "(", "version", "=")
# A line break first, because the version may end in a comment.
_CALL, _NULL = b"coalesce((", b"\n), error('The version is NULL.'))"
_DEPTH = {"(": 1, "[": 1, ")": -1, "]": -1}


def guard_versions(source: bytes, tokens: tuple[Token, ...]) -> bytes:
    """Wrap every version that is not a constant, so that NULL is refused with an error message."""
    pieces = []
    # For each open bracket: where the version in it begins; None if there is none.
    begins: list[int | None] = []
    for at, token in enumerate(tokens):
        depth = _DEPTH.get(token.text, 0)
        if depth > 0:
            begins.append(_version_at(tokens, at))
        elif depth < 0 and begins:
            begin = begins.pop()
            if begin is not None and at > begin and not (at == begin + 1 and _is_literal(tokens[begin])):
                start, end = tokens[begin].start, token.start
                pieces += [(start, start, _CALL), (end, end, _NULL)]
    return replaced(source, pieces) if pieces else source


def _version_at(tokens: tuple[Token, ...], bracket: int) -> int | None:
    """Return where the version begins that follows AT and this bracket; None if none does."""
    words = tokens[max(0, bracket - 1) : bracket - 1 + len(_BEGINNING)]
    is_version = tuple(word.text for word in words) == _BEGINNING and not any(word.is_quoted for word in words)
    return bracket - 1 + len(_BEGINNING) if is_version else None


def _is_literal(token: Token) -> bool:
    return token.is_string or token.text.isdigit()
