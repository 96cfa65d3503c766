"""Sifting: find which rows of a unit can never be delivered, and why.

Defects that the columns show are found for all rows at once. Defects that only a write shows are
found by bisection. The bisection is bounded: rows that it did not reach are treated like their
neighbours, which loses nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from catchment.errors import SparkFailedError, StorageFailedError
from catchment.foundation import files, sql
from catchment.lake import Table
from catchment.pipeline import inputs, kernel
from catchment.pipeline.plan import Plan
from catchment.pipeline.work import Format, Input, Mode, Task, UnitPart
from catchment.queue import incoming

_PROBES_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRows:
    """Rows that the table accepts, and the positions of rejected rows with the reasons."""

    good: pa.Table
    bad: dict[int, str]


def sift(rows: pa.Table, plan: Plan, *, memory_mb: int, scratch: Path) -> BadRows:
    """Separate good rows from bad ones; `scratch` is a folder for trial writes."""
    bad = dict(_by_columns(rows, plan.target))
    rows = rows.select([name for name in rows.column_names if _has(plan.target, name)])
    known = rows.num_columns > 0
    reason = (
        incoming.schema_mismatch(rows.schema, plan.target.columns) if known else "the table has none of its columns"
    )
    if reason is not None:
        bad = dict.fromkeys(range(rows.num_rows), reason) | bad
    left = [at for at in range(rows.num_rows) if at not in bad]
    probe = _Probe(_at(rows, left), plan, memory_mb=memory_mb, scratch=scratch)
    bad |= {left[at]: why for at, why in halve(len(left), probe.fails, probes_max=_PROBES_MAX).items()}
    return BadRows(good=_at(rows, [at for at in range(rows.num_rows) if at not in bad]), bad=bad)


def halve(count: int, fails: Callable[[int, int], str | None], *, probes_max: int) -> dict[int, str]:
    """Return the failing positions below `count`, with reasons; `fails` tests a range."""
    found: dict[int, str] = {}
    todo = [(0, count)] if count else []
    probes = 0
    while todo:
        first, end = todo.pop()
        probes += 1
        reason = fails(first, end)
        if reason is None:
            continue
        if end - first == 1:
            found[first] = reason
        elif probes >= probes_max:
            found |= dict.fromkeys(range(first, end), f"among these rows: {reason}")
        else:
            middle = (first + end) // 2
            todo += [(middle, end), (first, middle)]
    return found


def _by_columns(rows: pa.Table, table: Table) -> Iterator[tuple[int, str]]:
    for name in rows.column_names:
        if not _has(table, name):
            # The table no longer has the column: rows that never used it are still good.
            yield from ((at, f"the table has no column {name!r}") for at in _places(rows.column(name).is_valid()))
    for column in table.columns:
        name = next((name for name in rows.column_names if sql.fold(name) == sql.fold(column.name)), None)
        if name is not None and not column.nullable:
            reason = f"column {column.name!r} is NULL and must not be"
            yield from ((at, reason) for at in _places(rows.column(name).is_null()))


def _places(mask: pa.ChunkedArray) -> list[int]:
    # Imported here because few flushes contain a row that does not fit.
    import pyarrow.compute as pc

    return [int(at) for at in pc.indices_nonzero(mask).to_pylist()]


def _at(rows: pa.Table, places: list[int]) -> pa.Table:
    return rows.take(pa.array(places, pa.int64()))


def _has(table: Table, name: str) -> bool:
    return any(sql.fold(column.name) == sql.fold(name) for column in table.columns)


class _Probe:
    """Writes some of the rows as the delivery would, to find out whether that fails."""

    def __init__(self, rows: pa.Table, plan: Plan, *, memory_mb: int, scratch: Path) -> None:
        self._rows = rows
        self._plan = plan
        self._memory_mb = memory_mb
        self._scratch = scratch

    def fails(self, first: int, end: int) -> str | None:
        files.make_folder(self._scratch)
        path = write_arrow(self._rows.slice(first, end - first), self._scratch / "probe.arrow")
        part = UnitPart(unit_id="probe", input=Input(uri=str(path), bytes=files.size_of(path), format=Format.ARROW))
        result = kernel.run(
            Task(
                number=0,
                mode=Mode.REWRITE,
                parts=(part,),
                shape=self._plan.shape,
                folder=str(self._scratch),
                memory_mb=self._memory_mb,
                digest=False,
            )
        )
        files.remove_tree(self._scratch)
        if any(failure.transient for failure in result.failures):
            raise SparkFailedError(f"Bad rows could not be separated from good ones: {result.failures[0].reason}")
        return inputs.bare_reason(result.failures[0]) if result.failures else None


def write_arrow(rows: pa.Table, path: Path) -> Path:
    """Write an Arrow file that a task can read."""
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    except OSError as error:
        raise StorageFailedError(f"{path}: {error}", path=str(path)) from None
    return path
