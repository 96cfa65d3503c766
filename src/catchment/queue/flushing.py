"""What a flush is to the queue: somebody takes parcels to the lake, and says what became of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from catchment.foundation.ids import TableId
from catchment.queue.buffer import FlushPayload


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFlush:
    """What a flush did for one table. `errors` say why rows are still buffered.

    `stranded` are rows that stay buffered because the table that they were acknowledged for has been dropped.
    """

    table: TableId
    rows: int = 0
    buried: int = 0
    files: int = 0
    bytes: int = 0
    parcels: int = 0
    stranded: int = 0
    errors: tuple[str, ...] = ()

    def plus(self, other: "TableFlush") -> "TableFlush":
        """Both together."""
        return TableFlush(
            table=self.table,
            rows=self.rows + other.rows,
            buried=self.buried + other.buried,
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            parcels=self.parcels + other.parcels,
            stranded=self.stranded + other.stranded,
            errors=tuple(dict.fromkeys((*self.errors, *other.errors))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushReport:
    """What a flush did."""

    tables: tuple[TableFlush, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.tables)

    @property
    def files(self) -> int:
        return sum(each.files for each in self.tables)

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(f"{each.table}: {error}" for each in self.tables for error in each.errors)


def merged(parts: Sequence[TableFlush]) -> tuple[TableFlush, ...]:
    """One entry per table."""
    found: dict[TableId, TableFlush] = {}
    for part in parts:
        found[part.table] = found[part.table].plus(part) if part.table in found else part
    return tuple(found[table] for table in sorted(found))


Progress = Callable[[TableFlush], None]


class Flusher(Protocol):
    """Takes parcels to the lake, exactly once. Retires what arrived and releases what did not."""

    def flush(
        self, parcels: Sequence[FlushPayload], progress: Progress | None = None, *, into: TableId | None = None
    ) -> tuple[TableFlush, ...]:
        """Deliver all of them; a table that fails has errors and does not hold back the others.

        Each goes into the table that its rows are bound to, under whatever name that has by now; or, matched by the
        names of columns, `into` another one.
        """
        ...

    def catch_up(self, tables: Sequence[TableId]) -> dict[TableId, str]:
        """Tell the buffer how far the lake has these tables, so that nothing is offered which is there already.

        Returns those that must not be flushed, and why.
        """
        ...
