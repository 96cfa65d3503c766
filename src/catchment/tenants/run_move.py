"""Runs a move to its end, from any state: waits for every step, and retries it if it is not ready.

    preparing ──▶ catching-up ──▶ dual-write ──▶ comparing ──▶ switching ──▶ waiting-for-gc

It stores no state itself: a run that is stopped or killed leaves the move's state, and the next
run continues from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeVar

from catchment.errors import (
    CancelledError,
    ConflictError,
    ControlUnavailableError,
    LakeUnavailableError,
    LockTimeoutError,
    NotReadyError,
    RetryableError,
    ShardUnreachableError,
    StaleRouteError,
)
from catchment.foundation import events
from catchment.foundation.backoff import Backoff
from catchment.foundation.clock import Clock
from catchment.foundation.events import Event
from catchment.lake.erase import Erased
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import (
    Complete,
    DualWrite,
    Finalizing,
    Idle,
    MigrationState,
    PreparingTarget,
    ShardId,
    TenantId,
)
from catchment.tenants.shard_api import Lag

# Each of them leaves the move unchanged, or as another process has changed it: read its state and
# continue.
_RETRIED = (
    *(NotReadyError, ShardUnreachableError, ConflictError, StaleRouteError),
    *(ControlUnavailableError, LakeUnavailableError, LockTimeoutError),
)
_POLICY = Backoff(attempts_max=30, first_ms=200, factor=1.5, wait_ms_max=5_000)
_LOOK_S = 0.1
# A replica that makes no progress for this long is not waited for any more.
_STALL_S = 120.0
# The replica need not have every row before dual-write begins: it is enough that few are left.
_LITTLE_ROWS = 10_000
_NS_PER_S = 1_000_000_000
T = TypeVar("T")


class MovePhase(StrEnum):
    """Phase of a move, for display."""

    PREPARING = "preparing"
    CATCHING_UP = "catching-up"
    DUAL_WRITE = "dual-write"
    COMPARING = "comparing"
    SWITCHING = "switching"
    WAITING_FOR_GC = "waiting-for-gc"


class Watcher(Protocol):
    """Callbacks for the progress of a move."""

    def phase(self, phase: MovePhase) -> None:
        """A phase begins."""
        ...

    def history(self, done: int, total: int) -> None:
        """`done` of `total` bytes of the history are copied."""
        ...

    def lag(self, lag: Lag, left_s: float | None) -> None:
        """The lag of the replica, and the estimated time to catch up; None if it is unknown."""
        ...

    def window(self, left_s: float) -> None:
        """The remaining time for which the source is kept."""
        ...

    def again(self, error: RetryableError, wait_s: float) -> None:
        """A step is retried after a wait."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """Report of a run. `states` are the states it saw; the last one is the current state.

    `rows` were compared, `bytes` of the history were copied, and `pause_ms` is how long writers
    waited at the switch: None if neither this run nor an earlier one saw it. `erased` is the data
    that the source deleted at the end.
    """

    tenant: TenantId
    source: ShardId
    target: ShardId
    states: tuple[str, ...]
    rows: int | None
    bytes: int
    seconds: Mapping[MovePhase, float]
    pause_ms: float | None
    retries: int
    stopped: bool
    erased: Erased | None = None

    @property
    def state(self) -> str:
        return self.states[-1]

    def then(self, later: "MoveReport") -> "MoveReport":
        """Return the report of both runs of the same move."""
        phases = [*self.seconds, *(each for each in later.seconds if each not in self.seconds)]
        return replace(
            later,
            states=(*self.states, *(each for each in later.states if each not in self.states)),
            rows=self.rows if later.rows is None else later.rows,
            bytes=self.bytes + later.bytes,
            seconds={each: self.seconds.get(each, 0.0) + later.seconds.get(each, 0.0) for each in phases},
            pause_ms=self.pause_ms if later.pause_ms is None else later.pause_ms,
            retries=self.retries + later.retries,
        )


def run_move(
    migration: TenantMigration,
    *,
    clock: Clock,
    watcher: Watcher | None = None,
    gc_window_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> MoveReport:
    """Run the move up to the switch; with `gc_window_s`, wait that long after it and complete it.

    Steps that are not ready are retried within limits; then the last error is raised. `stop` is
    called between steps and during waits.
    """
    run = _MoveRun(migration, clock, watcher or _NoWatcher(), gc_window_s, stop)
    with events.context(tenant=str(migration.tenant)), events.listening(run.on_event):
        return run.run()


def retry_step(operation: Callable[[], T], *, clock: Clock) -> T:
    """Run one step of a move, retrying it within limits while it is not ready."""
    attempt = 1
    while True:
        try:
            return operation()
        except _RETRIED as error:
            if attempt >= _POLICY.attempts_max or _left_s(error) > 0:
                raise
        clock.sleep(_POLICY.wait_ms(attempt, 0.5) / 1000)
        attempt += 1


class _NoWatcher:
    """Ignores all callbacks."""

    def phase(self, phase: MovePhase) -> None: ...

    def history(self, done: int, total: int) -> None: ...

    def lag(self, lag: Lag, left_s: float | None) -> None: ...

    def window(self, left_s: float) -> None: ...

    def again(self, error: RetryableError, wait_s: float) -> None: ...


class _MoveRun:
    def __init__(
        self,
        migration: TenantMigration,
        clock: Clock,
        watcher: Watcher,
        gc_window_s: float | None,
        stop: Callable[[], bool],
    ) -> None:
        self._migration = migration
        self._clock = clock
        self._watcher = watcher
        self._gc_window_s = gc_window_s
        self._stop = stop
        self._states: list[str] = []
        self._seconds: dict[MovePhase, float] = {}
        self._phase: MovePhase | None = None
        self._phase_at_s = 0.0
        self._rows: int | None = None
        self._bytes = 0
        self._pause_ms: float | None = None
        self._retries = 0
        self._erased: Erased | None = None

    def on_event(self, event: Event) -> None:
        """Learn from the migration's events which part of a step is running."""
        if event.facts.get("tenant") != str(self._migration.tenant):
            return
        if event.verb == "tenant_compared":
            self._rows = event.facts["rows"]
            if self._phase is MovePhase.COMPARING:
                self._enter(MovePhase.SWITCHING)

    def run(self) -> MoveReport:
        attempt, stopped = 1, False
        while True:
            try:
                self._check_stop()
                if self._step(self._read_state()):
                    break
                attempt = 1
            except CancelledError:
                stopped = True
                break
            except _RETRIED as error:
                if attempt >= _POLICY.attempts_max or error.facts.get("is_stalled"):
                    raise
                if not self._again(error, attempt):
                    stopped = True
                    break
                attempt += 1
        self._leave()
        if stopped:
            # The last step may have changed it.
            self._read_state()
        move = self._migration
        return MoveReport(
            tenant=move.tenant,
            source=move.source_shard,
            target=move.target_shard,
            states=tuple(self._states),
            rows=self._rows,
            bytes=self._bytes,
            seconds=self._seconds,
            pause_ms=self._pause_ms,
            retries=self._retries,
            stopped=stopped,
            erased=self._erased,
        )

    def _read_state(self) -> MigrationState:
        state = self._migration.state
        if not self._states or self._states[-1] != state.name:
            self._states.append(state.name)
        if isinstance(state, Finalizing) and state.pause_ms:
            self._pause_ms = state.pause_ms
        return state

    def _step(self, state: MigrationState) -> bool:
        """Run the step of the state; return whether nothing is left to do."""
        match state:
            case Idle():
                self._enter(MovePhase.PREPARING)
                self._migration.prepare_target(self._on_history)
            case PreparingTarget():
                self._enter(MovePhase.CATCHING_UP)
                self._follow(lambda lag: lag.rows <= _LITTLE_ROWS)
                self._check_stop()
                self._migration.enter_dual_write()
            case DualWrite():
                self._enter(MovePhase.DUAL_WRITE)
                self._follow(lambda lag: lag.rows <= _LITTLE_ROWS and lag.replica.covers(state.cutover))
                self._check_stop()
                self._enter(MovePhase.COMPARING)
                self._migration.finalize()
            case Finalizing() | Complete():
                return self._end(state)
        return False

    def _end(self, state: MigrationState) -> bool:
        """After the switch, notify the shards; delete the source's data after its window."""
        if isinstance(state, Finalizing):
            # The process that switched may have died before the shards were notified.
            self._migration.finalize()
            self._read_state()
        if self._gc_window_s is None:
            return True
        self._enter(MovePhase.WAITING_FOR_GC)
        try:
            self._erased = self._migration.gc_source(int(self._gc_window_s * _NS_PER_S))
        except NotReadyError as error:
            left_s = _left_s(error)
            if not left_s:
                raise
            self._watcher.window(left_s)
            self._wait(min(left_s, 1.0))
            return False
        self._read_state()
        return True

    def _follow(self, is_near: Callable[[Lag], bool]) -> None:
        """Wait until the replica is near enough. Raises NotReadyError if it makes no progress."""
        started_s = moved_s = self._clock.monotonic_s()
        first = reached = None
        while True:
            lag = self._migration.lag()
            now_s = self._clock.monotonic_s()
            first = first or lag
            if reached is None or lag.replica.total > reached:
                reached, moved_s = lag.replica.total, now_s
            self._watcher.lag(lag, _eta_s(first, lag, now_s - started_s))
            if is_near(lag):
                return
            if now_s - moved_s > _STALL_S:
                reason = f" {lag.error}" if lag.error else ""
                raise NotReadyError(
                    f"The replica is {lag.rows:,} rows behind and makes no progress.{reason}", is_stalled=True
                )
            self._check_stop()
            self._clock.sleep(_LOOK_S)

    def _on_history(self, done: int, total: int) -> None:
        self._bytes = done
        self._watcher.history(done, total)
        # Committed files are recorded, so it is safe to stop between two commits.
        self._check_stop()

    def _again(self, error: RetryableError, attempt: int) -> bool:
        """Wait before a retry; return False if a stop was requested."""
        self._retries += 1
        wait_s = _POLICY.wait_ms(attempt, 0.5) / 1000
        self._watcher.again(error, wait_s)
        try:
            self._wait(wait_s)
        except CancelledError:
            return False
        return True

    def _wait(self, seconds: float) -> None:
        until_s = self._clock.monotonic_s() + seconds
        while (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._check_stop()
            self._clock.sleep(min(left_s, _LOOK_S))

    def _check_stop(self) -> None:
        if self._stop():
            raise CancelledError("The move was stopped; it can be continued.")

    def _enter(self, phase: MovePhase) -> None:
        if phase is not self._phase:
            self._leave()
            self._phase, self._phase_at_s = phase, self._clock.monotonic_s()
            events.identify(phase=phase.name.lower())
            self._watcher.phase(phase)

    def _leave(self) -> None:
        if self._phase is not None:
            spent_s = self._clock.monotonic_s() - self._phase_at_s
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + spent_s
            self._phase = None


def _eta_s(first: Lag, lag: Lag, elapsed_s: float) -> float | None:
    """Estimate when the replica has caught up, from its progress; new writes prolong it."""
    nearer = first.rows - lag.rows
    return lag.rows * elapsed_s / nearer if nearer > 0 else None


def _left_s(error: RetryableError) -> float:
    """Return for how long the source is still kept, if that is the reason to wait."""
    return float(error.facts.get("left_ns", 0)) / _NS_PER_S
