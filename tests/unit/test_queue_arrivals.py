"""Rows as they arrive: how large they are."""

import pyarrow as pa
import pytest

from catchment.queue.arrivals import size_of

MANY = pa.table({"id": pa.array(range(100_000), pa.int64())})


@pytest.mark.parametrize("rows", [MANY, MANY.slice(0, 1), MANY.slice(50_000, 10), pa.concat_tables([MANY, MANY])])
def test_large_rows_and_slices_of_them_are_measured_to_the_byte(rows: pa.Table) -> None:
    assert size_of(rows) == rows.nbytes


def test_few_rows_are_never_taken_for_less_than_they_are() -> None:
    rows = pa.table({"id": [1, 2, 3], "kind": ["a", None, "ccc"]})
    assert rows.nbytes <= size_of(rows) <= rows.nbytes + 1_000
