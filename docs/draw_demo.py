"""Draw docs/pictures/demo.svg: the output of a real run of `catchment demo`, as on a terminal."""

import contextlib
import re
import tempfile
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from catchment.cli.demo.command import Demo
from catchment.cli.demo.interrupts import Interrupts
from catchment.cli.output import Output

PICTURE = Path(__file__).parent / "pictures" / "demo.svg"
# Rich's template fetches a font from another host; use the reader's monospace font instead.
ELSEWHERE = re.compile(r"@font-face \{\{.*?\}\}\n|<!--.*?-->\n|Fira Code, ", re.DOTALL)
FORM = ELSEWHERE.sub("", CONSOLE_SVG_FORMAT)


class Recorded(Output):
    """An output that records stderr. It is not a terminal, so that no frames are drawn."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        self.recorder = Console(record=True, width=104, file=StringIO(), highlight=False, emoji=False)
        self._talk = self.recorder


def main() -> None:
    """Run the demo and draw its output."""
    out = Recorded()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Demo(Path("catchment-data"), out, Interrupts()).run(keep=False)
    PICTURE.parent.mkdir(exist_ok=True)
    drawn = out.recorder.export_svg(title="catchment demo", theme=MONOKAI, code_format=FORM, unique_id="demo")
    PICTURE.write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
