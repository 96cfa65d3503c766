"""Group commit: one commit for all waiting writers, each with its own result."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from catchment.errors import CommitUnknownError, InputError, InvariantError
from catchment.queue.group_commit import GroupCommit

WAIT_S = 30.0
INTERRUPTING = 99


class Interrupted(BaseException):
    """What ends a thread from outside."""


class Line(GroupCommit[int, str]):
    """A group commit that signals every new waiter."""

    def __init__(self, commit: Callable[[Sequence[int]], Sequence[str]], *, items_max: int) -> None:
        super().__init__(commit, items_max=items_max)
        self._came = threading.Semaphore(0)

    def _enqueue(self, mine: Any) -> bool:
        first = super()._enqueue(mine)
        self._came.release()
        return first

    def wait_for_one(self) -> None:
        assert self._came.acquire(timeout=WAIT_S)


class Desk:
    """A commit that can be held up: it says when it has begun, and goes on when it is let."""

    def __init__(self, *, held: bool = False, items_max: int = 100) -> None:
        self.groups: list[list[int]] = []
        self.begun = threading.Semaphore(0)
        self.let = threading.Event()
        if not held:
            self.let.set()
        self.busy = 0
        self.line = Line(self._commit, items_max=items_max)

    def _commit(self, items: Sequence[int]) -> list[str]:
        self.busy += 1
        assert self.busy == 1
        try:
            self.groups.append(list(items))
            self.begun.release()
            assert self.let.wait(WAIT_S)
        finally:
            self.busy -= 1
        if INTERRUPTING in items:
            raise Interrupted
        if any(item < 0 for item in items):
            raise InputError(f"bad {items}")
        return [f"done {item}" for item in items]


def _behind_the_first(desk: Desk, pool: ThreadPoolExecutor, items: Sequence[int]) -> list[Future[str]]:
    """Start committing item 0, with the others waiting after it, in order."""
    futures = [pool.submit(desk.line.submit, 0)]
    desk.line.wait_for_one()
    assert desk.begun.acquire(timeout=WAIT_S)
    return futures + [_in_line(desk, pool, item) for item in items]


def _in_line(desk: Desk, pool: ThreadPoolExecutor, item: int) -> Future[str]:
    """Have one more item in line."""
    future = pool.submit(desk.line.submit, item)
    desk.line.wait_for_one()
    return future


def _results(futures: Sequence[Future[Any]]) -> list[Any]:
    return [future.result(WAIT_S) for future in futures]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as pool:
        yield pool


def test_a_lone_item_is_committed_by_its_own_thread() -> None:
    threads: list[int] = []

    def commit(items: Sequence[int]) -> Sequence[int]:
        threads.append(threading.get_ident())
        return items

    group = GroupCommit[int, int](commit, items_max=10)
    assert [group.submit(item) for item in range(3)] == [0, 1, 2]
    assert threads == [threading.get_ident()] * 3


def test_items_that_arrive_during_a_commit_go_with_the_next_and_get_their_own_results(pool: ThreadPoolExecutor) -> None:
    desk = Desk(held=True)
    futures = _behind_the_first(desk, pool, range(1, 9))
    desk.let.set()
    assert _results(futures) == [f"done {item}" for item in range(9)]
    assert desk.groups == [[0], list(range(1, 9))]


def test_a_group_has_a_largest_size_and_the_rest_follows(pool: ThreadPoolExecutor) -> None:
    desk = Desk(held=True, items_max=3)
    futures = _behind_the_first(desk, pool, range(1, 9))
    desk.let.set()
    assert _results(futures) == [f"done {item}" for item in range(9)]
    assert desk.groups == [[0], [1, 2, 3], [4, 5, 6], [7, 8]]


def test_a_bad_item_fails_alone(pool: ThreadPoolExecutor) -> None:
    desk = Desk(held=True)
    futures = _behind_the_first(desk, pool, [1, -2, 3])
    desk.let.set()
    with pytest.raises(InputError, match=r"bad \[-2\]"):
        futures[2].result(WAIT_S)
    assert _results([futures[0], futures[1], futures[3]]) == ["done 0", "done 1", "done 3"]
    # No item was committed twice: the failed group left nothing, so each was tried alone.
    assert desk.groups == [[0], [1, -2, 3], [1], [-2], [3]]
    assert desk.line.submit(4) == "done 4"


def test_a_bad_item_at_the_head_does_not_stop_later_items(pool: ThreadPoolExecutor) -> None:
    desk = Desk(held=True)
    first = _in_line(desk, pool, -1)
    assert desk.begun.acquire(timeout=WAIT_S)
    second = _in_line(desk, pool, 2)
    desk.let.set()
    assert second.result(WAIT_S) == "done 2"
    assert isinstance(first.exception(WAIT_S), InputError)


def test_an_interrupted_thread_blocks_no_other_thread(pool: ThreadPoolExecutor) -> None:
    desk = Desk(held=True)
    futures = _behind_the_first(desk, pool, [INTERRUPTING, 2])
    desk.let.set()
    assert futures[0].result(WAIT_S) == "done 0"
    assert isinstance(futures[1].exception(WAIT_S), Interrupted)
    assert isinstance(futures[2].exception(WAIT_S), InvariantError)
    assert desk.line.submit(3) == "done 3"


def test_an_exclusive_action_waits_for_the_running_commit_and_keeps_others_out(pool: ThreadPoolExecutor) -> None:
    desk = Desk(held=True)
    order: list[str] = []

    def alone() -> str:
        assert desk.busy == 0
        order.append(f"alone after {desk.groups}")
        return "alone"

    futures = _behind_the_first(desk, pool, [1])
    exclusive = pool.submit(desk.line.exclusively, alone)
    desk.line.wait_for_one()
    futures.append(_in_line(desk, pool, 2))
    assert not exclusive.done()
    desk.let.set()
    assert exclusive.result(WAIT_S) == "alone"
    assert _results(futures) == ["done 0", "done 1", "done 2"]
    assert desk.groups == [[0], [1], [2]]
    assert order == ["alone after [[0], [1]]"]


@pytest.mark.parametrize("fails", [False, True])
def test_commits_continue_after_an_exclusive_action(fails: bool, pool: ThreadPoolExecutor) -> None:
    desk = Desk()
    inside, let = threading.Event(), threading.Event()

    def alone() -> int:
        inside.set()
        assert let.wait(WAIT_S)
        return 1 // (0 if fails else 1)

    exclusive = pool.submit(desk.line.exclusively, alone)
    desk.line.wait_for_one()
    assert inside.wait(WAIT_S)
    futures = [_in_line(desk, pool, item) for item in (1, 2)]
    assert desk.groups == []
    let.set()
    assert _results(futures) == ["done 1", "done 2"]
    assert isinstance(exclusive.exception(WAIT_S), ZeroDivisionError if fails else type(None))


def test_many_writers_and_some_exclusive_ones_all_get_through(pool: ThreadPoolExecutor) -> None:
    desk = Desk(items_max=7)

    def work(start: int) -> list[str]:
        found = []
        for item in range(start, start + 50):
            found.append(desk.line.submit(item))
            if item % 10 == 0:
                desk.line.exclusively(_idle_check(desk))
        return found

    results = _results([pool.submit(work, writer * 100) for writer in range(12)])
    assert results == [[f"done {writer * 100 + at}" for at in range(50)] for writer in range(12)]
    committed = [item for group in desk.groups for item in group]
    assert sorted(committed) == sorted(writer * 100 + at for writer in range(12) for at in range(50))
    assert max(map(len, desk.groups)) <= 7


def _idle_check(desk: Desk) -> Callable[[], None]:
    def check() -> None:
        assert desk.busy == 0

    return check


def test_an_interrupt_while_items_are_tried_one_by_one_leaves_no_second_leader(
    pool: ThreadPoolExecutor,
) -> None:
    tries: list[list[int]] = []

    def commit(items: Sequence[int]) -> list[str]:
        tries.append(list(items))
        if len(items) > 1:
            raise InputError("not together")
        if INTERRUPTING in items:
            raise Interrupted
        assert desk.let.wait(WAIT_S)
        return [f"done {item}" for item in items]

    desk = Desk(held=True)
    desk.line = Line(commit, items_max=100)
    futures = [pool.submit(desk.line.submit, 0)]
    desk.line.wait_for_one()
    futures += [_in_line(desk, pool, item) for item in (1, INTERRUPTING, 3, 4)]
    desk.let.set()
    assert futures[0].result(WAIT_S) == "done 0"
    assert isinstance(futures[1].exception(WAIT_S), Interrupted)
    for left in futures[3:]:
        assert isinstance(left.exception(WAIT_S), InvariantError)
    assert tries == [[0], [1, INTERRUPTING, 3, 4], [1], [INTERRUPTING]]
    assert desk.line.submit(5) == "done 5"


class Impatient(threading.Event):
    """Interrupts the leader's wait once all expected items are waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.let = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.reached.set()
        assert self.let.wait(WAIT_S)
        raise Interrupted


def test_a_thread_that_is_interrupted_while_it_gathers_blocks_no_other_thread(pool: ThreadPoolExecutor) -> None:
    desk = Desk()
    line = desk.line
    patient, line._gathered = line._gathered, (impatient := Impatient())
    # As if some had just got their results, and would return.
    line._writers_estimate = 10
    first = _in_line(desk, pool, 0)
    assert impatient.reached.wait(WAIT_S)
    line._gathered = patient
    others = [_in_line(desk, pool, item) for item in (1, 2)]
    impatient.let.set()
    assert isinstance(first.exception(WAIT_S), Interrupted)
    # Nothing was under way yet, so they lose nothing.
    assert _results(others) == ["done 1", "done 2"]
    assert desk.groups == [[1, 2]]
    assert line.submit(3) == "done 3"


def test_a_commit_that_may_have_landed_is_not_tried_again(pool: ThreadPoolExecutor) -> None:
    tries: list[list[int]] = []

    def commit(items: Sequence[int]) -> list[str]:
        tries.append(list(items))
        assert desk.let.wait(WAIT_S)
        if len(items) > 1:
            raise CommitUnknownError
        return [f"done {item}" for item in items]

    desk = Desk(held=True)
    desk.line = Line(commit, items_max=100)
    futures = [pool.submit(desk.line.submit, 0)]
    desk.line.wait_for_one()
    futures += [_in_line(desk, pool, item) for item in (1, 2)]
    desk.let.set()
    assert futures[0].result(WAIT_S) == "done 0"
    assert all(isinstance(each.exception(WAIT_S), CommitUnknownError) for each in futures[1:])
    assert tries == [[0], [1, 2]]
