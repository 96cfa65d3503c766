"""Statements with a data file in the position of a table: positions, statements, and spellings.

Their product is larger than any list, and leaves fewer forms untested. `{f}` is
the file in one of its spellings, `{q}` a query. There is a table `t` with the columns `a` and `b`.
"""

from collections.abc import Iterator

# `{file}` is the path of a data file, `{stem}` the same without its ending, `{folder}` the folder
# that it is in.
SPELLINGS = (
    "'{file}'",
    "E'{file}'",
    "e'\\x2f{file}'",
    "$${file}$$",
    "$of${file}$of$",
    "'{stem}'\n'.parquet'",
    "'{folder}/*.parquet'",
    "'{folder}/*'",
    '"{file}"',
    '"{stem}".parquet',
    '"{stem}" . "parquet"',
)
QUERIES = (
    "TABLE {f}",
    "FROM {f}",
    "SELECT a, b FROM {f}",
    "SELECT a, b FROM (TABLE {f})",
    "FROM ((TABLE {f}))",
    "FROM x: {f}",
    "SELECT x.a, x.b FROM t, {f} x",
    "SELECT x.a, x.b FROM t CROSS JOIN {f} x",
    "SELECT x.a, x.b FROM t POSITIONAL JOIN {f} x",
    "SELECT x.a, x.b FROM (t JOIN {f} x USING (a))",
    "SELECT x.a, x.b FROM t, LATERAL (TABLE {f}) x",
    "SELECT a, (SELECT max(b) FROM {f}) FROM t",
    "SELECT a, b FROM t WHERE EXISTS (TABLE {f})",
    "SELECT a, b FROM t WHERE a IN (SELECT a FROM (TABLE {f}))",
    "VALUES ((SELECT max(a) FROM (TABLE {f})), 'x')",
    "WITH x AS (TABLE {f}) FROM x",
    "FROM t UNION ALL TABLE {f}",
    "PIVOT {f} ON b USING count(*)",
    "PIVOT (TABLE {f}) ON b USING count(*)",
    "PIVOT (FROM {f}) ON b",
    "PIVOT (x: {f}) ON b",
    "PIVOT (t JOIN {f} x USING (a)) ON a",
    "PIVOT t JOIN {f} x USING (a) ON a",
    "PIVOT_WIDER (TABLE {f}) ON b, a USING count(*)",
    "PIVOT (TABLE {f}) ON b IN ('x') USING count(*)",
    "PIVOT t ON b IN (SELECT b FROM {f})",
    "PIVOT t ON b IN (TABLE {f})",
    "PIVOT t ON b USING max((SELECT max(a) FROM {f}))",
    "PIVOT t ON (SELECT max(b) FROM {f})",
    "PIVOT (SELECT a, (SELECT max(b) FROM (TABLE {f})) AS b FROM t) ON a GROUP BY b",
    "WITH x AS (TABLE {f}) PIVOT x ON b USING count(*)",
    "FROM (TABLE {f}) PIVOT (count(*) FOR b IN ('x'))",
    "UNPIVOT {f} ON a",
    "UNPIVOT (TABLE {f}) ON a",
    "FROM (PIVOT (TABLE {f}) ON b)",
    "FROM (UNPIVOT (TABLE {f}) ON a)",
    "DESCRIBE {f}",
    "DESCRIBE TABLE {f}",
    "SHOW {f}",
    "SUMMARIZE {f}",
    "SUMMARIZE TABLE {f}",
    "FROM (SUMMARIZE {f})",
    "FROM query_table({f})",
)
STATEMENTS = (
    "{q}",
    "({q})",
    "FROM ({q})",
    "WITH w AS ({q}) FROM w",
    "WITH w AS MATERIALIZED ({q}) FROM w",
    "SELECT EXISTS ({q})",
    "DESCRIBE {q}",
    "SUMMARIZE {q}",
    "EXPLAIN {q}",
    "EXPLAIN ANALYZE {q}",
    "EXPLAIN (FORMAT json) {q}",
    "CREATE TEMP TABLE made AS {q}",
    "CREATE TEMP TABLE made AS ({q})",
    "CREATE TABLE made AS {q} WITH NO DATA",
    "CREATE TEMP VIEW made AS {q}",
    "CREATE VIEW made AS ({q})",
    "CREATE TEMP MACRO made() AS TABLE {q}",
    "CREATE MACRO made() AS ({q})",
    "INSERT INTO t {q}",
    "INSERT INTO t ({q})",
    "INSERT INTO t VALUES (1, 'x') RETURNING EXISTS ({q})",
    "WITH w AS ({q}) INSERT INTO t FROM w",
    "UPDATE t SET b = (SELECT count(*) FROM ({q}))",
    "UPDATE t SET a = 1 FROM ({q}) u WHERE true",
    "DELETE FROM t WHERE EXISTS ({q})",
    "DELETE FROM t USING ({q}) u",
    "MERGE INTO t USING ({q}) u ON false WHEN NOT MATCHED THEN INSERT VALUES (1, 'x')",
    "INSERT INTO duckling_queue.t {q}",
    "INSERT INTO duckling_queue.t SELECT 1, count(*) FROM ({q})",
    "SELECT * FROM catchment_fresh.t, ({q})",
    "SET VARIABLE made = (SELECT count(*) FROM ({q}))",
    "PREPARE made AS {q}",
    "COPY ({q}) TO '/dev/null'",
)
# Where what is changed is itself a file.
TARGETS = (
    "INSERT INTO {f} VALUES (1, 'x')",
    "INSERT INTO {f} SELECT 1, 'x' FROM t",
    "UPDATE {f} SET a = 1",
    "UPDATE t SET b = u.b FROM {f} u WHERE true",
    "DELETE FROM {f}",
    "DELETE FROM t USING {f} u",
    "DELETE FROM t USING t u, {f} v",
    "TRUNCATE {f}",
    "MERGE INTO {f} USING t ON false WHEN NOT MATCHED THEN INSERT VALUES (1, 'x')",
    "MERGE INTO t USING {f} u ON false WHEN NOT MATCHED THEN INSERT VALUES (1, u.b)",
    "MERGE INTO t USING x: {f} ON false WHEN NOT MATCHED THEN INSERT VALUES (1, x.b)",
    "CREATE TABLE {f} (a INTEGER)",
    "DROP TABLE {f}",
    "ALTER TABLE {f} ADD COLUMN c INTEGER",
    "COMMENT ON TABLE {f} IS 'x'",
    "COPY {f} TO '/dev/null'",
    "COPY t FROM {f}",
)


def statements(spelling: str) -> Iterator[str]:
    """All statements about one spelling of a file, which stands in them as `{f}` would."""
    for form in (*TARGETS, *(around.replace("{q}", query) for around in STATEMENTS for query in QUERIES)):
        yield form.replace("{f}", spelling)
