"""What the commands of tenants and of shards share: moving a tenant, how that goes, and what came of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from catchment.cli.context import RunningCommand, stopping_gently, telling_of_spark
from catchment.cli.output import Output
from catchment.control import ControlDatabase
from catchment.errors import (
    EXIT_STOPPED,
    CatchmentError,
    InvalidStateError,
    RetryableError,
    StateError,
)
from catchment.foundation.clock import Clock
from catchment.lake.erase import Erased
from catchment.pipeline.plan import plural
from catchment.server.remote import Remotes
from catchment.tenants.control_store import ControlStore
from catchment.tenants.migration import Preflight, TenantMigration
from catchment.tenants.model import Complete, Finalizing, MigrationState, MoveInfo, ShardId, ShardInfo, TenantId
from catchment.tenants.run_move import MovePhase, MoveReport, run_move
from catchment.tenants.shard_api import Lag, ShardNode

_SAY_AGAIN_S = 5.0
_SHOWN: dict[MovePhase, tuple[str, str]] = {
    MovePhase.PREPARING: ("preparing", "the target gets the history"),
    MovePhase.CATCHING_UP: ("catching up", "the target gets what was written since"),
    MovePhase.DUAL_WRITE: ("dual-write", "both get every write"),
    MovePhase.COMPARING: ("comparing", "source and target must hold the same"),
    MovePhase.SWITCHING: ("switching", "the target becomes the home"),
    MovePhase.WAITING_FOR_GC: ("waiting for GC", "the source is kept for its window"),
}


@dataclass(frozen=True, slots=True)
class MoveContext:
    """The control database and the way to the shards, for one command."""

    run: RunningCommand
    store: ControlStore
    remotes: Remotes

    def node(self, shard: ShardInfo) -> ShardNode:
        """The shard itself."""
        return self.remotes.connect(shard.id, shard.location)

    def migration(
        self, tenant: TenantId, source: ShardId, target: ShardId, *, gate_s: float | None = None
    ) -> TenantMigration:
        """The move of a tenant between two shards."""
        app = self.run.app
        return TenantMigration(
            tenant,
            source,
            target,
            control=self.store,
            connect=self.remotes.connect,
            backfill=app.tenant_backfill(),
            clock=app.clock,
            gate_s=app.settings.tenant_gate_seconds_max if gate_s is None else gate_s,
        )

    def last_move(self, tenant: TenantId) -> MoveInfo:
        """The tenant's newest move; InvalidStateError where it was never moved."""
        self.store.tenant(tenant)
        found = self.store.last_move(tenant)
        if found is None:
            raise InvalidStateError(
                f"{tenant} was never moved.", hint=f"`catchment tenant move {tenant} --to SHARD` moves it."
            )
        return found

    def of(self, move: MoveInfo) -> TenantMigration:
        """A move that there is."""
        return self.migration(move.tenant, move.source, move.target)

    def find_lag(self, migration: TenantMigration) -> tuple[Lag | None, str | None]:
        """How far the copy is; or why that is not known."""
        try:
            return migration.lag(), None
        except (RetryableError, InvalidStateError) as error:
            return None, error.message


@contextmanager
def move_context(run: RunningCommand, *, create: bool = False) -> Iterator[MoveContext]:
    """Open the control database; where there is none, it is made only with `create`."""
    if not create:
        found = ControlDatabase.examine(run.app.settings)
        if not found.exists:
            raise StateError(
                "There is no control database.",
                hint="`catchment shard add` makes it; CATCHMENT_CONTROL_DB says where it is, or --home whose it is.",
            )
    remotes = Remotes(run.app.settings)
    try:
        yield MoveContext(run, run.app.control_store, remotes)
    finally:
        remotes.close()


def move_with_progress(run: RunningCommand, migration: TenantMigration, *, gc_window_s: float | None) -> MoveReport:
    """Move, telling how it goes. Ctrl-C stops behind the current step; a second one at once."""
    go_on = f"`{command_to_go_on(migration)}` goes on."
    display = Display(run.out, run.app.clock)
    try:
        with (
            telling_of_spark(run.out),
            display.shown(),
            stopping_gently(run.out, "Stopping once the current step is done.") as stop,
        ):
            return run_move(migration, clock=run.app.clock, watcher=display, gc_window_s=gc_window_s, stop=stop)
    except KeyboardInterrupt:
        run.out.say(f"Stopped. The tenant writes on, nothing is lost or doubled: {go_on}")
        raise typer.Exit(EXIT_STOPPED) from None
    except CatchmentError as error:
        error.hint = f"{error.hint} {go_on}" if error.hint else go_on
        raise


def command_to_go_on(migration: TenantMigration) -> str:
    """The command that goes on with a move."""
    return f"catchment tenant move {migration.tenant} --to {migration.target_shard}"


class Display:
    """How a move goes, on stderr: a line for each phase with a bar on a terminal, plain lines elsewhere."""

    def __init__(self, out: Output, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._said_s = 0.0
        self._task: TaskID | None = None
        self._bars: Progress | None = None
        if out.screen is not None:
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                console=out.screen,
            )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw, for a while."""
        if self._bars is None:
            yield
            return
        with self._bars:
            yield
            self._finish()

    def phase(self, phase: MovePhase) -> None:
        """Begin a line."""
        if self._bars is None:
            self._out.say(f"  {': '.join(_SHOWN[phase])}")
            self._said_s = self._clock.monotonic_s()
            return
        self._finish()
        self._task = self._bars.add_task(_SHOWN[phase][0], total=None, detail="")

    def history(self, done: int, total: int) -> None:
        """Bytes of the history, as a bar."""
        self._show(f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB", done=done, total=total)

    def lag(self, lag: Lag, left_s: float | None) -> None:
        """Rows that the copy lacks, and the time that they take."""
        eta = "" if left_s is None else f", about {left_s:,.0f} s left"
        error = f" ({lag.error})" if lag.error else ""
        self._show(f"{plural(lag.rows, 'row')} behind{eta}{error}", done=lag.copy.total, total=lag.home.total)

    def window(self, left_s: float) -> None:
        """How long the source is kept."""
        self._show(f"the source goes in {left_s:,.0f} s")

    def again(self, error: RetryableError, wait_s: float) -> None:
        """Why a step is done again."""
        self._out.say(f"  {error.message} Trying again in {wait_s:.1f} s.")

    def _show(self, detail: str, *, done: int | None = None, total: int | None = None) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, total=total, detail=detail)
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._said_s >= _SAY_AGAIN_S or (done is not None and done == total and done):
            self._said_s = now_s
            self._out.say(f"    {detail}")

    def _finish(self) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, total=1, completed=1)


def report_facts(report: MoveReport) -> dict[str, Any]:
    """A drive's report for programs."""
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
    """The same for a person."""
    tenant, source, target = report.tenant, report.source, report.target
    if report.stopped:
        yield f"Stopped in {report.state}; {tenant} writes on, and nothing is lost or doubled."
    elif report.state == "Complete":
        yield f"{tenant} lives in {target}."
        yield from erased_lines(source, report.erased)
    else:
        yield f"{tenant} lives in {target}; {source} is kept as a copy that gets every write."
    if report.rows is not None:
        yield f"{plural(report.rows, 'row')} compared and the same; {report.bytes / 1e6:,.1f} MB of history copied."
    if report.pause_ms is not None:
        yield f"Writes waited for {report.pause_ms:,.1f} ms at the switch."
    spent = ", ".join(f"{phase.value} {spent_s:,.1f} s" for phase, spent_s in report.seconds.items())
    if spent:
        yield f"It took: {spent}."
    yield from (f"Next: {each}" for each in next_commands(tenant, target, report.state))


def erased_facts(erased: Erased | None) -> dict[str, Any] | None:
    """What a shard has deleted of a tenant, for programs."""
    return None if erased is None else asdict(erased)


def erased_lines(shard: ShardId, erased: Erased | None) -> Iterator[str]:
    """The same for a person, with what is left of it."""
    if erased is None:
        return
    yield (
        f"{shard} has dropped its tables, and deleted {plural(erased.files, 'file')} with {erased.bytes:,} bytes: "
        "none of its rows are there any more."
    )
    if erased.files_elsewhere:
        yield (
            f"{plural(erased.files_elsewhere, 'file')} outside of that lake's data path are left: "
            "they were registered from there."
        )
    if erased.snapshots:
        span = f"{plural(erased.snapshots, 'snapshot')} ({erased.snapshot_first} to {erased.snapshot_last})"
        yield (
            f"Names, numbers of rows and bounds of columns stay in its catalog until {span} expire: "
            f"`catchment lake maintain` in its home, after CATCHMENT_LAKE_SNAPSHOT_KEEP_HOURS."
        )


def next_commands(tenant: TenantId, target: ShardId, state: str) -> tuple[str, ...]:
    """What can be done with a move in that state."""
    match state:
        case "PreparingTarget" | "DualWrite":
            return (f"catchment tenant move {tenant} --to {target}", f"catchment tenant abort {tenant}")
        case "Finalizing":
            return (f"catchment tenant gc {tenant}", f"catchment tenant reverse {tenant}")
        case _:
            return ()


def preflight_facts(found: Preflight, phases: Sequence[MovePhase]) -> dict[str, Any]:
    """A pre-flight for programs."""
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
    """The same for a person."""
    history = found.history
    yield (
        f"{found.tenant.id} would move from {found.source.id} to {found.target.id}: "
        f"{plural(history.tables, 'table')}, {plural(history.files, 'file')} with "
        f"{history.bytes / 1e6:,.1f} MB, and what is buffered."
    )
    yield from (f"  {note}" for note in history.notes)
    yield from (f"Problem: {problem}" for problem in found.problems)
    if found.ok:
        yield f"Nothing stands in the way: `catchment tenant move {found.tenant.id} --to {found.target.id}`."


def move_facts(move: MoveInfo, lag: Lag | None, problem: str | None) -> dict[str, Any]:
    """A move for programs."""
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
        "lag_unknown": problem,
    }


def lag_facts(lag: Lag) -> dict[str, Any]:
    """How far a copy is, for programs."""
    return {"rows": lag.rows, "seconds": round(lag.seconds, 3), "is_sync": lag.is_sync, "error": lag.error}


def move_lines(move: MoveInfo, lag: Lag | None, problem: str | None) -> Iterator[str]:
    """A move for a person."""
    where = f"from {move.source} to {move.target}"
    if move.finished_at is not None:
        yield f"The last move, {where}, is {move.outcome} since {move.finished_at:%Y-%m-%d %H:%M:%S} UTC."
        yield from _pause_lines(move.state)
        return
    yield f"On its way {where}, in {move.state.name} since {move.updated_at:%Y-%m-%d %H:%M:%S} UTC."
    yield from _pause_lines(move.state)
    if lag is not None:
        state = "confirms every write" if lag.is_sync else f"is behind{f': {lag.error}' if lag.error else ''}"
        yield f"The copy lacks {plural(lag.rows, 'row')} and {state}."
    elif problem is not None:
        yield f"How far the copy is, is not known: {problem}"
    yield from (f"Next: {each}" for each in next_commands(move.tenant, move.target, move.state.name))


def _pause_lines(state: MigrationState) -> Iterator[str]:
    if isinstance(state, Finalizing | Complete) and state.pause_ms:
        yield f"Writes waited for {state.pause_ms:,.1f} ms at the switch."
