"""`catchment tenant`: create and list tenants, and move them between shards."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from catchment.cli import move_output
from catchment.cli.context import AsJson, Home, agree, command
from catchment.errors import EXIT_FAILED, EXIT_NEEDS_YOU, EXIT_STOPPED
from catchment.foundation.text import plural
from catchment.tenants.migration import GATE_SECONDS_MAX
from catchment.tenants.model import MoveInfo, TenantConfig, TenantInfo
from catchment.tenants.reports import MoveComparison, MovePlan, TenantDetails, TenantEntry, UndoneMove
from catchment.tenants.service import GC_WINDOW_S

_EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 failed, not ready, or source and target differ; 2 needs input from "
    "you, such as --yes; 130 stopped by Ctrl-C; `catchment tenant move` continues."
)

group = typer.Typer(
    help=f"Create and list tenants, and move them between shards while they keep writing.\n\n{_EXIT_CODES}",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="TENANT", help="Number of the tenant: `t7` or `7`.")]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm in advance; required without a terminal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]


@group.command()
def create(
    tenant: Name,
    *,
    name: Annotated[str | None, typer.Option(help="Display name; default: the number.", show_default=False)] = None,
    shard: Annotated[
        str | None, typer.Option(help="Shard to create it in; default: by consistent hash.", show_default=False)
    ] = None,
    rows_per_second: Annotated[int | None, typer.Option(help="Limit of rows per second.")] = None,
    tables: Annotated[int | None, typer.Option(help="Limit of tables.")] = None,
    storage_bytes: Annotated[int | None, typer.Option(help="Limit of stored bytes.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Region that it must stay in; can be repeated.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Create a tenant; it can write at once."""
    with command(home, as_json) as run:
        tenants = run.catchment.tenants
        config = TenantConfig(
            rows_per_second_max=rows_per_second,
            tables_max=tables,
            storage_bytes_max=storage_bytes,
            required_regions=frozenset(region or ()),
        )
        made = tenants.create(tenant, name=name, config=config, shard=shard)
        lines = [f"{made.id} lives in {made.shard}, schema {made.id.schema}."]
        run.out.value(
            _tenant_facts(made), [*lines, f"Add a user: catchment user add NAME --role writer --tenant {made.id}"]
        )


@group.command(name="list")
def list_tenants(home: Home = None, as_json: AsJson = False) -> None:
    """List tenants with their shard, limits and moves."""
    with command(home, as_json) as run:
        found = run.catchment.tenants.tenants()
        if found:
            columns = ["tenant", "name", "shard", "epoch", "limits", "move"]
            run.out.table("Tenants", columns, [_row(each) for each in found])
        shown = [{**_tenant_facts(each.tenant), "move": _brief(each.move)} for each in found]
        run.out.value({"tenants": shown}, [] if shown else ["There are no tenants: `catchment tenant create t1`."])


@group.command()
def show(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Show a tenant's limits, shard, epoch, table positions and move."""
    with command(home, as_json) as run:
        found = run.catchment.tenants.show(tenant)
        facts = {
            **_tenant_facts(found.tenant),
            "seqno": None if found.positions is None else found.positions.total,
            "positions": None if found.positions is None else found.positions.to_json(),
            "positions_unknown": found.positions_unknown,
            "move": None if found.move is None else move_output.move_facts(found.move),
        }
        run.out.value(facts, _show_lines(found))


@group.command()
def move(
    tenant: Name,
    *,
    to: Annotated[str, typer.Option("--to", metavar="SHARD", help="Shard to move it to.")],
    gc_after: Annotated[
        float | None,
        typer.Option(
            help="Delete the source this many seconds after the switch; default: keep it as a replica.",
            min=0,
        ),
    ] = None,
    gate_seconds: Annotated[
        float | None,
        typer.Option(
            help=f"Longest pause of writes at the switch, in seconds; default: {GATE_SECONDS_MAX:g}.", min=0.1
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Move a tenant while it keeps writing, or continue a move. Exit 130 if stopped by Ctrl-C."""
    with command(home, as_json) as run:
        tenants = run.catchment.tenants
        request = tenants.request_move(tenant, to)
        number, source, target = request.tenant.id, request.source, request.target
        if request.is_fulfilled:
            if not dry_run:
                tenants.move(number, target, gc_window_s=gc_after)
            facts = {"ok": True, "tenant": str(number), "target": str(target), "state": request.state, "next": []}
            run.out.value(facts, [f"Nothing to do: {number} lives in {target}."])
            return
        if dry_run:
            plan = tenants.plan_move(number, target, collects=gc_after is not None)
            run.out.value(_plan_facts(plan), _plan_lines(plan))
            if not plan.ok:
                raise typer.Exit(EXIT_NEEDS_YOU)
            return
        if request.under_way is None:
            question = f"Move {number} from {source} to {target}? It keeps writing."
        else:
            question = f"Continue the move of {number} from {source} to {target}, in {request.state}?"
        agree(run, question, yes=yes)
        with move_output.shown_moves(run, move_output.resume_command(number, target)) as (display, stop):
            report = tenants.move(number, target, gc_window_s=gc_after, gate_s=gate_seconds, watcher=display, stop=stop)
        run.out.value(move_output.report_facts(report), move_output.report_lines(report))
        if report.stopped:
            raise typer.Exit(EXIT_STOPPED)


@group.command()
def status(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Show a tenant's move: its state, the lag of the replica, and the pause at the switch."""
    with command(home, as_json) as run:
        status = run.catchment.tenants.status(tenant)
        found = status.tenant
        facts = {"tenant": str(found.id), "shard": str(found.shard), "epoch": found.epoch}
        if status.move is None:
            lines = [f"{found.id} lives in {found.shard} and was never moved."]
            run.out.value({**facts, "move": None, "next": []}, lines)
            return
        last = status.move.move
        following = () if last.finished_at else move_output.next_commands(found.id, last.target, last.state.name)
        run.out.value(
            {**facts, "move": move_output.move_facts(status.move), "next": following},
            [f"{found.id} lives in {found.shard}.", *move_output.move_lines(status.move)],
        )


@group.command()
def abort(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Undo a move before its switch: the tenant stays, and the target deletes its data."""
    with command(home, as_json) as run:
        undone = run.catchment.tenants.abort(tenant)
        run.out.value(_undone_facts(undone), _undone_lines(undone))


@group.command()
def reverse(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Bring a tenant back after the switch, with all rows; the target deletes its data."""
    with command(home, as_json) as run:
        undone = run.catchment.tenants.reverse(tenant)
        run.out.value(_undone_facts(undone), _undone_lines(undone))


@group.command()
def verify(tenant: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Compare source and target of a move by reading all tables. Exit 1 if they differ."""
    with command(home, as_json) as run:
        verified = run.catchment.tenants.verify(tenant)
        move, found = verified.move, verified.comparison
        facts = {"ok": found.ok, "tenant": str(move.tenant), "source": str(move.source), "target": str(move.target)}
        shown = {"tables": found.tables, "rows": found.rows, "seqno": found.at.total, "at": found.at.to_json()}
        run.out.value({**facts, **shown, "differences": found.differences}, _verify_lines(verified))
        if not found.ok:
            raise typer.Exit(EXIT_FAILED)


@group.command()
def gc(
    tenant: Name,
    *,
    window: Annotated[
        float, typer.Option(help="Seconds for which the source is kept after the switch.", min=0)
    ] = GC_WINDOW_S,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the window has passed and the source has no readers.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Delete the tenant from the source of its move. Exit 1 while the window has not passed."""
    with command(home, as_json) as run:
        tenants = run.catchment.tenants
        if wait:
            with move_output.shown_moves(run, f"catchment tenant gc {tenant} --wait") as (display, stop):
                collected = tenants.gc(tenant, window_s=window, wait=True, watcher=display, stop=stop)
        else:
            collected = tenants.gc(tenant, window_s=window)
        if collected.report is not None and collected.report.stopped:
            run.out.value(move_output.report_facts(collected.report), move_output.report_lines(collected.report))
            raise typer.Exit(EXIT_STOPPED)
        move = collected.move
        facts = {
            "tenant": str(move.tenant),
            "shard": str(move.target),
            "collected": str(move.source),
            "state": "Complete",
            "erased": move_output.erased_facts(collected.erased),
        }
        lines = move_output.erased_lines(move.source, collected.erased)
        run.out.value(facts, [f"{move.tenant} lives in {move.target}.", *lines])


def _plan_facts(plan: MovePlan) -> dict[str, Any]:
    if plan.preflight is not None:
        return move_output.preflight_facts(plan.preflight, plan.phases)
    facts = {} if plan.under_way is None else move_output.move_facts(plan.under_way)
    return {"ok": True, "dry_run": True, "tenant": str(plan.request.tenant.id), **facts, "phases": list(plan.phases)}


def _plan_lines(plan: MovePlan) -> Iterator[str]:
    if plan.preflight is not None:
        yield from move_output.preflight_lines(plan.preflight)
    if plan.under_way is not None:
        yield from move_output.move_lines(plan.under_way)
        yield f"It would continue with: {', '.join(plan.phases) or 'nothing'}."


def _undone_facts(undone: UndoneMove) -> dict[str, Any]:
    tenant = undone.tenant
    facts = {"tenant": str(tenant.id), "shard": str(tenant.shard), "epoch": tenant.epoch, "outcome": undone.outcome}
    return {**facts, "erased": move_output.erased_facts(undone.erased)}


def _undone_lines(undone: UndoneMove) -> Iterator[str]:
    yield f"The move is {undone.outcome}: {undone.tenant.id} lives in {undone.tenant.shard}."
    yield from move_output.erased_lines(undone.move.target, undone.erased)


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


def _row(entry: TenantEntry) -> tuple[object, ...]:
    tenant = entry.tenant
    return (tenant.id, tenant.name, tenant.shard, tenant.epoch, _limits(tenant.config), _way(entry.move))


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


def _show_lines(found: TenantDetails) -> Iterator[str]:
    tenant, positions = found.tenant, found.positions
    yield f"{tenant.id} ({tenant.name}) lives in {tenant.shard}, schema {tenant.id.schema}, epoch {tenant.epoch}."
    yield f"Limits: {_limits(tenant.config)}."
    if positions is None:
        yield f"The positions of its tables are unknown: {found.positions_unknown}"
    else:
        yield f"{plural(positions.total, 'row')} accepted:" if positions.by_table else "No rows were accepted yet."
        yield from (f"  {table}: {seq:,}" for table, seq in sorted(positions.by_table.items()))
    if found.move is not None:
        yield from move_output.move_lines(found.move)


def _verify_lines(verified: MoveComparison) -> Iterator[str]:
    move, found = verified.move, verified.comparison
    yield from (f"DIFFERENT {each}" for each in found.differences)
    verdict = "are equal" if found.ok else "differ"
    yield (
        f"{plural(found.rows, 'row')} of {plural(found.tables, 'table')} compared: "
        f"{move.source} and {move.target} {verdict}."
    )
