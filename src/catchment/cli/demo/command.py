"""`catchment demo`: sets the stage, has the story told, and leaves nothing running."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment import Catchment
from catchment.cli.context import AsJson, Home, RunningCommand, command
from catchment.cli.demo.adbc_client import Client
from catchment.cli.demo.demo_folder import A, B, DemoPlace
from catchment.cli.demo.display import viewed
from catchment.cli.demo.interrupts import Interrupts
from catchment.cli.demo.scene import Scene
from catchment.cli.demo.servers import Servers
from catchment.cli.demo.story import Story
from catchment.errors import EXIT_FAILED, EXIT_STOPPED
from catchment.foundation.clock import SystemClock
from catchment.pipeline import java


def demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave both servers up after the story, until Ctrl-C.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Watch it at work: two servers, two writers, an import, a schema change, a tenant that moves, and the proof."""
    interrupts = Interrupts()
    with command(home, as_json) as run, interrupts.heard():
        try:
            Demo(run, interrupts).run(keep=keep)
        except BaseException:
            if not interrupts.was_heard:
                raise
            run.out.say("Stopped. Nothing runs any more; what was acknowledged is on the disk.")
            raise typer.Exit(EXIT_STOPPED) from None


class Demo:
    """One run of the command."""

    def __init__(self, run: RunningCommand, interrupts: Interrupts) -> None:
        self._run = run
        self._out = run.out
        self._interrupts = interrupts
        self._clock = SystemClock()
        self._place = DemoPlace.in_home(run.catchment.settings.home)
        self._started_s = self._clock.monotonic_s()

    def run(self, *, keep: bool) -> None:
        """Tell the story; exit 1 where a promise was not kept."""
        # Before anything is started, because without it nothing can be flushed.
        java.find_java()
        with ExitStack() as opened:
            opened.callback(self._place.lock(self._clock).release)
            self._place.write_settings()
            servers = Servers(self._place, self._clock, self._interrupts)
            try:
                story = self._tell(servers)
                if keep:
                    self._report(story, servers, ended=False)
                    self._wait()
            except BaseException:
                with self._interrupts.ignored():
                    servers.stop(at_once=True)
                raise
            with self._interrupts.ignored():
                servers.stop()
        if keep:
            self._out.say("Stopped.")
        else:
            self._report(story, servers, ended=True)
        if not all(check.ok for check in story.checks):
            raise typer.Exit(EXIT_FAILED)

    def _tell(self, servers: Servers) -> Story:
        scene = Scene()
        self._out.say(f"Catchment, in a minute. Everything is kept in {_near(self._place.folder)}.")
        with self._interrupts.held():
            client = Client()
        with (
            client,
            Catchment(self._place.settings(A)) as opened,
            viewed(self._out, scene, self._clock) as view,
        ):
            story = Story(self._place, opened.app, servers, client, scene, view)
            try:
                story.tell()
            finally:
                with self._interrupts.ignored():
                    story.end_writers()
        return story

    def _wait(self) -> None:
        """Until Ctrl-C, which is the way to end it."""
        try:
            while True:
                self._clock.sleep(60)
        except KeyboardInterrupt:
            self._interrupts.was_heard = False
            self._out.say("Stopping …")

    def _report(self, story: Story, servers: Servers, *, ended: bool) -> None:
        seconds = self._clock.monotonic_s() - self._started_s
        ok = all(check.ok for check in story.checks)
        facts: dict[str, Any] = {
            "ok": ok,
            "seconds": round(seconds, 1),
            **story.facts,
            "checks": [
                {"what": each.what, "promised": each.promised, "found": each.found, "ok": each.ok}
                for each in story.checks
            ],
            "exit_codes": {each.shard.name: each.exit_code for each in servers.all()} if ended else None,
        }
        self._out.value(facts, self._lines(story, servers, seconds, ok=ok, ended=ended))

    def _lines(self, story: Story, servers: Servers, seconds: float, *, ok: bool, ended: bool) -> Iterator[str]:
        home = _near(servers[A].home)
        yield from (
            f"NOT KEPT: {each.what}: {each.promised} promised, {each.found} found"
            for each in story.checks
            if not each.ok
        )
        verdict = "Every promise was kept" if ok else "Something was lost"
        if ended:
            yield f"{verdict}, in {seconds:.0f} s. Both servers have stopped."
            yield f"Keep the dashboard, {servers[A].web}: catchment demo --keep"
            yield f"Look around:  catchment status --home {home}"
            yield f"Prove again:  catchment lake audit --home {home}"
            return
        yield f"{verdict}, in {seconds:.0f} s. Both servers stay up; Ctrl-C here stops them."
        for server in servers.all():
            yield f"  {server.shard}: {server.uri}  dashboard {server.web}"
        yield "Talk to it, from Python:"
        yield ""
        yield "import adbc_driver_flightsql.dbapi as flight"
        table = f"{story.facts['run']['tenant']}.readings"
        reached = servers[B].uri
        yield f'with flight.connect("{reached}", autocommit=True) as connection, connection.cursor() as cursor:'
        yield f'    cursor.execute("SELECT sensor, unit, count(*) FROM {table} GROUP BY ALL")'
        yield "    print(cursor.fetchall())"
        yield ""


def _near(path: Path) -> str:
    """A path as somebody in this folder would write it."""
    here = Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)
