"""Rows whose table was dropped after they were acknowledged: exported, redirected, or discarded.

    stranded ──▶ export      written to Parquet files in the queue's folder; the rows stay buffered
             ├─▶ redirect    delivered to another table, as by a flush; columns are matched by name
             └─▶ discard     recorded in the ledger as units without rows, then removed from the buffer

Redirect and discard commit to the ledger first and to the buffer second, like a flush: after a
crash in between, repeating the command only removes the rows from the buffer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import FlushFailedError, InputError, TypeConflictError
from catchment.foundation import events, faults, files, ids, sql
from catchment.foundation.ids import TableId
from catchment.lake import Claim, Commit, Delivery, Lake, extensions, reshape, tables, types
from catchment.lake.commit import Advance, RecordUnits
from catchment.queue.buffer import Buffer, Flusher, FlushPayload, merged

EXPORTED = "exported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """Stranded rows, by the name that they are buffered under, and the result of the action."""

    table: TableId
    rows: int
    files: tuple[str, ...] = ()
    buried: int = 0


class StrandedRows:
    """The stranded rows of one name, leased to the caller as long as this exists."""

    def __init__(
        self, table: TableId, payloads: Sequence[FlushPayload], *, lake: Lake, buffer: Buffer, root: Path
    ) -> None:
        self.table = table
        self._parcels = payloads
        self._lake = lake
        self._buffer = buffer
        self._root = root

    @classmethod
    @contextmanager
    def found(cls, table: TableId, *, lake: Lake, buffer: Buffer, root: Path) -> Iterator["StrandedRows"]:
        """Find the rows under that name whose table was dropped; InputError if there are none."""
        lake.open()
        buffer.seal()
        leased = buffer.payloads([table])
        try:
            with lake.snapshot() as connection:
                present = set(tables.list_uuids(connection, lake.name).values())
            gone = [each for each in leased if types.table_of(each.columns) not in (None, *present)]
            if not gone:
                raise InputError(
                    f"No buffered rows of {table} are stranded.",
                    hint="`catchment queue status` shows the names of those that are.",
                )
            yield cls(table, gone, lake=lake, buffer=buffer, root=root)
        finally:
            for each in leased:
                buffer.release(each)

    @property
    def facts(self) -> Stranded:
        """The number of rows."""
        return Stranded(table=self.table, rows=sum(each.rows for each in self._parcels))

    def export(self) -> Stranded:
        """Write the rows to Parquet files, one for each set of columns that they were written with."""
        folder = self._root / EXPORTED / f"{self.table}-{ids.new_job_id(self._lake.clock)}"
        files.make_folder(folder)
        paths = [self._exported(payload, folder / f"{at:04d}.parquet") for at, payload in enumerate(self._parcels, 1)]
        for failure in files.sync_files(paths).values():
            raise failure
        files.sync_folder(folder)
        events.emit("rows_exported", table=str(self.table), rows=self.facts.rows, path=str(folder))
        return Stranded(table=self.table, rows=self.facts.rows, files=tuple(map(str, paths)))

    def _exported(self, payload: FlushPayload, path: Path) -> Path:
        with extensions.scratch() as connection:
            connection.register("stranded", self._buffer.read(payload))
            try:
                connection.execute(f"COPY (FROM stranded) TO {sql.literal(str(path))} (FORMAT parquet)")
            finally:
                connection.unregister("stranded")
        return path

    def redirect(self, flusher: Flusher, into: TableId) -> Stranded:
        """Deliver the rows to another table, once; TypeConflictError, with no effect, on a misfit."""
        target = self._lake.table(into)
        for payload in self._parcels:
            reason = reshape.misfit([column.unbound for column in payload.columns], target.columns)
            if reason is not None:
                raise TypeConflictError(f"The rows of {self.table} do not fit {into}: {reason}.")
        done = merged(flusher.flush(self._parcels, into=into))
        errors = [error for each in done for error in each.errors]
        if errors:
            raise FlushFailedError(f"Not all rows of {self.table} reached {into}: {'; '.join(errors)}", errors=errors)
        rows, buried = sum(each.rows for each in done), sum(each.buried for each in done)
        events.emit("rows_redirected", table=str(self.table), into=str(into), rows=rows, buried=buried)
        return Stranded(table=self.table, rows=rows, buried=buried)

    def discard(self) -> Stranded:
        """Discard the rows permanently: the ledger records them as units without rows."""
        for payload in self._parcels:
            self._record_discarded(payload)
            faults.reach("queue.before_discard")
            self._buffer.retire(payload)
        events.emit("rows_discarded", table=str(self.table), rows=self.facts.rows)
        return self.facts

    def _record_discarded(self, payload: FlushPayload) -> None:
        claim = self._lake.join(payload.producer)
        uuid = types.table_of(payload.columns) or ""
        with self._lake.ledger() as ledger:
            is_recorded = payload.id in ledger.delivered_ids([payload.id], uuid)
        if is_recorded or (payload.seqs is not None and claim.seq >= payload.seqs[1]):
            return
        delivery = self._delivery(payload, claim, uuid)
        changes = (Advance(claim=claim, seq_to=delivery.seq_last), RecordUnits(deliveries=(delivery,)))
        self._lake.commit(Commit(message=f"discard {payload.rows} rows of {self.table}", changes=changes))

    def _delivery(self, payload: FlushPayload, claim: Claim, uuid: str) -> Delivery:
        return Delivery(
            unit_id=payload.id,
            producer=payload.producer,
            epoch=claim.epoch,
            seq_first=claim.seq + 1,
            seq_last=claim.seq + 1 if payload.seqs is None else payload.seqs[1],
            table=payload.table,
            table_uuid=uuid,
            mode="discarded",
            rows=0,
            bytes=0,
            digest=None,
            source=f"{payload.path}#{payload.table}[{payload.seq_first}..{payload.seq_last}], discarded",
            job_id=ids.new_job_id(self._lake.clock),
            delivered_at=self._lake.clock.now(),
        )
