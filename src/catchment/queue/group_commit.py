"""Group commit: whoever comes while a commit is under way waits, and the next commit takes all who wait.

One writer at a time, one fsync for all of them. There is no thread of its own, so that a lone writer pays for no
hand-over: the first to come commits, and when it is done it makes the first of those who came meanwhile the next to
commit, for itself and the others. A plain lock would not do: whoever lets go of it is the one that gets it next.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from catchment.errors import CatchmentError, CommitUnknownError, DiskFullError, InvariantError

Item = TypeVar("Item")
Result = TypeVar("Result")
T = TypeVar("T")

_GATHER_S_EACH = 0.000_3
_GATHER_S_MAX = 0.006


class GroupCommit(Generic[Item, Result]):
    """Runs `commit` on all items that wait, at most `items_max` at once; results come back in the items' order."""

    def __init__(
        self,
        commit: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        items_max: int,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        """`observe` is told the size of each group, by the thread that leads it."""
        self._commit = commit
        self._observe = observe
        self._items_max = items_max
        # Guards what follows; held for moments only.
        self._mutex = threading.Lock()
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._is_led = False
        # How many writers there seem to be, and how many of them the leader is waiting for, if it is.
        self._writers = 1
        self._quorum = 0
        self._gathered = threading.Event()

    def submit(self, item: Item) -> Result:
        """Have the item committed, by this thread or another; its own failure is raised, not that of others."""
        mine = _Waiting[Item, Result](item)
        self._stand_in_line(mine)
        if not mine.done:
            # Not woken because it is done, so it is this thread's turn to commit.
            self._lead(mine)
        if mine.error is not None:
            raise mine.error
        return mine.result

    def exclusively(self, action: Callable[[], T]) -> T:
        """Run something while no commit is under way."""
        mine = _Waiting[Item, Result](None)
        self._stand_in_line(mine)
        try:
            return action()
        finally:
            with self._mutex:
                self._waiting.remove(mine)
            self._pass_on()

    def _stand_in_line(self, mine: "_Waiting[Item, Result]") -> None:
        """Wait until done, or until it is this thread's turn to lead."""
        if self._join(mine):
            return
        try:
            mine.wait()
        except BaseException:
            # Told to end while waiting: the line must not wait for one who is gone.
            with self._mutex:
                was_first = bool(self._waiting) and self._waiting[0] is mine
                with suppress(ValueError):
                    self._waiting.remove(mine)
            if was_first and mine.was_woken():
                self._pass_on()
            raise

    def _join(self, mine: "_Waiting[Item, Result]") -> bool:
        """Stand in line; True when nobody leads, so that this thread does now."""
        with self._mutex:
            self._waiting.append(mine)
            first, self._is_led = not self._is_led, True
            if 0 < self._quorum <= len(self._waiting):
                self._gathered.set()
        return first

    def _gather(self) -> None:
        """Give those a moment who were just told, and will be back: two half groups would cost two commits."""
        with self._mutex:
            self._quorum = self._writers if len(self._waiting) < self._writers else 0
            self._gathered.clear()
            pause_s = min(self._quorum * _GATHER_S_EACH, _GATHER_S_MAX)
        if pause_s:
            self._gathered.wait(pause_s)

    def _lead(self, mine: "_Waiting[Item, Result]") -> None:
        group: list[_Waiting[Item, Result]] = []
        try:
            self._gather()
            with self._mutex:
                self._quorum = 0
                # Up to somebody who wants to be alone.
                while self._waiting and self._waiting[0].item is not None and len(group) < self._items_max:
                    group.append(self._waiting[0])
                    self._waiting.popleft()
            if group and self._observe is not None:
                self._observe(len(group))
            self._run(group)
        except BaseException:
            # Told to end, maybe before the group was made: then those in line are the next one's, without this thread.
            with self._mutex:
                self._quorum = 0
                for each in (mine, *group):
                    with suppress(ValueError):
                        self._waiting.remove(each)
            raise
        finally:
            # Told only now: a writer that is told at once comes back at once, and would find itself in line alone.
            for each in group:
                if not each.done:
                    each.fail(InvariantError("The thread that was committing did not come back."))
                each.wake()
            self._pass_on(len(group))

    def _pass_on(self, served: int = 0) -> None:
        with self._mutex:
            if served:
                self._writers = min(served + len(self._waiting), self._items_max)
            self._is_led = bool(self._waiting)
            if self._waiting:
                # Inside, so that one who is told to end at this moment sees whether it is its turn.
                self._waiting[0].wake()

    def _run(self, group: "list[_Waiting[Item, Result]]") -> None:
        try:
            results = self._commit([each.item for each in group if each.item is not None])
        except CatchmentError as error:
            if isinstance(error, CommitUnknownError | DiskFullError):
                # Trying again might keep the rows twice; or the disk is full for every one of them.
                for each in group:
                    each.fail(error)
            elif len(group) > 1:
                # One bad item must not fail its neighbours, who cannot know of it.
                for each in group:
                    self._run([each])
            else:
                group[0].fail(error)
        except BaseException:
            # A bug of ours, or the thread is told to end: nobody else may wait for it.
            for each in group:
                if not each.done:
                    each.fail(InvariantError("The thread that was committing did not come back."))
            raise
        else:
            for each, result in zip(group, results, strict=True):
                each.succeed(result)


class _Waiting(Generic[Item, Result]):
    """Somebody in line. Written by the leading thread before it wakes the owner, who reads it after."""

    result: Result

    def __init__(self, item: Item | None) -> None:
        self.item = item
        self.done = False
        self.error: CatchmentError | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wait(self) -> None:
        """Sleep until done, or until it is the owner's turn to lead."""
        self._asleep.acquire()

    def was_woken(self) -> bool:
        """Whether it has been this one's turn already."""
        return self._asleep.acquire(blocking=False)

    def wake(self) -> None:
        """Wake the owner; the leader itself is awake."""
        self._asleep.release()

    def succeed(self, result: Result) -> None:
        self.result = result
        self.done = True

    def fail(self, error: CatchmentError) -> None:
        self.error = error
        self.done = True
