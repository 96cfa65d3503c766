"""What happens, said once: a stable verb and its facts, for log lines, progress displays and metrics alike."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

_log = logging.getLogger("catchment")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: `verb` is stable and may be matched by scripts, `facts` are its values."""

    verb: str
    facts: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]
_listeners: list[Listener] = []


def emit(verb: str, /, *, level: int = logging.INFO, **facts: Any) -> None:
    """Say that something happened: to the log, and to everybody who listens in this process."""
    event = Event(verb, facts)
    for listener in tuple(_listeners):
        listener(event)
    if _log.isEnabledFor(level):
        _log.log(level, _prose(event), extra={"action": verb, "facts": facts})


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear every event of this process for a while."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def configure_logging(*, level: str, as_json: bool) -> None:
    """Send Catchment's log to stderr: one JSON object a line, or prose for a person."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _log.handlers[:] = [handler]
    _log.setLevel(level.upper())
    _log.propagate = False


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "action": getattr(record, "action", record.name),
            **getattr(record, "facts", {"message": record.getMessage()}),
        }
        return json.dumps(line, default=str)


def _prose(event: Event) -> str:
    facts = " ".join(f"{key}={value}" for key, value in event.facts.items())
    return f"{event.verb} {facts}".rstrip()
