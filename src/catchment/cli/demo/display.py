"""The demo's display on stderr: lines for each act and, on a terminal, a live panel below them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from catchment.cli.output import Output
from catchment.foundation.clock import Clock

_FRAMES_PER_S = 6
_WIDTH_MAX = 100
# A terminal prints ^C at the cursor; at the right edge, that would add a line.
_MARGIN = 3


@dataclass(frozen=True, slots=True)
class Act:
    """One step of the demo: what happens, and why it matters."""

    title: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """A promise, and the value that was found."""

    what: str
    promised: object
    found: object

    @property
    def ok(self) -> bool:
        return self.promised == self.found


class DemoView:
    """Shows acts one after the other. `status` returns the lines of the panel."""

    def __init__(self, out: Output, acts: Sequence[Act], status: Callable[[], str], clock: Clock) -> None:
        self._out = out
        self._acts = acts
        self._act = acts[0]
        self._status = status
        self._clock = clock
        self._note = ""
        self._started_s = self._began_s = clock.monotonic_s()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the panel until the block ends, if stderr is a terminal."""
        screen = self._out.screen
        if screen is None:
            yield
            return
        with Live(get_renderable=self._panel, console=screen, refresh_per_second=_FRAMES_PER_S, transient=True):
            yield

    def begin(self, act: Act) -> None:
        """Start an act."""
        self._act, self._note, self._began_s = act, "", self._clock.monotonic_s()
        self._out.step(f"{self._number} {act.title}")
        self._out.say(f"  {act.what}")

    def note(self, text: str) -> None:
        """Show what the act is doing."""
        self._note = text
        if self._out.screen is None:
            self._out.say(f"    {text}")

    def done(self, results: Iterable[str]) -> None:
        """Show the results of the act."""
        for result in results:
            self._out.say(f"  ✓ {result}")
        spent_s = self._clock.monotonic_s() - self._began_s
        self._out.say(f"  Why it matters: {self._act.why} ({spent_s:.1f} s)", style="italic dim")

    def report(self, checks: Sequence[DemoCheck]) -> None:
        """Show all checks."""
        width = max(len(check.what) for check in checks)
        self._out.say(f"    {'what was promised':{width}} {'promised':>8} {'found':>8}", style="dim")
        for check in checks:
            line = f"{check.what:{width}} {_shown(check.promised):>8} {_shown(check.found):>8}"
            self._out.say(f"  {'✓' if check.ok else '✗'} {line}", style="green" if check.ok else "bold red")

    @property
    def _number(self) -> str:
        return f"{self._acts.index(self._act) + 1}/{len(self._acts)}"

    def _panel(self) -> RenderableType:
        screen = self._out.screen
        assert screen is not None
        lines = [Text(self._act.what), *([Text(f"… {self._note}", "cyan")] if self._note else [])]
        return Panel(
            Group(*lines, Text(self._status(), "green")),
            border_style="cyan",
            title=f"{self._number} {self._act.title} · {self._clock.monotonic_s() - self._started_s:.0f} s",
            title_align="left",
            subtitle="Ctrl-C stops",
            subtitle_align="right",
            width=min(screen.width - _MARGIN, _WIDTH_MAX),
        )


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
