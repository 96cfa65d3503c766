"""Live updates of open pages as server-sent events: the changed parts of a page, every two seconds.

Each listener costs a rendering of its page, so their number is bounded; beyond it, a page is static
and retries. All listeners share one reading of the status.
"""

import json
import threading
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import AsyncIterator, Callable, Mapping

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from catchment.errors import LimitError
from catchment.foundation.clock import Clock
from catchment.status.model import Status

LISTENERS_MAX = 16
INTERVAL_S = 2.0
# After that the browser reconnects by itself: no connection is kept open for ever.
LISTEN_S_MAX = 600.0
RETRY_MS = 5_000
_SHARED_S = 1.0


class Shared:
    """A status that is read at most once a second, however many callers there are. Safe for
    concurrent use.
    """

    def __init__(self, read: Callable[[], Status], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._mutex = threading.Lock()
        self._known: Status | None = None
        self._known_s = 0.0

    def status(self) -> Status:
        """Return the status, at most a second old."""
        with self._mutex:
            now_s = self._clock.monotonic_s()
            if self._known is None or now_s - self._known_s >= _SHARED_S:
                self._known = self._read()
                self._known_s = self._clock.monotonic_s()
            return self._known


class Live:
    """All listeners. Methods are for the serving thread only, except `end`."""

    def __init__(
        self,
        *,
        clock: Clock,
        listeners_max: int = LISTENERS_MAX,
        interval_s: float = INTERVAL_S,
        retry_ms: int = RETRY_MS,
    ) -> None:
        self._clock = clock
        self._retry_ms = retry_ms
        self._listeners_max = listeners_max
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._listeners: set[Listener] = set()

    @property
    def listeners(self) -> int:
        """Number of listeners."""
        return len(self._listeners)

    def listen(self, parts: Callable[[], Mapping[str, str] | None]) -> "Listener":
        """Return a streaming response; `parts` renders a page, None ends the stream. LimitError if
        all places are taken.
        """
        if self._ending.is_set() or len(self._listeners) >= self._listeners_max:
            raise LimitError("Too many pages are open.", hint="Close some, or reload this one for updates.")
        listener = Listener(self, parts)
        self._listeners.add(listener)
        return listener

    def end(self) -> None:
        """Disconnect all listeners. Safe to call from any thread."""
        self._ending.set()
        for each in tuple(self._listeners):
            each.wake()

    def leave(self, listener: "Listener") -> None:
        """Remove a listener."""
        self._listeners.discard(listener)

    async def news(self, listener: "Listener", parts: Callable[[], Mapping[str, str] | None]) -> AsyncIterator[str]:
        """Yield changes as event lines: first everything, then the changed parts, or a keep-alive."""
        until_s = self._clock.monotonic_s() + LISTEN_S_MAX
        sent: dict[str, str] = {}
        yield f"retry: {self._retry_ms}\n\n"
        while not self._ending.is_set() and self._clock.monotonic_s() < until_s:
            found = await run_in_threadpool(parts)
            if found is None:
                return
            changed = {name: text for name, text in found.items() if sent.get(name) != text}
            sent.update(changed)
            yield f"event: parts\ndata: {json.dumps(changed)}\n\n"
            with anyio.move_on_after(self._interval_s):
                await listener.woken.wait()


class Listener(StreamingResponse):
    """One open page; its place is released however the response ends."""

    def __init__(self, live: Live, parts: Callable[[], Mapping[str, str] | None]) -> None:
        self.woken = anyio.Event()
        self._loop: AbstractEventLoop = get_running_loop()
        self._live = live
        super().__init__(live.news(self, parts), media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._live.leave(self)

    def wake(self) -> None:
        """Wake the listener; for other threads."""
        self._loop.call_soon_threadsafe(self.woken.set)
