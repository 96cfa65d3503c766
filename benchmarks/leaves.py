"""Generate Parquet files that look like logs: many small leaves or a few large ones, 12 columns."""

from pathlib import Path

import duckdb

from catchment.foundation import sql

LOG_LIKE = """
SELECT i AS id,
       TIMESTAMP '2026-01-01' + to_milliseconds(i * 37) AS at,
       'user-' || (hash(i) % 100000) AS user_name,
       (['GET', 'PUT', 'POST', 'DELETE'])[1 + (hash(i + 1) % 4)::INTEGER] AS method,
       '/api/v1/' || md5((hash(i) % 5000)::VARCHAR) || '/items/' || (hash(i + 2) % 1000000) AS path,
       (200 + (hash(i + 3) % 5) * 100)::INTEGER AS status,
       (hash(i + 4) % 1000000) / 1000.0::DOUBLE AS latency_ms,
       (hash(i + 5) % 10000000)::BIGINT AS bytes_sent,
       '10.' || (hash(i + 6) % 256) || '.' || (hash(i + 7) % 256) || '.' || (hash(i + 8) % 256) AS address,
       md5(hash(i + 9)::VARCHAR) || md5(hash(i + 10)::VARCHAR) AS payload,
       hash(i + 11) % 2 = 0 AS ok,
       md5(i::VARCHAR) AS trace_id
FROM range({rows}) r(i)
"""


def make_leaves(folder: Path, count: int, rows: int) -> list[Path]:
    """Create `count` files of `rows` rows with different ids and traces; keep files that exist."""
    paths = [folder / f"leaf={n:05d}" / "data.parquet" for n in range(count)]
    missing = [(n, path) for n, path in enumerate(paths) if not path.exists()]
    if missing:
        with duckdb.connect() as connection:
            connection.execute(f"CREATE TEMP TABLE one AS {LOG_LIKE.format(rows=rows)}")
            for n, path in missing:
                path.parent.mkdir(parents=True, exist_ok=True)
                shifted = (
                    f"SELECT * REPLACE (id + {n * rows} AS id, md5((id + {n * rows})::VARCHAR) AS trace_id) FROM one"
                )
                connection.execute(f"COPY ({shifted}) TO {sql.literal(str(path))} (FORMAT parquet, COMPRESSION snappy)")
    return paths
