"""Events: a stable verb and its facts, emitted once for log lines, progress displays and metrics.

Verbs are declared in `event_catalogue`. `context` adds ids, such as that of the request, to every
event that is emitted inside a block.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from catchment.foundation import log_lines

P = ParamSpec("P")
T = TypeVar("T")

# A line lists the first few of many ids, and their number.
NAMED_MAX = 5

_log = logging.getLogger("catchment")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `verb` is stable and may be matched by scripts, `facts` are its values."""

    verb: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Prose:
    """The message of a log record, formatted only when it is read; JSON lines do not need it."""

    verb: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return log_lines.prose(self.verb, self.facts)


Listener = Callable[[Event], None]
_listeners: list[Listener] = []
# Listeners whose failure was logged, by identity: one that fails at every event would fill the log.
_failed: set[int] = set()
# A new thread has no ids: code that passes work to another thread uses `carried` to pass them
# along.
_ids: ContextVar[dict[str, Any] | None] = ContextVar("catchment_ids", default=None)
# Attached to the root logger, so that libraries' records have the same format.
_root_handler: logging.Handler | None = None


def emit(verb: str, /, *, level: int = logging.INFO, **facts: Any) -> None:
    """Emit an event to the log and to all listeners in this process."""
    ids = _ids.get()
    if ids:
        facts = {**ids, **facts}
    event = Event(verb, facts)
    for listener in tuple(_listeners):
        _notify(listener, event)
    if _log.isEnabledFor(level):
        _log.log(level, _Prose(verb, facts), extra={"action": verb, "facts": facts})


def is_logged(level: int) -> bool:
    """Return whether that level is logged; check it before emitting very frequent events."""
    return _log.isEnabledFor(level)


def context(**ids: Any) -> "_Context":
    """Add ids to every event that this thread emits inside the block; an event's facts override."""
    return _Context(ids)


def identify(**ids: Any) -> None:
    """Add ids to the current block, until its end; without a block, do nothing."""
    around = _ids.get()
    if around is not None:
        around.update(ids)


def current(name: str) -> Any:
    """Return an id of the current block, or None."""
    around = _ids.get()
    return None if around is None else around.get(name)


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap the function so that another thread calls it with the ids of this block."""
    ids = dict(_ids.get() or {})

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with context(**ids):
            return function(*args, **kwargs)

    return run


def first_few(ids: Sequence[str]) -> list[str]:
    """Return the first few of many ids, for a log line."""
    return list(ids[:NAMED_MAX])


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Receive every event of this process inside the context."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        _failed.discard(id(listener))


def _notify(listener: Listener, event: Event) -> None:
    """Call one listener. A failing listener must not fail the emitter's work."""
    try:
        listener(event)
    except BaseException as error:
        # An interrupt is meant for the emitter.
        if not isinstance(error, Exception):
            raise
        if id(listener) not in _failed:
            _failed.add(id(listener))
            _log.exception("A listener failed at %s; further failures of it are not logged.", event.verb)


def configure_logging(*, level: str, as_json: bool, colour: bool = False) -> None:
    """Send the log to stderr, as JSON objects or as text, with the records of libraries."""
    global _root_handler
    handler = logging.StreamHandler()
    handler.setFormatter(log_lines.JsonLines() if as_json else log_lines.HumanLines(colour=colour))
    _log.handlers[:] = [handler]
    _log.setLevel(level.upper())
    _log.propagate = False
    root = logging.getLogger()
    if _root_handler is not None:
        root.removeHandler(_root_handler)
    root.addHandler(handler)
    _root_handler = handler


class _Context:
    """Ids inside a block. Entered for every client call, so it is kept minimal."""

    __slots__ = ("_given", "_token")

    def __init__(self, ids: dict[str, Any]) -> None:
        self._given = ids

    def __enter__(self) -> None:
        around = _ids.get()
        self._token: Token[dict[str, Any] | None] = _ids.set({**around, **self._given} if around else self._given)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _ids.reset(self._token)
        except ValueError:
            # A generator that is not exhausted may be closed by another thread, which never had
            # these ids.
            return
