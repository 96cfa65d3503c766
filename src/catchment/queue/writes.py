"""Rows on their way into a store: which go in together, what of them is new, and which numbers they get."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from catchment.errors import SeqGapError
from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.queue.table_log import TableLog, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows to keep, which fit the columns. Those that bring their numbers have a `seq_first`."""

    table: TableId
    columns: tuple[Column, ...]
    rows: pa.Table
    seq_first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """Rows that have their numbers, and the version that they belong to."""

    version: Version
    seq_first: int
    at: datetime
    rows: pa.Table


def groups_of(writes: Sequence[Write]) -> list[list[int]]:
    """The places of writes that one statement can insert; those that bring their numbers go one by one."""
    if len(writes) == 1:
        return [[0]]
    found: dict[tuple[TableId, tuple[Column, ...], pa.Schema, int | None], list[int]] = {}
    for place, write in enumerate(writes):
        alone = None if write.seq_first is None else place
        found.setdefault((write.table, write.columns, write.rows.schema, alone), []).append(place)
    return list(found.values())


def news_of(write: Write, log: TableLog) -> pa.Table:
    """The rows that are not in the log; SeqGapError where they do not follow it."""
    if write.seq_first is None:
        return write.rows
    if write.seq_first > log.seq_last + 1:
        raise SeqGapError(
            f"Rows of {write.table} from seq {write.seq_first} on came, and it is here up to {log.seq_last}.",
            seq_last=log.seq_last,
            table=str(write.table),
        )
    return write.rows.slice(log.seq_last + 1 - write.seq_first)


def numbers_of(write: Write, seq_last: int) -> tuple[int, int]:
    """The numbers of a write's rows, the last of which got `seq_last` unless they brought them."""
    if write.seq_first is not None:
        return write.seq_first, write.seq_first + write.rows.num_rows - 1
    return seq_last - write.rows.num_rows + 1, seq_last
