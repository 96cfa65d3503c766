"""`catchment tenant`: who lives in which shard, and moving one to another while it keeps writing."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from catchment.cli import move_output
from catchment.cli.context import AsJson, Home, agree, command
from catchment.cli.move_output import MoveContext
from catchment.errors import EXIT_FAILED, EXIT_NEEDS_YOU, EXIT_STOPPED, NotReadyError, RetryableError, StateError
from catchment.lake.erase import Erased
from catchment.pipeline.plan import plural
from catchment.tenants.control import ControlPlane
from catchment.tenants.migration import Comparison, TenantMigration
from catchment.tenants.model import Finalizing, MoveInfo, Positions, ShardId, TenantConfig, TenantId, TenantInfo
from catchment.tenants.run_move import MovePhase, insist

_GC_WINDOW_S = 300.0
_NS_PER_S = 1_000_000_000
_EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 failed, has to wait, or source and target differ; 2 needs something from "
    "you, such as --yes; 130 stopped by Ctrl-C, and `catchment tenant move` goes on."
)

group = typer.Typer(
    help=f"Who lives in which shard, and moving one to another while it keeps writing.\n\n{_EXIT_CODES}",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant, by its number: `t7`, or `7`.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]


@group.command()
def create(
    tenant: Name,
    *,
    name: Annotated[str | None, typer.Option(help="A name for people; default the number.", show_default=False)] = None,
    shard: Annotated[
        str | None, typer.Option(help="The shard that it lives in; default by consistent hash.", show_default=False)
    ] = None,
    rows_per_second: Annotated[int | None, typer.Option(help="Rows a second that it may write.")] = None,
    tables: Annotated[int | None, typer.Option(help="Tables that it may have.")] = None,
    storage_bytes: Annotated[int | None, typer.Option(help="Bytes that it may store.")] = None,
    region: Annotated[
        list[str] | None, typer.Option(help="A region that it may live in, and no other; may be repeated.")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Take a tenant in; it can write at once."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        number = TenantId.parse(tenant)
        config = TenantConfig(
            rows_per_second_max=rows_per_second,
            tables_max=tables,
            storage_bytes_max=storage_bytes,
            required_regions=frozenset(region or ()),
        )
        chosen = None if shard is None else ShardId(shard)
        plane = ControlPlane(desk.store, run.app.clock)
        made = plane.create_tenant(number, name=name or str(number), config=config, shard=chosen)
        lines = [f"{made.id} lives in {made.shard}, schema {made.id.schema}."]
        run.out.value(
            _tenant_facts(made), [*lines, f"A user of it: catchment user add NAME --role writer --tenant {made.id}"]
        )


@group.command(name="list")
def list_tenants(home: Home = None, as_json: AsJson = False) -> None:
    """List the tenants, their homes, limits and moves."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        facts = desk.store.facts()
        under_way = {move.tenant: move for move in facts.moves if move.finished_at is None}
        if facts.tenants:
            rows = [
                (each.id, each.name, each.shard, each.epoch, _limits(each.config), _way(under_way.get(each.id)))
                for each in facts.tenants
            ]
            run.out.table("Tenants", ["tenant", "name", "home", "epoch", "limits", "move"], rows)
        shown = [{**_tenant_facts(each), "move": _brief(under_way.get(each.id))} for each in facts.tenants]
        run.out.value({"tenants": shown}, [] if shown else ["There are no tenants: `catchment tenant create t1`."])


@group.command()
def show(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Show a tenant: limits, home, epoch, how far its tables are, and its move."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        found = desk.store.tenant(TenantId.parse(tenant))
        positions, problem = _positions(desk, found)
        move = desk.store.move(found.id)
        facts = {
            **_tenant_facts(found),
            "seqno": None if positions is None else positions.total,
            "positions": None if positions is None else positions.to_json(),
            "positions_unknown": problem,
            "move": None if move is None else move_output.move_facts(move, *desk.find_lag(desk.of(move))),
        }
        lines = [*_show_lines(found, positions, problem)]
        if move is not None:
            lines += move_output.move_lines(move, *desk.find_lag(desk.of(move)))
        run.out.value(facts, lines)


@group.command()
def move(
    tenant: Name,
    *,
    to: Annotated[str, typer.Option("--to", metavar="SHARD", help="The shard that it shall live in.")],
    gc_after: Annotated[
        float | None,
        typer.Option(
            help="Seconds after the switch at which the source is deleted; without it, the source is kept as a copy.",
            min=0,
        ),
    ] = None,
    gate_seconds: Annotated[
        float | None,
        typer.Option(help="Longest pause of writes at the switch; default CATCHMENT_TENANT_GATE_SECONDS_MAX.", min=0.1),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Move a tenant while it keeps writing, or go on with a move that was stopped; exit 130 when stopped by Ctrl-C."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        found, target = desk.store.tenant(TenantId.parse(tenant)), desk.store.shard(ShardId(to)).id
        under_way = desk.store.move(found.id)
        if under_way is not None and under_way.target != target:
            raise _elsewhere(under_way)
        if under_way is None and found.shard == target:
            _say_there(desk, found, gc_after, dry_run=dry_run)
            return
        source = found.shard if under_way is None else under_way.source
        migration = desk.migration(found.id, source, target, gate_s=gate_seconds)
        if dry_run:
            _show_plan(desk, migration, under_way, gc_after)
            return
        if under_way is None:
            question = f"Move {found.id} from {source} to {target}? It keeps writing."
        else:
            question = f"Go on with the move of {found.id} from {source} to {target}, in {under_way.state.name}?"
        agree(run, question, yes=yes)
        report = move_output.move_with_progress(run, migration, gc_window_s=gc_after)
        run.out.value(move_output.report_facts(report), move_output.report_lines(report))
        if report.stopped:
            raise typer.Exit(EXIT_STOPPED)


@group.command()
def status(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Show the tenant's move: its state, how far the copy is, and the pause at the switch."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        found = desk.store.tenant(TenantId.parse(tenant))
        last = desk.store.last_move(found.id)
        if last is None:
            facts = {"tenant": str(found.id), "shard": str(found.shard), "epoch": found.epoch, "move": None, "next": []}
            run.out.value(facts, [f"{found.id} lives in {found.shard}, and was never moved."])
            return
        lag, problem = (None, None) if last.finished_at else desk.find_lag(desk.of(last))
        run.out.value(
            {
                "tenant": str(found.id),
                "shard": str(found.shard),
                "epoch": found.epoch,
                "move": move_output.move_facts(last, lag, problem),
                "next": () if last.finished_at else move_output.next_commands(found.id, last.target, last.state.name),
            },
            [f"{found.id} lives in {found.shard}.", *move_output.move_lines(last, lag, problem)],
        )


@group.command()
def abort(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Undo a move that has not switched: the tenant stays where it is, and the target forgets it."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        last = desk.last_move(TenantId.parse(tenant))
        erased = insist(desk.of(last).abort, clock=run.app.clock)
        _say_back(desk, last, "aborted", erased)


@group.command()
def reverse(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Bring a tenant back after the switch, with all that was written since; the target forgets it."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        last = desk.last_move(TenantId.parse(tenant))
        erased = insist(desk.of(last).reverse, clock=run.app.clock)
        _say_back(desk, last, "reversed", erased)


@group.command()
def verify(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Compare source and target of a move, table by table, by reading them all; exit 1 when they differ."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        number = TenantId.parse(tenant)
        last = desk.last_move(number)
        if last.finished_at is not None:
            raise StateError(
                f"{number} is not being moved: there is one copy of it, and nothing to compare.",
                hint=f"`catchment tenant status {number}` shows the last move.",
            )
        found = insist(desk.of(last).verify, clock=run.app.clock)
        facts = {"ok": found.ok, "tenant": str(number), "source": str(last.source), "target": str(last.target)}
        shown = {"tables": found.tables, "rows": found.rows, "seqno": found.at.total, "at": found.at.to_json()}
        run.out.value({**facts, **shown, "differences": found.differences}, _verify_lines(last, found))
        if not found.ok:
            raise typer.Exit(EXIT_FAILED)


@group.command()
def gc(
    tenant: Name,
    *,
    window: Annotated[
        float, typer.Option(help="Seconds for which the source is kept after the switch.", min=0)
    ] = _GC_WINDOW_S,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the window has passed, and nobody reads there.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Delete the tenant and its files from the source of its move, for good; exit 1 while the window has not passed."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        last = desk.last_move(TenantId.parse(tenant))
        migration = desk.of(last)
        if wait and isinstance(migration.state, Finalizing):
            report = move_output.move_with_progress(run, migration, gc_window_s=window)
            if report.stopped:
                run.out.value(move_output.report_facts(report), move_output.report_lines(report))
                raise typer.Exit(EXIT_STOPPED)
            erased = report.erased
        else:
            try:
                erased = migration.gc_source(int(window * _NS_PER_S))
            except NotReadyError as error:
                error.hint = f"`catchment tenant gc {last.tenant} --wait` waits; --window says for how long it is kept."
                raise
        facts = {
            "tenant": str(last.tenant),
            "shard": str(last.target),
            "collected": str(last.source),
            "state": "Complete",
            "erased": move_output.erased_facts(erased),
        }
        run.out.value(facts, [f"{last.tenant} lives in {last.target}.", *move_output.erased_lines(last.source, erased)])


def _say_there(desk: MoveContext, tenant: TenantInfo, gc_after: float | None, *, dry_run: bool) -> None:
    """The tenant lives where it shall; a collection that was begun is finished."""
    last = desk.store.last_move(tenant.id)
    if last is not None and last.outcome == "complete" and gc_after is not None and not dry_run:
        insist(lambda: desk.of(last).gc_source(0), clock=desk.run.app.clock)
    state = "Idle" if last is None else last.state.name
    facts = {"ok": True, "tenant": str(tenant.id), "target": str(tenant.shard), "state": state, "next": []}
    desk.run.out.value(facts, [f"Nothing to do: {tenant.id} lives in {tenant.shard}."])


def _elsewhere(move: MoveInfo) -> StateError:
    undo = "reverse" if isinstance(move.state, Finalizing) else "abort"
    return StateError(
        f"{move.tenant} is on its way from {move.source} to {move.target} already, in {move.state.name}.",
        hint=f"`catchment tenant move {move.tenant} --to {move.target}` goes on with it, `tenant {undo}` undoes it.",
        source=str(move.source),
        target=str(move.target),
        state=move.state.name,
    )


def _show_plan(
    desk: MoveContext, migration: TenantMigration, under_way: MoveInfo | None, gc_after: float | None
) -> None:
    """What a move would do from where it is; exit 2 where it would be refused."""
    out = desk.run.out
    phases = [each for each in MovePhase if gc_after is not None or each is not MovePhase.WAITING_FOR_GC]
    if under_way is not None:
        begun = {
            "PreparingTarget": MovePhase.CATCHING_UP,
            "DualWrite": MovePhase.DUAL_WRITE,
            "Finalizing": MovePhase.WAITING_FOR_GC,
        }
        first = begun.get(under_way.state.name, MovePhase.PREPARING)
        left = [each for each in phases if list(MovePhase).index(each) >= list(MovePhase).index(first)]
        lag, problem = desk.find_lag(migration)
        facts = move_output.move_facts(under_way, lag, problem)
        shown = {"ok": True, "dry_run": True, "tenant": str(migration.tenant), **facts, "phases": left}
        lines = [f"It would go on with: {', '.join(left) or 'nothing'}."]
        out.value(shown, [*move_output.move_lines(under_way, lag, problem), *lines])
        return
    found = migration.preflight()
    out.value(move_output.preflight_facts(found, phases), move_output.preflight_lines(found))
    if not found.ok:
        raise typer.Exit(EXIT_NEEDS_YOU)


def _say_back(desk: MoveContext, move: MoveInfo, outcome: str, erased: Erased) -> None:
    tenant = desk.store.tenant(move.tenant)
    facts = {"tenant": str(tenant.id), "shard": str(tenant.shard), "epoch": tenant.epoch, "outcome": outcome}
    lines = [
        f"The move is {outcome}: {tenant.id} lives in {tenant.shard}.",
        *move_output.erased_lines(move.target, erased),
    ]
    desk.run.out.value({**facts, "erased": move_output.erased_facts(erased)}, lines)


def _positions(desk: MoveContext, tenant: TenantInfo) -> tuple[Positions | None, str | None]:
    """How far the tenant's tables are, by its home; or why that is not known."""
    try:
        return desk.node(desk.store.shard(tenant.shard)).positions(tenant.id), None
    except RetryableError as error:
        return None, error.message


def _tenant_facts(tenant: TenantInfo) -> dict[str, Any]:
    return {
        "tenant": str(tenant.id),
        "name": tenant.name,
        "schema": tenant.id.schema,
        "shard": str(tenant.shard),
        "epoch": tenant.epoch,
        "config": tenant.config.to_json(),
        "created_at": tenant.created_at,
    }


def _brief(move: MoveInfo | None) -> dict[str, str] | None:
    if move is None:
        return None
    return {"source": str(move.source), "target": str(move.target), "state": move.state.name}


def _way(move: MoveInfo | None) -> str:
    return "" if move is None else f"{move.source} → {move.target}: {move.state.name}"


def _limits(config: TenantConfig) -> str:
    shown = (
        f"{config.rows_per_second_max:,} rows/s" if config.rows_per_second_max else "",
        plural(config.tables_max, "table") if config.tables_max else "",
        f"{config.storage_bytes_max:,} bytes" if config.storage_bytes_max else "",
        f"in {', '.join(sorted(config.required_regions))}" if config.required_regions else "",
    )
    return ", ".join(each for each in shown if each) or "none"


def _show_lines(tenant: TenantInfo, positions: Positions | None, problem: str | None) -> Iterator[str]:
    yield f"{tenant.id} ({tenant.name}) lives in {tenant.shard}, schema {tenant.id.schema}, epoch {tenant.epoch}."
    yield f"Limits: {_limits(tenant.config)}."
    if positions is None:
        yield f"How far its tables are, is not known: {problem}"
        return
    yield f"{plural(positions.total, 'row')} taken:" if positions.by_table else "No rows were taken yet."
    yield from (f"  {table}: {seq:,}" for table, seq in sorted(positions.by_table.items()))


def _verify_lines(move: MoveInfo, found: Comparison) -> Iterator[str]:
    yield from (f"DIFFERENT {each}" for each in found.differences)
    verdict = "are the same" if found.ok else "differ"
    yield (
        f"{plural(found.rows, 'row')} of {plural(found.tables, 'table')} compared: "
        f"{move.source} and {move.target} {verdict}."
    )
