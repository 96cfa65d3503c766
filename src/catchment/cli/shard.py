"""`catchment shard`: the shards that tenants live in, and emptying one."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli import move_output
from catchment.cli.context import AsJson, Home, RunningCommand, agree, command, named_folder
from catchment.cli.move_output import MoveContext
from catchment.errors import (
    EXIT_FAILED,
    EXIT_STOPPED,
    AlreadyExistsError,
    CatchmentError,
    InputError,
    RetryableError,
)
from catchment.foundation.settings import FILE_NAME, settings_of
from catchment.pipeline.plan import plural
from catchment.server import server_file
from catchment.tenants.control import health_of
from catchment.tenants.control_store import ShardReport
from catchment.tenants.model import MoveInfo, ShardId, ShardInfo, TenantInfo
from catchment.tenants.placement import place
from catchment.tenants.run_move import MoveReport

_REGION = "default"
_SCHEMES = ("grpc://", "grpc+tls://")
# Any of these makes a folder a home.
_SIGNS = (FILE_NAME, server_file.FILE_NAME, "duckling_queue", "data", "catalog.sqlite")

group = typer.Typer(help="The shards that tenants live in, and emptying one.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="SHARD", help="The shard's name.")]


@group.command()
def add(
    name: Name,
    *,
    location: Annotated[
        str | None,
        typer.Option(
            help="Where the others reach its server, `grpc://HOST:PORT`; default that of the server of this home.",
            show_default=False,
        ),
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="The region that it is in; default `default`.", show_default=False)
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            parser=named_folder,
            metavar="PATH",
            help="The shard's own home, on all hosts alike; default CATCHMENT_HOME.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take a shard in, or say that it is at another location now. Start its server with `serve --shard` first."""
    with command(home, as_json) as run:
        shard_id, folder = ShardId(name), _shard_home(run)
        reached = _location(run, name, location)
        with move_output.move_context(run, create=True) as desk:
            _add(desk, shard_id, folder, reached, region)


@group.command(name="list")
def list_shards(home: Home = None, as_json: AsJson = False) -> None:
    """List the shards: where they are, how they are, how many tenants live there."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        facts, now = desk.store.facts(), run.app.clock.now()
        shown = [
            {
                **_shard_facts(each),
                "tenants": [str(tenant.id) for tenant in facts.tenants if tenant.shard == each.id],
                "health": health_of([facts.reports[each.id]], now=now),
                "seen_at": facts.reports[each.id].seen_at,
                "replication_lag_s": facts.reports[each.id].replication_lag_s,
            }
            for each in facts.shards
        ]
        if shown:
            columns = ["shard", "region", "location", "tenants", "health", "seen", "draining"]
            run.out.table("Shards", columns, [_row(each, facts.reports, now) for each in shown])
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
            help="Seconds after its switch at which a tenant is deleted here; without it, it is kept as a copy.", min=0
        ),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let tenants come here again; those that left stay away.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Move every tenant away, each to where its hash puts it, and let none come; exit 1 when some are left."""
    with command(home, as_json) as run, move_output.move_context(run) as desk:
        shard = desk.store.shard(ShardId(name))
        if undo:
            if not dry_run:
                desk.store.set_draining(shard.id, False)
            facts = {"shard": name, "is_draining": dry_run and shard.is_draining}
            run.out.value(facts, [f"Tenants {'would be' if dry_run else 'are'} let into {name} again."])
            return
        planned, left = _plan(desk, shard, collects=gc_after is not None)
        if dry_run:
            facts = {"shard": name, "dry_run": True, "is_draining": shard.is_draining}
            shown = [{"tenant": str(tenant.id), "target": str(target)} for tenant, target in planned]
            run.out.value({**facts, "moves": shown, "left": left}, _plan_lines(name, planned, left))
            return
        agree(run, f"Move {plural(len(planned), 'tenant')} away from {name}?", yes=yes)
        desk.store.set_draining(shard.id)
        _drain(desk, shard, planned, left, gc_after)


def _add(desk: MoveContext, shard_id: ShardId, folder: Path, location: str, region: str | None) -> None:
    run = desk.run
    known = next((each for each in desk.store.shards() if each.id == shard_id), None)
    if known is not None and known.home != str(folder):
        raise AlreadyExistsError(
            f"There is a shard {shard_id} already; its home is {known.home}.",
            hint="`catchment shard list` shows it. Choose another name, or say its --home.",
        )
    shard = ShardInfo(
        id=shard_id,
        region=region or (known.region if known else _REGION),
        location=location,
        home=str(folder),
        is_draining=known is not None and known.is_draining,
    )
    _require_shard(desk, shard)
    if known is None:
        desk.store.add_shard(shard)
    else:
        desk.store.change_shard(shard)
    facts = {**_shard_facts(shard), "control": run.app.control.place, "is_new": known is None}
    verb = "Added" if known is None else "Changed"
    lines = [f"{verb} {shard_id}, region {shard.region}, at {shard.location}, home {folder}."]
    run.out.value(facts, [*lines, f"Its control database is {run.app.control.place}; all shards must have the same."])


def _shard_home(run: RunningCommand) -> Path:
    """The shard's home, which the file in it must describe: whoever moves a tenant knows it by that file alone."""
    settings = run.app.settings
    folder = settings.home.absolute()
    if not any((folder / sign).exists() for sign in _SIGNS):
        raise InputError(
            f"{folder} is no home of Catchment.", hint=f"Start `catchment serve --home {folder} --shard NAME` first."
        )
    written = settings_of(folder)
    if (written.catalog_url, written.data_path) != (settings.catalog_url, settings.data_path):
        raise InputError(
            "Catalog and data path of this home come from the environment, which others do not have.",
            hint=f"Write lake_catalog and lake_data_path into {folder / FILE_NAME}.",
        )
    return folder


def _location(run: RunningCommand, name: str, given: str | None) -> str:
    if given is not None:
        if not given.startswith(_SCHEMES):
            raise InputError(f"{given!r} is no location.", hint="Write grpc://HOST:PORT, or grpc+tls://HOST:PORT.")
        return given
    found = server_file.find(run.app.settings)
    if found is None:
        raise InputError(
            "No server runs on this home, so its location is not known.",
            hint=f"Start `catchment serve --shard {name}` on it, or say --location grpc://HOST:PORT.",
        )
    return found.uri


def _require_shard(desk: MoveContext, shard: ShardInfo) -> None:
    """See that the server there is this shard; one that does not answer is taken at its word."""
    try:
        answered = desk.node(shard).facts()["shard"]
    except RetryableError as error:
        desk.run.out.say(f"{error.message} It is added all the same.")
        return
    if answered != shard.id.name:
        raise InputError(
            f"The server at {shard.location} is shard {answered}.", hint="Name that one, or another location."
        )


def _plan(
    desk: MoveContext, shard: ShardInfo, *, collects: bool
) -> tuple[list[tuple[TenantInfo, ShardId]], list[dict[str, str]]]:
    """Who is to go where, and who cannot go, with the reason."""
    facts = desk.store.facts()
    others = [each for each in facts.shards if each.id != shard.id]
    under_way = {move.tenant: move for move in facts.moves if move.finished_at is None}
    planned: list[tuple[TenantInfo, ShardId]] = []
    left: list[dict[str, str]] = []
    for tenant in facts.tenants:
        move = under_way.get(tenant.id)
        if move is not None and move.source == shard.id:
            # Behind its switch, there is only something to do if it is to be collected.
            if tenant.shard == shard.id or collects:
                planned.append((tenant, move.target))
        elif move is not None and move.target == shard.id:
            left.append({"tenant": str(tenant.id), "reason": _arriving(move)})
        elif tenant.shard == shard.id:
            target = place(tenant.id, tenant.config, others)
            if target is None:
                left.append({"tenant": str(tenant.id), "reason": "No other shard can take it."})
            else:
                planned.append((tenant, target.id))
    return planned, left


def _arriving(move: MoveInfo) -> str:
    verb = "reverse" if move.state.name == "Finalizing" else "abort"
    return (
        f"It is on its way here from {move.source}, in {move.state.name}: `catchment tenant {verb} {move.tenant}`, "
        f"or finish that move with `catchment tenant move {move.tenant} --to {move.target} --gc-after 0`."
    )


def _drain(
    desk: MoveContext,
    shard: ShardInfo,
    planned: Sequence[tuple[TenantInfo, ShardId]],
    left: list[dict[str, str]],
    gc_after: float | None,
) -> None:
    """First every tenant is moved, and then each is collected: their windows pass side by side."""
    run = desk.run
    reports: dict[str, MoveReport] = {}
    stopped = False
    rounds: list[float | None] = [None] if gc_after is None else [None, gc_after]
    for window_s in rounds:
        for tenant, target in planned:
            if stopped or any(each["tenant"] == str(tenant.id) for each in left):
                continue
            run.out.step(f"{tenant.id}: {shard.id} → {target}")
            try:
                report = move_output.move_with_progress(
                    run, desk.migration(tenant.id, shard.id, target), gc_window_s=window_s
                )
            except CatchmentError as error:
                # The others need not wait for it.
                left.append({"tenant": str(tenant.id), "reason": error.message})
                run.out.say(f"  {error.message}")
                continue
            before = reports.get(str(tenant.id))
            reports[str(tenant.id)] = report if before is None else before.then(report)
            stopped = report.stopped
    facts = {
        "shard": shard.id.name,
        "ok": not left and not stopped,
        "is_draining": True,
        "moved": [move_output.report_facts(each) for each in reports.values()],
        "left": left,
        "stopped": stopped,
    }
    run.out.value(facts, _drain_lines(shard, list(reports.values()), left))
    if stopped:
        raise typer.Exit(EXIT_STOPPED)
    if left:
        raise typer.Exit(EXIT_FAILED)


def _drain_lines(shard: ShardInfo, reports: Sequence[MoveReport], left: Sequence[dict[str, str]]) -> Iterator[str]:
    for each in reports:
        pause = "" if each.pause_ms is None else f", writes waited for {each.pause_ms:,.1f} ms"
        yield f"{each.tenant}: {each.source} → {each.target}, {each.state}{pause}"
    yield from (f"Left: {each['tenant']}: {each['reason']}" for each in left)
    yield f"{plural(len(reports), 'tenant')} moved away from {shard.id}, {len(left)} left."
    if any(each.state == "Finalizing" for each in reports):
        yield f"Next: catchment shard drain {shard.id} --gc-after SECONDS deletes what is kept here as copies."


def _plan_lines(
    name: str, planned: Sequence[tuple[TenantInfo, ShardId]], left: Sequence[dict[str, str]]
) -> Iterator[str]:
    yield from (f"{tenant.id}: {name} → {target}" for tenant, target in planned)
    yield from (f"Left: {each['tenant']}: {each['reason']}" for each in left)
    yield f"{plural(len(planned), 'tenant')} would move away from {name}, {len(left)} would be left."


def _shard_facts(shard: ShardInfo) -> dict[str, Any]:
    return {
        "shard": shard.id.name,
        "region": shard.region,
        "location": shard.location,
        "home": shard.home,
        "is_draining": shard.is_draining,
    }


def _row(shown: dict[str, Any], reports: Mapping[ShardId, ShardReport], now: datetime) -> tuple[object, ...]:
    seen_at = reports[ShardId(shown["shard"])].seen_at
    seen = "never" if seen_at is None else f"{max((now - seen_at).total_seconds(), 0):,.0f} s ago"
    return (
        shown["shard"],
        shown["region"],
        shown["location"],
        len(shown["tenants"]),
        shown["health"].value,
        seen,
        "yes" if shown["is_draining"] else "no",
    )
