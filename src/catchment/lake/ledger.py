"""The ledger: deliveries by producer, recorded in the lake by the transaction that delivers.

`producers` has one row per producer, seeded before its first delivery or with it. A delivery
advances `seq` of its producer's row by a guarded UPDATE, which is the fence: of two racing
deliveries the second conflicts, and one of an older epoch finds no row. `deliveries` is
append-only: one row per unit, the audit trail and the answer to "did my commit land?".

    claim ──▶ epoch + 1: processes that deliver under the old epoch are fenced
    join  ──▶ same epoch: several processes share a producer and race; the ledger lets each unit through once
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from catchment.errors import ConflictError, FencedError, InvariantError
from catchment.foundation import sql
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake.placeholders import without_tokens
from catchment.lake.tables import LEDGER_SCHEMA, PACKAGE, metadata_of

# Seeding a producer updates this row, so that two processes cannot both insert the same producer.
# So does a migration.
_ROOT = "ledger:0:root"
# Up to this many units are compared with every delivery, one by one; more are joined.
_UNITS_FEW_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A producer as one process sees it: the epoch that it delivers under, and its watermark."""

    producer: ProducerId
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One delivered unit; it covers `seq_first..seq_last`, without a gap to its neighbours."""

    unit_id: str
    producer: ProducerId
    epoch: int
    seq_first: int
    seq_last: int
    table: TableId
    table_uuid: str
    mode: str
    rows: int
    bytes: int
    digest: str | None
    source: str
    job_id: str
    delivered_at: datetime
    snapshot_id: int | None = None


class Ledger:
    """Statements on the ledger; each method runs in its connection's transaction.

    They compare rows, `row(a) = row(?)`, instead of columns: for columns, DuckLake first queries
    the catalog for the files that may contain such a value. An UPDATE does so twice, which takes
    two thirds of its time, and in vain: every file of the ledger may contain it.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, lake_name: str, *, is_there: bool = True) -> None:
        """Use `connection`; without `is_there`, the lake has no ledger and reads are empty."""
        self._connection = connection
        self.lake_name = lake_name
        self._is_there = is_there

    def exists(self) -> bool:
        """Whether the lake has a ledger."""
        row = self._connection.execute(
            sql.statement(PACKAGE, "ledger_exists", metadata=metadata_of(self.lake_name))
        ).fetchone()
        return row is not None and row[0] == 2

    def create(self, now: datetime) -> None:
        """Create both tables, inside the caller's transaction."""
        self._connection.execute(self._statement("ledger_create"))
        self._insert_producer(_ROOT, now)

    def read(self, producer: ProducerId) -> Claim | None:
        """Return the producer's current state without taking it over; None if it was never seeded."""
        return self.read_all([producer]).get(producer)

    def read_all(self, producers: Iterable[ProducerId]) -> dict[ProducerId, Claim]:
        """Return the current state of those producers that were seeded."""
        wanted = {str(each): each for each in producers}
        rows = self._rows(self._statement("ledger_read_producers"), [list(wanted)])
        found: dict[ProducerId, Claim] = {}
        for name, epoch, seq in rows:
            producer = wanted[name]
            if producer in found:
                raise InvariantError(f"The ledger has producer {producer} more than once.")
            found[producer] = Claim(producer=producer, epoch=epoch, seq=seq)
        return found

    def join(self, producer: ProducerId) -> Claim:
        """Return the producer's current state; its first delivery seeds a new one."""
        return self.read(producer) or Claim(producer=producer, epoch=0, seq=0)

    def seed(self, producer: ProducerId, now: datetime, *, seq: int = 0) -> None:
        """Add a producer with its watermark at `seq`."""
        self.fence(now)
        self._insert_producer(str(producer), now, seq=seq)

    def fence(self, now: datetime) -> None:
        """Conflict with other transactions that call this or seed a producer; one commits."""
        self._bump(_ROOT, now)

    def claim(self, producer: ProducerId, now: datetime) -> None:
        """Take the producer over: fence every process with an older epoch."""
        self._bump(str(producer), now)

    def advance(self, claim: Claim, seq_to: int, now: datetime) -> None:
        """Move the producer's watermark from `claim.seq` to `seq_to`, or fail without effect."""
        if (claim.epoch, claim.seq) == (0, 0) and self.read(claim.producer) is None:
            # Seeded at the end of its first delivery: one statement less than seeding and advancing
            # it.
            self.seed(claim.producer, now, seq=seq_to)
            return
        moved = self._connection.execute(
            self._statement("ledger_advance"),
            {
                "seq_to": seq_to,
                "at": _naive(now),
                "producer": str(claim.producer),
                "epoch": claim.epoch,
                "seq_from": claim.seq,
            },
        ).fetchone()
        if moved == (0,):
            self._raise_outdated(claim)
        self._require_one(moved)

    def record(self, deliveries: Iterable[Delivery]) -> None:
        """Append units to the audit trail."""
        # As an Arrow table: binding thousands of units one by one takes longer than registering
        # them.
        units = pa.Table.from_pylist([_row(each) for each in deliveries], schema=_DELIVERIES)
        target = sql.qualified(self.lake_name, LEDGER_SCHEMA, "deliveries")
        with self._registered(units) as name:
            self._connection.execute(f"INSERT INTO {target} BY NAME FROM {name}")

    def delivered(self, unit_ids: Iterable[str], table_uuid: str) -> dict[str, Delivery]:
        """Return the units that the table has, by id; a table that was created again has none."""
        rows = self._of_units(self._statement("ledger_deliveries"), unit_ids, table_uuid)
        return {each.unit_id: each for each in map(_delivery, rows)}

    def delivered_ids(self, unit_ids: Iterable[str], table_uuid: str) -> frozenset[str]:
        """Return only the ids of `delivered`; faster, because each column read takes time."""
        every = f"SELECT unit_id FROM {sql.qualified(self.lake_name, LEDGER_SCHEMA, 'deliveries')}"
        return frozenset(str(row[0]) for row in self._of_units(every, unit_ids, table_uuid))

    def deliveries(self, producer: ProducerId | None = None) -> list[Delivery]:
        """Return all deliveries, ordered by producer and sequence."""
        where = "WHERE producer = coalesce(?, producer) ORDER BY producer, seq_first"
        wanted = None if producer is None else str(producer)
        rows = self._rows(f"{self._statement('ledger_deliveries')} {where}", [wanted])
        return [_delivery(row) for row in rows]

    def recent(self, limit: int) -> list[Delivery]:
        """Return the last deliveries, newest first."""
        text = f"{self._statement('ledger_deliveries')} ORDER BY delivered_at DESC, seq_last DESC LIMIT {int(limit)}"
        return [_delivery(row) for row in self._rows(text)]

    def producers(self) -> list[Claim]:
        """Return every producer's current state."""
        table = sql.qualified(self.lake_name, LEDGER_SCHEMA, "producers")
        rows = self._rows(f"SELECT producer, epoch, seq FROM {table} ORDER BY producer")
        return [
            Claim(producer=ProducerId.parse(name), epoch=epoch, seq=seq) for name, epoch, seq in rows if name != _ROOT
        ]

    def _raise_outdated(self, claim: Claim) -> None:
        """Raise the reason why a claim is outdated: FencedError to stop, ConflictError to retry."""
        current = self.read(claim.producer)
        if current is None:
            raise InvariantError(f"Producer {claim.producer} was never seeded.")
        if current.epoch != claim.epoch:
            raise FencedError(
                f"Producer {claim.producer} is at epoch {current.epoch}; this process holds epoch {claim.epoch}."
            )
        if current.seq != claim.seq:
            raise ConflictError(f"Producer {claim.producer} is at seq {current.seq}, not {claim.seq}.")

    def _of_units(self, every: str, unit_ids: Iterable[str], table_uuid: str) -> list[tuple[Any, ...]]:
        """Run a query of all deliveries, filtered by these units of the table."""
        wanted = list(unit_ids)
        if not wanted:
            return []
        if len(wanted) <= _UNITS_FEW_MAX:
            # Planning a join with them would take as long as all the rest.
            text = f"{every} WHERE row(table_uuid) = row(?) AND list_contains(?::VARCHAR[], unit_id)"
            return self._rows(text, [table_uuid, wanted])
        with self._registered(pa.table({"unit_id": pa.array(wanted, pa.string())})) as name:
            text = f"{every} WHERE row(table_uuid) = row(?) AND unit_id IN (FROM {name})"
            return self._rows(text, [table_uuid])

    def _rows(self, text: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(text, parameters).fetchall() if self._is_there else []

    @contextmanager
    def _registered(self, rows: pa.Table) -> Iterator[str]:
        name = "catchment_units"
        self._connection.register(name, rows)
        try:
            yield name
        finally:
            self._connection.unregister(name)

    def _bump(self, producer: str, now: datetime) -> None:
        parameters = {"producer": producer, "at": _naive(now)}
        self._require_one(self._connection.execute(self._statement("ledger_claim"), parameters).fetchone())

    def _insert_producer(self, producer: str, now: datetime, *, seq: int = 0) -> None:
        self._connection.execute(
            f"INSERT INTO {sql.qualified(self.lake_name, LEDGER_SCHEMA, 'producers')} VALUES (?, 0, ?, ?)",
            [producer, seq, _naive(now)],
        )

    def _require_one(self, row: tuple[Any, ...] | None) -> None:
        if row is None or row[0] != 1:
            raise InvariantError(f"A guarded update of the ledger affected {row and row[0]} rows instead of one.")

    def _statement(self, name: str) -> str:
        return sql.statement(PACKAGE, name, lake=self.lake_name)


_DELIVERIES = pa.schema(
    [
        ("unit_id", pa.string()),
        ("producer", pa.string()),
        ("epoch", pa.int64()),
        ("seq_first", pa.int64()),
        ("seq_last", pa.int64()),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("table_uuid", pa.string()),
        ("mode", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("digest", pa.string()),
        ("source", pa.string()),
        ("job_id", pa.string()),
        ("delivered_at", pa.timestamp("us")),
    ]
)


def _naive(moment: datetime) -> datetime:
    # Stored as UTC without a zone: DuckDB needs another package to return zoned times to Python.
    return moment.astimezone(UTC).replace(tzinfo=None)


def _row(delivery: Delivery) -> dict[str, Any]:
    return {
        "unit_id": delivery.unit_id,
        "producer": str(delivery.producer),
        "epoch": delivery.epoch,
        "seq_first": delivery.seq_first,
        "seq_last": delivery.seq_last,
        "table_schema": delivery.table.schema,
        "table_name": delivery.table.name,
        "table_uuid": delivery.table_uuid,
        "mode": delivery.mode,
        "rows": delivery.rows,
        "bytes": delivery.bytes,
        "digest": delivery.digest,
        "source": without_tokens(delivery.source),
        "job_id": delivery.job_id,
        "delivered_at": _naive(delivery.delivered_at),
    }


def _delivery(row: tuple[Any, ...]) -> Delivery:
    (unit, producer, epoch, first, last, schema, table, uuid, mode, rows, size, digest, source, job, at, snapshot) = row
    return Delivery(
        unit_id=unit,
        producer=ProducerId.parse(producer),
        epoch=epoch,
        seq_first=first,
        seq_last=last,
        table=TableId(schema, table),
        table_uuid=uuid,
        mode=mode,
        rows=rows,
        bytes=size,
        digest=digest,
        source=source,
        job_id=job,
        delivered_at=at.replace(tzinfo=UTC),
        snapshot_id=snapshot,
    )
