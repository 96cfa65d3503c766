"""Audit of the queue: compares the buffer with the lake's ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from catchment.errors import BufferHeldError
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.settings import Settings
from catchment.lake import AuditReport, Lake
from catchment.lake.audit import AuditFinding
from catchment.queue import buffer_factory
from catchment.queue.buffer import KIND, QuarantinedFile, TableState
from catchment.queue.coordinator import DqCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAudit:
    """The queue's part of the lake's audit, with the findings of the comparison with the buffer.

    `buffered` are the rows that only the buffer has, by table; None if another process has it open.
    """

    report: AuditReport
    buffered: dict[TableId, int] | None
    quarantined: tuple[QuarantinedFile, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no finding and no quarantined file."""
        return self.report.ok and not self.quarantined


def audit(lake: Lake, find_queue: Callable[[], DqCoordinator | None], settings: Settings) -> QueueAudit:
    """Audit the queue of a lake; `find_queue` opens it if it has a buffer."""
    remarks = [*buffer_factory.leftovers(settings)]
    queue, states = None, None
    try:
        # The buffer first and the lake second: rows flushed in between are then found in the lake.
        queue = find_queue()
        states = queue.buffer.tables() if queue else ()
    except BufferHeldError as error:
        remarks.append(f"{error.message} Its rows were not compared.")
    own = _of_queue(lake.audit(), remarks)
    waiting, findings = _compare(own, queue, states or ())
    report = AuditReport(producers=own.producers, findings=(*own.findings, *findings), notes=own.notes)
    # Last, because opening the buffer may have quarantined a file.
    found = buffer_factory.quarantined(settings)
    return QueueAudit(report=report, buffered=None if states is None else waiting, quarantined=found)


def _of_queue(report: AuditReport, remarks: Sequence[str]) -> AuditReport:
    """Return the part of the lake's audit that is about the queue."""
    mine = tuple(each for each in report.producers if ProducerId.parse(each.producer).kind == KIND)
    tables = {f"{table} " for each in mine for table in each.tables}
    return AuditReport(
        producers=mine,
        findings=tuple(each for each in report.findings if ProducerId.parse(each.producer).kind == KIND),
        notes=(*(note for note in report.notes if note.startswith(tuple(tables))), *remarks),
    )


def _compare(
    report: AuditReport, queue: DqCoordinator | None, states: Sequence[TableState]
) -> tuple[dict[TableId, int], list[AuditFinding]]:
    """Return undelivered rows by table, and findings on retired rows that the lake lacks."""
    watermarks = {each.producer: each.seq for each in report.producers}
    waiting: dict[TableId, int] = {}
    findings: list[AuditFinding] = []
    for state in states:
        rows = state.rows
        if queue is not None and state.has_watermark:
            producer = str(queue.buffer.producer(state.table))
            seq = watermarks.get(producer, 0)
            rows = state.seq_last - max(seq, state.seq_flushed)
            if not state.seq_flushed <= seq <= state.seq_last:
                detail = (
                    f"the lake has {state.table} up to seq {seq}, the buffer has retired it up to "
                    f"{state.seq_flushed} and ends at {state.seq_last}"
                )
                findings.append(AuditFinding(kind="buffer", producer=producer, detail=detail))
        if rows > 0:
            waiting[state.table] = rows
    return waiting, findings
