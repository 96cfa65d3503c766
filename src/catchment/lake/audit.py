"""The audit: proves from the ledger and the tables that every unit was delivered exactly once.

For each producer: no unit twice, no gap and no overlap in the sequence, and a watermark at the end
of the deliveries. For each table with deliveries: every file exists once with its recorded size,
and each delivering snapshot has as many rows as its units recorded. DuckLake counts the rows of a
file without opening it.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

import duckdb

from catchment.errors import InputError
from catchment.foundation import files, sql
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import tables
from catchment.lake.ledger import Claim, Delivery, Ledger
from catchment.lake.tables import PACKAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """A violation of exactly-once delivery."""

    kind: str
    producer: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerAudit:
    """Summary of one producer's deliveries."""

    producer: str
    epoch: int
    seq: int
    units: int
    rows: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Result of an audit: `findings` are faults, `notes` explain what could not be compared."""

    producers: tuple[ProducerAudit, ...]
    findings: tuple[AuditFinding, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def audit(
    connection: duckdb.DuckDBPyConnection, ledger: Ledger, producer: ProducerId | None = None, *, data_path: str
) -> AuditReport:
    """Audit one producer, or all, within the connection's transaction: one snapshot of the lake."""
    claims = [claim for claim in ledger.producers() if producer in (None, claim.producer)]
    if producer is not None and not claims:
        raise InputError(f"The ledger has no producer {producer}.", hint="Omit --producer to list all producers.")
    # Rows are compared per snapshot, and several producers may share one in a table: read all
    # deliveries.
    deliveries = ledger.deliveries()
    findings, notes = _audit_tables(connection, ledger.lake_name, deliveries, data_path=data_path)
    mine: defaultdict[ProducerId, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        mine[delivery.producer].append(delivery)
    wanted = {str(claim.producer) for claim in claims}
    return AuditReport(
        producers=tuple(_summary(claim, mine.get(claim.producer, [])) for claim in claims),
        findings=(
            *_audit_seeding(claims, mine if producer is None else {}),
            *_audit_sequence(claims, mine),
            *(finding for finding in findings if finding.producer in wanted),
        ),
        notes=tuple(notes),
    )


def _audit_seeding(claims: Iterable[Claim], mine: Mapping[ProducerId, list[Delivery]]) -> Iterator[AuditFinding]:
    for stranger in sorted(set(mine) - {claim.producer for claim in claims}):
        yield AuditFinding(
            kind="unknown_producer", producer=str(stranger), detail="has deliveries but was never seeded"
        )


def _audit_sequence(claims: Iterable[Claim], mine: Mapping[ProducerId, list[Delivery]]) -> Iterator[AuditFinding]:
    for claim in claims:
        name = str(claim.producer)
        counts = Counter((each.unit_id, each.table_uuid) for each in mine.get(claim.producer, []))
        for (unit, _), times in counts.items():
            if times > 1:
                yield AuditFinding(kind="unit_twice", producer=name, detail=f"unit {unit} was delivered {times} times")
        expected = 1
        for each in mine.get(claim.producer, []):
            if each.seq_first != expected:
                yield AuditFinding(
                    kind="seq_gap" if each.seq_first > expected else "seq_overlap",
                    producer=name,
                    detail=f"unit {each.unit_id} starts at seq {each.seq_first}, expected {expected}",
                )
            expected = max(expected, each.seq_last + 1)
        if claim.seq != expected - 1:
            yield AuditFinding(
                kind="watermark", producer=name, detail=f"watermark is {claim.seq}, deliveries end at {expected - 1}"
            )


def _audit_tables(
    connection: duckdb.DuckDBPyConnection, lake_name: str, deliveries: Iterable[Delivery], *, data_path: str
) -> tuple[list[AuditFinding], list[str]]:
    findings: list[AuditFinding] = []
    notes: list[str] = []
    by_table: defaultdict[str, list[Delivery]] = defaultdict(list)
    for each in deliveries:
        by_table[each.table_uuid].append(each)
    # By uuid: a table may have been renamed since.
    names = {uuid: table for table, uuid in tables.list_uuids(connection, lake_name).items()}
    damages = _damages(connection, lake_name, by_table, data_path=data_path)
    oldest = _oldest_snapshot(connection, lake_name)
    for uuid, units in sorted(by_table.items(), key=lambda each: each[1][0].table):
        table = names.get(uuid)
        if table is None:
            notes.append(f"{units[0].table} was dropped; {len(units)} units of it cannot be compared.")
        elif uuid in damages:
            producers = sorted({str(each.producer) for each in units})
            findings.extend(
                AuditFinding(kind=kind, producer=name, detail=f"{table}: {detail}")
                for kind, detail in damages[uuid]
                for name in producers
            )
        elif _hides_snapshots(connection, lake_name, table):
            notes.append(f"{table} has its own column snapshot_id; its rows cannot be compared.")
        else:
            found, noted = _audit_rows(connection, lake_name, table, units, oldest=oldest)
            findings.extend(found)
            notes.extend(noted)
    return findings, notes


def _damages(
    connection: duckdb.DuckDBPyConnection, lake_name: str, wanted: Container[str], *, data_path: str
) -> dict[str, list[tuple[str, str]]]:
    """Return the faults of the wanted tables' files as (kind, detail), by table uuid."""
    text = sql.statement(PACKAGE, "audit_files", metadata=tables.metadata_of(lake_name))
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for uuid, path, size in connection.execute(text).fetchall():
        if uuid not in wanted:
            continue
        there = files.local_path(data_path) / path
        if (uuid, path) in seen:
            found[uuid].append(("file_twice", f"{there} is listed more than once"))
        elif not there.exists():
            found[uuid].append(("file_missing", f"{there} does not exist"))
        elif (now := files.size_of(there)) != size:
            found[uuid].append(("file_changed", f"{there} has {now} bytes, the catalog recorded {size}"))
        seen.add((uuid, path))
    return found


def _audit_rows(
    connection: duckdb.DuckDBPyConnection, lake_name: str, table: TableId, units: Iterable[Delivery], *, oldest: int
) -> tuple[list[AuditFinding], list[str]]:
    findings: list[AuditFinding] = []
    notes: list[str] = []
    snapshots: defaultdict[int, list[Delivery]] = defaultdict(list)
    for each in units:
        snapshots[each.snapshot_id or 0].append(each)
    live = _rows_by_snapshot(connection, lake_name, table)
    sums = {snapshot: sum(each.rows for each in brought) for snapshot, brought in snapshots.items()}
    # Checked only if rows are missing: the check takes as long as counting them.
    is_short = any(live.get(snapshot, 0) < recorded for snapshot, recorded in sums.items())
    short = _Shortfall(changed=is_short and _was_changed(connection, lake_name, table), oldest=oldest)
    for snapshot, brought in snapshots.items():
        recorded, there = sums[snapshot], live.get(snapshot, 0)
        detail = f"{table} has {there} rows of snapshot {snapshot}, its {len(brought)} units recorded {recorded}"
        if there > recorded or (there < recorded and short.is_fault(snapshot)):
            names = sorted({str(each.producer) for each in brought})
            findings.extend(AuditFinding(kind="rows", producer=name, detail=detail) for name in names)
        elif there < recorded:
            notes.append(f"{detail}: rows were deleted or rewritten since.")
    return findings, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shortfall:
    """Whether missing rows are explained by changes that users may make to their own table."""

    changed: bool
    oldest: int

    def is_fault(self, snapshot: int) -> bool:
        return not self.changed and snapshot >= self.oldest


def _rows_by_snapshot(connection: duckdb.DuckDBPyConnection, lake_name: str, table: TableId) -> dict[int, int]:
    text = sql.statement(PACKAGE, "audit_rows", lake=lake_name, schema=table.schema, table=table.name)
    return dict(connection.execute(text).fetchall())


def _hides_snapshots(connection: duckdb.DuckDBPyConnection, lake_name: str, table: TableId) -> bool:
    columns = connection.execute(f"DESCRIBE {sql.qualified(lake_name, table.schema, table.name)}").fetchall()
    return any(sql.fold(row[0]) == "snapshot_id" for row in columns)


def _was_changed(connection: duckdb.DuckDBPyConnection, lake_name: str, table: TableId) -> bool:
    text = sql.statement(PACKAGE, "audit_changes", metadata=tables.metadata_of(lake_name))
    return any(row[0] for row in connection.execute(text, [table.schema, table.name]).fetchall())


def _oldest_snapshot(connection: duckdb.DuckDBPyConnection, lake_name: str) -> int:
    metadata = sql.identifier(tables.metadata_of(lake_name))
    row = connection.execute(f"SELECT min(snapshot_id) FROM {metadata}.ducklake_snapshot").fetchone()
    return int(row[0]) if row else 0


def _summary(claim: Claim, deliveries: list[Delivery]) -> ProducerAudit:
    return ProducerAudit(
        producer=str(claim.producer),
        epoch=claim.epoch,
        seq=claim.seq,
        units=len(deliveries),
        rows=sum(each.rows for each in deliveries),
        tables=tuple(sorted({str(each.table) for each in deliveries})),
    )
