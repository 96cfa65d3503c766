"""Rows on their way from the log of one buffer to that of another, under the numbers that they have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.queue.buffer import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRows:
    """Consecutive rows of one table, as its home numbered them, all under the same columns."""

    table: TableId
    columns: tuple[Column, ...]
    seq_first: int
    rows: pa.Table

    @property
    def seq_last(self) -> int:
        last: int = self.seq_first + self.rows.num_rows - 1
        return last


@runtime_checkable
class ReplicatedBuffer(Buffer, Protocol):
    """A buffer that numbers each table's rows once and for all, so that another can hold the same rows by number."""

    def retain_log(self, schema: str) -> None:
        """Keep the rows of the schema's tables as a log, from now on, although they are flushed; durably."""
        ...

    def release_log(self, schema: str) -> None:
        """Keep flushed rows of the schema's tables no longer; those that are kept go."""
        ...

    def held_schemas(self) -> frozenset[str]:
        """Schemas whose tables are held."""
        ...

    def truncate_log(self, table: TableId, seq: int) -> None:
        """Flushed rows of a held table up to `seq` may go: whoever wanted the log has them."""
        ...

    def positions(self, schema: str) -> Mapping[TableId, int]:
        """The last number of each table of the schema."""
        ...

    def read_log(self, table: TableId, after: int, *, rows_max: int, bytes_max: int | None = None) -> LogRows | None:
        """The rows behind number `after`, as many as there are under the same columns; None where there are none.

        No more of them are read once they have `bytes_max` bytes. InvariantError where the log does not reach back that
        far.
        """
        ...

    def append_replicated(self, shipments: Sequence[LogRows]) -> None:
        """Keep rows under the numbers that they bring, all or none, durably; those that are here are passed over.

        SeqGapError, with `seq_last` as a fact, where some do not follow the last one that is here.
        """
        ...

    def start_after(self, table: TableId, columns: tuple[Column, ...], seq: int) -> None:
        """Have the numbers of a table that is new here go on behind `seq`: all up to it are in the lake.

        May be repeated. A table that was here before jumps to `seq` where all of it is flushed; StateError where it is
        not, or where it is ahead.
        """
        ...

    def start_seq(self, table: TableId) -> int | None:
        """Behind which number the table began here; None where nothing was said."""
        ...

    def drop(self, schema: str) -> None:
        """Forget the schema's tables, whatever rows of them are here, and the hold.

        A table that comes again under the same name, with whatever numbers, is another producer to the ledger: what
        the lake has of the old one is no reason to take rows of the new one for delivered.
        """
        ...
