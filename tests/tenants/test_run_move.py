"""Running a move: to the switch or to the end, from any state, with bounds on every wait."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import (
    CatchmentError,
    LakeUnavailableError,
    LockTimeoutError,
    NotReadyError,
    RetryableError,
    ShardUnreachableError,
)
from catchment.foundation import faults
from catchment.tenants.model import Complete, Finalizing, Idle, PreparingTarget
from catchment.tenants.run_move import MovePhase, MoveReport, retry_step, run_move
from catchment.tenants.shard_api import Lag, RetainedHistory, ShardRole
from catchment.testing import FakeClock
from tests.tenants.two_shards import T7, A, B, Scene, events, two_shards


class Watched:
    """Records every notification."""

    def __init__(self) -> None:
        self.phases: list[MovePhase] = []
        self.bytes: list[tuple[int, int]] = []
        self.rows_behind: list[int] = []
        self.errors: list[str] = []

    def phase(self, phase: MovePhase) -> None:
        self.phases.append(phase)

    def history(self, done: int, total: int) -> None:
        self.bytes.append((done, total))

    def lag(self, lag: Lag, left_s: float | None) -> None:
        assert left_s is None or left_s >= 0
        self.rows_behind.append(lag.rows)

    def window(self, left_s: float) -> None:
        assert left_s > 0

    def again(self, error: RetryableError, wait_s: float) -> None:
        self.errors.append(error.message)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with two_shards(tmp_path) as scene:
        write = scene.gateway().signal_for_tenant
        write(T7, "events", events(1, 2, 3))
        scene.queues[A].force_flush_all()
        write(T7, "events", events(4))
        yield scene


def _drive(scene: Scene, watched: Watched | None = None, **options: object) -> MoveReport:
    return run_move(scene.move(), clock=scene.clock, watcher=watched, **options)  # type: ignore[arg-type]


def test_a_drive_goes_to_the_switch_and_another_one_to_the_end(scene: Scene) -> None:
    watched = Watched()
    report = _drive(scene, watched)
    assert report.states == ("Idle", "PreparingTarget", "DualWrite", "Finalizing")
    assert watched.phases == list(report.seconds) == list(MovePhase)[:5]
    assert watched.bytes[-1] == (report.bytes, report.bytes)
    assert watched.rows_behind[-1] == 0
    assert (report.rows, report.stopped) == (4, False)
    assert report.pause_ms is not None
    assert report.pause_ms > 0
    scene.gateway().signal_for_tenant(T7, "events", events(5))
    ended = _drive(scene, gc_window_s=0.0)
    assert isinstance(scene.move().state, Complete)
    whole = report.then(ended)
    assert whole.states == ("Idle", "PreparingTarget", "DualWrite", "Finalizing", "Complete")
    assert list(whole.seconds) == list(MovePhase)
    assert (whole.rows, whole.bytes, whole.pause_ms) == (5, report.bytes, report.pause_ms)
    assert scene.rows_in(B) == [1, 2, 3, 4, 5]
    assert scene.rows_in(A) == []


def test_a_run_waits_for_the_gc_window(scene: Scene) -> None:
    _drive(scene)
    started_s = scene.clock.monotonic_s()
    _drive(scene, gc_window_s=0.5)
    assert isinstance(scene.move().state, Complete)
    assert scene.clock.monotonic_s() - started_s < 30


def test_a_drive_that_is_asked_to_stop_leaves_a_state_that_the_next_one_goes_on_from(scene: Scene) -> None:
    assert _drive(scene, stop=lambda: True).stopped
    assert isinstance(scene.move().state, Idle)
    asked = False

    class Stopping(Watched):
        def phase(self, phase: MovePhase) -> None:
            nonlocal asked
            asked = phase is MovePhase.CATCHING_UP

    stopped = _drive(scene, Stopping(), stop=lambda: asked)
    assert (stopped.stopped, stopped.state) == (True, "PreparingTarget")
    assert isinstance(scene.move().state, PreparingTarget)
    assert _drive(scene).states == ("PreparingTarget", "DualWrite", "Finalizing")
    waiting = _drive(scene, Stopping(), gc_window_s=3600.0, stop=_after(3))
    assert (waiting.stopped, waiting.state) == (True, "Finalizing")
    assert scene.rows_in(B) == [1, 2, 3, 4]


def _after(times: int) -> Callable[[], bool]:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > times

    return stop


def test_a_history_that_is_stopped_between_commits_is_gone_on_with(scene: Scene) -> None:
    asked = False

    class Stopping(Watched):
        def history(self, done: int, total: int) -> None:
            nonlocal asked
            asked = True

    assert _drive(scene, Stopping(), stop=lambda: asked).state == "Idle"
    assert scene.store.move(T7) is not None
    assert _drive(scene).state == "Finalizing"
    assert scene.rows_in(B) == [1, 2, 3, 4]


def test_a_step_that_must_wait_is_done_again(scene: Scene) -> None:
    failures = iter([ShardUnreachableError("away"), NotReadyError("not yet")])

    def fail() -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    watched = Watched()
    with faults.armed("move.after_dual_write", fail):
        report = _drive(scene, watched)
    assert watched.errors == ["away", "not yet"]
    assert (report.retries, report.state) == (2, "Finalizing")
    assert scene.rows_in(B) == [1, 2, 3, 4]


def test_a_step_that_fails_for_good_ends_with_its_last_error(scene: Scene) -> None:
    def fail() -> None:
        raise ShardUnreachableError("away")

    watched = Watched()
    clock = FakeClock()
    with faults.armed("move.after_hold", fail), pytest.raises(ShardUnreachableError, match="away"):
        run_move(scene.move(), clock=clock, watcher=watched)
    assert 10 < len(watched.errors) < 100
    slept = len(clock.slept_s)
    with faults.armed("move.before_drop", fail), pytest.raises(ShardUnreachableError):
        retry_step(scene.move().abort, clock=clock)
    assert 10 < len(clock.slept_s) - slept < 100
    retry_step(scene.move().abort, clock=clock)
    retry_step(scene.move().abort, clock=clock)
    assert scene.rows_in(A) == [1, 2, 3, 4]


def test_a_replica_without_progress_is_not_waited_for_forever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catchment.tenants.run_move._STALL_S", 5.0)
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    scene.away.add(B)
    scene.gateway().signal_for_tenant(T7, "events", events(*range(5, 20_000)))
    watched = Watched()
    with pytest.raises(NotReadyError, match="makes no progress"):
        run_move(scene.move(), clock=FakeClock(), watcher=watched)
    assert watched.errors == []
    scene.away.clear()
    assert isinstance(scene.move().state, type(move.state))
    _drive(scene)
    assert isinstance(scene.move().state, Finalizing)


def test_a_switch_of_which_no_shard_was_informed_is_announced_by_a_retry(scene: Scene) -> None:
    failures = iter([ShardUnreachableError("the mover is gone")])

    def die() -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    with faults.armed("move.after_switch", die):
        report = _drive(scene)
    assert (report.state, report.retries, report.pause_ms) == ("Finalizing", 1, None)
    roles = {each: record.role for each in (A, B) if (record := scene.shards[each].record(T7)) is not None}
    assert roles == {A: ShardRole.REPLICA, B: ShardRole.PRIMARY}


def test_a_primary_that_missed_an_abort_asks_before_it_retains_its_log_for_the_next_move(scene: Scene) -> None:
    def die() -> None:
        raise ShardUnreachableError("the mover is gone")

    scene.move().prepare_target()
    with faults.armed("move.after_abort", die), pytest.raises(ShardUnreachableError):
        scene.move().abort()
    assert scene.shards[A].retain_log(T7, epoch=scene.store.tenant(T7).epoch, move="next").watermarks.total == 3


def test_a_move_whose_abort_was_interrupted_can_be_started_again(scene: Scene) -> None:
    def die() -> None:
        raise ShardUnreachableError("the mover is gone")

    scene.move().prepare_target()
    with faults.armed("move.after_abort", die), pytest.raises(ShardUnreachableError):
        scene.move().abort()
    report = _drive(scene)
    assert (report.state, report.retries) == ("Finalizing", 0)
    assert scene.rows_in(B) == [1, 2, 3, 4]


@pytest.mark.parametrize("trouble", [LakeUnavailableError("It is away."), LockTimeoutError("It is busy.")], ids=repr)
def test_a_lake_that_is_unreachable_or_busy_for_a_moment_does_not_end_the_move(
    scene: Scene, trouble: CatchmentError, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = scene.shards[A].retain_log
    troubles = [trouble]

    def troubled(*args: Any, **kwargs: Any) -> RetainedHistory:
        if troubles:
            raise troubles.pop()
        return hold(*args, **kwargs)

    monkeypatch.setattr(scene.shards[A], "retain_log", troubled)
    assert run_move(scene.move(), clock=scene.clock).state == "Finalizing"
    assert scene.rows_in(B) == [1, 2, 3, 4]
