"""A third layout, in memory: it keeps the contract of `queue.buffer` and shares no code with the
product's layouts.

It differs wherever layouts may. Every write is a payload of its own, which the ledger knows by its
id; a session's rows are a source of their own, for good; rows are ready at once and never sealed;
payloads are leased within the process; there is no log. So a caller that takes one layout's ways
for the contract's fails on it.
"""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa

from catchment.foundation.clock import Clock
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue import incoming
from catchment.queue.buffer import KIND, SEQ, Ack, BufferedRows, FlushPayload, QuarantinedFile, Staged, TableState


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyWrite:
    """Rows of one write."""

    id: str
    table: TableId
    session: str
    seq_first: int
    columns: tuple[Column, ...]
    rows: pa.Table
    at: datetime

    @property
    def seq_last(self) -> int:
        return self.seq_first + int(self.rows.num_rows) - 1


@dataclass(slots=True)
class ToyDisk:
    """Contents of a toy buffer: give the same to another one to open it again, a new one to wipe
    it.
    """

    generation: str = field(default_factory=lambda: uuid.uuid4().hex)
    writes: dict[str, ToyWrite] = field(default_factory=dict)
    # The last number of each table, by session.
    lasts: Counter[tuple[TableId, str]] = field(default_factory=Counter)


class ToyBuffer:
    """The `Buffer` protocol on a dictionary; for one thread."""

    def __init__(self, *, clock: Clock, disk: ToyDisk) -> None:
        self._clock = clock
        self._disk = disk
        self._leased: set[str] = set()

    @property
    def generation(self) -> str:
        return self._disk.generation

    @property
    def replication(self) -> None:
        """None: rows have no numbers that another buffer could use."""

    @property
    def separates_sessions(self) -> bool:
        return True

    def producer(self, table: TableId) -> ProducerId:
        return ProducerId(KIND, str(table), self.generation)

    def columns(self, table: TableId, session: str) -> tuple[Column, ...] | None:
        found = self._of(table, session)
        return found[-1].columns if found else None

    def append(self, table: TableId, columns: tuple[Column, ...], rows: pa.Table, *, session: str) -> Ack:
        with duckdb.connect(config={"arrow_lossless_conversion": "true", "threads": 1}) as connection:
            connection.register("arriving", rows)
            query = f"SELECT {incoming.select_list(rows.schema, columns)} FROM arriving"
            stored = connection.execute(query).to_arrow_table()
        write = ToyWrite(
            id=f"toy-{uuid.uuid4().hex}",
            table=table,
            session=session,
            seq_first=self._disk.lasts[table, session] + 1,
            columns=columns,
            rows=stored,
            at=self._clock.now(),
        )
        if rows.num_rows:
            self._disk.writes[write.id] = write
            self._disk.lasts[table, session] = write.seq_last
        return Ack(table=table, source=self._source(session), seq_first=write.seq_first, seq_last=write.seq_last)

    def tables(self, session: str | None = None) -> tuple[TableState, ...]:
        names = {write.table for write in self._of(None, session)}
        return tuple(_state(table, self._of(table, session)) for table in sorted(names))

    def state(self, table: TableId) -> TableState | None:
        found = self._of(table)
        return _state(table, found) if found else None

    def seal(self) -> None:
        """Every write is a payload already."""

    def payloads(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        found = [
            self._payload(write)
            for write in self._of()
            if write.id not in self._leased and (tables is None or write.table in tables)
        ]
        self._leased.update(payload.id for payload in found)
        return found

    def release(self, payload: FlushPayload) -> None:
        self._leased.discard(payload.id)

    def stage(self, payload: FlushPayload, folder: Path) -> Staged:
        path, rows = folder / f"{payload.id}.arrow", self.read(payload)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return Staged(path=path, relation=None, bytes=path.stat().st_size)

    def read(self, payload: FlushPayload) -> pa.Table:
        return self._disk.writes[payload.id].rows

    def retire(self, payload: FlushPayload) -> None:
        self._disk.writes.pop(payload.id, None)
        self._leased.discard(payload.id)

    def flushed_through(self, table: TableId, seq: int) -> None:
        """There is no watermark."""

    def check_watermark(self, table: TableId, seq: int) -> int:
        return seq

    def buffered_rows(self, table: TableId, session: str | None = None) -> list[BufferedRows]:
        return [
            BufferedRows(
                payload=self._payload(write),
                rows=write.rows.append_column(SEQ, pa.array(range(write.seq_first, write.seq_last + 1), pa.int64())),
            )
            for write in self._of(table, session)
        ]

    def complete_through(self, table: TableId) -> dict[str, int]:
        return {self._source(session): last for (name, session), last in self._disk.lasts.items() if name == table}

    def leasable_sources(self, table: TableId) -> frozenset[str]:
        return frozenset()

    def notes(self) -> tuple[str, ...]:
        return ()

    def size_bytes(self) -> int:
        return sum(write.rows.nbytes for write in self._of())

    def used_bytes(self) -> int:
        return self.size_bytes()

    def quarantined(self) -> tuple[QuarantinedFile, ...]:
        return ()

    def end_session(self, session: str) -> None:
        """Its rows can be delivered already."""

    def sweep(self) -> None:
        """Nothing is ever due."""

    def close(self) -> None:
        self._leased.clear()

    def _source(self, session: str) -> str:
        return f"{self.generation}-{session}"

    def _of(self, table: TableId | None = None, session: str | None = None) -> list[ToyWrite]:
        return [
            write
            for write in self._disk.writes.values()
            if table in (None, write.table) and session in (None, write.session)
        ]

    def _payload(self, write: ToyWrite) -> FlushPayload:
        return FlushPayload(
            id=write.id,
            table=write.table,
            producer=self.producer(write.table),
            source=self._source(write.session),
            seq_first=write.seq_first,
            seq_last=write.seq_last,
            rows=write.rows.num_rows,
            bytes=write.rows.nbytes,
            seqs=None,
            path="memory",
            relation=write.id,
            columns=write.columns,
        )


def _state(table: TableId, writes: Sequence[ToyWrite]) -> TableState:
    rows = sum(write.rows.num_rows for write in writes)
    return TableState(
        table=table,
        rows=rows,
        bytes=sum(write.rows.nbytes for write in writes),
        oldest_at=min(write.at for write in writes),
        seq_last=rows,
        seq_flushed=0,
        ready_rows=rows,
        has_watermark=False,
        uuids=frozenset(filter(None, (types.table_of(write.columns) for write in writes))),
    )
