"""Draw docs/pictures/demo.svg: the output of a real run of `catchment demo`, as on a terminal."""

import re
import tempfile
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

import catchment
from catchment.cli.context import RunningCommand
from catchment.cli.demo.command import Demo
from catchment.cli.demo.interrupts import Interrupts
from catchment.cli.output import Output

PICTURE = Path(__file__).parent / "pictures" / "demo.svg"
# Rich's template fetches a font from another host; use the reader's monospace font instead.
ELSEWHERE = re.compile(r"@font-face \{\{.*?\}\}\n|<!--.*?-->\n|Fira Code, ", re.DOTALL)
FORM = ELSEWHERE.sub("", CONSOLE_SVG_FORMAT)


class Recorded(Output):
    """An output that records its screen. It is not a terminal, so that no frames are drawn."""

    recorder = Console(record=True, width=88, file=StringIO(), highlight=False, emoji=False)

    @property
    def screen(self) -> Console:
        return self.recorder


def main() -> None:
    """Run the demo and draw its output."""
    out = Recorded(as_json=False)
    with tempfile.TemporaryDirectory() as home:
        run = RunningCommand(catchment=catchment.open(home), out=out, logs_json=False)
        Demo(run, Interrupts()).run(keep=False)
    PICTURE.parent.mkdir(exist_ok=True)
    drawn = out.recorder.export_svg(title="catchment demo", theme=MONOKAI, code_format=FORM, unique_id="demo")
    PICTURE.write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
