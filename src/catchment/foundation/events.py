"""What happens, said once: a stable verb and its facts, for log lines, progress displays and metrics alike.

Verbs are declared in `event_catalogue`. The ids that everything inside a block has in common, say those of the request
that it is done for, are put around the block once: `context` adds them to every event that is emitted in it.
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

# A line names the first few of many, and says how many there are.
NAMED_MAX = 5

_log = logging.getLogger("catchment")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: `verb` is stable and may be matched by scripts, `facts` are its values."""

    verb: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Prose:
    """The message of a log record, put into words when somebody reads it; JSON lines do not."""

    verb: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return log_lines.prose(self.verb, self.facts)


Listener = Callable[[Event], None]
_listeners: list[Listener] = []
# Those of them whose failure was logged, by identity: one that fails at every event would fill the log.
_failed: set[int] = set()
# A thread begins without any: whoever hands work to another thread says with `carried` that its ids go along.
_ids: ContextVar[dict[str, Any] | None] = ContextVar("catchment_ids", default=None)
# On the root, so that what libraries log has the same form.
_root_handler: logging.Handler | None = None


def emit(verb: str, /, *, level: int = logging.INFO, **facts: Any) -> None:
    """Say that something happened: to the log, and to everybody who listens in this process."""
    ids = _ids.get()
    if ids:
        facts = {**ids, **facts}
    event = Event(verb, facts)
    for listener in tuple(_listeners):
        _tell(listener, event)
    if _log.isEnabledFor(level):
        _log.log(level, _Prose(verb, facts), extra={"action": verb, "facts": facts})


def is_logged(level: int) -> bool:
    """Whether the log takes that level; asked before an event of which there are too many to make them for nobody."""
    return _log.isEnabledFor(level)


def context(**ids: Any) -> "_Context":
    """Add ids to every event that this thread emits while the block runs; what an event says itself wins."""
    return _Context(ids)


def identify(**ids: Any) -> None:
    """Add ids, once they are known, to the block that this runs in, until its end; outside of any, do nothing."""
    around = _ids.get()
    if around is not None:
        around.update(ids)


def current(name: str) -> Any:
    """An id of the block that this runs in; None where it has none of that name."""
    around = _ids.get()
    return None if around is None else around.get(name)


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """The function with the ids of this block, for another thread to call."""
    ids = dict(_ids.get() or {})

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with context(**ids):
            return function(*args, **kwargs)

    return run


def first_few(ids: Sequence[str]) -> list[str]:
    """Those of many ids that a line names."""
    return list(ids[:NAMED_MAX])


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear every event of this process for a while."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        _failed.discard(id(listener))


def _tell(listener: Listener, event: Event) -> None:
    """Tell one who listens. Whoever emits has done what it says: a listener that fails must not undo it."""
    try:
        listener(event)
    except BaseException as error:
        # An interrupt is meant for whoever emits.
        if not isinstance(error, Exception):
            raise
        if id(listener) not in _failed:
            _failed.add(id(listener))
            _log.exception("A listener failed at %s; further failures of it are not logged.", event.verb)


def configure_logging(*, level: str, as_json: bool, colour: bool = False) -> None:
    """Send the log to stderr: one JSON object a line, or lines for a person. Libraries' warnings have the same form."""
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
    """Ids while a block runs. Every call of a client is one, so that it is no more than it must be."""

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
            # A generator that nobody read to its end may be closed by another thread, which never had these ids.
            return
