"""How the demo looks: a story with a live panel below it on a terminal, plain lines elsewhere. All of it on stderr."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from catchment.cli.demo.scene import ACTS, Act, DemoCheck, Scene
from catchment.cli.demo.writers import DemoWriter
from catchment.cli.output import Output
from catchment.foundation.clock import Clock

_FRAMES_PER_S = 6
_SAMPLE_S = 0.5
_SAMPLES = 24
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH_MAX = 100
# A terminal shows ^C where the cursor is; at the very edge that would make a line more.
_MARGIN = 3


class DemoView(Protocol):
    """Who shows the story. An act is begun, perhaps remarked upon, and done."""

    def begin(self, act: Act) -> None:
        """It starts."""
        ...

    def note(self, text: str) -> None:
        """What it is busy with."""
        ...

    def done(self, results: Sequence[str]) -> None:
        """What came of it."""
        ...

    def say(self, text: str) -> None:
        """A remark that is of no act."""
        ...

    def prove(self, checks: Sequence[DemoCheck]) -> None:
        """What was promised, and what was found."""
        ...


@contextmanager
def viewed(out: Output, scene: Scene, clock: Clock) -> Iterator[DemoView]:
    """The view for where stderr goes, drawn for a while."""
    if out.screen is None:
        yield PlainView(out, clock)
        return
    view = LiveView(out.screen, scene, clock)
    with view.drawn():
        yield view


class PlainView:
    """Lines, one after the other."""

    def __init__(self, out: Output, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._act: Act | None = None
        self._began_s = 0.0

    def begin(self, act: Act) -> None:
        self._act, self._began_s = act, self._clock.monotonic_s()
        self._out.step(f"{act.number}/{len(ACTS)} {act.title}")
        self._out.say(f"  {act.what}")

    def note(self, text: str) -> None:
        self._out.say(f"    {text}")

    def done(self, results: Sequence[str]) -> None:
        assert self._act is not None
        for result in results:
            self._out.say(f"  ✓ {result}")
        self._out.say(f"  Why it matters: {self._act.why} ({self._clock.monotonic_s() - self._began_s:.1f} s)")

    def say(self, text: str) -> None:
        self._out.say(text)

    def prove(self, checks: Sequence[DemoCheck]) -> None:
        for check in checks:
            mark = "✓" if check.ok else "✗"
            self._out.say(f"  {mark} {check.what}: {_shown(check.promised)} promised, {_shown(check.found)} found")


@dataclass(slots=True)
class _Pulse:
    """How many rows of a writer were acknowledged in each of the last half seconds."""

    sampled_s: float
    acked: int = 0
    counts: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def sample(self, acked: int, now_s: float) -> None:
        """Close the half second, if it is over."""
        if now_s - self.sampled_s >= _SAMPLE_S:
            self.counts.append(acked - self.acked)
            self.acked, self.sampled_s = acked, now_s

    @property
    def rate(self) -> float:
        """Acknowledged a second, over the last two."""
        recent = list(self.counts)[-4:]
        return sum(recent) / (len(recent) * _SAMPLE_S) if recent else 0.0

    @property
    def line(self) -> str:
        """A small picture of the last seconds."""
        most = max(self.counts, default=0)
        return "".join(_BLOCKS[count * (len(_BLOCKS) - 1) // most] if most else _BLOCKS[0] for count in self.counts)


class LiveView:
    """The story grows above a panel that shows what is going on."""

    def __init__(self, screen: Console, scene: Scene, clock: Clock) -> None:
        self._screen = screen
        self._scene = scene
        self._clock = clock
        self._started_s = self._began_s = clock.monotonic_s()
        self._act = ACTS[0]
        self._note = ""
        self._spinner = Spinner("dots", style="cyan")
        self._pulses: dict[str, _Pulse] = {}

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Keep the panel at the bottom; it goes when the story ends."""
        with Live(get_renderable=self.panel, console=self._screen, refresh_per_second=_FRAMES_PER_S, transient=True):
            yield

    def begin(self, act: Act) -> None:
        self._act, self._note, self._began_s = act, "", self._clock.monotonic_s()

    def note(self, text: str) -> None:
        self._note = text

    def done(self, results: Sequence[str]) -> None:
        act, spent_s = self._act, self._clock.monotonic_s() - self._began_s
        head = _grid()
        head.add_column(justify="right", no_wrap=True)
        head.add_row(
            Text("✓", "bold green"), Text(f"{act.number} {act.title}", "bold"), Text(f"{spent_s:.1f} s", "dim")
        )
        told = _grid()
        for result in results:
            told.add_row("", Text(result))
        told.add_row("", Text(act.why, "italic dim"))
        self._print(Group(head, told))

    def say(self, text: str) -> None:
        self._print(Text(text, overflow="fold"))

    def prove(self, checks: Sequence[DemoCheck]) -> None:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, header_style="dim")
        table.add_column("", width=1)
        table.add_column("what was promised", ratio=1)
        table.add_column("promised", justify="right", no_wrap=True)
        table.add_column("found", justify="right", no_wrap=True)
        for check in checks:
            mark, style = ("✓", "green") if check.ok else ("✗", "bold red")
            found = Text(_shown(check.found), style)
            table.add_row(Text(mark, style), Text(check.what), _shown(check.promised), found)
        self._print(table)

    def panel(self) -> RenderableType:
        """What is going on now."""
        scene, act = self._scene, self._act
        elapsed_s = self._clock.monotonic_s() - self._started_s
        head = _grid()
        head.add_row(self._spinner, Text(act.title, "bold cyan"))
        head.add_row("", Text(act.what))
        head.add_row("", Text(act.why, "italic dim"))
        if self._note:
            head.add_row("", Text(f"… {self._note}", "cyan", no_wrap=True, overflow="ellipsis"))
        dashboard = f"dashboard {scene.dashboard} · Ctrl-C stops" if scene.dashboard else "Ctrl-C stops"
        return Panel(
            Group(head, Text(), self._writers()),
            box=ROUNDED,
            border_style="cyan",
            title=Text(f"Catchment · act {act.number} of {len(ACTS)} · {elapsed_s:.0f} s"),
            title_align="left",
            subtitle=Text(dashboard),
            subtitle_align="right",
            width=self._width,
        )

    def _writers(self) -> RenderableType:
        scene = self._scene
        if not scene.writers.each:
            return Text("The writers have not begun.", "dim")
        rows = Table.grid(padding=(0, 2))
        for _ in range(4):
            rows.add_column(no_wrap=True)
        for writer in scene.writers.each:
            pulse = self._pulse(writer)
            rows.add_row(
                Text(writer.login.name, "bold"),
                Text(f"{writer.acked:>6,} acks"),
                Text(f"{pulse.rate:>4.0f}/s"),
                Text(pulse.line, "green"),
            )
        errors = len(scene.writers.errors)
        below = Text.assemble(
            (f"{scene.tenant} lives in {scene.lives_in}", "bold magenta"),
            f" · {scene.rows_buffered:,} rows buffered · {scene.rows_flushed:,} in Parquet · ",
            (f"{errors} errors", "bold red" if errors else "green"),
        )
        return Group(rows, below)

    def _pulse(self, writer: DemoWriter) -> _Pulse:
        now_s = self._clock.monotonic_s()
        pulse = self._pulses.setdefault(writer.login.name, _Pulse(now_s))
        pulse.sample(writer.acked, now_s)
        return pulse

    @property
    def _width(self) -> int:
        return min(self._screen.width - _MARGIN, _WIDTH_MAX)

    def _print(self, what: RenderableType) -> None:
        self._screen.print(what, soft_wrap=False, width=self._width)


def _grid() -> Table:
    """A mark, and what there is to say."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=1)
    grid.add_column(ratio=1)
    return grid


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
