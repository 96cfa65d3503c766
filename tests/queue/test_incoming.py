"""Incoming rows: their size, and how they match the columns of a table."""

import pyarrow as pa
import pytest

from catchment.errors import InputError
from catchment.lake.types import Column
from catchment.queue import incoming
from catchment.queue.incoming import size_of

MANY = pa.table({"id": pa.array(range(100_000), pa.int64())})


@pytest.mark.parametrize("rows", [MANY, MANY.slice(0, 1), MANY.slice(50_000, 10), pa.concat_tables([MANY, MANY])])
def test_large_rows_and_slices_of_them_are_measured_to_the_byte(rows: pa.Table) -> None:
    assert size_of(rows) == rows.nbytes


def test_few_rows_are_never_taken_for_less_than_they_are() -> None:
    rows = pa.table({"id": [1, 2, 3], "kind": ["a", None, "ccc"]})
    assert rows.nbytes <= size_of(rows) <= rows.nbytes + 1_000


ID = Column(name="id", type="BIGINT")
IDS = pa.schema([("id", pa.int64())])


def test_columns_that_accepted_one_shape_are_checked_again_for_another() -> None:
    columns = (Column(name="id", type="UUID"),)
    bytes_only = pa.schema([pa.field("id", pa.binary(16))])
    uuids = pa.schema([pa.field("id", pa.binary(16), metadata={"ARROW:extension:name": "arrow.uuid"})])
    for _ in range(2):
        assert incoming.schema_mismatch(uuids, columns) is None
        assert incoming.schema_mismatch(bytes_only, columns) is not None
        assert incoming.schema_mismatch(IDS, columns) is not None


def test_new_columns_are_never_taken_for_old_ones() -> None:
    rows = pa.table({"id": pa.array([None], pa.int64())})

    def is_refused(*, nullable: bool) -> bool:
        # Once they are freed, Python may reuse their address, and so their identity.
        columns = (Column(name="id", type="BIGINT", nullable=nullable),)
        try:
            incoming.require_values(rows, columns)
        except InputError:
            return True
        return False

    assert [is_refused(nullable=nullable) for nullable in [True, False] * 100] == [False, True] * 100


def test_columns_without_end_take_no_memory_without_end() -> None:
    every = [(ID, Column(name=f"c{n}", type="BIGINT")) for n in range(2_500)]
    for columns in every:
        assert incoming.schema_mismatch(IDS, columns) is None
    assert len(incoming._latest) <= 1_000
