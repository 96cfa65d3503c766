"""Replication: rows go from the log of one buffer to that of another, under the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from catchment.foundation.ids import TableId
from catchment.lake.types import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRows:
    """Consecutive rows of one table, as its primary numbered them, all with the same columns."""

    table: TableId
    columns: tuple[Column, ...]
    seq_first: int
    rows: pa.Table

    @property
    def seq_last(self) -> int:
        last: int = self.seq_first + self.rows.num_rows - 1
        return last


class Replication(Protocol):
    """The log of a buffer whose rows keep their numbers, so that other buffers can store them."""

    def retain_log(self, schema: str) -> None:
        """Retain the rows of the schema's tables as a log from now on, durably."""
        ...

    def release_log(self, schema: str) -> None:
        """Stop retaining flushed rows of the schema's tables, and delete those that were retained."""
        ...

    def retained_schemas(self) -> frozenset[str]:
        """Return the schemas whose log is retained."""
        ...

    def truncate_log(self, table: TableId, seq: int) -> None:
        """Delete flushed rows of a retained table up to `seq`: the log's reader has them."""
        ...

    def positions(self, schema: str) -> Mapping[TableId, int]:
        """Return the last number of each table of the schema."""
        ...

    def read_log(self, table: TableId, after: int, *, rows_max: int, bytes_max: int | None = None) -> LogRows | None:
        """Return the rows after number `after` that share their columns, or None if there are none.

        Stops reading once the rows have `bytes_max` bytes. Raises InvariantError if the log does
        not reach back that far.
        """
        ...

    def append_replicated(self, batches: Sequence[LogRows]) -> None:
        """Store rows under the numbers that they have, all or none, durably; skip known ones.

        Raises SeqGapError, with the fact `seq_last`, if rows do not follow the last one that is
        here.
        """
        ...

    def start_after(self, table: TableId, columns: tuple[Column, ...], seq: int) -> None:
        """Start the sequence of a new table after `seq`; rows up to `seq` are already in the lake.

        May be repeated. A table that exists here jumps to `seq` if all of it is flushed; StateError
        if it is not, or if it is ahead of `seq`.
        """
        ...

    def start_seq(self, table: TableId) -> int | None:
        """Return the number after which the table's sequence started here, or None."""
        ...

    def drop(self, schema: str) -> None:
        """Forget the schema's tables, all their rows, and that their log is retained.

        A table that is created again under the same name, with any numbers, is another producer to
        the ledger, so that the old watermark does not hide new rows.
        """
        ...
