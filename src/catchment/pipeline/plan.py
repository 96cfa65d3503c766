"""Delivery planning: assigns units to modes, tasks and commits. Pure, without side effects."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from catchment.errors import InputError
from catchment.foundation.ids import ProducerId
from catchment.foundation.settings import MIB
from catchment.foundation.text import plural
from catchment.lake import Claim, DeadLetter, ProducerState, Table, types
from catchment.lake.commit import refuse_ledger
from catchment.pipeline.work import Format, Input, Mode, OutputShape, UnitPart

# In mode `auto`, files of at least this size are adopted unchanged; smaller ones are rewritten
# together. The status counts smaller files as small.
ADOPT_BYTES_MIN = 16 * MIB
_SMALL_BYTES = 16 * MIB
_INSERT_BYTES_MAX = 512 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A piece of a source that is delivered whole or not at all.

    The `id` is stable, so that a repeated delivery is detected. A unit with `seqs` (first and last)
    has a fixed position in its producer's sequence: it is delivered only once all units before it
    are. Without `seqs`, it gets the next position. `buried` are its undeliverable rows; the
    transaction that delivers the rest quarantines them. `prefers` is the mode that the source
    recommends in mode `auto`; without it, the files' size decides.
    """

    id: str
    source: str
    inputs: tuple[Input, ...]
    seqs: tuple[int, int] | None = None
    buried: tuple[DeadLetter, ...] = ()
    prefers: Mode | None = None

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Sizes that shape a plan; outputs are at least `file_bytes_min` if there is enough data."""

    file_bytes: int
    adopt_bytes_min: int
    units_per_commit_max: int
    parallelism: int
    file_bytes_min: int = 1
    bytes_per_commit_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The work of one task, before it is assigned a folder."""

    mode: Mode
    parts: tuple[UnitPart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.input.expected_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The units of one commit, and the tasks that write them."""

    units: tuple[Unit, ...]
    tasks: tuple[TaskSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A planned delivery. `delivered` are units that the ledger already has: they are only retired.

    `as_of` is the snapshot at which the table matched `target` and had none of the other units. In
    mode `insert`, tasks rewrite the files as in any other mode, and the commit inserts their
    output; `insert_reason` is why.
    """

    as_of: int
    claim: Claim
    target: Table
    mode: Mode
    shape: OutputShape
    batches: tuple[Batch, ...]
    delivered: tuple[Unit, ...]
    insert_reason: str | None = None

    @property
    def producer(self) -> ProducerId:
        return self.claim.producer

    def explain(self) -> Iterator[str]:
        """Yield the plan as sentences for the operator."""
        units = [unit for batch in self.batches for unit in batch.units]
        specs = [spec for batch in self.batches for spec in batch.tasks]
        size = _megabytes(unit.bytes for unit in units)
        yield f"{plural(len(units), 'unit')} with {size} to deliver to {self.target.id}."
        if self.delivered:
            yield f"{plural(len(self.delivered), 'unit')} in the lake already, not to be delivered again."
        for mode, verb in ((Mode.ADOPT, "to be adopted"), (Mode.REWRITE, "to be rewritten into files of a good size")):
            some = [spec for spec in specs if spec.mode is mode]
            if some:
                files = sum(len(spec.parts) for spec in some)
                part = _megabytes(spec.bytes for spec in some)
                yield f"{plural(files, 'file')} ({part}) {verb}, by {plural(len(some), 'Spark task')}."
        if self.insert_reason is not None:
            yield f"The rows are inserted, not registered as files, because {self.insert_reason}."
        if self.batches:
            yield f"All in {plural(len(self.batches), 'transaction')}."


def plan(
    *,
    state: ProducerState,
    units: Sequence[Unit],
    mode: Mode,
    bounds: Bounds,
) -> Plan:
    """Decide everything that can be decided before the first file is read."""
    table = state.table
    refuse_ledger(table.id)
    for column in table.columns:
        types.require_deliverable(column)
    todo = [unit for unit in units if unit.id not in state.delivered]
    uris = [each.uri for unit in units for each in unit.inputs if each.format is Format.PARQUET]
    if len({unit.id for unit in units}) != len(units) or len(set(uris)) != len(uris):
        raise InputError(_duplicate_message(units, uris), hint="Name every file once.")
    chosen, reason = mode_for(table, mode)
    if chosen is Mode.INSERT:
        # DuckLake splits and orders inserted rows by itself.
        table.require_computable()
        shape = OutputShape(columns=table.columns, file_bytes=bounds.file_bytes, inserted=True)
        bounds = _insert_bounds(bounds)
    else:
        shape = OutputShape(
            columns=table.columns,
            partition_by=table.partition_by,
            # Order is not needed: a key that must not be computed here is left out.
            sort_by=tuple(key for key in table.sort_by if key.is_computable),
            file_bytes=bounds.file_bytes,
        )
    batches = list(_units_by_batch(todo, bounds))
    return Plan(
        as_of=state.snapshot_id,
        claim=state.claim,
        target=table,
        mode=chosen,
        shape=shape,
        batches=tuple(Batch(units=tuple(batch), tasks=task_specs(batch, chosen, bounds)) for batch in batches),
        delivered=tuple(unit for unit in units if unit.id in state.delivered),
        insert_reason=reason,
    )


def mode_for(table: Table, wanted: Mode) -> tuple[Mode, str | None]:
    """Return the mode in which files get into the table, and the reason if they must be inserted."""
    reason = table.insert_reason
    if reason is not None and wanted is Mode.ADOPT:
        raise InputError(f"{table.id} cannot adopt files: {reason}.", hint="Leave --mode out: the rows are inserted.")
    if reason is None and wanted is Mode.INSERT:
        return Mode.INSERT, "the caller requested it"
    return (wanted, None) if reason is None else (Mode.INSERT, reason)


def _insert_bounds(bounds: Bounds) -> Bounds:
    """Return smaller bounds for a commit: an INSERT holds the commit lock while it writes."""
    most = min(bounds.bytes_per_commit_max or _INSERT_BYTES_MAX, _INSERT_BYTES_MAX)
    return replace(bounds, bytes_per_commit_max=most)


def _duplicate_message(units: Sequence[Unit], uris: Sequence[str]) -> str:
    """Return a message with the file that occurs twice: under one name, or two, as with a link."""
    same = [uri for uri, count in Counter(uris).items() if count > 1]
    if same:
        return f"{same[0]} is in the delivery twice."
    ids = Counter(unit.id for unit in units)
    first = next(unit.id for unit in units if ids[unit.id] > 1)
    names = [unit.source for unit in units if unit.id == first]
    return f"{names[0]} and {names[1]} are one file, which is in the delivery twice."


def _units_by_batch(units: Sequence[Unit], bounds: Bounds) -> Iterator[list[Unit]]:
    """Yield the units of each commit: as many as the limits allow, but at least one."""
    batch: list[Unit] = []
    size = 0
    for unit in units:
        too_large = bounds.bytes_per_commit_max is not None and size + unit.bytes > bounds.bytes_per_commit_max
        if batch and (too_large or len(batch) == bounds.units_per_commit_max):
            yield batch
            batch, size = [], 0
        batch.append(unit)
        size += unit.bytes
    if batch:
        yield batch


def task_specs(units: Sequence[Unit], mode: Mode, bounds: Bounds) -> tuple[TaskSpec, ...]:
    """Distribute the units' files over tasks: adopted files by number, rewritten files by size."""
    adopted: list[UnitPart] = []
    rewritten: list[UnitPart] = []
    for unit in units:
        parts = [UnitPart(unit_id=unit.id, input=each) for each in unit.inputs]
        (adopted if _adopts(unit, mode, bounds) else rewritten).extend(parts)
    pieces = min(bounds.parallelism, len(adopted))
    return (
        *(TaskSpec(mode=Mode.ADOPT, parts=some) for some in _even_pieces(adopted, [1] * len(adopted), pieces)),
        *(
            TaskSpec(mode=Mode.REWRITE, parts=some)
            for some in _even_pieces(
                rewritten, [part.input.expected_bytes for part in rewritten], _output_count(rewritten, bounds)
            )
        ),
    )


def _adopts(unit: Unit, mode: Mode, bounds: Bounds) -> bool:
    if mode is Mode.AUTO and unit.prefers is not None:
        return unit.prefers is Mode.ADOPT
    if mode is Mode.AUTO:
        return all(each.format is Format.PARQUET and each.bytes >= bounds.adopt_bytes_min for each in unit.inputs)
    return mode is Mode.ADOPT


def _output_count(parts: Sequence[UnitPart], bounds: Bounds) -> int:
    """Return the number of output files, for about the target size and equally busy tasks."""
    total = sum(part.input.expected_bytes for part in parts)
    if total < _SMALL_BYTES:
        return min(1, len(parts))
    waves = max(1, round(total / bounds.file_bytes / bounds.parallelism))
    enough = max(1, total // bounds.file_bytes_min)
    return min(waves * bounds.parallelism, enough, len(parts))


def _even_pieces(parts: Sequence[UnitPart], weights: Sequence[int], pieces: int) -> Iterator[tuple[UnitPart, ...]]:
    """Split the parts into consecutive pieces of about equal weight; neighbours stay together."""
    if not parts:
        return
    total, start = max(sum(weights), 1), 0
    ends = list(accumulate(weights))
    for piece in range(1, pieces + 1):
        end = start
        while end < len(parts) and (piece == pieces or ends[end] * pieces <= total * piece or end == start):
            end += 1
        if end > start:
            yield tuple(parts[start:end])
        start = end


def _megabytes(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 1e6:,.1f} MB"
