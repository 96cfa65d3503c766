"""Settings that a client may change: where its names count, and how its own results look.

The instance's settings are locked, but for a few that change nothing for other sessions. A SET of one of those is
written again as a SET SESSION, which DuckDB keeps in the connection.
"""

import re

from catchment.errors import NotAllowedError
from catchment.foundation import sql
from catchment.lake.sandbox import SESSION_SETTINGS
from catchment.lake.tables import LEDGER_SCHEMA
from catchment.server.sql_forms import SETTINGS_LOCKED
from catchment.server.sql_tokens import Token

_METADATA = "__ducklake_metadata"
_OWN_DATABASE = "memory"
PATHS = frozenset({"schema", "search_path"})
READABLE = SESSION_SETTINGS | PATHS
_SET_PATH = re.compile(r"SET\s+(SESSION\s+)?(schema|search_path)\s*(=|\sTO\s)\s*('[^']*'|[\w.]+)", re.I)
_TIME_ZONE = ["time", "zone"]
_TO_DEFAULT = frozenset({"default", "local"})


def is_variable(tokens: tuple[Token, ...]) -> bool:
    """Whether it is SET VARIABLE, which takes any expression."""
    return [token.text for token in tokens[:2]] == ["set", "variable"]


def is_path(tokens: tuple[Token, ...]) -> bool:
    """Whether it is about where names count: USE, SET schema, RESET search_path."""
    return tokens[0].text == "use" or any(token.text in PATHS for token in _setting(tokens)[:1])


def require_harmless(text: str, tokens: tuple[Token, ...]) -> None:
    """Refuse a SET, RESET or USE that is not about where names count, nor about one of the session's own settings."""
    if [token.text for token in tokens[:2]] == ["reset", "variable"] and len(tokens) == 3:
        return
    if is_path(tokens):
        is_use = tokens[0].text == "use" and all(token.is_name or token.text == "." for token in tokens)
        is_reset = tokens[0].text == "reset" and len(_setting(tokens)) == 1
        # One plain text: what an expression or an escape comes to, nobody has read.
        if not is_use and not is_reset and not _SET_PATH.fullmatch(text.strip()):
            raise NotAllowedError("A search path is one plain text.", hint="SET search_path = 'lake.main'")
        require_harmless_path(text)
    elif session_statement(text, tokens) is None:
        raise NotAllowedError(
            SETTINGS_LOCKED,
            hint=f"USE and SET schema choose where names count. A session sets {', '.join(sorted(SESSION_SETTINGS))}.",
        )


def require_harmless_path(path: str) -> None:
    """See that a search path leads to tables of the lake, or temporary ones."""
    if any(word in path.casefold() for word in (LEDGER_SCHEMA, _METADATA, _OWN_DATABASE)):
        raise NotAllowedError("Names count in the lake's own schemas.")


def session_statement(text: str, tokens: tuple[Token, ...]) -> str | None:
    """The statement that changes one of the session's own settings, and no other's; None if it is another SET."""
    words = _setting(tokens)
    if not words or words[0].text not in SESSION_SETTINGS or words[0].is_string:
        return None
    name, value = sql.identifier(words[0].text), words[1:]
    if value and (value[0].text == "=" or (value[0].text == "to" and not value[0].is_quoted)):
        value = value[1:]
    if tokens[0].text == "reset" or (len(value) == 1 and value[0].text in _TO_DEFAULT):
        return f"RESET SESSION {name}" if len(value) < 2 else None
    source = text.encode()
    # One constant: an expression could read what the session may not.
    if len(value) != 1 or value[0].text in "(?$":
        return None
    return f"SET SESSION {name} = {source[value[0].start :].decode()}"


def _setting(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """What stands after SET or RESET, with a scope left out and TIME ZONE as the setting that it is."""
    rest = tokens[1:]
    if rest and rest[0].text == "session" and not rest[0].is_quoted:
        rest = rest[1:]
    if [token.text for token in rest[:2]] == _TIME_ZONE:
        return (rest[0]._replace(text="timezone"), *rest[2:])
    return rest
