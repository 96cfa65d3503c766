"""Migrations of lake tables: the scenarios of the design, and every kind of change, with rows."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import (
    BackupMissingError,
    CorruptInputError,
    InputError,
    ScriptError,
    StateError,
)
from catchment.lake import Lake
from catchment.schema import lake_engine
from catchment.schema.check import State
from catchment.schema.lint import Risk
from catchment.schema.migratable import BackupKind
from tests.conftest import MakeSettings
from tests.schema.projects import LakeScene, model
from tests.shortcuts.made_lakes import new_lake

FIRST = "001.create_users.sql"
USERS = model("users", {"name": str, "age": int | None})
GROWN = model("users", {"name": str, "age": int | None, "email": str | None})


@pytest.fixture
def make(tmp_path: Path, make_settings: MakeSettings) -> Iterator[Any]:
    with ExitStack() as stack:

        def scene(catalog: str = "duckdb", **values: Any) -> LakeScene:
            lake = stack.enter_context(new_lake(make_settings(catalog)))
            return LakeScene(lake=lake, folder=tmp_path / "schema", **values)

        yield scene


@pytest.fixture(params=["duckdb", "sqlite"])
def here(request: pytest.FixtureRequest, make: Any) -> LakeScene:
    """A table of users with two rows, on a catalog of each kind."""
    return _with_users(make(request.param))


@pytest.fixture
def plain(make: Any) -> LakeScene:
    """The same, on the catalog that opens fastest."""
    return _with_users(make())


def _with_users(scene: LakeScene) -> LakeScene:
    scene.become(USERS)
    scene.run("INSERT INTO users VALUES (1, 'Ada', 36), (2, 'Grace', NULL)")
    return scene


@pytest.mark.parametrize("catalog", ["duckdb", "sqlite", "postgres"])
def test_models_become_tables_by_a_script_that_is_recorded_with_its_whole_text(make: Any, catalog: str) -> None:
    here = make(catalog, models=[USERS])
    assert here.check().state is State.DRIFT
    path = here.generate()
    assert path.name == FIRST
    path.write_text(path.read_text() + '-- it\'s "quoted", ünï\n')
    assert here.check().pending == [FIRST]
    here.migrate.apply(FIRST)
    assert here.settled()
    assert here.rows(
        "SELECT schema_name, number, filename, script, started_at <= finished_at FROM _catchment._migrations"
    ) == [("main", 1, FIRST, path.read_text(), True)]
    here.become(GROWN)
    here.run("INSERT INTO users VALUES (1, 'Ada', 36, NULL)")
    before = here.content()
    here.become(USERS)
    here.migrate.restore("pre_003")
    assert here.content() == before


def test_a_check_makes_neither_a_lake_nor_a_file(tmp_path: Path, make_settings: MakeSettings) -> None:
    settings = make_settings("duckdb")
    here = LakeScene(lake=Lake.from_settings(settings), folder=tmp_path / "schema", models=[USERS])
    assert here.check().state is State.DRIFT
    assert not settings.home.exists()
    assert not here.folder.exists()
    assert here.generate().name == FIRST
    assert not settings.home.exists()
    here.migrate.apply(FIRST)
    assert here.settled()
    here.lake.close()


def test_views_are_not_tables(plain: LakeScene) -> None:
    plain.run("CREATE VIEW names AS SELECT name FROM users", "CREATE VIEW users_too AS FROM users")
    assert plain.settled()
    assert [str(table) for table in plain.lake.tables()] == ["main.users"]


def test_a_check_makes_no_snapshot(plain: LakeScene) -> None:
    before = plain.rows("SELECT max(snapshot_id) FROM lake.snapshots()")
    plain.models = [GROWN]
    assert plain.check().state is State.DRIFT
    plain.generate()
    assert plain.rows("SELECT max(snapshot_id) FROM lake.snapshots()") == before


def test_every_type_and_default_of_a_model_comes_back_as_it_was_given(here: LakeScene) -> None:
    defaults = {
        "text": "it's",
        "whole": -7,
        "real": 0.1,
        "huge": 1e300,
        "raw": b"\x00\xab'",
        "yes": True,
        "day": date(2026, 1, 2),
        "moment": datetime(2026, 1, 2, 3, 4, 5, 678),  # noqa: DTZ001 - a lake's TIMESTAMP has no zone
        "list_": [1, "it's"],
        "more": {"a": None},
        "nothing": None,
    }
    kinds: dict[str, Any] = {name: type(value) for name, value in defaults.items() if value is not None}
    every = model("every", {**kinds, "nothing": str | None, "user": USERS}, **defaults)
    here.become(USERS, every)
    assert here.settled()
    here.run('INSERT INTO every (id, "user") VALUES (1, 2)')
    types: dict[str, str] = dict(
        here.rows("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'every'")
    )
    assert (types["id"], types["user"], types["list_"], types["moment"]) == ("BIGINT", "BIGINT", "JSON", "TIMESTAMP")
    as_stored = {**defaults, "list_": '[1, "it\'s"]', "more": '{"a": null}'}
    names = ", ".join(defaults)
    assert here.rows(f"SELECT {names} FROM every") == [tuple(as_stored.values())]
    # The same defaults for rows that were there before the columns.
    grown = model("users", {"name": str, "age": int | None, **kinds}, **{name: defaults[name] for name in kinds})
    text = here.become(grown, model("every", {**kinds, "nothing": str | None, "user": grown}, **defaults))
    assert here.settled(), text
    names = ", ".join(kinds)
    assert here.rows(f"SELECT {names} FROM users") == [tuple(as_stored[name] for name in kinds)] * 2
    for name in kinds:
        assert here.rows(f"SELECT count(*) FROM users WHERE {name} IS NULL") == [(0,)]


@pytest.mark.parametrize("default", ["NULL", "{SNAPSHOT_ID}"])
def test_a_default_that_ducklake_would_garble_is_refused(plain: LakeScene, default: str) -> None:
    plain.models = [model("users", {"name": str}, name=default)]
    with pytest.raises(InputError, match="cannot be a default in a lake"):
        plain.check()


def test_a_column_comes_and_goes_and_filters_find_the_rows_from_before_it(here: LakeScene) -> None:
    here.become(GROWN)
    assert here.settled()
    here.run("INSERT INTO users VALUES (3, 'Edsger', 1, 'e@x')")
    assert here.rows("SELECT id FROM users WHERE email IS NULL ORDER BY id") == [(1,), (2,)]
    assert here.rows("SELECT id FROM users WHERE email IS NOT NULL") == [(3,)]
    assert here.rows("SELECT count(email), count(*) FROM users") == [(1, 3)]
    text = here.become(USERS)
    assert "-- The values of users.email are deleted with it." in text
    assert here.rows("SELECT * FROM users ORDER BY id") == [(1, "Ada", 36), (2, "Grace", None), (3, "Edsger", 1)]
    # The name is free again, and nothing of the old values comes back.
    here.become(GROWN)
    assert here.rows("SELECT count(*) FROM users WHERE email IS NULL") == [(3,)]


def test_a_rename_is_a_choice_and_keeps_the_values(here: LakeScene) -> None:
    renamed = model("users", {"full_name": str, "age": int | None})
    here.models = [renamed]
    path = here.generate()
    assert "-- undecided: users" in path.read_text()
    with pytest.raises(ScriptError, match="leaves something to decide"):
        here.migrate.apply(path.name)
    path.write_text('ALTER TABLE "users" RENAME COLUMN "name" TO "full_name";\n')
    here.migrate.apply(path.name)
    assert here.settled()
    assert here.rows("SELECT full_name FROM users WHERE full_name = 'Ada'") == [("Ada",)]


def test_a_table_is_renamed_or_dropped_as_chosen(here: LakeScene) -> None:
    here.models = [model("people", {"name": str, "age": int | None})]
    path = here.generate()
    assert '-- ALTER TABLE "users" RENAME TO "people";' in path.read_text()
    path.write_text('ALTER TABLE "users" RENAME TO "people";\n')
    here.migrate.apply(path.name)
    assert here.settled()
    assert here.rows("SELECT count(*) FROM people") == [(2,)]
    text = here.become()
    assert "-- The rows of people are deleted with it." in text
    assert here.settled()


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [("INTEGER", int, "BIGINT"), ("TINYINT", int, "BIGINT"), ("UINTEGER", int, "BIGINT"), ("FLOAT", float, "DOUBLE"),
     ("INTEGER", float, "DOUBLE"), ("DATE", datetime, "TIMESTAMP")],
)  # fmt: skip
def test_a_type_is_widened_in_place_and_filters_find_old_rows(
    plain: LakeScene, before: str, after: type, kind: str
) -> None:
    value = "DATE '2026-01-02'" if before == "DATE" else "7"
    plain.run(f"CREATE TABLE t (id BIGINT NOT NULL, v {before})", f"INSERT INTO t VALUES (1, {value}), (2, NULL)")
    text = plain.become(USERS, model("t", {"v": after | None}))
    assert f'ALTER TABLE "t" ALTER COLUMN "v" SET DATA TYPE {kind};' in text
    assert plain.settled()
    assert plain.rows(f"SELECT id FROM t WHERE v = {value}") == [(1,)]
    assert plain.rows("SELECT id FROM t WHERE v IS NULL") == [(2,)]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("VARCHAR", int, "a value may change"),
        ("VARCHAR", dict, "a value may change"),
        ("BIGINT", float, "a value may change"),
        ("JSON", str, "only widening type promotions are allowed"),
    ],
)
def test_another_type_is_left_to_the_developer_with_a_sentence_and_a_way_that_works(
    here: LakeScene, before: str, after: type, said: str
) -> None:
    here.run(f"CREATE TABLE t (id BIGINT NOT NULL, v {before})", "INSERT INTO t VALUES (1, '7'), (2, NULL)")
    here.models = [USERS, model("t", {"v": after | None})]
    path = here.generate()
    assert said in path.read_text()
    with pytest.raises(ScriptError, match="leaves something to decide: t"):
        here.migrate.apply(path.name)
    way = [line.removeprefix("-- ") for line in path.read_text().splitlines() if line.endswith(";")]
    assert len(way) == 4
    path.write_text("\n".join(way))
    here.migrate.apply(path.name)
    assert here.settled()
    assert here.rows("SELECT id FROM t WHERE v IS NULL") == [(2,)]
    assert [str(value) for (value,) in here.rows("SELECT v::INTEGER FROM t WHERE v IS NOT NULL")] == ["7"]


def test_defaults_are_set_and_dropped_and_rows_stay(here: LakeScene) -> None:
    here.become(model("users", {"name": str, "age": int | None}, age=18))
    assert here.settled()
    here.run("INSERT INTO users (id, name) VALUES (3, 'Edsger')")
    here.become(model("users", {"name": str, "age": int | None}, age=None))
    assert here.settled()
    here.run("INSERT INTO users (id, name) VALUES (4, 'Barbara')")
    assert here.rows("SELECT age FROM users ORDER BY id") == [(36,), (None,), (18,), (None,)]


def test_a_column_becomes_required_and_optional_again(here: LakeScene) -> None:
    here.become(model("users", {"name": str | None, "age": int | None}))
    assert here.settled()
    text = here.become(USERS)
    assert text.splitlines()[-1] == 'ALTER TABLE "users" ALTER COLUMN "name" SET NOT NULL;'
    assert here.settled()
    with pytest.raises(InputError, match="NOT NULL constraint failed"):
        here.run("INSERT INTO users VALUES (3, NULL, 1)")


def test_a_column_without_statistics_in_old_files_is_rewritten_to_become_required(here: LakeScene) -> None:
    here.become(model("users", {"name": str, "age": int | None, "n": int | None}, n=5))
    assert here.rows("SELECT count(*) FROM users WHERE n IS NULL") == [(0,)]
    text = here.become(model("users", {"name": str, "age": int | None, "n": int}, n=5))
    assert "All rows of users are rewritten" in text
    assert here.settled()
    assert here.rows("SELECT * FROM users ORDER BY id") == [(1, "Ada", 36, 5), (2, "Grace", None, 5)]


def test_a_column_with_nulls_that_is_to_be_required_is_left_to_the_developer(here: LakeScene) -> None:
    here.models = [model("users", {"name": str, "age": int})]
    path = here.generate()
    assert "age is NULL in 1 rows." in path.read_text()
    path.write_text("UPDATE users SET age = 0 WHERE age IS NULL;\nALTER TABLE users ALTER COLUMN age SET NOT NULL;\n")
    here.migrate.apply(path.name)
    assert here.settled()
    assert here.rows("SELECT age FROM users ORDER BY id") == [(36,), (0,)]


def test_a_required_column_is_added_to_a_table_with_rows_and_to_one_without(here: LakeScene) -> None:
    # DuckLake makes a column of an empty table NOT NULL only when the table is made.
    here.run("CREATE TABLE empty (id BIGINT NOT NULL, a VARCHAR DEFAULT 'by hand')")
    here.run("ALTER TABLE empty SET PARTITIONED BY (a)", "ALTER TABLE empty SET SORTED BY (id DESC)")
    users = model("users", {"name": str, "age": int | None, "n": int}, n=5)
    empty = model("empty", {"a": str | None, "n": int, "m": str}, n=6)
    text = here.become(users, empty)
    assert "-- keeps-rows: empty" in text
    assert here.settled()
    assert here.rows("SELECT n FROM users WHERE n = 5") == [(5,), (5,)]
    here.run("INSERT INTO empty (id, m) VALUES (1, 'x')")
    assert here.rows("SELECT * FROM empty") == [(1, "by hand", 6, "x")]
    found = here.lake.table(here.lake.tables()[0])
    assert [key.column for key in found.partition_by] == ["a"]
    assert [(key.expression, key.descending) for key in found.sort_by] == [("id", True)]


def test_a_required_column_without_a_default_is_left_to_the_developer_if_there_are_rows(plain: LakeScene) -> None:
    plain.models = [model("users", {"name": str, "age": int | None, "n": int})]
    assert "n must not be NULL and has no default: existing rows need a value." in plain.generate().read_text()


def test_a_column_that_files_are_split_by_is_left_to_the_developer(plain: LakeScene) -> None:
    plain.run("ALTER TABLE users SET PARTITIONED BY (age)")
    plain.models = [model("users", {"name": str})]
    assert "the table is partitioned by this column" in plain.generate().read_text()


REFUSED = {
    "COMMIT": "begins or ends a transaction",
    "BEGIN": "begins or ends a transaction",
    "ROLLBACK": "begins or ends a transaction",
    "ATTACH 'x.db'": "attaches another database",
    "DETACH lake": "detaches a database",
    "USE memory": "changes a setting or the schema in use",
    "SET threads = 1": "changes a setting",
    "PRAGMA threads = 1": "changes a setting",
    "COPY users TO 'x.csv'": "copies from or to files",
    "INSTALL httpfs": "loads or installs an extension",
    "LOAD httpfs": "loads or installs an extension",
    "CALL lake.set_option('a', 'b')": "calls a function of DuckDB",
    "CHECKPOINT": "calls a function of DuckDB",
    "EXPORT DATABASE 'x'": "writes files",
    "PREPARE p AS SELECT 1": "is a statement of kind PREPARE",
    "VACUUM": "is a statement of kind VACUUM",
    "DELETE FROM _catchment.producers": "changes _catchment.producers, which belongs to Catchment",
    'UPDATE lake."_CATCHMENT"._migrations SET number = 9': "which belongs to Catchment",
    "WITH x AS (SELECT 1) INSERT INTO _catchment.producers SELECT 'a', 1, 1, NULL FROM x": "which belongs to Catchment",
    "DROP TABLE IF EXISTS _catchment.deliveries": "which belongs to Catchment",
    "ALTER TABLE _catchment.deliveries ADD COLUMN x INTEGER": "which belongs to Catchment",
    "CREATE TABLE _catchment.x AS SELECT 1 AS a": "which belongs to Catchment",
    "CREATE TABLE memory.main.x (a INTEGER)": "a script may change only tables of its own schema",
    "TRUNCATE other.t": "a script may change only tables of its own schema",
    "MERGE INTO other.t USING users ON (true) WHEN MATCHED THEN DELETE": "a script may change only tables of its own",
    "CREATE TEMP TABLE x (a INTEGER)": "has CREATE TEMP",
    "CREATE VIEW v AS TABLE users": "has CREATE VIEW",
    "CREATE OR REPLACE VIEW v AS SELECT 1": "has CREATE OR",
    "CREATE SCHEMA s": "has CREATE SCHEMA",
    "DROP SCHEMA other": "has DROP SCHEMA",
    "COMMENT ON TABLE users IS 'x'": "has COMMENT ON",
    "SELECT * FROM ducklake_expire_snapshots('lake')": "calls ducklake_expire_snapshots",
    "SELECT * FROM lake.snapshots()": "calls lake.snapshots",
    "SELECT '{DATA_PATH}'": "which DuckLake would replace",
    "CREATE TABLE t (id INTEGER PRIMARY KEY)": "PRIMARY KEY/UNIQUE constraints are not supported",
    "CREATE INDEX i ON users (id)": "has CREATE INDEX",
    "SELEC 1": "syntax error",
    "INSERT INTO nowhere VALUES (1)": "does not exist",
    "-- keeps-rows: users\nDELETE FROM users": "claims to keep the rows of users; there were 2, now 0",
    "-- alone\nALTER TABLE users ALTER COLUMN name SET DATA TYPE JSON": "a value cannot be converted",
}


def test_a_script_that_may_not_run_is_refused_with_a_sentence_and_nothing_has_changed(plain: LakeScene) -> None:
    plain.run("CREATE SCHEMA other", "CREATE TABLE other.t (id BIGINT)")
    before = plain.content()
    for statement, said in REFUSED.items():
        is_alone = statement.startswith("--")
        among = f"DELETE FROM users WHERE id = 1;\n-- first\n{statement};\nDELETE FROM users;\n"
        plain.write("002.bad.sql", statement if is_alone else among)
        with pytest.raises(ScriptError) as refused:
            plain.migrate.apply("002.bad.sql")
        assert said in refused.value.message, statement
        assert plain.content() == before, statement


def test_a_failing_script_says_its_line_and_has_changed_nothing(here: LakeScene) -> None:
    before = here.content()
    here.write("002.bad.sql", "UPDATE users SET age = 1;\n\n-- why\nINSERT INTO users VALUES (3, NULL, 1);\n")
    with pytest.raises(ScriptError, match=r"002\.bad\.sql, line 4: .*NOT NULL constraint failed"):
        here.migrate.apply("002.bad.sql")
    assert here.content() == before
    assert here.check().pending == ["002.bad.sql"]


def test_a_script_may_move_rows_between_tables_and_says_what_it_did(here: LakeScene) -> None:
    here.write(
        "002.split.sql",
        "CREATE TABLE ages AS SELECT id, age FROM users WHERE age IS NOT NULL;\n"
        "INSERT INTO main.ages SELECT id + 10, age FROM users;\n"
        "UPDATE users SET age = NULL, name = upper(name) WHERE id = 1;\nDELETE FROM lake.main.users WHERE id = 2;\n",
    )
    rehearsal = here.migrate.rehearse()
    assert rehearsal.ok
    assert {finding.risk for finding in rehearsal.findings} == {Risk.DATA_LOSS, Risk.IRREVERSIBLE}
    assert rehearsal.trials[0].rows_after == {"users": 1, "ages": 3}
    assert here.rows("SELECT count(*) FROM users") == [(2,)]
    here.migrate.apply("002.split.sql")
    assert here.rows("SELECT * FROM ages ORDER BY id") == [(1, 36), (11, 36), (12, None)]
    assert here.rows("SELECT * FROM users") == [(1, "ADA", None)]


def test_a_rehearsal_of_a_big_table_copies_a_part_and_one_of_a_reference_starts_there(
    plain: LakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.engine.mark_reference()
    plain.run("INSERT INTO users SELECT 10 + i, 'x', i FROM range(100) r(i)")
    with plain.engine.rehearsal() as trial:
        assert trial.row_counts() == {"users": 2}
        assert trial.observe() == plain.engine.observe()
    plain.engine.reference.unlink()
    monkeypatch.setattr(lake_engine, "_REHEARSAL_ROWS_MAX", 10)
    with plain.engine.rehearsal() as trial:
        assert trial.row_counts() == {"users": 10}


def test_a_diverged_script_leads_back_to_the_reference_and_forward_again(here: LakeScene) -> None:
    here.engine.mark_reference()
    before, uuids = here.content(), here.uuids()
    here.become(GROWN)
    here.run("INSERT INTO users VALUES (3, 'Edsger', 1, 'e@x')", "UPDATE users SET name = 'Ida' WHERE id = 1")
    here.run("CREATE TABLE stray (id BIGINT)")
    after = here.content()
    script = here.script("002.add_email.sql")
    script.write_text(script.read_text().replace("email", "mail"))
    result = here.check()
    assert (result.state, result.divergent) == (State.DIVERGED, ["002.add_email.sql"])
    here.migrate.restore()
    assert here.content() == before
    assert here.uuids() == uuids, "the table is the one that units were delivered to"
    assert here.check().pending == ["002.add_email.sql"]
    replaced = here.engine.backups()[0]
    assert replaced.kind is BackupKind.REPLACED
    here.migrate.restore(replaced.name)
    assert here.content() == after


def test_a_restore_recreates_a_table_with_its_layout_if_it_must(here: LakeScene) -> None:
    here.run(
        "CREATE TABLE t (id BIGINT NOT NULL, a INTEGER DEFAULT 4, s STRUCT(x INTEGER)[], d TIMESTAMP DEFAULT now())",
        "ALTER TABLE t SET PARTITIONED BY (bucket(2, id))",
        "ALTER TABLE t SET SORTED BY (a DESC)",
        "INSERT INTO t VALUES (1, 10, [{x: 1}], '2026-01-01'), (2, NULL, NULL, NULL)",
    )
    here.run("CREATE TABLE gone (id BIGINT NOT NULL)", "INSERT INTO gone VALUES (5)")
    backup = here.migrate.backup()
    before, table = here.content(), here.lake.table(here.lake.tables()[1])
    here.run("ALTER TABLE t ALTER COLUMN a SET DATA TYPE BIGINT", "ALTER TABLE t DROP COLUMN d", "DROP TABLE gone")
    here.run("INSERT INTO t VALUES (3, 1, NULL)", "ALTER TABLE users RENAME TO people")
    here.run("CREATE TABLE gone (other VARCHAR)", "CREATE TABLE stray (id BIGINT)")
    here.migrate.restore(backup.name)
    assert here.content() == before
    again = here.lake.table(table.id)
    columns = [[column.unbound for column in each.columns] for each in (again, table)]
    assert columns[0] == columns[1]
    assert (again.partition_by, again.sort_by) == (table.partition_by, table.sort_by)
    assert again.uuid != table.uuid
    assert here.rows("SELECT id FROM t WHERE a IS NULL") == [(2,)]
    with pytest.raises(InputError, match="NOT NULL constraint failed"):
        here.run("INSERT INTO gone VALUES (NULL)")


def test_a_restore_of_a_changed_default_name_or_nullability_keeps_the_table(here: LakeScene) -> None:
    before, uuids, backup = here.content(), here.uuids(), here.migrate.backup()
    here.run("ALTER TABLE users ALTER COLUMN age SET DEFAULT 3", "ALTER TABLE users RENAME COLUMN name TO title")
    here.run("UPDATE users SET age = 1", "ALTER TABLE users ALTER COLUMN age SET NOT NULL")
    here.migrate.restore(backup.name)
    assert here.content() == before
    assert here.uuids() == uuids


def test_a_restore_before_the_first_script_leaves_no_table_and_no_record(make: Any) -> None:
    here = make("sqlite", models=[USERS])
    here.generate()
    here.migrate.apply(FIRST)
    here.run("INSERT INTO users VALUES (1, 'Ada', 1)")
    here.migrate.restore("pre_001")
    assert here.check().pending == [FIRST]
    assert here.content() == {"tables": {}, "history": ()}
    here.migrate.apply(FIRST)
    assert here.settled()


def test_a_restore_to_an_expired_snapshot_is_refused_and_changes_nothing(here: LakeScene) -> None:
    here.engine.mark_reference()
    backup = here.migrate.backup()
    here.run("INSERT INTO users VALUES (3, 'Edsger', 1)")
    with here.lake.cursor() as cursor:
        cursor.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    before = here.content()
    for name in (backup.name, None):
        with pytest.raises(BackupMissingError, match="which the lake no longer has"):
            here.engine.restore(name)
    assert here.content() == before
    assert [each.kind for each in here.engine.backups()] == [BackupKind.MANUAL, BackupKind.PRE]


def test_a_backup_that_is_damaged_or_of_another_lake_is_refused(plain: LakeScene) -> None:
    backup = plain.migrate.backup()
    path = plain.folder / "lake.main.bak" / backup.name
    path.write_text(path.read_text().replace("20", "19"))
    with pytest.raises(CorruptInputError, match="the lake's is of"):
        plain.migrate.restore(backup.name)
    path.write_text("{}")
    with pytest.raises(CorruptInputError, match="does not name a snapshot"):
        plain.migrate.restore(backup.name)
    with pytest.raises(BackupMissingError, match="There is no reference"):
        plain.engine.restore()


def test_schemas_of_one_lake_are_migrated_each_by_itself(make: Any) -> None:
    main = _with_users(make("sqlite"))
    other = LakeScene(lake=main.lake, folder=main.folder, schema="other")
    other.become(model("users", {"title": str}))
    other.run("INSERT INTO users VALUES (1, 'Dr')")
    backup = other.migrate.backup()
    other.become(model("users", {"title": str, "more": str | None}))
    main.become(GROWN)
    assert main.settled()
    assert other.settled()
    other.migrate.restore(backup.name)
    assert [record.filename for record in main.engine.observe().history] == [FIRST, "002.add_email.sql"]
    assert [record.filename for record in other.engine.observe().history] == [FIRST]
    assert main.settled()
    assert main.rows("SELECT count(*) FROM users") == [(2,)]


def test_the_schema_of_the_ledger_is_not_migrated(plain: LakeScene) -> None:
    with pytest.raises(InputError, match="cannot be migrated"):
        LakeScene(lake=plain.lake, folder=plain.folder, schema="_Catchment").check()


def test_steps_that_the_state_does_not_allow_are_refused(plain: LakeScene) -> None:
    assert plain.migrate.generate() is None
    with pytest.raises(StateError):
        plain.migrate.rehearse()
    with pytest.raises(StateError):
        plain.migrate.apply("002.nothing.sql")


def test_the_reference_is_restored_while_the_schema_is_current(plain: LakeScene) -> None:
    plain.engine.mark_reference()
    before = plain.content()
    plain.run("DELETE FROM users")
    assert plain.settled()
    assert plain.content() != before
    plain.migrate.restore()
    assert plain.content() == before


def test_a_table_of_another_program_is_left_alone_and_named(here: LakeScene) -> None:
    """Deliveries, imports and clients make tables in the same schema."""
    here.run("CREATE TABLE events (a INTEGER)", "INSERT INTO events VALUES (1)")
    result = here.check()
    assert (result.state, result.unmanaged) == (State.CURRENT, ["events"])
    assert "1 left alone, in no model and in no script: events" in result.status()
    text = here.become(USERS, model("posts", {"title": str}))
    assert "events" not in text
    assert here.rows("SELECT a FROM events") == [(1,)]
    assert here.migrate.drops() == ()


def test_a_table_that_a_script_made_is_dropped_when_its_model_goes(here: LakeScene) -> None:
    here.become(USERS, model("posts", {"title": str}))
    assert 'DROP TABLE "posts"' in here.become(USERS)
    # Another program makes one of that name: it is not the one that the script made.
    here.run("CREATE TABLE posts (a INTEGER)")
    assert (here.check().state, here.check().unmanaged) == (State.CURRENT, ["posts"])


def test_a_table_of_another_program_becomes_managed_with_a_model(here: LakeScene) -> None:
    here.run("CREATE TABLE posts (id BIGINT NOT NULL, title VARCHAR NOT NULL)")
    assert "posts" not in here.become(USERS, model("notes", {"text": str}))
    text = here.become(USERS, model("notes", {"text": str}), model("posts", {"title": str, "likes": int | None}))
    assert 'ALTER TABLE "posts"' in text
    assert here.check().unmanaged == []
