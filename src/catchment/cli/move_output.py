"""Output of the commands of tenants and shards: progress and results of moves."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from catchment.cli.context import RunningCommand, reporting_spark, stopping_gently
from catchment.cli.output import Output
from catchment.errors import EXIT_STOPPED, CatchmentError, RetryableError
from catchment.foundation.clock import Clock
from catchment.foundation.text import plural
from catchment.lake.erase import Erased
from catchment.tenants.drain import DrainMove
from catchment.tenants.migration import Preflight
from catchment.tenants.model import Complete, Finalizing, ShardId, TenantId
from catchment.tenants.reports import MoveStatus
from catchment.tenants.run_move import MovePhase, MoveReport
from catchment.tenants.shard_api import Lag

if TYPE_CHECKING:
    from catchment.tenants.model import MigrationState

_SAY_AGAIN_S = 5.0
_SHOWN: dict[MovePhase, tuple[str, str]] = {
    MovePhase.PREPARING: ("preparing", "the target gets the history"),
    MovePhase.CATCHING_UP: ("catching up", "the target gets the rows written since"),
    MovePhase.DUAL_WRITE: ("dual-write", "both get every write"),
    MovePhase.COMPARING: ("comparing", "source and target must be equal"),
    MovePhase.SWITCHING: ("switching", "the target becomes the primary"),
    MovePhase.WAITING_FOR_GC: ("waiting for GC", "the source is kept for its window"),
}


@contextmanager
def shown_moves(run: RunningCommand, resume: str) -> Iterator[tuple["Display", Callable[[], bool]]]:
    """Show the progress of moves on stderr; yield their watcher, and whether to stop.

    Ctrl-C stops after the current step, a second one at once. `resume` is the command that
    continues.
    """
    display = Display(run.out, run.catchment.app.clock, resume)
    try:
        with (
            reporting_spark(run.out),
            display.shown(),
            stopping_gently(run.out, "Stopping once the current step is done.") as stop,
        ):
            yield display, stop
    except KeyboardInterrupt:
        run.out.say(f"Stopped. The tenant keeps writing; nothing is lost or duplicated. `{display.resume}` continues.")
        raise typer.Exit(EXIT_STOPPED) from None


def resume_command(tenant: TenantId, target: ShardId) -> str:
    """Return the command that continues a move."""
    return f"catchment tenant move {tenant} --to {target}"


class Display:
    """Progress of a move on stderr: a bar for each phase on a terminal, plain lines elsewhere."""

    def __init__(self, out: Output, clock: Clock, resume: str) -> None:
        self._out = out
        self._clock = clock
        self._said_s = 0.0
        self._task: TaskID | None = None
        # Set while bars are shown, on a terminal.
        self._bars: Progress | None = None
        # The command that continues the current move.
        self.resume = resume

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show progress for the duration of the block."""
        self._start()
        try:
            yield
            self._finish()
        finally:
            self._stop()

    def moving(self, source: ShardId, move: DrainMove) -> None:
        """Start the display of a tenant's move."""
        self._finish()
        self._stop()
        self.resume = resume_command(move.tenant, move.target)
        self._out.step(f"{move.tenant}: {source} → {move.target}")
        self._start()

    def left_behind(self, _tenant: TenantId, error: CatchmentError) -> None:
        """Show why a tenant stays."""
        self._stop()
        self._out.say(f"  {error.message}")

    def phase(self, phase: MovePhase) -> None:
        """Start the display of a phase."""
        if self._bars is None:
            self._out.say(f"  {': '.join(_SHOWN[phase])}")
            self._said_s = self._clock.monotonic_s()
            return
        self._finish()
        self._task = self._bars.add_task(_SHOWN[phase][0], total=None, detail="")

    def history(self, done: int, total: int) -> None:
        """Show the copied bytes of the history."""
        self._show(f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB", done=done, total=total)

    def lag(self, lag: Lag, left_s: float | None) -> None:
        """Show the lag of the replica, and the estimated time to catch up."""
        eta = "" if left_s is None else f", about {left_s:,.0f} s left"
        error = f" ({lag.error})" if lag.error else ""
        self._show(f"{plural(lag.rows, 'row')} behind{eta}{error}", done=lag.replica.total, total=lag.primary.total)

    def window(self, left_s: float) -> None:
        """Show for how long the source is kept."""
        self._show(f"the source is deleted in {left_s:,.0f} s")

    def again(self, error: RetryableError, wait_s: float) -> None:
        """Show why a step is retried."""
        self._out.say(f"  {error.message} Retrying in {wait_s:.1f} s.")

    def _show(self, detail: str, *, done: int | None = None, total: int | None = None) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, total=total, detail=detail)
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._said_s >= _SAY_AGAIN_S or (done is not None and done == total and done):
            self._said_s = now_s
            self._out.say(f"    {detail}")

    def _start(self) -> None:
        if self._out.screen is None:
            return
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=self._out.screen,
        )
        self._bars.start()

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._task = None

    def _finish(self) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, total=1, completed=1)


def report_facts(report: MoveReport) -> dict[str, Any]:
    """Return the report of a run as JSON."""
    return {
        "ok": not report.stopped,
        "tenant": str(report.tenant),
        "source": str(report.source),
        "target": str(report.target),
        "state": report.state,
        "states": report.states,
        "rows": report.rows,
        "bytes": report.bytes,
        "seconds": {phase.value: round(spent_s, 3) for phase, spent_s in report.seconds.items()},
        "pause_ms": report.pause_ms,
        "retries": report.retries,
        "stopped": report.stopped,
        "erased": erased_facts(report.erased),
        "next": next_commands(report.tenant, report.target, report.state),
    }


def report_lines(report: MoveReport) -> Iterator[str]:
    """Yield the lines of the report of a run."""
    tenant, source, target = report.tenant, report.source, report.target
    if report.stopped:
        yield f"Stopped in {report.state}; {tenant} keeps writing, and nothing is lost or duplicated."
    elif report.state == "Complete":
        yield f"{tenant} lives in {target}."
        yield from erased_lines(source, report.erased)
    else:
        yield f"{tenant} lives in {target}; {source} is kept as a replica that gets every write."
    if report.rows is not None:
        yield f"{plural(report.rows, 'row')} compared and equal; {report.bytes / 1e6:,.1f} MB of history copied."
    if report.pause_ms is not None:
        yield f"Writes waited for {report.pause_ms:,.1f} ms at the switch."
    spent = ", ".join(f"{phase.value} {spent_s:,.1f} s" for phase, spent_s in report.seconds.items())
    if spent:
        yield f"Time: {spent}."
    yield from (f"Next: {each}" for each in next_commands(tenant, target, report.state))


def erased_facts(erased: Erased | None) -> dict[str, Any] | None:
    """Return the summary of a tenant's deleted data as JSON."""
    return None if erased is None else asdict(erased)


def erased_lines(shard: ShardId, erased: Erased | None) -> Iterator[str]:
    """Yield the lines about deleted and remaining data of a tenant on a shard."""
    if erased is None:
        return
    yield (
        f"{shard} has dropped the tables and deleted {plural(erased.files, 'file')} with {erased.bytes:,} bytes: "
        "no rows of the tenant are left there."
    )
    if erased.files_elsewhere:
        yield (
            f"{plural(erased.files_elsewhere, 'file')} outside of the lake's data path are left: "
            "they were registered from there."
        )
    if erased.snapshots:
        span = f"{plural(erased.snapshots, 'snapshot')} ({erased.snapshot_first} to {erased.snapshot_last})"
        yield (
            f"Names, numbers of rows and bounds of columns stay in its catalog until {span} expire: "
            f"`catchment lake maintain` in its home, after CATCHMENT_LAKE_SNAPSHOT_KEEP_HOURS."
        )


def next_commands(tenant: TenantId, target: ShardId, state: str) -> tuple[str, ...]:
    """Return the commands that a move in that state allows."""
    match state:
        case "PreparingTarget" | "DualWrite":
            return (resume_command(tenant, target), f"catchment tenant abort {tenant}")
        case "Finalizing":
            return (f"catchment tenant gc {tenant}", f"catchment tenant reverse {tenant}")
        case _:
            return ()


def preflight_facts(found: Preflight, phases: Sequence[MovePhase]) -> dict[str, Any]:
    """Return a preflight as JSON."""
    return {
        "ok": found.ok,
        "dry_run": True,
        "tenant": str(found.tenant.id),
        "source": str(found.source.id),
        "target": str(found.target.id),
        "state": "Idle",
        "tables": found.history.tables,
        "files": found.history.files,
        "bytes": found.history.bytes,
        "notes": found.history.notes,
        "problems": found.problems,
        "phases": list(phases),
    }


def preflight_lines(found: Preflight) -> Iterator[str]:
    """Yield the lines of a preflight."""
    history = found.history
    yield (
        f"{found.tenant.id} would move from {found.source.id} to {found.target.id}: "
        f"{plural(history.tables, 'table')}, {plural(history.files, 'file')} with "
        f"{history.bytes / 1e6:,.1f} MB, and the buffered rows."
    )
    yield from (f"  {note}" for note in history.notes)
    yield from (f"Problem: {problem}" for problem in found.problems)
    if found.ok:
        yield f"No problems found: `catchment tenant move {found.tenant.id} --to {found.target.id}`."


def move_facts(status: MoveStatus) -> dict[str, Any]:
    """Return a move as JSON."""
    move, lag = status.move, status.lag
    return {
        "token": move.token,
        "source": str(move.source),
        "target": str(move.target),
        "state": move.state.name,
        **move.state.to_json(),
        "version": move.version,
        "outcome": move.outcome,
        "created_at": move.created_at,
        "updated_at": move.updated_at,
        "finished_at": move.finished_at,
        "lag": None if lag is None else lag_facts(lag),
        "lag_unknown": status.lag_unknown,
    }


def lag_facts(lag: Lag) -> dict[str, Any]:
    """Return a replica's lag as JSON."""
    return {"rows": lag.rows, "seconds": round(lag.seconds, 3), "is_sync": lag.is_sync, "error": lag.error}


def move_lines(status: MoveStatus) -> Iterator[str]:
    """Yield the lines of a move."""
    move, lag = status.move, status.lag
    where = f"from {move.source} to {move.target}"
    if move.finished_at is not None:
        yield f"The last move, {where}, is {move.outcome} since {move.finished_at:%Y-%m-%d %H:%M:%S} UTC."
        yield from _pause_lines(move.state)
        return
    yield f"Moving {where}, in {move.state.name} since {move.updated_at:%Y-%m-%d %H:%M:%S} UTC."
    yield from _pause_lines(move.state)
    if lag is not None:
        state = "confirms every write" if lag.is_sync else f"is behind{f': {lag.error}' if lag.error else ''}"
        yield f"The replica lacks {plural(lag.rows, 'row')} and {state}."
    elif status.lag_unknown is not None:
        yield f"The lag of the replica is unknown: {status.lag_unknown}"
    yield from (f"Next: {each}" for each in next_commands(move.tenant, move.target, move.state.name))


def _pause_lines(state: "MigrationState") -> Iterator[str]:
    if isinstance(state, Finalizing | Complete) and state.pause_ms:
        yield f"Writes waited for {state.pause_ms:,.1f} ms at the switch."
