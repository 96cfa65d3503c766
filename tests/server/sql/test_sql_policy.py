"""The SQL policy allows what it knows, and refuses the rest."""

import time
from contextlib import suppress

import duckdb
import pytest

from catchment.errors import CatchmentError, InputError, NotAllowedError, NotSupportedError
from catchment.server.engine.parsing import LocalParser
from catchment.server.sql import sql_tokens
from catchment.server.sql.session_settings import require_harmless_path
from catchment.server.sql.sql_policy import Permission, StatementKind, authorize
from catchment.server.sql.statement_plan import Plain, plan
from catchment.server.sql.syntax import SqlReading, parse
from catchment.server.values import Principal, Role


def judged(text: str, role: Role = Role.ADMIN) -> Permission:
    return authorize(SqlReading.of(text, LocalParser()), Principal("somebody", role))


@pytest.mark.parametrize(
    ("text", "kind", "role"),
    [
        ("SELECT 1", StatementKind.READ, Role.READER),
        ("EXPLAIN SELECT 1", StatementKind.READ, Role.READER),
        ("DESCRIBE t", StatementKind.READ, Role.READER),
        ("USE lake.main", StatementKind.SESSION, Role.READER),
        ("SET schema TO 'main'", StatementKind.SESSION, Role.READER),
        ("BEGIN TRANSACTION", StatementKind.BEGIN, Role.READER),
        ("START TRANSACTION", StatementKind.BEGIN, Role.READER),
        ("END", StatementKind.COMMIT, Role.READER),
        ("ABORT", StatementKind.ROLLBACK, Role.READER),
        ("INSERT INTO t VALUES (1)", StatementKind.WRITE, Role.WRITER),
        ("CREATE TEMP TABLE t (a INTEGER)", StatementKind.WRITE, Role.WRITER),
        ("COMMENT ON TABLE t IS 'x'", StatementKind.WRITE, Role.WRITER),
        ("TRUNCATE t", StatementKind.WRITE, Role.WRITER),
    ],
)
def test_a_statement_is_what_it_is_and_takes_a_role(text: str, kind: StatementKind, role: Role) -> None:
    verdict = judged(text, role)
    assert (verdict.kind, verdict.role) == (kind, role)
    if role > Role.READER:
        with pytest.raises(NotAllowedError, match="only read"):
            judged(text, Role.READER)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TEMP TABLE x AS SELECT * FROM t, LATERAL unheard_of()",
        "CREATE TEMP TABLE x AS SELECT * FROM t, LATERAL lake.unheard_of()",
        "INSERT INTO t SELECT * FROM unheard_of(1)",
        "DELETE FROM t USING unheard_of(1) x",
        "UPDATE t SET a = 1 FROM lake.main.unheard_of() x",
    ],
)
def test_an_unknown_table_function_is_refused(text: str) -> None:
    with pytest.raises(NotAllowedError, match="unheard_of"):
        judged(text)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t SELECT 'a'\n'b' FROM t",
        "INSERT INTO t SELECT x'ab' FROM t",
        "UPDATE t SET a = E'\\x41'\n'b'",
    ],
)
def test_a_text_that_two_scanners_read_differently_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="are ambiguous"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["EXPLAIN PIVOT t ON a USING count(*)", "CREATE TABLE x AS (PIVOT t ON a USING count(*))"]
)
def test_a_statement_that_duckdb_makes_several_of_is_not_offered(text: str) -> None:
    with pytest.raises(NotSupportedError, match="PIVOT"):
        judged(text)


@pytest.mark.parametrize("path", ["lake._catchment", "lake.main,MEMORY.main", '"__ducklake_metadata_lake".main'])
def test_a_search_path_leads_to_the_lake(path: str) -> None:
    require_harmless_path("lake.main,temp.main")
    with pytest.raises(NotAllowedError):
        require_harmless_path(path)


@pytest.mark.parametrize("depth", [100, 900])
def test_deeply_nested_statements_are_authorized_or_refused(depth: int) -> None:
    for text in ("SELECT " + "[" * depth + "]" * depth, "INSERT INTO t SELECT " + "(" * depth + "1" + ")" * depth):
        with suppress(InputError):
            judged(text)


def test_sqlglot_does_not_log_statements_that_it_cannot_parse(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NotAllowedError):
        parse("CREATE SECRET s (TYPE s3, SECRET 'sesame')")
    assert "sesame" not in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "*, " * 200_000 + "1",
        "DELETE FROM t WHERE a IN (1" + ", 1" * 100_000 + ")",
    ],
    ids=["tree of DuckDB", "tree of sqlglot"],
)
def test_a_statement_whose_tree_would_be_too_large_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="too large to be checked"):
        judged(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t WHERE a IN (1" + ", 1" * 90_000 + ")",
        "DELETE FROM t WHERE a IN ('x'" + ", 'x'" * 40_000 + ")",
        "INSERT INTO t VALUES (1, 'x')" + ", (1, 'x')" * 90_000,
    ],
)
def test_a_long_list_of_values_is_authorized(text: str) -> None:
    assert judged(text).counts == (not text.startswith("SELECT"))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 FROM t " + "AT (VERSION => " * 30_000,
        "PIVOT t ON a" + ", a" * 100_000 + " USING sum(b)",
        "INSERT INTO t VALUES (?" + ", ?" * 200_000 + ")",
    ],
    ids=["versions", "pivot", "parameters"],
)
def test_the_time_to_check_a_statement_grows_with_its_length_only(text: str) -> None:
    before_s = time.process_time()
    with suppress(duckdb.Error, CatchmentError):
        for step in plan(text):
            assert isinstance(step, Plain)
            judged(step.text)
    # Under a third of it is used; with the square of the length, it would take minutes.
    assert time.process_time() - before_s < 20


MANY_CONDITIONS = "true" + " OR true" * 501
MANY_WORDS = "[1" + ", 1" * 5_000 + "]"


@pytest.mark.parametrize("stored", [MANY_CONDITIONS, MANY_WORDS], ids=["conditions", "words"])
@pytest.mark.parametrize(
    "text",
    [
        "CREATE MACRO m(x) AS {}",
        "CREATE OR REPLACE MACRO temp(x) AS {}",
        "CREATE FUNCTION lake.main.m(x) AS TABLE SELECT {} AS a",
        "CREATE TABLE t (a VARCHAR DEFAULT ({}::VARCHAR), b INTEGER)",
        "CREATE TABLE IF NOT EXISTS lake.main.t (a VARCHAR DEFAULT CAST({} AS VARCHAR) NOT NULL)",
        "ALTER TABLE t ALTER COLUMN a SET DEFAULT ({}::VARCHAR)",
        "EXPLAIN CREATE MACRO m(x) AS {}",
    ],
)
def test_what_every_process_parses_that_opens_the_lake_is_small(text: str, stored: str) -> None:
    with pytest.raises(InputError, match=r"A macro may have at most|The defaults of a statement may have at most"):
        judged(text.format(stored))
    judged(text.format("(1 OR (2 AND 3))"))


@pytest.mark.parametrize(
    "text",
    [
        f"CREATE TEMP MACRO m(x) AS {MANY_CONDITIONS}",
        f"CREATE OR REPLACE TEMPORARY FUNCTION m(x) AS {MANY_WORDS}",
        f"CREATE TEMP TABLE t (a BOOLEAN DEFAULT ({MANY_CONDITIONS}))",
        f"CREATE TABLE t AS SELECT {MANY_WORDS} AS a WHERE {MANY_CONDITIONS}",
        f"CREATE VIEW v AS SELECT {MANY_CONDITIONS} AS a",
        f"SELECT {MANY_CONDITIONS} AS a",
        'CREATE TABLE t ("default" INTEGER, ' + ", ".join(f"column_{at} INTEGER" for at in range(2_000)) + ")",
        "CREATE TABLE t (" + ", ".join(f"a{at} VARCHAR DEFAULT upper('x') NOT NULL" for at in range(1_600)) + ")",
        "CREATE TABLE t (" + ", ".join(f"a{at} STRUCT(b INTEGER, c DATE) DEFAULT NULL" for at in range(2_000)) + ")",
    ],
    ids=lambda text: text[:40],
)
def test_what_only_its_statement_needs_is_bounded_as_a_statement(text: str) -> None:
    judged(text)


def test_the_defaults_of_a_statement_are_found() -> None:
    text = "CREATE TABLE t (a INT[] DEFAULT [1, f(2, 3)] NOT NULL, b INT, c VARCHAR DEFAULT {'x': (4, ')')}, d INT)"
    found = sql_tokens.defaults(sql_tokens.read(text.encode()))
    assert "".join(token.text for token in found) == "[1,f(2,3)]notnull{':(4,')}"
