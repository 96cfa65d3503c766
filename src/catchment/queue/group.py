"""Group commit: whoever comes while a commit is under way waits for it, and the next commit takes all who wait.

One writer at a time, one fsync for all of them. There is no thread of its own: of those who wait, the first to get in
commits for everybody, so that a lone writer pays for no hand-over.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupCommit(Generic[Item, Result]):
    """Runs `commit` on all items that wait, at most `items_max` at once; results come back in the items' order."""

    def __init__(self, commit: Callable[[Sequence[Item]], Sequence[Result]], *, items_max: int) -> None:
        self._commit = commit
        self._items_max = items_max
        self._waiting: deque[_Pending[Item, Result]] = deque()
        self._writer = threading.Lock()

    def submit(self, item: Item) -> Result:
        """Have the item committed, by this thread or another; its own failure is raised, not that of others."""
        pending = _Pending[Item, Result](item)
        self._waiting.append(pending)
        with self._writer:
            while not pending.done:
                self._run([self._waiting.popleft() for _ in range(min(len(self._waiting), self._items_max))])
        if pending.error is not None:
            raise pending.error
        return pending.result

    def exclusively(self, action: Callable[[], Result]) -> Result:
        """Run something while no commit is under way."""
        with self._writer:
            return action()

    def _run(self, group: "list[_Pending[Item, Result]]") -> None:
        try:
            results = self._commit([pending.item for pending in group])
        except Exception as error:
            if len(group) > 1:
                # One bad item must not fail its neighbours, who cannot know of it.
                for pending in group:
                    self._run([pending])
            else:
                group[0].fail(error)
        else:
            for pending, result in zip(group, results, strict=True):
                pending.succeed(result)


class _Pending(Generic[Item, Result]):
    """An item on its way. Written by the committing thread before it lets go of the writer lock, read after."""

    result: Result

    def __init__(self, item: Item) -> None:
        self.item = item
        self.done = False
        self.error: Exception | None = None

    def succeed(self, result: Result) -> None:
        self.result = result
        self.done = True

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done = True
