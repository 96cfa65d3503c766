"""Inputs that take long to read, and no time to make."""

from pathlib import Path

import duckdb

from catchment.pipeline.work import Input, UnitPart

_FILES = 64
_ROWS = 10_000_000


def slow_unit(folder: Path, unit_id: str) -> tuple[UnitPart, ...]:
    """One unit of many files, each a link to the same rows of `id`."""
    first = folder / f"{unit_id}-0.parquet"
    duckdb.execute(f"COPY (SELECT 1 AS id FROM range({_ROWS})) TO '{first}'")
    paths = [first, *(folder / f"{unit_id}-{number}.parquet" for number in range(1, _FILES))]
    for path in paths[1:]:
        path.hardlink_to(first)
    return tuple(UnitPart(unit_id=unit_id, input=Input(uri=str(path), bytes=1)) for path in paths)
