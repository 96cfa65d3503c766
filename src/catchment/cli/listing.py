"""`Listing`: a table fitted to a terminal; names stay whole, columns that do not fit are left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, chop_cells, set_cell_size

_GAP = 2
_CUT_MIN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Rows and their columns, most important first; the first column has the names.

    With `is_last_cut`, the last column is text of any length, cut to the remaining width.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    rows_max: int = 15
    is_last_cut: bool = False

    def fitted(self, width: int) -> "Listing":
        """Return the rows and columns that fit into `width`; the title names those that do not."""
        rows = self.rows[: self.rows_max]
        widths = [max(map(cell_len, cells)) for cells in zip(self.columns, *rows, strict=True)]
        if self.is_last_cut:
            left = max(_CUT_MIN, width - sum(widths[:-1]) - _GAP * (len(widths) - 1))
            rows = [(*row[:-1], _cut(row[-1], left)) for row in rows]
            widths[-1] = min(widths[-1], left)
        count = _fitting(widths, width)
        more = [f"the first {self.rows_max} of {len(self.rows)}"] if len(self.rows) > self.rows_max else []
        if count < len(widths):
            more.append(f"too narrow for: {', '.join(self.columns[count:])}")
        return replace(
            self,
            title=f"{self.title} ({'; '.join(more)})" if more else self.title,
            columns=self.columns[:count],
            # A name wider than the terminal continues on the next line.
            rows=[("\n".join(chop_cells(row[0], width)), *row[1:count]) for row in rows],
        )


def _fitting(widths: Sequence[int], width: int) -> int:
    """Return how many columns fit beside each other; at least 1."""
    count, taken = 1, widths[0]
    while count < len(widths) and taken + _GAP + widths[count] <= width:
        taken += _GAP + widths[count]
        count += 1
    return count


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"
