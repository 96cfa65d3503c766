"""Planning a delivery: which units go how, in which tasks and commits. Pure: no file is touched, no session started."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from catchment.errors import InputError
from catchment.foundation.ids import ProducerId
from catchment.foundation.settings import MIB
from catchment.lake import Claim, DeadLetter, ProducerState, Table, types
from catchment.lake.commit import refuse_ledger
from catchment.pipeline.work import Format, Input, Mode, OutputShape, UnitPart

_SMALL_BYTES = 16 * MIB
_INSERT_BYTES_MAX = 512 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is delivered whole or not at all: a stable id, where it comes from, and its files.

    A unit with `seqs` (first and last) stands at that place of its producer's sequence and nowhere else: it goes into
    the lake when all before it are there. Without, it takes the next place. `buried` are rows of it that can never be
    delivered: they are set aside by the transaction that delivers the rest. `prefers` is the way that the source knows
    to be better in mode `auto`; without, the files' size decides.
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
    """The sizes that shape a plan; no output is planned smaller than `file_bytes_min` where there is enough for it."""

    file_bytes: int
    adopt_bytes_min: int
    units_per_commit_max: int
    parallelism: int
    file_bytes_min: int = 1
    bytes_per_commit_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The work of one task, before it is given a folder."""

    mode: Mode
    parts: tuple[UnitPart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.input.expected_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The units of one commit, and the tasks that write them."""

    units: tuple[Unit, ...]
    stints: tuple[TaskSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A delivery as it will be done. `delivered` are units that the ledger has already: they are only retired.

    `as_of` is the snapshot at which the table was as `target` says, and had no other of the units. In mode `insert`
    tasks rewrite the files like any others, and the commit inserts what they wrote; `insert_reason` says why.
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
        """The plan in sentences, for a person."""
        units = [unit for batch in self.batches for unit in batch.units]
        stints = [stint for batch in self.batches for stint in batch.stints]
        size = _megabytes(unit.bytes for unit in units)
        yield f"{plural(len(units), 'unit')} with {size} to go into {self.target.id}."
        if self.delivered:
            yield f"{plural(len(self.delivered), 'unit')} in the lake already, not to be delivered again."
        for mode, verb in ((Mode.ADOPT, "to be adopted"), (Mode.REWRITE, "to be rewritten into files of a good size")):
            some = [stint for stint in stints if stint.mode is mode]
            if some:
                files = sum(len(stint.parts) for stint in some)
                part = _megabytes(stint.bytes for stint in some)
                yield f"{plural(files, 'file')} ({part}) {verb}, by {plural(len(some), 'Spark task')}."
        if self.insert_reason is not None:
            yield f"The rows are inserted, not registered as files, because {self.insert_reason}."
        if self.batches:
            yield f"All in {plural(len(self.batches), 'transaction')}."


def plan(
    *,
    standing: ProducerState,
    units: Sequence[Unit],
    mode: Mode,
    bounds: Bounds,
) -> Plan:
    """Decide everything that can be decided before the first file is read."""
    table = standing.table
    refuse_ledger(table.id)
    for column in table.columns:
        types.require_deliverable(column)
    todo = [unit for unit in units if unit.id not in standing.delivered]
    uris = [each.uri for unit in units for each in unit.inputs if each.format is Format.PARQUET]
    if len({unit.id for unit in units}) != len(units) or len(set(uris)) != len(uris):
        raise InputError(_twice(units, uris), hint="Name every file once.")
    chosen, reason = mode_for(table, mode)
    if chosen is Mode.INSERT:
        # DuckLake splits and orders what it inserts by itself.
        shape = OutputShape(columns=table.columns, file_bytes=bounds.file_bytes, inserted=True)
        bounds = _insert_bounds(bounds)
    else:
        shape = OutputShape(
            columns=table.columns,
            partition_by=table.partition_by,
            sort_by=table.sort_by,
            file_bytes=bounds.file_bytes,
        )
    chunks = list(_chunks(todo, bounds))
    return Plan(
        as_of=standing.snapshot_id,
        claim=standing.claim,
        target=table,
        mode=chosen,
        shape=shape,
        batches=tuple(Batch(units=tuple(chunk), stints=stints(chunk, chosen, bounds)) for chunk in chunks),
        delivered=tuple(unit for unit in units if unit.id in standing.delivered),
        insert_reason=reason,
    )


def mode_for(table: Table, wanted: Mode) -> tuple[Mode, str | None]:
    """How files come into the table, given how the caller wants it; with the reason if they have to be inserted."""
    reason = table.insert_reason
    if reason is not None and wanted is Mode.ADOPT:
        raise InputError(f"{table.id} cannot adopt files: {reason}.", hint="Leave --mode out: the rows are inserted.")
    if reason is None and wanted is Mode.INSERT:
        return Mode.INSERT, "the caller wants it so"
    return (wanted, None) if reason is None else (Mode.INSERT, reason)


def _insert_bounds(bounds: Bounds) -> Bounds:
    """An INSERT holds the commit lock for as long as it writes, so that one commit takes less."""
    most = min(bounds.bytes_per_commit_max or _INSERT_BYTES_MAX, _INSERT_BYTES_MAX)
    return replace(bounds, bytes_per_commit_max=most)


def _twice(units: Sequence[Unit], uris: Sequence[str]) -> str:
    """Which file is there twice: under one name, or under two, as a link is."""
    same = [uri for uri, count in Counter(uris).items() if count > 1]
    if same:
        return f"{same[0]} is in the delivery twice."
    ids = Counter(unit.id for unit in units)
    first = next(unit.id for unit in units if ids[unit.id] > 1)
    names = [unit.source for unit in units if unit.id == first]
    return f"{names[0]} and {names[1]} are one file, which is in the delivery twice."


def _chunks(units: Sequence[Unit], bounds: Bounds) -> Iterator[list[Unit]]:
    """The units of each commit: as many as may go together, by number and by size, and never none."""
    chunk: list[Unit] = []
    size = 0
    for unit in units:
        heavy = bounds.bytes_per_commit_max is not None and size + unit.bytes > bounds.bytes_per_commit_max
        if chunk and (heavy or len(chunk) == bounds.units_per_commit_max):
            yield chunk
            chunk, size = [], 0
        chunk.append(unit)
        size += unit.bytes
    if chunk:
        yield chunk


def stints(units: Sequence[Unit], mode: Mode, bounds: Bounds) -> tuple[TaskSpec, ...]:
    """Share the units' files out over tasks: adopted ones evenly, rewritten ones so that outputs are of equal size."""
    adopted: list[UnitPart] = []
    rewritten: list[UnitPart] = []
    for unit in units:
        parts = [UnitPart(unit_id=unit.id, input=each) for each in unit.inputs]
        (adopted if _adopts(unit, mode, bounds) else rewritten).extend(parts)
    pieces = min(bounds.parallelism, len(adopted))
    return (
        *(TaskSpec(mode=Mode.ADOPT, parts=some) for some in _even(adopted, [1] * len(adopted), pieces)),
        *(
            TaskSpec(mode=Mode.REWRITE, parts=some)
            for some in _even(rewritten, [part.input.expected_bytes for part in rewritten], _outputs(rewritten, bounds))
        ),
    )


def _adopts(unit: Unit, mode: Mode, bounds: Bounds) -> bool:
    if mode is Mode.AUTO and unit.prefers is not None:
        return unit.prefers is Mode.ADOPT
    if mode is Mode.AUTO:
        return all(each.format is Format.PARQUET and each.bytes >= bounds.adopt_bytes_min for each in unit.inputs)
    return mode is Mode.ADOPT


def _outputs(parts: Sequence[UnitPart], bounds: Bounds) -> int:
    """How many output files to aim at: near the target size, and a multiple of what runs at once, so no task lags."""
    total = sum(part.input.expected_bytes for part in parts)
    if total < _SMALL_BYTES:
        return min(1, len(parts))
    waves = max(1, round(total / bounds.file_bytes / bounds.parallelism))
    enough = max(1, total // bounds.file_bytes_min)
    return min(waves * bounds.parallelism, enough, len(parts))


def _even(parts: Sequence[UnitPart], weights: Sequence[int], pieces: int) -> Iterator[tuple[UnitPart, ...]]:
    """Cut the parts into consecutive pieces of about equal weight; neighbours stay together."""
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


def plural(number: int, noun: str) -> str:
    """A number with its noun, for a person."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _megabytes(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 1e6:,.1f} MB"
