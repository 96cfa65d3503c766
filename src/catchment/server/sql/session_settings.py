"""Settings that a client may change: its search path, and the format of its own results.

The instance's settings are locked, except for a few that do not affect other sessions. A SET of one
of those is rewritten as SET SESSION, which DuckDB keeps in the connection.
"""

import re

from catchment.errors import NotAllowedError
from catchment.foundation import sql
from catchment.lake.sandbox import SESSION_SETTINGS
from catchment.lake.tables import LEDGER_SCHEMA
from catchment.server.sql.sql_forms import SETTINGS_LOCKED
from catchment.server.sql.sql_tokens import Token

_METADATA = "__ducklake_metadata"
_OWN_DATABASE = "memory"
PATHS = frozenset({"schema", "search_path"})
READABLE = SESSION_SETTINGS | PATHS
_SET_PATH = re.compile(r"SET\s+(SESSION\s+)?(schema|search_path)\s*(=|\sTO\s)\s*('[^']*'|[\w.]+)", re.I)
_TIME_ZONE = ["time", "zone"]
_TO_DEFAULT = frozenset({"default", "local"})


def is_variable(tokens: tuple[Token, ...]) -> bool:
    """Return whether it is SET VARIABLE, which accepts any expression."""
    return [token.text for token in tokens[:2]] == ["set", "variable"]


def is_path(tokens: tuple[Token, ...]) -> bool:
    """Return whether it changes the search path: USE, SET schema, RESET search_path."""
    return tokens[0].text == "use" or any(token.text in PATHS for token in _setting(tokens)[:1])


def require_harmless(text: str, tokens: tuple[Token, ...]) -> None:
    """Refuse a SET, RESET or USE of anything but the search path and the session's own settings."""
    if [token.text for token in tokens[:2]] == ["reset", "variable"] and len(tokens) == 3:
        return
    if is_path(tokens):
        is_use = tokens[0].text == "use" and all(token.is_name or token.text == "." for token in tokens)
        is_reset = tokens[0].text == "reset" and len(_setting(tokens)) == 1
        # A single plain string: the value of an expression or an escape has not been checked.
        if not is_use and not is_reset and not _SET_PATH.fullmatch(text.strip()):
            raise NotAllowedError("A search path must be one plain string.", hint="SET search_path = 'lake.main'")
        require_harmless_path(text)
    elif session_statement(text, tokens) is None:
        raise NotAllowedError(
            SETTINGS_LOCKED,
            hint=f"USE and SET schema set the search path. A session can set {', '.join(sorted(SESSION_SETTINGS))}.",
        )


def require_harmless_path(path: str) -> None:
    """Check that a search path leads to tables of the lake, or temporary ones."""
    if any(word in path.casefold() for word in (LEDGER_SCHEMA, _METADATA, _OWN_DATABASE)):
        raise NotAllowedError("The search path can contain only the lake's own schemas.")


def session_statement(text: str, tokens: tuple[Token, ...]) -> str | None:
    """Return the statement that changes one of the session's own settings, for this session only;
    None for any other SET.
    """
    words = _setting(tokens)
    if not words or words[0].text not in SESSION_SETTINGS or words[0].is_string:
        return None
    name, value = sql.identifier(words[0].text), words[1:]
    if value and (value[0].text == "=" or (value[0].text == "to" and not value[0].is_quoted)):
        value = value[1:]
    if tokens[0].text == "reset" or (len(value) == 1 and value[0].text in _TO_DEFAULT):
        return f"RESET SESSION {name}" if len(value) < 2 else None
    source = text.encode()
    # A single constant: an expression could read values that the session may not.
    if len(value) != 1 or value[0].text in "(?$":
        return None
    return f"SET SESSION {name} = {source[value[0].start :].decode()}"


def setting_name(tokens: tuple[Token, ...]) -> str:
    """Return the name of the setting that a SET or RESET changes."""
    return sql.fold(_setting(tokens)[0].text)


def _setting(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Return the setting after SET or RESET, without its scope; TIME ZONE by its setting's name."""
    rest = tokens[1:]
    if rest and rest[0].text == "session" and not rest[0].is_quoted:
        rest = rest[1:]
    if [token.text for token in rest[:2]] == _TIME_ZONE:
        return (rest[0]._replace(text="timezone"), *rest[2:])
    return rest
