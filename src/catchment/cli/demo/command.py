"""`catchment demo`: starts the servers, runs the acts, and leaves no process running."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.context import AsJson, Home, command
from catchment.cli.demo.demo_folder import SHARDS, A, B, DemoFolder
from catchment.cli.demo.interrupts import Interrupts
from catchment.cli.demo.servers import Servers
from catchment.cli.demo.story import Story
from catchment.cli.demo.writers import TABLE
from catchment.cli.output import Output
from catchment.errors import EXIT_FAILED, EXIT_STOPPED, JavaMissingError
from catchment.foundation.clock import SystemClock


def demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave both servers running until Ctrl-C.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show Catchment at work: two servers, two writers, an import, a schema change, a move, and the
    proof.
    """
    interrupts = Interrupts()
    with command(home, as_json) as run, interrupts.handled():
        try:
            # Checked before the servers start: without Java, nothing can be flushed.
            for check in run.catchment.doctor():
                if check.name == "java":
                    if not check.ok:
                        raise JavaMissingError(check.detail, hint=check.hint)
                    break
            Demo(run.catchment.settings.home, run.out, interrupts).run(keep=keep)
        except BaseException:
            if not interrupts.was_raised:
                raise
            run.out.say("Stopped. No process is left running; acknowledged rows are on disk.")
            raise typer.Exit(EXIT_STOPPED) from None


class Demo:
    """One run of the command, in the folder `demo` of a home."""

    def __init__(self, home: Path, out: Output, interrupts: Interrupts) -> None:
        self._folder = DemoFolder.in_home(home)
        self._out = out
        self._interrupts = interrupts
        self._clock = SystemClock()
        self._started_s = self._clock.monotonic_s()

    def run(self, *, keep: bool) -> None:
        """Run all acts; exit 1 if a promise was not kept. With `keep`, wait for Ctrl-C at the end."""
        with self._folder.locked(self._clock):
            self._folder.write_settings()
            with Servers(self._clock, self._interrupts) as servers:
                story = self._play(servers)
                if keep:
                    self._report(story, servers, ended=False)
                    self._wait()
        if keep:
            self._out.say("Stopped.")
        else:
            self._report(story, servers, ended=True)
        if not all(check.ok for check in story.checks):
            raise typer.Exit(EXIT_FAILED)

    def _play(self, servers: Servers) -> Story:
        with ExitStack() as stack:
            shards = {shard: stack.enter_context(self._folder.open(shard)) for shard in SHARDS}
            self._out.say(f"Catchment in a minute. All files are in {_near(self._folder.path)}.")
            story = Story(self._folder, shards, servers, self._out, self._clock)
            try:
                with story.view.shown():
                    story.run()
            finally:
                with self._interrupts.deferred(discard=True):
                    story.stop_writers()
        return story

    def _wait(self) -> None:
        """Wait for Ctrl-C."""
        try:
            while True:
                self._clock.sleep(60)
        except KeyboardInterrupt:
            self._interrupts.was_raised = False
            self._out.say("Stopping …")

    def _report(self, story: Story, servers: Servers, *, ended: bool) -> None:
        seconds = self._clock.monotonic_s() - self._started_s
        codes = {shard: server.exit_code for shard, server in servers.by_shard.items()}
        facts: dict[str, Any] = {
            "ok": all(check.ok for check in story.checks),
            "seconds": round(seconds, 1),
            **story.facts,
            "checks": [
                {"what": each.what, "promised": each.promised, "found": each.found, "ok": each.ok}
                for each in story.checks
            ],
            "exit_codes": codes if ended else None,
        }
        self._out.value(facts, _lines(facts, servers, ended=ended))


def _lines(facts: dict[str, Any], servers: Servers, *, ended: bool) -> Iterator[str]:
    for each in facts["checks"]:
        if not each["ok"]:
            yield f"NOT KEPT: {each['what']}: {each['promised']} promised, {each['found']} found"
    verdict = f"{'Every promise was kept' if facts['ok'] else 'A promise was broken'}, in {facts['seconds']:.0f} s."
    if ended:
        home = _near(servers[A].home)
        # As it was called: `make demo` leaves the command in `.venv`, which may not be on the path.
        program = _near(Path(sys.argv[0])) if Path(sys.argv[0]).name == "catchment" else "catchment"
        yield f"{verdict} Both servers have stopped."
        yield f"Keep the dashboard, {servers[A].web}:  {program} demo --keep"
        yield f"See the status:  {program} status --home {home}"
        yield f"Prove it again:  {program} lake audit --home {home}"
        return
    yield f"{verdict} Both servers keep running; Ctrl-C here stops them."
    for server in servers.by_shard.values():
        yield f"  {server.shard}: {server.uri}  dashboard {server.web}"
    yield from (
        "Connect from Python:",
        "",
        "import adbc_driver_flightsql.dbapi as flight",
        f'with flight.connect("{servers[B].uri}", autocommit=True) as connection, connection.cursor() as cursor:',
        f'    cursor.execute("SELECT sensor, unit, count(*) FROM {facts["run"]["tenant"]}.{TABLE} GROUP BY ALL")',
        "    print(cursor.fetchall())",
        "",
    )


def _near(path: Path) -> str:
    """Return a path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)
