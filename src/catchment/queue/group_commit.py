"""Group commit: writers that arrive during a commit wait, and the next commit includes all of them.

One writer at a time, one fsync for all waiting ones. There is no separate thread, so that a single
writer needs no hand-over: the first one commits. When it is done, the first of those that arrived
during the commit leads the next one, for itself and the others. A plain lock does not work: the
thread that releases it usually gets it again.
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
    """Runs `commit` on all waiting items, at most `items_max` at once; results in their order."""

    def __init__(
        self,
        commit: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        items_max: int,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        """`observe` is called with the size of each group, by the thread that leads it."""
        self._commit = commit
        self._observe = observe
        self._items_max = items_max
        # Guards the fields below; held for moments only.
        self._mutex = threading.Lock()
        self._waiting: deque[_Waiter[Item, Result]] = deque()
        self._is_led = False
        # The estimated number of writers, and how many of them the leader waits for now.
        self._writers_estimate = 1
        self._quorum = 0
        self._gathered = threading.Event()

    def submit(self, item: Item) -> Result:
        """Commit the item, in this thread or another; raise only its own failure."""
        mine = _Waiter[Item, Result](item)
        self._wait_for_turn(mine)
        if not mine.done:
            # Woken before it was done, so it is this thread's turn to commit.
            self._lead(mine)
        if mine.error is not None:
            raise mine.error
        return mine.result

    def exclusively(self, action: Callable[[], T]) -> T:
        """Run an action while no commit is under way."""
        mine = _Waiter[Item, Result](None)
        self._wait_for_turn(mine)
        try:
            return action()
        finally:
            with self._mutex:
                self._waiting.remove(mine)
            self._hand_over()

    def _wait_for_turn(self, mine: "_Waiter[Item, Result]") -> None:
        """Wait until done, or until it is this thread's turn to lead."""
        if self._enqueue(mine):
            return
        try:
            mine.wait()
        except BaseException:
            # Interrupted while waiting: leave the queue so that later writers are not blocked.
            with self._mutex:
                was_first = bool(self._waiting) and self._waiting[0] is mine
                with suppress(ValueError):
                    self._waiting.remove(mine)
            if was_first and mine.was_woken():
                self._hand_over()
            raise

    def _enqueue(self, mine: "_Waiter[Item, Result]") -> bool:
        """Join the queue; return True if no thread leads, so that this one does."""
        with self._mutex:
            self._waiting.append(mine)
            first, self._is_led = not self._is_led, True
            if 0 < self._quorum <= len(self._waiting):
                self._gathered.set()
        return first

    def _gather(self) -> None:
        """Wait briefly for writers that were just served: two half groups cost two commits."""
        with self._mutex:
            self._quorum = self._writers_estimate if len(self._waiting) < self._writers_estimate else 0
            self._gathered.clear()
            pause_s = min(self._quorum * _GATHER_S_EACH, _GATHER_S_MAX)
        if pause_s:
            self._gathered.wait(pause_s)

    def _lead(self, mine: "_Waiter[Item, Result]") -> None:
        group: list[_Waiter[Item, Result]] = []
        try:
            self._gather()
            with self._mutex:
                self._quorum = 0
                # Up to the first waiter that wants to run exclusively.
                while self._waiting and self._waiting[0].item is not None and len(group) < self._items_max:
                    group.append(self._waiting[0])
                    self._waiting.popleft()
            if group and self._observe is not None:
                self._observe(len(group))
            self._run(group)
        except BaseException:
            # Interrupted, maybe before the group was formed: leave waiters in the queue to the next
            # leader.
            with self._mutex:
                self._quorum = 0
                for each in (mine, *group):
                    with suppress(ValueError):
                        self._waiting.remove(each)
            raise
        finally:
            # Wake all members at the end: one that is woken earlier would return at once with its
            # next item and find itself alone in the queue.
            for each in group:
                if not each.done:
                    each.fail(InvariantError("The thread that was committing did not finish."))
                each.wake()
            self._hand_over(len(group))

    def _hand_over(self, served: int = 0) -> None:
        with self._mutex:
            if served:
                self._writers_estimate = min(served + len(self._waiting), self._items_max)
            self._is_led = bool(self._waiting)
            if self._waiting:
                # Inside the lock, so that a waiter that is interrupted now sees whether it is its
                # turn.
                self._waiting[0].wake()

    def _run(self, group: "list[_Waiter[Item, Result]]") -> None:
        try:
            results = self._commit([each.item for each in group if each.item is not None])
        except CatchmentError as error:
            if isinstance(error, CommitUnknownError | DiskFullError):
                # Trying again might store the rows twice; or the disk is full for all of them.
                for each in group:
                    each.fail(error)
            elif len(group) > 1:
                # One bad item must not fail the others, which are unrelated.
                for each in group:
                    self._run([each])
            else:
                group[0].fail(error)
        except BaseException:
            # A bug, or the thread is interrupted: no other thread may be left waiting.
            for each in group:
                if not each.done:
                    each.fail(InvariantError("The thread that was committing did not finish."))
            raise
        else:
            for each, result in zip(group, results, strict=True):
                each.succeed(result)


class _Waiter(Generic[Item, Result]):
    """A thread in the queue.

    Its fields are written by the leading thread before it wakes the owner, which reads them
    afterwards.
    """

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
        """Return whether it has been this waiter's turn already."""
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
