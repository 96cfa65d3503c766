"""The two forms of a line of the log: a JSON object for programs, and words for a person at a terminal.

Neither is ever more than one line, nor longer than can be read. Passwords that stand in a text of somebody else, say in
a driver's error, are starred where their form tells what they are; one that looks like any other word is not known.
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
# Rather a word too many is starred than a password too few. Whatever can repeat has a bound, or ends where the next may
# begin: the time is that of one look through the text.
_NAME = r"(?:password|passwd|passphrase|secret|token|api_?key)\w{0,40}"
# A quote inside is doubled or escaped; one that nobody closed goes on to the end.
_SINGLE = r"\\{0,9}'(?:[^'\\]|\\.|'')*+'?[^\s,;&)}\]]*"
_DOUBLE = r"\\{0,9}\"(?:[^\"\\]|\\.)*+\"?[^\s,;&)}\]]*"
_ANY = rf"(?:{_SINGLE}|{_DOUBLE}|\S+)"
_CLOSED_SINGLE = r"\\{0,9}'(?:[^'\\]|\\.|''){0,500}+'"
_CLOSED_DOUBLE = r"\\{0,9}\"(?:[^\"\\]|\\.){0,500}+\""
_PASSWORDS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # password=x, of connection strings, variables and addresses; "password": "x", of JSON and of Python.
        rf"({_NAME}(?:\\{{0,9}}[\"'])?\s{{0,5}}=[=>]?\s{{0,5}}){_ANY}",
        rf"({_NAME}\\{{0,9}}[\"']\s{{0,5}}:\s{{0,5}}){_ANY}",
        # PASSWORD 'x', of SQL; password: "x". Without quotes it may be prose.
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
    """One object a line: when, how grave, what; then the ids, then what else there is to say."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "at": _moment(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "action": getattr(record, "action", record.name),
        }
        for name, value in _facts(self, record).items():
            # What a line begins with is nobody else's to say.
            line.setdefault(name, plain(value))
        return json.dumps(line)


class HumanLines(logging.Formatter):
    """Time, level, verb, and the facts as `name=value`; with `colour` for a terminal that shows it."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = _moment(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        level, verb = f"{record.levelname.lower():<7}", _word(bounded(str(getattr(record, "action", record.name))))
        facts = _facts(self, record)
        if not self._colour:
            return f"{at} {level} {prose(verb, facts)}"
        colour = _COLOURS.get(record.levelno, "")
        told = " ".join(f"{_DIM}{name}={_RESET}{_word(plain(value))}" for name, value in facts.items())
        return f"{_DIM}{at}{_RESET} {colour}{level}{_RESET} {verb}  {told}".rstrip()


def prose(verb: str, facts: Mapping[str, Any]) -> str:
    """Verb and facts in words."""
    told = " ".join(f"{name}={_word(plain(value))}" for name, value in facts.items())
    return f"{verb}  {told}" if told else verb


def plain(value: Any) -> Any:
    """A value as JSON can hold it, within bounds; what JSON has no form for is a string."""
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
    """The text, scrubbed; of one that is too long, its two ends."""
    # What lies far beyond the ends is not looked through: nobody waits for a line of the log.
    if len(text) > 4 * VALUE_LETTERS_MAX:
        text = f"{text[: 2 * VALUE_LETTERS_MAX]}{text[-2 * VALUE_LETTERS_MAX :]}"
    text = scrub(text)
    half = VALUE_LETTERS_MAX // 2
    return text if len(text) <= VALUE_LETTERS_MAX else f"{text[:half]} … {text[-half:]}"


def scrub(text: str) -> str:
    """The text with stars in the place of what has the form of a password."""
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _facts(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    """The facts, ids first; what a library logged is a message, and its exception is part of the same line."""
    given: Mapping[str, Any] = getattr(record, "facts", None) or {}
    if not hasattr(record, "facts"):
        given = {"message": record.getMessage()}
    facts = {name: given[name] for name in IDS if name in given}
    facts.update(given)
    if record.exc_info:
        facts["exception"] = formatter.formatException(record.exc_info)
    return dict(list(facts.items())[:_FACTS_MAX])


def _word(value: Any) -> str:
    """A value on a terminal: what is not plain text is quoted, so that it can neither end the line nor paint on it."""
    if isinstance(value, list | tuple):
        return ",".join(_word(each) for each in value)
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    if value.isprintable() and _PLAIN_WORD.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())
