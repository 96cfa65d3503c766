"""Formats of log lines: a JSON object for programs, and text for a terminal.

Each is one line of bounded length. Passwords in other programs' texts, such as a driver's error,
are replaced by stars if their context shows that they are passwords; a password that looks like any
other word is not recognised.
"""

import json
import logging
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from catchment.foundation.event_catalogue import IDS

VALUE_LETTERS_MAX = 4_000
_FACTS_MAX = 64
# Hiding a harmless word is better than showing a password. Every repetition is bounded or ends
# where the next may begin, so the time is linear in the text.
_NAME = r"(?:password|passwd|passphrase|secret|token|api_?key)\w{0,40}"
# A quote inside is doubled or escaped; an unclosed one extends to the end.
_SINGLE = r"\\{0,9}'(?:[^'\\]|\\.|'')*+'?[^\s,;&)}\]]*"
_DOUBLE = r"\\{0,9}\"(?:[^\"\\]|\\.)*+\"?[^\s,;&)}\]]*"
_ANY = rf"(?:{_SINGLE}|{_DOUBLE}|\S+)"
_CLOSED_SINGLE = r"\\{0,9}'(?:[^'\\]|\\.|''){0,500}+'"
_CLOSED_DOUBLE = r"\\{0,9}\"(?:[^\"\\]|\\.){0,500}+\""
_PASSWORDS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # password=x, in connection strings, variables and addresses; "password": "x", in JSON and
        # Python.
        rf"({_NAME}(?:\\{{0,9}}[\"'])?\s{{0,5}}=[=>]?\s{{0,5}}){_ANY}",
        rf"({_NAME}\\{{0,9}}[\"']\s{{0,5}}:\s{{0,5}}){_ANY}",
        # PASSWORD 'x', in SQL; password: "x". Without quotes it may be prose.
        rf"({_NAME}\s{{0,5}}:?\s{{0,5}}){_CLOSED_SINGLE}",
        rf"({_NAME}\s{{0,5}}:\s{{0,5}}){_CLOSED_DOUBLE}",
        r"(://[^\s:/@]*:)[^\s/]+(?=@)",
        r"(\b(?:basic|bearer)\s{1,5})[a-z0-9+/=_.~-]{8,}",
    )
)
_PLAIN_WORD = re.compile(r"[^\s\"=]+")
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_COLOURS = {
    logging.DEBUG: _DIM,
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}


class JsonLines(logging.Formatter):
    """JSON, one object per line: time, level, verb; then ids, then the other facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record."""
        line: dict[str, Any] = {
            "at": _moment(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "action": getattr(record, "action", record.name),
        }
        for name, value in _facts(self, record).items():
            # Facts cannot override the leading keys.
            line.setdefault(name, plain(value))
        return json.dumps(line)


class HumanLines(logging.Formatter):
    """Text: time, level, verb, and facts as `name=value`; with `colour`, for terminals."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Format the record."""
        at = _moment(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        level, verb = f"{record.levelname.lower():<7}", _word(bounded(str(getattr(record, "action", record.name))))
        facts = _facts(self, record)
        if not self._colour:
            return f"{at} {level} {prose(verb, facts)}"
        colour = _COLOURS.get(record.levelno, "")
        text = " ".join(f"{_DIM}{name}={_RESET}{_word(plain(value))}" for name, value in facts.items())
        return f"{_DIM}{at}{_RESET} {colour}{level}{_RESET} {verb}  {text}".rstrip()


def prose(verb: str, facts: Mapping[str, Any]) -> str:
    """Format verb and facts as text."""
    text = " ".join(f"{name}={_word(plain(value))}" for name, value in facts.items())
    return f"{verb}  {text}" if text else verb


def plain(value: Any) -> Any:
    """Convert a value to JSON types, within bounds; other types become strings."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else bounded(str(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if not isinstance(value, list | tuple | dict):
        return bounded(str(value))
    try:
        text = json.dumps(value, default=str, allow_nan=False)
    except (TypeError, ValueError):
        return bounded(str(value))
    if len(text) > VALUE_LETTERS_MAX:
        return bounded(text)
    scrubbed = scrub(text)
    return json.loads(text) if scrubbed == text else scrubbed


def bounded(text: str) -> str:
    """Scrub the text; shorten a long one to its two ends."""
    # Only the ends are searched: logging must stay fast.
    if len(text) > 4 * VALUE_LETTERS_MAX:
        text = f"{text[: 2 * VALUE_LETTERS_MAX]}{text[-2 * VALUE_LETTERS_MAX :]}"
    text = scrub(text)
    half = VALUE_LETTERS_MAX // 2
    return text if len(text) <= VALUE_LETTERS_MAX else f"{text[:half]} … {text[-half:]}"


def scrub(text: str) -> str:
    """Replace everything that has the form of a password by stars."""
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _facts(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    """Return the facts, ids first; for a library's record, its message and exception."""
    given: Mapping[str, Any] = getattr(record, "facts", None) or {}
    if not hasattr(record, "facts"):
        given = {"message": record.getMessage()}
    facts = {name: given[name] for name in IDS if name in given}
    facts.update(given)
    if record.exc_info:
        facts["exception"] = formatter.formatException(record.exc_info)
    return dict(list(facts.items())[:_FACTS_MAX])


def _word(value: Any) -> str:
    """Format a value for a terminal; anything but plain text is quoted, to keep the line intact."""
    if isinstance(value, list | tuple):
        return ",".join(_word(each) for each in value)
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    if value.isprintable() and _PLAIN_WORD.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())
