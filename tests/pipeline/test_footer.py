"""Blurring a footer: bounds stay bounds without placeholders, and nothing else changes."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.errors import InvariantError
from catchment.lake.placeholders import has_token
from catchment.pipeline import footer

TOKEN = "{SNAPSHOT_ID}"


def _bounds(path: Path) -> list[tuple[str, str]]:
    with duckdb.connect() as connection:
        query = "SELECT stats_min_value, stats_max_value FROM parquet_metadata(?) WHERE path_in_schema = 'text'"
        return connection.execute(query, [str(path)]).fetchall()


@pytest.mark.parametrize(
    "values",
    [
        [TOKEN],
        ["a", TOKEN],
        [TOKEN, "é", "\U0010ffff"],
        ["", TOKEN],
        ["\x01{DATA_PATH}", f"x{TOKEN}y{TOKEN}", None],
        ["plain", "text"],
    ],
)
@pytest.mark.parametrize("writer", ["duckdb", "arrow"])
def test_bounds_stay_bounds_and_hold_no_placeholder(values: list[str | None], writer: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"id": range(len(values)), "text": pa.array(values, pa.string()), "{SNAPSHOT_ID}": values})
    if writer == "arrow":
        pq.write_table(rows, path)
    else:
        with duckdb.connect() as connection:
            connection.register("rows", rows)
            connection.execute(f"COPY rows TO '{path}' (FORMAT parquet, PARQUET_VERSION v2)")
    size = path.stat().st_size
    before = _bounds(path)
    footer.blur(path)
    assert path.stat().st_size == size
    assert pq.read_table(path) == rows
    present = [value.encode() for value in values if value is not None]
    for least, most in _bounds(path):
        assert not has_token(least)
        assert not has_token(most)
        assert least.encode() <= min(present)
        assert most.encode() >= max(present)
    if "plain" in values:
        assert _bounds(path) == before


def test_a_file_that_does_not_end_like_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"something else entirely")
    with pytest.raises(InvariantError, match="does not end"):
        footer.blur(path)
