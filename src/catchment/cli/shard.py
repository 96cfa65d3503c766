"""`catchment shard`: add, list and drain the shards that tenants live in."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli import move_output
from catchment.cli.context import AsJson, Home, agree, command, named_folder
from catchment.errors import EXIT_FAILED, EXIT_STOPPED
from catchment.foundation.text import plural
from catchment.tenants.drain import DrainPlan, DrainReport, LeftTenant
from catchment.tenants.model import ShardInfo
from catchment.tenants.reports import AddedShard, ShardStatus

group = typer.Typer(help="Add, list and drain shards.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="SHARD", help="Name of the shard.")]


@group.command()
def add(
    name: Name,
    *,
    location: Annotated[
        str | None,
        typer.Option(
            help="Address of its server for other shards, `grpc://HOST:PORT`; default: this home's running server.",
            show_default=False,
        ),
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Region of the shard; default: `default`.", show_default=False)
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            parser=named_folder,
            metavar="PATH",
            help="Data folder, the same path on all hosts; default: CATCHMENT_HOME.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a shard, or change its location. Start its server with `serve --shard` first."""
    with command(home, as_json) as run:
        added = run.catchment.tenants.add_shard(name, location=location, region=region)
        if added.unreachable is not None:
            run.out.say(f"{added.unreachable} The shard is added without this check.")
        facts = {**_shard_facts(added.shard), "control": added.control, "is_new": added.is_new}
        run.out.value(facts, _added_lines(added))


@group.command(name="list")
def list_shards(home: Home = None, as_json: AsJson = False) -> None:
    """List shards with their location, health and number of tenants."""
    with command(home, as_json) as run:
        found, now = run.catchment.tenants.shards(), run.catchment.app.clock.now()
        shown = [
            {
                **_shard_facts(each.shard),
                "tenants": [str(tenant) for tenant in each.tenants],
                "health": each.health,
                "seen_at": each.report.seen_at,
                "replication_lag_s": each.report.replication_lag_s,
            }
            for each in found
        ]
        if found:
            columns = ["shard", "region", "location", "tenants", "health", "seen", "draining"]
            run.out.table("Shards", columns, [_row(each, now) for each in found])
        run.out.value(
            {"shards": shown}, [] if shown else ["There are no shards: `catchment shard add NAME --home HOME`."]
        )


@group.command()
def drain(
    name: Name,
    *,
    gc_after: Annotated[
        float | None,
        typer.Option(
            help="Delete each tenant here this many seconds after its switch; default: keep a replica.", min=0
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Accept tenants again; those that have left stay away.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm in advance; required without a terminal.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Move every tenant to the shard that its hash selects; accept none. Exit 1 if some are left."""
    with command(home, as_json) as run:
        tenants = run.catchment.tenants
        if undo:
            is_draining = tenants.shard(name).is_draining
            if not dry_run:
                tenants.undo_drain(name)
            facts = {"shard": name, "is_draining": dry_run and is_draining}
            run.out.value(facts, [f"{name} {'would accept' if dry_run else 'accepts'} tenants again."])
            return
        plan = tenants.plan_drain(name, collects=gc_after is not None)
        if dry_run:
            facts = {"shard": name, "dry_run": True, "is_draining": plan.shard.is_draining}
            moves = [{"tenant": str(each.tenant), "target": str(each.target)} for each in plan.moves]
            run.out.value({**facts, "moves": moves, "left": _left_facts(plan.left)}, _plan_lines(plan))
            return
        agree(run, f"Move {plural(len(plan.moves), 'tenant')} away from {name}?", yes=yes)
        with move_output.shown_moves(run, f"catchment shard drain {name}") as (display, stop):
            report = tenants.drain(name, gc_window_s=gc_after, watcher=display, stop=stop)
        run.out.value(_drain_facts(report), _drain_lines(report))
        if report.stopped:
            raise typer.Exit(EXIT_STOPPED)
        if report.left:
            raise typer.Exit(EXIT_FAILED)


def _added_lines(added: AddedShard) -> Iterator[str]:
    shard, verb = added.shard, "Added" if added.is_new else "Changed"
    yield f"{verb} {shard.id}, region {shard.region}, at {shard.location}, home {shard.home}."
    yield f"Its control database is {added.control}; all shards must use the same one."


def _drain_facts(report: DrainReport) -> dict[str, Any]:
    return {
        "shard": report.shard.name,
        "ok": report.ok,
        "is_draining": True,
        "moved": [move_output.report_facts(each) for each in report.moved],
        "left": _left_facts(report.left),
        "stopped": report.stopped,
    }


def _left_facts(left: Sequence[LeftTenant]) -> list[dict[str, str]]:
    return [{"tenant": str(each.tenant), "reason": each.reason} for each in left]


def _drain_lines(report: DrainReport) -> Iterator[str]:
    for each in report.moved:
        pause = "" if each.pause_ms is None else f", writes waited for {each.pause_ms:,.1f} ms"
        yield f"{each.tenant}: {each.source} → {each.target}, {each.state}{pause}"
    yield from _left_lines(report.left)
    yield f"{plural(len(report.moved), 'tenant')} moved away from {report.shard}, {len(report.left)} left."
    if any(each.state == "Finalizing" for each in report.moved):
        yield f"Next: catchment shard drain {report.shard} --gc-after SECONDS deletes the replicas here."


def _plan_lines(plan: DrainPlan) -> Iterator[str]:
    yield from (f"{each.tenant}: {plan.shard.id} → {each.target}" for each in plan.moves)
    yield from _left_lines(plan.left)
    yield f"{plural(len(plan.moves), 'tenant')} would move away from {plan.shard.id}, {len(plan.left)} would be left."


def _left_lines(left: Sequence[LeftTenant]) -> Iterator[str]:
    yield from (f"Left: {each.tenant}: {each.reason}" for each in left)


def _shard_facts(shard: ShardInfo) -> dict[str, Any]:
    return {
        "shard": shard.id.name,
        "region": shard.region,
        "location": shard.location,
        "home": shard.home,
        "is_draining": shard.is_draining,
    }


def _row(status: ShardStatus, now: datetime) -> tuple[object, ...]:
    shard, seen_at = status.shard, status.report.seen_at
    seen = "never" if seen_at is None else f"{max((now - seen_at).total_seconds(), 0):,.0f} s ago"
    return (
        shard.id,
        shard.region,
        shard.location,
        len(status.tenants),
        status.health.value,
        seen,
        "yes" if shard.is_draining else "no",
    )
