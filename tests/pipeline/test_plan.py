"""Planning: every file once, in order, evenly shared, within bounds, without any effect."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import InputError, TypeConflictError
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import Claim, ProducerState
from catchment.lake.tables import PartitionKey, SortKey, Table
from catchment.lake.types import Column
from catchment.pipeline.plan import Bounds, Plan, TaskSpec, Unit, plan, task_specs
from catchment.pipeline.work import Format, Input, Mode, UnitPart

# A busy machine is not a failure.
UNHURRIED = settings(deadline=None)

MIB = 1024 * 1024
BOUNDS = Bounds(file_bytes=128 * MIB, adopt_bytes_min=16 * MIB, units_per_commit_max=1000, parallelism=4)
PRODUCER = ProducerId("parquet", "main.events", "1")
TABLE = Table(
    id=TableId("main", "events"),
    uuid="01a1e15d-0000-7000-8000-000000000000",
    folder="/data/main/events/",
    columns=(Column(name="id", type="BIGINT"),),
)

# Sizes around the bounds that the planner looks at, and any others.
SIZES = st.sampled_from([0, 1, 16 * MIB - 1, 16 * MIB, 128 * MIB]) | st.integers(0, 1024 * MIB)
MODES = st.sampled_from(Mode)
ANY_BOUNDS = st.builds(
    Bounds,
    file_bytes=st.integers(MIB, 512 * MIB),
    adopt_bytes_min=st.integers(0, 64 * MIB),
    units_per_commit_max=st.integers(1, 12),
    parallelism=st.integers(1, 9),
)


def _unit(number: int, sizes: Sequence[int], format: Format = Format.PARQUET) -> Unit:  # noqa: A002
    inputs = tuple(Input(uri=f"/in/{number}/{at}", bytes=size, format=format) for at, size in enumerate(sizes))
    return Unit(id=f"unit-{number:04d}", source=f"/in/{number}", inputs=inputs)


@st.composite
def _units(draw: st.DrawFn) -> list[Unit]:
    sizes = draw(st.lists(st.lists(SIZES, min_size=1, max_size=4), max_size=30))
    return [_unit(number, each, draw(st.sampled_from(Format))) for number, each in enumerate(sizes)]


def _parts(units: Sequence[Unit]) -> list[UnitPart]:
    return [UnitPart(unit_id=unit.id, input=each) for unit in units for each in unit.inputs]


def _plan(
    units: Sequence[Unit],
    *,
    delivered: Sequence[str] = (),
    mode: Mode = Mode.AUTO,
    bounds: Bounds = BOUNDS,
    table: Table = TABLE,
) -> Plan:
    claim = Claim(producer=PRODUCER, epoch=0, seq=0)
    state = ProducerState(snapshot_id=7, table=table, claim=claim, delivered=frozenset(delivered))
    return plan(state=state, units=units, mode=mode, bounds=bounds)


def _of_mode(found: Sequence[TaskSpec], mode: Mode) -> list[TaskSpec]:
    return [spec for spec in found if spec.mode is mode]


@UNHURRIED
@given(units=_units(), mode=MODES, bounds=ANY_BOUNDS)
def test_every_file_is_in_one_task_and_neighbours_stay_in_order(units: list[Unit], mode: Mode, bounds: Bounds) -> None:
    found = task_specs(units, mode, bounds)
    order = {part: at for at, part in enumerate(_parts(units))}
    for some in (Mode.ADOPT, Mode.REWRITE):
        places = [order[part] for spec in _of_mode(found, some) for part in spec.parts]
        assert all(one < other for one, other in pairwise(places))
    assert sorted(order[part] for spec in found for part in spec.parts) == list(range(len(order)))
    assert all(spec.parts and spec.mode is not Mode.AUTO for spec in found)


@UNHURRIED
@given(units=_units(), mode=MODES, bounds=ANY_BOUNDS)
def test_a_unit_is_adopted_whole_or_rewritten_whole(units: list[Unit], mode: Mode, bounds: Bounds) -> None:
    found = task_specs(units, mode, bounds)
    adopted, rewritten = (
        {part.unit_id for spec in _of_mode(found, some) for part in spec.parts} for some in (Mode.ADOPT, Mode.REWRITE)
    )
    assert not adopted & rewritten


@UNHURRIED
@given(units=_units(), bounds=ANY_BOUNDS)
def test_adopted_files_are_shared_out_to_within_one(units: list[Unit], bounds: Bounds) -> None:
    counts = [len(spec.parts) for spec in task_specs(units, Mode.ADOPT, bounds)]
    assert len(counts) == min(bounds.parallelism, len(_parts(units)))
    assert max(counts, default=0) - min(counts, default=0) <= 1


@UNHURRIED
@given(units=_units(), bounds=ANY_BOUNDS)
def test_no_rewriting_task_weighs_more_than_its_share_and_one_file(units: list[Unit], bounds: Bounds) -> None:
    found = task_specs(units, Mode.REWRITE, bounds)
    sizes = [part.input.bytes for part in _parts(units)]
    for spec in found:
        assert spec.bytes <= sum(sizes) / len(found) + max(sizes)


@pytest.mark.parametrize(
    ("files", "size", "tasks"),
    [(3, MIB, 1), (15, MIB, 1), (16, MIB, 4), (1024, MIB, 8), (2, 64 * MIB, 2), (1, 1024 * MIB, 1), (6, 512 * MIB, 6)],
    ids=["tiny", "just small", "one wave", "two waves", "fewer files", "one file", "large files"],
)
def test_rewriting_aims_at_files_of_the_right_size_in_whole_waves(files: int, size: int, tasks: int) -> None:
    # 16 MiB and up are worth a wave of four tasks; 1 GiB is two waves of 128 MiB each.
    found = task_specs([_unit(number, [size]) for number in range(files)], Mode.REWRITE, BOUNDS)
    assert len(found) == tasks
    assert max(spec.bytes for spec in found) - min(spec.bytes for spec in found) <= size


def test_in_mode_auto_size_decides() -> None:
    large, small = _unit(1, [16 * MIB, 20 * MIB]), _unit(2, [16 * MIB - 1])
    found = task_specs([large, small], Mode.AUTO, BOUNDS)
    assert {part.unit_id for spec in _of_mode(found, Mode.ADOPT) for part in spec.parts} == {large.id}
    assert {part.unit_id for spec in _of_mode(found, Mode.REWRITE) for part in spec.parts} == {small.id}


def test_in_mode_auto_one_small_file_makes_its_unit_be_rewritten() -> None:
    found = task_specs([_unit(1, [64 * MIB, 1])], Mode.AUTO, BOUNDS)
    assert {spec.mode for spec in found} == {Mode.REWRITE}


@pytest.mark.parametrize("kind", [Format.ARROW, Format.DUCKDB])
def test_in_mode_auto_what_is_not_parquet_is_rewritten_however_large(kind: Format) -> None:
    found = task_specs([_unit(1, [64 * MIB], kind)], Mode.AUTO, BOUNDS)
    assert {spec.mode for spec in found} == {Mode.REWRITE}


@pytest.mark.parametrize("mode", [Mode.ADOPT, Mode.REWRITE])
def test_a_mode_that_is_asked_for_is_used_whatever_the_size(mode: Mode) -> None:
    found = task_specs([_unit(1, [1]), _unit(2, [64 * MIB])], mode, BOUNDS)
    assert {spec.mode for spec in found} == {mode}


@UNHURRIED
@given(units=_units(), mode=MODES, bounds=ANY_BOUNDS, data=st.data())
def test_a_plan_holds_every_unit_once_in_commits_within_the_bound(
    units: list[Unit], mode: Mode, bounds: Bounds, data: st.DataObject
) -> None:
    known = data.draw(st.lists(st.sampled_from([*(unit.id for unit in units), "unit-of-another-source"]), unique=True))
    made = _plan(units, delivered=known, mode=mode, bounds=bounds)
    todo = [unit for batch in made.batches for unit in batch.units]
    assert todo == [unit for unit in units if unit.id not in known]
    assert list(made.delivered) == [unit for unit in units if unit.id in known]
    for batch in made.batches:
        assert 1 <= len(batch.units) <= bounds.units_per_commit_max
        assert batch.tasks == task_specs(batch.units, mode, bounds)
    if mode is not Mode.INSERT:
        assert len(made.batches) == -(-len(todo) // bounds.units_per_commit_max)


def test_nothing_to_deliver_is_a_plan_without_commits() -> None:
    assert _plan([]).batches == ()


@pytest.mark.parametrize("delivered", [[], ["unit-0001"]], ids=["new", "delivered already"])
def test_two_units_of_one_id_are_refused(delivered: list[str]) -> None:
    unit = _unit(1, [1])
    with pytest.raises(InputError, match="in the delivery twice") as raised:
        _plan([_unit(2, [1]), unit, unit], delivered=delivered)
    assert raised.value.message.startswith(f"{unit.inputs[0].uri} is ")
    assert raised.value.hint == "Name every file once."


def test_a_file_that_is_there_under_two_names_is_named() -> None:
    unit = _unit(1, [1])
    other = replace(unit, source="other", inputs=(replace(unit.inputs[0], uri="/other"),))
    with pytest.raises(InputError, match=f"^{unit.source} and other are one file"):
        _plan([unit, other])


def test_a_plan_writes_in_the_shape_of_the_table() -> None:
    sort_by = (SortKey(expression="id", descending=True),)
    columns = (*TABLE.columns, Column(name="day", type="DATE"))
    table = replace(TABLE, columns=columns, partition_by=(PartitionKey(column="day"),), sort_by=sort_by)
    made = _plan([_unit(1, [1])], table=table)
    assert made.shape.columns == table.columns
    assert made.shape.partition_by == table.partition_by
    assert made.shape.sort_by == sort_by
    assert made.shape.file_bytes == BOUNDS.file_bytes
    assert (made.producer, made.target) == (PRODUCER, table)


TRANSFORMED = replace(TABLE, partition_by=(PartitionKey(column="id", transform="bucket(4)"),))


def test_rows_of_a_table_that_takes_no_files_are_inserted_in_the_shape_of_no_partition() -> None:
    table = replace(TRANSFORMED, sort_by=(SortKey(expression="id"),))
    for wanted in (Mode.AUTO, Mode.REWRITE, Mode.INSERT):
        made = _plan([_unit(1, [100 * MIB])], table=table, mode=wanted)
        assert made.mode is Mode.INSERT
        assert made.insert_reason == "it is partitioned by bucket(4, id), which registered files cannot carry"
        assert (made.shape.partition_by, made.shape.sort_by) == ((), ())
        assert {spec.mode for batch in made.batches for spec in batch.tasks} == {Mode.REWRITE}
        assert f"The rows are inserted, not registered as files, because {made.insert_reason}." in made.explain()


DATED = (Column(name="id", type="BIGINT"), Column(name="ts", type="TIMESTAMP"), Column(name="born", type="DATE"))


@pytest.mark.parametrize(
    ("keys", "more", "is_inserted"),
    [
        ([("ts", "year")], (), False),
        ([("ts", "hour"), ("born", "month")], (), False),
        ([("ts", "identity"), ("id", "identity")], (), False),
        ([("ts", "year"), ("ts", "month")], (), True),
        ([("ts", "year"), ("born", "year")], (), True),
        ([("id", "identity"), ("ts", "year")], (), True),
        ([("id", "bucket(4)")], (), True),
        ([("ts", "year")], (Column(name="YEAR", type="INTEGER"),), True),
        ([("nested", "identity")], (Column(name="nested", type="STRUCT(i INTEGER)"),), True),
        ([("id", "identity"), ("nested", "identity")], (Column(name="nested", type="INTEGER[]"),), True),
        ([("zoned", "day")], (Column(name="zoned", type="TIMESTAMP WITH TIME ZONE"),), True),
    ],
)
def test_files_are_registered_exactly_if_folder_names_carry_the_partition_keys(
    keys: list[tuple[str, str]], more: tuple[Column, ...], is_inserted: bool
) -> None:
    partition_by = tuple(PartitionKey(column=column, transform=transform) for column, transform in keys)
    table = replace(TABLE, columns=(*DATED, *more), partition_by=partition_by)
    assert (table.insert_reason is not None) == is_inserted
    assert _plan([_unit(1, [1])], table=table).mode is (Mode.INSERT if is_inserted else Mode.AUTO)


def test_an_insert_takes_less_into_one_commit_because_it_holds_the_commit_lock() -> None:
    units = [_unit(at, [200 * MIB]) for at in range(6)]
    assert len(_plan(units).batches) == 1
    assert [len(batch.units) for batch in _plan(units, table=TRANSFORMED).batches] == [2, 2, 2]


def test_a_caller_can_have_any_table_s_rows_inserted() -> None:
    made = _plan([_unit(1, [1])], mode=Mode.INSERT)
    assert (made.mode, made.insert_reason) == (Mode.INSERT, "the caller requested it")


def test_files_cannot_be_adopted_into_a_table_that_takes_none() -> None:
    with pytest.raises(InputError, match="cannot adopt files"):
        _plan([_unit(1, [1])], table=TRANSFORMED, mode=Mode.ADOPT)


def test_a_table_with_a_type_that_ducklake_cannot_write_is_refused() -> None:
    columns = (*TABLE.columns, Column(name="lasted", type="TIME_NS"))
    with pytest.raises(TypeConflictError, match="'lasted'"):
        _plan([_unit(1, [1])], table=replace(TABLE, columns=columns))


def test_a_plan_explains_itself() -> None:
    bounds = Bounds(file_bytes=128 * MIB, adopt_bytes_min=16 * MIB, units_per_commit_max=2, parallelism=2)
    units = [_unit(1, [20_000_000]), _unit(2, [1_000_000, 500_000]), _unit(3, [1_000_000]), _unit(4, [1])]
    assert list(_plan(units, delivered=["unit-0004"], bounds=bounds).explain()) == [
        "3 units with 22.5 MB to deliver to main.events.",
        "1 unit in the lake already, not to be delivered again.",
        "1 file (20.0 MB) to be adopted, by 1 Spark task.",
        "3 files (2.5 MB) to be rewritten into files of a good size, by 2 Spark tasks.",
        "All in 2 transactions.",
    ]


def test_a_plan_with_nothing_to_do_says_so_and_promises_no_commit() -> None:
    assert list(_plan([]).explain()) == ["0 units with 0.0 MB to deliver to main.events."]
