"""Plans of statements: reserved names in their positions, parameters, and nothing else."""

import re

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catchment.errors import InputError, NotAllowedError, NotSupportedError
from catchment.foundation.ids import TableId
from catchment.server.encoding.messages import STATEMENT_BYTES_MAX
from catchment.server.engine.parsing import LocalParser
from catchment.server.sql.sql_policy import authorize
from catchment.server.sql.sql_tokens import read
from catchment.server.sql.statement_plan import Bulk, Capture, CreateThroughQueue, FreshRead, Plain, QueueCommand, plan
from catchment.server.sql.syntax import SqlReading
from catchment.server.sql.time_travel import guard_versions
from catchment.server.values import Principal, Role
from tests.server.sql import sandbox_statements

SOMEBODY = Principal("somebody", Role.ADMIN)
WORDS = (
    *("SELECT", "FROM", "WHERE", "INSERT", "INTO", "VALUES", "DEFAULT", "AS", "WITH", "JOIN", "PIVOT", "ON", "USING"),
    *("EXPLAIN", "ANALYZE", "UPDATE", "SET", "DELETE", "MERGE", "CREATE", "TABLE", "VIEW", "DROP", "RETURNING", "BY"),
    *("duckling_queue", "catchment_fresh", "duckling_queue.t", "catchment_fresh.t", "t", "a", "_catchment", "lake"),
    *(
        ".",
        ",",
        "(",
        ")",
        "'",
        '"',
        "$$",
        "$q$",
        "E'",
        "--",
        "/*",
        "*/",
        ";",
        "?",
        "$1",
        ":x",
        "::",
        "[",
        "]",
        "{",
        "}",
    ),
    *("1", "-1", "1e5", "'x'", "x'ab'", "\u00a0", "é", "\n", "\\", "=>", "->>", "lambda", "NULL", "*", "||", "''"),
)
INSERTS = st.builds(
    lambda target, words: f"INSERT INTO duckling_queue.{target}VALUES ({''.join(words)}",
    st.sampled_from(("t ", "t", "s.t (a, b) ", "t(a)", "t (a.b) ", "a.b.c ", 't("a") ', "t VALUES (1) ", "t (\v) ")),
    st.lists(
        st.sampled_from(
            (
                *("1", "-2.5", "'x'", "''", "'it''s'", "NULL", "true", "'\n'", "'--'", "'é\u00a0'", ","),
                *(
                    ", ",
                    "), (",
                    ")",
                    " ",
                    "\n",
                    "\v",
                    ";",
                    "'",
                    '"',
                    "--",
                    "/*",
                    "1e5",
                    "$$",
                    "?",
                    "-",
                    ".",
                    "E'",
                    "\0",
                ),
            )
        ),
        max_size=9,
    ),
)
TEXTS = (
    *sandbox_statements.HIDDEN,
    *sandbox_statements.LEGITIMATE,
)


def only(text: str) -> object:
    (step,) = plan(text)
    return step


def bulk_of(text: str) -> Bulk | None:
    step = only(text)
    assert isinstance(step, Plain | Capture)
    return step.bulk


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;;  SELECT 2 ; ", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';'; SELECT \";\" FROM x", ["SELECT ';'", 'SELECT ";" FROM x']),
        ("SELECT $$;$$, $q$ ; $$ ; $q$; SELECT 2", ["SELECT $$;$$, $q$ ; $$ ; $q$", "SELECT 2"]),
        ("SELECT E'\\';', 2; SELECT 'é;é' ; SELECT 3", ["SELECT E'\\';', 2", "SELECT 'é;é'", "SELECT 3"]),
        ("/* ; /* ; */ ; */ SELECT 1 -- ;\n; SELECT 2 -- ;", ["SELECT 1 -- ;", "SELECT 2 -- ;"]),
    ],
)
def test_a_text_is_split_into_statements_as_duckdb_does(text: str, statements: list[str]) -> None:
    assert [step.text for step in plan(text) if isinstance(step, Plain)] == statements
    assert len(duckdb.extract_statements(text)) == len(statements)


@pytest.mark.parametrize(
    "text", ["", " ", ";", "-- nothing", "/* nothing */ ;", "\n;\n", "SELECT '\0'", "SELECT '\ud800'"]
)
def test_a_text_without_a_statement_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        plan(text)


@pytest.mark.parametrize(
    ("text", "table", "columns", "source"),
    [
        ("INSERT INTO duckling_queue.t VALUES (1)", TableId("main", "t"), (), "VALUES (1)"),
        ("insert into Duckling_Queue.t values (1)", TableId("main", "t"), (), "values (1)"),
        ('INSERT INTO "duckling_queue"."a ""b" (x) VALUES (1)', TableId("main", 'a "b'), ("x",), "VALUES (1)"),
        ("INSERT INTO duckling_queue.s.t (\"X\", y) VALUES ('é', 2)", TableId("s", "t"), ("X", "y"), "VALUES ('é', 2)"),
        ("/* é */ INSERT INTO duckling_queue.übung VALUES ('ß')", TableId("main", "übung"), (), "VALUES ('ß')"),
        ("INSERT INTO duckling_queue.t SELECT 'é' FROM x", TableId("main", "t"), (), "SELECT 'é' FROM x"),
        ("INSERT INTO duckling_queue.t (SELECT 1)", TableId("main", "t"), (), "(SELECT 1)"),
        ("INSERT INTO duckling_queue.t (a) FROM x", TableId("main", "t"), ("a",), "FROM x"),
    ],
)
def test_an_insert_into_the_queue_is_taken_apart(text: str, table: TableId, columns: object, source: str) -> None:
    step = only(text)
    assert isinstance(step, Capture)
    assert (step.table, step.columns, step.source) == (table, columns, source)
    (statement,) = duckdb.extract_statements(step.into('"elsewhere"'))
    assert re.sub(r"\s+", " ", statement.query).endswith("RETURNING *")


@pytest.mark.parametrize(
    ("text", "table", "expected"),
    [
        ("CREATE TABLE duckling_queue.t (a INTEGER)", TableId("main", "t"), "CREATE TABLE X (a INTEGER)"),
        (
            "create table Duckling_Queue.s.T as select 1",
            TableId("s", "T"),
            "CREATE TABLE X AS FROM ( select 1 ) LIMIT 0",
        ),
        (
            'CREATE TABLE "duckling_queue"."ü" (a, b) AS (SELECT \'é\', 2) WITH NO DATA -- é',
            TableId("main", "ü"),
            "CREATE TABLE X (a, b) AS FROM ( (SELECT 'é', 2) ) LIMIT 0",
        ),
        (
            "CREATE TABLE IF NOT EXISTS duckling_queue.t (a INTEGER AS (1)) AS FROM x",
            TableId("main", "t"),
            "CREATE TABLE X (a INTEGER AS (1)) AS FROM ( FROM x ) LIMIT 0",
        ),
    ],
)
def test_a_create_table_of_the_queue_is_taken_apart(text: str, table: TableId, expected: str) -> None:
    step = only(text)
    assert isinstance(step, CreateThroughQueue)
    assert step.table == table
    assert re.sub(r"\s+", " ", step.named("X")) == expected
    assert step.if_not_exists == ("IF NOT EXISTS" in text)
    assert step.has_rows == (step.source is not None and "NO DATA" not in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM catchment_fresh.t", 'FROM (S) AS "t"'),
        ("SELECT 'é', x.a FROM catchment_fresh.t AS x", "SELECT 'é', x.a FROM (S) AS x"),
        ("SELECT '日本 catchment_fresh.t' FROM catchment_fresh.t", "SELECT '日本 catchment_fresh.t' FROM (S) AS \"t\""),
        ("/* é */ FROM /* catchment_fresh.t */ catchment_fresh.t -- é", 'FROM /* catchment_fresh.t */ (S) AS "t" -- é'),
        ("FROM catchment_fresh.main.t a, catchment_fresh.t b", "FROM (S) a, (S) b"),
        ('SELECT * FROM x JOIN "Catchment_Fresh" . "t" USING (a)', 'SELECT * FROM x JOIN (S) AS "t" USING (a)'),
        ("EXPLAIN SELECT * FROM catchment_fresh.t", 'EXPLAIN SELECT * FROM (S) AS "t"'),
        ("FROM duckling_queue.t JOIN catchment_fresh.t f USING (a)", 'FROM (OWN) AS "t" JOIN (S) f USING (a)'),
        ("DESCRIBE duckling_queue.main.t -- é", 'DESCRIBE SELECT * FROM (OWN) AS "t" -- é'),
        ("SHOW catchment_fresh.t", 'DESCRIBE SELECT * FROM (S) AS "t"'),
        ("SUMMARIZE FROM duckling_queue.t", 'SUMMARIZE FROM (OWN) AS "t"'),
        ("SELECT $$ é' $$, * FROM catchment_fresh.t", 'SELECT $$ é\' $$, * FROM (S) AS "t"'),
    ],
)
def test_a_fresh_table_is_replaced_in_place(text: str, expected: str) -> None:
    step = only(text)
    assert isinstance(step, FreshRead)
    assert step.with_sources(lambda _, is_own: "OWN" if is_own else "S") == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'duckling_queue.t', 'catchment_fresh.t'",
        "SELECT 1 AS duckling_queue, 2 AS catchment_fresh",
        "SELECT catchment_fresh.t FROM (SELECT {'t': 1} AS catchment_fresh)",
        "-- duckling_queue.t\nSELECT 1",
    ],
)
def test_a_reserved_name_in_another_position_has_no_meaning(text: str) -> None:
    assert isinstance(only(text), Plain)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO duckling_queue.t FROM duckling_queue.u",
        "INSERT INTO t FROM duckling_queue.u",
        "DROP TABLE duckling_queue.t",
        "DELETE FROM duckling_queue.t",
        "UPDATE duckling_queue.t SET a = 1",
        "CREATE OR REPLACE TABLE duckling_queue.t (a INTEGER)",
        "CREATE TEMP TABLE duckling_queue.t (a INTEGER)",
        "CREATE VIEW duckling_queue.t AS SELECT 1",
        "CREATE TABLE t AS FROM duckling_queue.t",
        "CREATE TABLE duckling_queue.t AS FROM duckling_queue.u",
        "INSERT INTO duckling_queue.t VALUES (1) RETURNING a",
        "INSERT INTO duckling_queue.t VALUES (1) ON CONFLICT DO NOTHING",
        "INSERT OR REPLACE INTO duckling_queue.t VALUES (1)",
        "INSERT INTO duckling_queue.t FROM catchment_fresh.t",
        "INSERT INTO x FROM catchment_fresh.t",
        "DELETE FROM catchment_fresh.t",
        "EXPLAIN INSERT INTO duckling_queue.t SELECT 1",
    ],
)
def test_statements_that_the_queue_cannot_run_are_refused(text: str) -> None:
    with pytest.raises(NotSupportedError):
        plan(text)


@pytest.mark.parametrize(
    "text", ["INSERT duckling_queue.t VALUES (1)", "FROM catchment_fresh. $1", "INSERT INTO duckling_queue."]
)
def test_an_insert_that_names_no_table_is_refused(text: str) -> None:
    with pytest.raises((InputError, NotSupportedError)):
        plan(text)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("PRAGMA duckling_queue.flush", QueueCommand.FLUSH),
        ("pragma DUCKLING_QUEUE . flush ( ) ;", QueueCommand.FLUSH),
        ("CALL duckling_queue_flush() -- now", QueueCommand.FLUSH),
        ("FROM duckling_queue_status()", QueueCommand.STATUS),
    ],
)
def test_commands_of_the_queue_are_known(text: str, command: QueueCommand) -> None:
    assert only(text) is command


@pytest.mark.parametrize(
    ("text", "expected", "parameters", "columns"),
    [
        ("INSERT INTO t VALUES (?, ?)", 'SELECT {}."0", {}."1"', 2, ()),
        ('INSERT INTO t (a, "B") VALUES (?, ?)', 'SELECT {}."0", {}."1"', 2, ("a", "B")),
        ("INSERT INTO t VALUES ($2, $1)", 'SELECT {}."1", {}."0"', 2, None),
        ("INSERT INTO t VALUES ($1, $1)", 'SELECT {}."0", {}."0"', 1, None),
        ("INSERT INTO t VALUES (upper(?), (? + (1)), [?])", 'SELECT upper({}."0"), ({}."1" + (1)), [{}."2"]', 3, None),
        ("INSERT INTO t VALUES ('é?', ?, '$1')", "SELECT 'é?', {}.\"0\", '$1'", 1, None),
        ("INSERT INTO t VALUES (?, $$ ? $$, E'\\'?')", "SELECT {}.\"0\", $$ ? $$, E'\\'?'", 1, None),
        ("INSERT INTO t VALUES (? /* ? */, ?) -- ?", 'SELECT {}."0" /* ? */, {}."1"', 2, ()),
        ("INSERT INTO t VALUES (?->>'a?')", "SELECT {}.\"0\"->>'a?'", 1, None),
        ("INSERT INTO t VALUES (?::DECIMAL(4, 2))", 'SELECT {}."0"::DECIMAL(4, 2)', 1, None),
    ],
)
def test_one_row_of_parameters_is_read_from_bound_rows(
    text: str, expected: str, parameters: int, columns: tuple[str, ...] | None
) -> None:
    bulk = bulk_of(text)
    assert bulk is not None
    head = text[: text.index("VALUES")]
    assert bulk.text == head + expected.format(*["catchment_bound"] * 5) + " FROM temp.main.catchment_bound"
    assert bulk.parameters == parameters
    assert bulk.plain_columns == columns


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES (1, '?')",
        "INSERT INTO t VALUES (?), (?)",
        "INSERT INTO t VALUES ($a)",
        "INSERT INTO t VALUES ($1, $3)",
        "INSERT INTO t VALUES ($0)",
        "INSERT INTO t VALUES ($" + "1" * 5_000 + ")",
        "INSERT INTO t VALUES (?) RETURNING a",
        "INSERT INTO t VALUES (?, DEFAULT)",
        "INSERT INTO t VALUES ((SELECT ?))",
        "INSERT INTO t SELECT ?",
        'INSERT INTO t VALUES (1, "?")',
        "UPDATE t SET a = ?",
        "VALUES (?)",
    ],
)
def test_any_other_statement_is_left_as_it_is(text: str) -> None:
    assert bulk_of(text) is None


def test_a_long_text_is_not_remembered() -> None:
    assert plan("SELECT 1") is plan("SELECT 1")
    long = f"SELECT '{'x' * 10_000}'"
    assert plan(long) is not plan(long)


def examine(text: str) -> None:
    """Plan a text, and judge what DuckDB would run of it."""
    for step in plan(text):
        if isinstance(step, Plain | FreshRead):
            statements = duckdb.extract_statements(step.text)
            assert statements
            authorize(SqlReading(statements[-1].type, step.text, step.tokens, LocalParser()), SOMEBODY)


@settings(deadline=10_000, max_examples=200)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)))
@example("DESCRIBE ''")
@example("\v")
@example("SELECT " + "[" * 900 + "]" * 900)
@example("INSERT INTO t SELECT " + "(" * 500 + "1" + ")" * 500)
def test_any_text_is_planned_or_refused(text: str) -> None:
    try:
        examine(text)
    except (InputError, NotSupportedError, NotAllowedError, duckdb.Error):
        return


@settings(deadline=10_000, max_examples=200)
@given(st.sampled_from(TEXTS), st.data())
def test_any_text_with_a_mistake_is_planned_or_refused(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(WORDS)) + text[at + data.draw(st.integers(0, 4)) :]
    try:
        examine(text)
    except (InputError, NotSupportedError, NotAllowedError, duckdb.Error):
        return


@pytest.mark.parametrize("name", ["t\u017fx", "\u0130", "\u017f", "Straße", "ẞ"])
def test_names_whose_letters_change_their_length_when_folded_stay_whole(name: str) -> None:
    for text in (
        f"INSERT INTO duckling_queue.{name}({name}) VALUES (1)",
        f"INSERT INTO duckling_queue.{name} VALUES(1)",
    ):
        step = only(text)
        assert isinstance(step, Capture)
        assert step.table == TableId("main", name)
        assert step.columns in ((name,), ())


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        ("FROM t AT (VERSION => 3)", "FROM t AT (VERSION => 3)"),
        ("FROM t AT (VERSION => '3')", "FROM t AT (VERSION => '3')"),
        ("FROM t AT (VERSION => a)", "FROM t AT (VERSION => coalesce((a\n), error('The version is NULL.')))"),
        ("FROM t AT (TIMESTAMP => f(1)), [AT (VERSION =>", "FROM t AT (TIMESTAMP => f(1)), [AT (VERSION =>"),
        (
            "FROM t AT (VERSION => f(AT (VERSION => [a])))",
            "FROM t AT (VERSION => coalesce((f(AT (VERSION => coalesce(([a]\n), error('The version is NULL.'))))\n), "
            "error('The version is NULL.')))",
        ),
    ],
)
def test_a_version_that_could_be_null_is_guarded(text: str, guarded: str) -> None:
    assert guard_versions(text.encode(), read(text.encode())).decode() == guarded


def test_an_insert_of_constants_can_be_as_large_as_a_statement() -> None:
    text = "INSERT INTO duckling_queue.t VALUES " + ", ".join(["(1, 'and', -0.5)"] * (STATEMENT_BYTES_MAX // 18))
    assert isinstance(only(text), Capture)
    assert isinstance(only(f" {text}"), Capture)


@settings(max_examples=500)
@given(INSERTS)
@example("INSERT INTO duckling_queue.t VALUES (1, 'it''s', NULL), (2, '', -0.5) ")
@example("INSERT INTO duckling_queue.s.t (a, b) VALUES (1, 2) ; ")
@example("INSERT INTO duckling_queue.t VALUES (1);;")
@example(f"INSERT INTO duckling_queue.t VALUES ('{'+' * 200}')")
def test_an_insert_of_constants_is_planned_as_any_other_text(text: str) -> None:
    # A blank in front leads past the short way, and means nothing.
    assert planned(text) == planned(" " + text)


def planned(text: str) -> object:
    try:
        return plan(text)
    except (InputError, NotSupportedError) as error:
        return type(error), error.message
