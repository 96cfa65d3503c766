"""A minimal in-memory model of the contract in `queue.buffer`."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import groupby
from pathlib import Path

import duckdb
import pyarrow as pa

from catchment.errors import InvariantError
from catchment.foundation import files, ids
from catchment.foundation.clock import Clock
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue import incoming
from catchment.queue.buffer import KIND, SEQ, Ack, BufferedRows, FlushPayload, QuarantinedFile, Staged, TableState


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One acknowledged row; `content` is a table of this row alone, in its table's columns."""

    seq: int
    at: datetime
    columns: tuple[Column, ...]
    content: pa.Table


@dataclass(slots=True)
class ModelTable:
    """State of one table: current columns, buffered rows, sequence numbers."""

    columns: tuple[Column, ...]
    rows: list[ModelRow] = field(default_factory=list)
    seq_last: int = 0
    seq_flushed: int = 0


@dataclass(slots=True)
class ModelDisk:
    """Durable state of a model buffer: another buffer with the same disk reopens it."""

    generation: str = field(default_factory=lambda: secrets.token_hex(8))
    tables: dict[TableId, ModelTable] = field(default_factory=dict)
    # Number of earlier tables of a name, and the producers of tables whose name now belongs to
    # another table.
    generations: dict[TableId, int] = field(default_factory=dict)
    formers: dict[TableId, ProducerId] = field(default_factory=dict)


class ModelBuffer:
    """The `Buffer` protocol on lists, for one thread. Payloads have at most `chunk_rows` rows."""

    def __init__(self, *, clock: Clock, chunk_rows: int, disk: ModelDisk | None = None) -> None:
        self.disk = disk or ModelDisk()
        self._clock = clock
        self._chunk_rows = chunk_rows

    @property
    def generation(self) -> str:
        return self.disk.generation

    @property
    def replication(self) -> None:
        """None: the model has no log."""

    @property
    def separates_sessions(self) -> bool:
        return False

    def producer(self, table: TableId) -> ProducerId:
        earlier = self.disk.generations.get(table, 0)
        named = ProducerId(KIND, str(table), f"{self.generation}.{earlier + 1}" if earlier else self.generation)
        return self.disk.formers.get(table, named)

    def columns(self, table: TableId, session: str) -> tuple[Column, ...] | None:
        kept = self.disk.tables.get(table)
        return kept.columns if kept else None

    def append(self, table: TableId, columns: tuple[Column, ...], rows: pa.Table, *, session: str) -> Ack:
        content = _shaped(rows, columns)
        before = self.disk.tables.get(table)
        if before is not None and len({types.table_of(before.columns), types.table_of(columns)} - {None}) == 2:
            self._start_generation(table, before)
        kept = self.disk.tables.setdefault(table, ModelTable(columns))
        kept.columns = columns
        first = kept.seq_last + 1
        kept.seq_last += rows.num_rows
        kept.rows += [
            ModelRow(seq=first + at, at=self._clock.now(), columns=columns, content=content.slice(at, 1))
            for at in range(rows.num_rows)
        ]
        return Ack(table=table, source=self.generation, seq_first=first, seq_last=kept.seq_last)

    def tables(self, session: str | None = None) -> tuple[TableState, ...]:
        return tuple(
            TableState(
                table=table,
                rows=len(kept.rows),
                bytes=_size(kept.rows),
                oldest_at=kept.rows[0].at if kept.rows else None,
                seq_last=kept.seq_last,
                seq_flushed=kept.seq_flushed,
                ready_rows=len(kept.rows),
                uuids=frozenset(filter(None, (types.table_of(row.columns) for row in kept.rows))),
            )
            for table, kept in sorted(self.disk.tables.items())
        )

    def state(self, table: TableId) -> TableState | None:
        return next((state for state in self.tables() if state.table == table), None)

    def seal(self) -> None:
        """Do nothing: every row is available already."""

    def payloads(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        return [
            self._payload(table, some[start : start + self._chunk_rows])
            for table, kept in sorted(self.disk.tables.items())
            if tables is None or table in tables
            for some in _versions(kept.rows)
            for start in range(0, len(some), self._chunk_rows)
        ]

    def release(self, payload: FlushPayload) -> None:
        """Do nothing: no payload is leased."""

    def stage(self, payload: FlushPayload, folder: Path) -> Staged:
        path = folder / f"{payload.id}.arrow"
        rows = self.read(payload)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return Staged(path=path, relation=None, bytes=files.size_of(path))

    def read(self, payload: FlushPayload) -> pa.Table:
        kept = self.disk.tables[payload.table].rows
        found = [row.content for row in kept if payload.seq_first <= row.seq <= payload.seq_last]
        if len(found) != payload.rows:
            raise InvariantError(f"{payload.table} has {len(found)} of the payload's {payload.rows} rows.")
        return pa.concat_tables(found)

    def retire(self, payload: FlushPayload) -> None:
        self.flushed_through(payload.table, payload.seq_last)

    def flushed_through(self, table: TableId, seq: int) -> None:
        kept = self.disk.tables.get(table)
        if kept is not None:
            if seq > kept.seq_last:
                raise InvariantError(f"The lake has {table} up to seq {seq}, the buffer only up to {kept.seq_last}.")
            kept.rows = [row for row in kept.rows if row.seq > seq]
            kept.seq_flushed = max(kept.seq_flushed, seq)

    def check_watermark(self, table: TableId, seq: int) -> int:
        return seq

    def buffered_rows(self, table: TableId, session: str | None = None) -> list[BufferedRows]:
        kept = self.disk.tables.get(table)
        return [
            BufferedRows(
                payload=self._payload(table, some),
                rows=pa.concat_tables([row.content for row in some]).append_column(
                    SEQ, pa.array([row.seq for row in some], pa.int64())
                ),
            )
            for some in _versions(kept.rows if kept else [])
        ]

    def complete_through(self, table: TableId) -> dict[str, int]:
        kept = self.disk.tables.get(table)
        return {self.generation: kept.seq_last if kept else 0}

    def leasable_sources(self, table: TableId) -> frozenset[str]:
        return frozenset()

    def notes(self) -> tuple[str, ...]:
        return ()

    def size_bytes(self) -> int:
        return sum(_size(kept.rows) for kept in self.disk.tables.values())

    def used_bytes(self) -> int:
        return self.size_bytes()

    def quarantined(self) -> tuple[QuarantinedFile, ...]:
        return ()

    def end_session(self, session: str) -> None:
        """Do nothing: sessions have no state."""

    def sweep(self) -> None:
        """Do nothing: nothing expires."""

    def close(self) -> None:
        """Do nothing: the disk stays as it is."""

    def _start_generation(self, table: TableId, before: ModelTable) -> None:
        """Keep the rows of a dropped table under another name: a new table has taken its own."""
        former = TableId(table.schema, f"{table.name}@{types.table_of(before.columns)}")
        self.disk.formers[former] = self.producer(table)
        self.disk.generations[table] = self.disk.generations.get(table, 0) + 1
        self.disk.tables[former] = self.disk.tables.pop(table)

    def _payload(self, table: TableId, rows: Sequence[ModelRow]) -> FlushPayload:
        first, last = rows[0].seq, rows[-1].seq
        return FlushPayload(
            id=ids.unit_id(KIND, str(self.producer(table)), first, last),
            table=table,
            producer=self.producer(table),
            source=self.generation,
            seq_first=first,
            seq_last=last,
            rows=len(rows),
            bytes=_size(rows),
            seqs=(first, last),
            path="model",
            relation=str(table),
            columns=rows[0].columns,
        )


def _versions(rows: Iterable[ModelRow]) -> list[list[ModelRow]]:
    """Group consecutive rows with the same columns, in order."""
    return [list(some) for _, some in groupby(rows, key=lambda row: row.columns)]


def _size(rows: Iterable[ModelRow]) -> int:
    return sum(row.content.nbytes for row in rows)


def _shaped(rows: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Return the rows, cast to the columns by DuckDB."""
    with _caster().cursor() as connection:
        connection.register("arriving", rows)
        return connection.execute(f"SELECT {incoming.select_list(rows.schema, columns)} FROM arriving").to_arrow_table()


@cache
def _caster() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"arrow_lossless_conversion": "true", "threads": 1})
