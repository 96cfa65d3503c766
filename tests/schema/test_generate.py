"""Generated scripts on real databases: they reach the model and lose no row or comment."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import ScriptError
from catchment.schema.diff import diff
from catchment.schema.execute import execute
from catchment.schema.generate import script_name, script_text
from catchment.schema.inspect import all_dependents, dependents, inspect
from catchment.schema.models import TableRow, sqlite_structure
from catchment.schema.ops import Choice, Op, plan
from catchment.schema.scripts import Script, ScriptName
from tests.schema.projects import scene

UNHURRIED = settings(deadline=None, max_examples=100)
ROUNDS_MAX = 12


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        yield opened


def _model(name: str, fields: dict[str, Any], /, **attributes: Any) -> type[TableRow]:
    return type(name, (TableRow,), {"__annotations__": fields, **attributes})


def _users(**fields: Any) -> type[TableRow]:
    return _model("User", fields, __tablename__="users")


def _ops(connection: sqlite3.Connection, *models: type[TableRow]) -> tuple[Op, ...]:
    expected, actual = sqlite_structure(models), inspect(connection)
    return plan(diff(expected, actual), expected, actual, dependents=all_dependents(connection, actual))


def _run(connection: sqlite3.Connection, text: str) -> None:
    """Execute as an applier does: one transaction, foreign keys off, checked before commit."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        execute(connection, Script(name=ScriptName(number=1, slug="x"), raw=text))
    except ScriptError:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection, *models: type[TableRow]) -> str:
    text = script_text(_ops(connection, *models))
    _run(connection, text)
    assert diff(sqlite_structure(models), inspect(connection)).describe() == ()
    return text


def _choose(text: str, number: int) -> str:
    """The script with that option of every choice uncommented; -1 is the last one."""
    blocks = re.split(r"^(?=-- undecided: )", text, flags=re.MULTILINE)
    return "".join([blocks[0], *(_uncommented(block, number) for block in blocks[1:])])


def _uncommented(block: str, number: int) -> str:
    options = re.split(r"^(?=-- \[\d+\] )", block, flags=re.MULTILINE)
    chosen = options[number].split("\n")
    statements = [line.removeprefix("-- ") if line != "--" else "" for line in chosen[1:]]
    return "\n".join([chosen[0], *statements, ""])


def _rows(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query).fetchall()


def test_tables_of_models_are_created_from_nothing(connection: sqlite3.Connection) -> None:
    team = _model("Team", {"name": str, "boss": "Person | None"}, __tablename__="teams")
    person = _model(
        "Person",
        {"team": team, "born": date, "tags": list, "ok": bool, "size": float, "raw": bytes | None},
        ok=False,
        size=-1e-7,
        raw=b"\x00'",
    )
    ops = _ops(connection, person, team)
    text = _migrate(connection, person, team)
    assert script_name(ops) == "create_teams_and_person"
    assert inspect(connection).tables[1].references[0].table == "teams"
    assert "rm those scripts" in text
    connection.execute("INSERT INTO Person (team, born, tags) VALUES (1, '2020-01-01', '[]')")
    assert _rows(connection, "SELECT ok, size, raw FROM Person") == [(0, -1e-7, b"\x00'")]


def test_a_script_has_neither_transactions_nor_pragmas(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, age TEXT)")
    text = script_text(_ops(connection, _users(age=int)))
    assert not re.search(r"^(BEGIN|COMMIT|PRAGMA|ROLLBACK|SAVEPOINT)\b", text, re.MULTILINE | re.IGNORECASE)


NAMED_X = _model("User", {"name": str}, __tablename__="users", name="x")


@pytest.mark.parametrize(
    ("before", "model", "name"),
    [
        ("name TEXT NOT NULL", _users(name=str, age=int | None), "add_age"),
        ("name TEXT NOT NULL", _model("User", {"name": str, "age": int}, __tablename__="users", age=3), "add_age"),
        ("name TEXT NOT NULL, age INTEGER", _users(name=str), "drop_age"),
        ("name TEXT NOT NULL, age INTEGER UNIQUE", _users(name=str), "drop_age"),
        ("name TEXT", _users(name=str), "change_name"),
        ("name TEXT NOT NULL", _users(name=str | None), "change_name"),
        ("name STRING(9) NOT NULL", _users(name=str), "change_name"),
        ("name TEXT NOT NULL", NAMED_X, "change_name"),
        ("name TEXT NOT NULL DEFAULT'y'UNIQUE", NAMED_X, "change_name"),
        ("name TEXT, age TEXT", _users(name=str, age=int | None), "change_users"),
    ],
)
def test_a_change_of_columns_keeps_every_row(
    connection: sqlite3.Connection, before: str, model: type[TableRow], name: str
) -> None:
    connection.execute(f"CREATE TABLE users (id INTEGER PRIMARY KEY, {before})")
    connection.execute("INSERT INTO users (id, name) VALUES (7, 'a'), (9, 'b')")
    assert script_name(_ops(connection, model)) == name
    _migrate(connection, model)
    assert _rows(connection, "SELECT id, name FROM users ORDER BY id") == [(7, "a"), (9, "b")]


def test_a_table_in_no_model_is_dropped_with_a_word(connection: sqlite3.Connection) -> None:
    connection.executescript("CREATE TABLE old (x BLOB); CREATE VIEW looking AS SELECT x FROM old;")
    text = _migrate(connection)
    assert "-- The rows of old are deleted with it.\n-- looking mentions old" in text


def test_a_relation_is_added_changed_and_taken_away(connection: sqlite3.Connection) -> None:
    team, club = _model("Team", {}), _model("Club", {})
    connection.executescript(
        """CREATE TABLE Team (id INTEGER PRIMARY KEY); CREATE TABLE Club (id INTEGER PRIMARY KEY);
        CREATE TABLE users (id INTEGER PRIMARY KEY, home INTEGER);
        INSERT INTO Team VALUES (1); INSERT INTO Club VALUES (1); INSERT INTO users VALUES (1, 1), (2, NULL);"""
    )
    for home in (team, club, int, team):
        _migrate(connection, team, club, _users(home=home | None))
        referred = [reference.table for table in inspect(connection).tables for reference in table.references]
        assert referred == ([] if home is int else [home.__name__])
        assert _rows(connection, "SELECT id, home FROM users ORDER BY id") == [(1, 1), (2, None)]


def test_a_foreign_key_that_rows_break_fails_the_script(connection: sqlite3.Connection) -> None:
    connection.executescript(
        """CREATE TABLE Team (id INTEGER PRIMARY KEY);
        CREATE TABLE users (id INTEGER PRIMARY KEY, home Team_ID); INSERT INTO users VALUES (1, 5);"""
    )
    team = _model("Team", {})
    with pytest.raises(ScriptError, match=r"refers? to a missing row of Team"):
        _migrate(connection, team, _users(home=team | None))
    assert _rows(connection, "SELECT * FROM users") == [(1, 5)]


HAND_WRITTEN = """CREATE TABLE IF NOT EXISTS users ( -- people
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT COLLATE NOCASE CHECK (length(name) > 0), /* shown, everywhere */
    [mail] STRING ( 20 ) CONSTRAINT once UNIQUE ON CONFLICT ABORT,
    age INT DEFAULT(0)CHECK (age >= 0), -- in years
    twice INTEGER GENERATED ALWAYS AS (age * 2) VIRTUAL,
    team INTEGER REFERENCES teams(id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT "both, really" UNIQUE (name, age),
    CHECK (name <> 'it''s, (odd)')
)"""


def test_a_rebuild_keeps_all_that_was_written_by_hand(connection: sqlite3.Connection) -> None:
    connection.executescript(
        f"""CREATE TABLE teams (id INTEGER PRIMARY KEY); {HAND_WRITTEN};
        CREATE TABLE log (id INTEGER PRIMARY KEY, line TEXT NOT NULL);
        CREATE INDEX by_age ON users (age) WHERE age > 1; CREATE UNIQUE INDEX [by "lower"] ON users (lower(mail));
        CREATE VIEW adults AS SELECT name FROM users WHERE age > 17 -- grown up
        ; CREATE VIEW names AS SELECT name FROM adults;
        CREATE TRIGGER noted AFTER INSERT ON users BEGIN INSERT INTO log (line) VALUES ('; ' || new.name); END;
        CREATE TRIGGER elsewhere AFTER DELETE ON log BEGIN UPDATE users SET age = age + 1; END;
        CREATE TRIGGER through INSTEAD OF INSERT ON names BEGIN INSERT INTO users (name) VALUES (new.name); END;
        INSERT INTO users (id, name, mail, age) VALUES (1, 'Ann', 'a@x', 30), (2, 'Ben', NULL, 3), (50, 'Zoe', 'z', 1);
        DELETE FROM users WHERE id = 50;"""
    )
    before = dependents(connection, "users")
    others = _model("Team", {}, __tablename__="teams"), _model("Log", {"line": str}, __tablename__="log")
    text = _migrate(connection, *others, _users(name=str, mail=str | None, age=int, team=int | None))
    assert "-- keeps-rows: users\n" in text
    statement = next(table.ddl for table in inspect(connection).tables if table.name == "users")
    assert statement == (
        HAND_WRITTEN.replace("CREATE TABLE IF NOT EXISTS users", 'CREATE TABLE "users"')
        .replace("length(name) > 0)", "length(name) > 0) NOT NULL")
        .replace("STRING ( 20 )", "TEXT")
        .replace("age INT DEFAULT(0)CHECK (age >= 0)", "age INT DEFAULT(0)CHECK (age >= 0) NOT NULL")
    )
    assert dependents(connection, "users") == before
    assert before.autoincrement == 50
    assert _rows(connection, "SELECT id, name, mail, age, twice FROM users ORDER BY id") == [
        (1, "Ann", "a@x", 30, 60),
        (2, "Ben", None, 3, 6),
    ]
    connection.execute("INSERT INTO names VALUES ('Cid')")
    assert _rows(connection, "SELECT max(id) FROM users") == [(51,)]
    assert _rows(connection, "SELECT line FROM log ORDER BY id DESC LIMIT 1") == [("; Cid",)]


@pytest.mark.parametrize("options", ["STRICT", "WITHOUT ROWID", "WITHOUT ROWID, STRICT"])
def test_a_rebuild_keeps_the_options_of_a_table(connection: sqlite3.Connection, options: str) -> None:
    connection.execute(f"CREATE TABLE users (id INTEGER PRIMARY KEY, age TEXT DEFAULT '1') {options}")
    connection.execute("INSERT INTO users VALUES (1, '5')")
    _migrate(connection, _users(age=int | None))
    assert inspect(connection).tables[0].ddl.endswith(f") {options}")
    assert _rows(connection, "SELECT id, age FROM users") == [(1, 5)]


def test_rows_keep_their_rowids_if_no_column_holds_them(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE users (name TEXT NOT NULL)")
    connection.execute("INSERT INTO users (rowid, name) VALUES (5, 'a')")
    _migrate(connection, _users(name=str))
    assert _rows(connection, "SELECT id, name FROM users") == [(5, "a")]


@pytest.mark.parametrize(
    ("declared", "model", "value", "kept"),
    [
        ("TEXT", int, "12", 12),
        ("TEXT", int, "abc", "abc"),
        ("TEXT", float, "1.5", 1.5),
        ("REAL", int, 2.0, 2),
        ("REAL", int, 2.5, 2.5),
        ("INTEGER", str, 12, "12"),
        ("INTEGER", float, 12, 12.0),
        ("REAL", str, 0.5, "0.5"),
        ("BLOB", str, b"\xff", b"\xff"),
        ("TEXT", date, "2020-01-01", "2020-01-01"),
        ("TEXT", bytes, "x", "x"),
        ("TEXT", int, None, None),
    ],
)
def test_a_value_that_survives_the_new_type_is_copied(
    connection: sqlite3.Connection, declared: str, model: Any, value: object, kept: object
) -> None:
    connection.execute(f"CREATE TABLE users (id INTEGER PRIMARY KEY, field {declared})")
    connection.execute("INSERT INTO users VALUES (1, ?)", (value,))
    _migrate(connection, _users(field=model | None))
    ((found,),) = _rows(connection, "SELECT field FROM users")
    assert (found, type(found)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("declared", "model", "value"),
    [
        ("TEXT", int, "007"),
        ("TEXT", int, " 5"),
        ("TEXT", list, "1.0"),
        ("TEXT", float, "1e3"),
        ("REAL", str, 0.1 + 0.2),
        ("INTEGER", float, 2**53 + 1),
    ],
)
def test_a_value_that_would_not_survive_fails_the_script_and_nothing_is_lost(
    connection: sqlite3.Connection, declared: str, model: Any, value: object
) -> None:
    connection.execute(f"CREATE TABLE users (id INTEGER PRIMARY KEY, field {declared})")
    connection.execute("INSERT INTO users VALUES (1, ?)", (value,))
    with pytest.raises(ScriptError, match=r"users\.field: a value would not survive as"):
        _migrate(connection, _users(field=model | None))
    assert _rows(connection, "SELECT field FROM users") == [(value,)]


def test_a_column_without_a_value_for_old_rows_waits_for_one(connection: sqlite3.Connection) -> None:
    connection.executescript("CREATE TABLE users (id INTEGER PRIMARY KEY); INSERT INTO users VALUES (1);")
    text = script_text(_ops(connection, _users(name=str)))
    with pytest.raises(ScriptError, match="NOT NULL constraint failed"):
        _run(connection, text)
    assert "until you write a value for it in place of NULL" in text
    _run(connection, text.replace('SELECT "id", NULL', "SELECT \"id\", 'unnamed'"))
    assert _rows(connection, "SELECT * FROM users") == [(1, "unnamed")]


def test_a_column_without_a_value_is_added_to_an_empty_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
    _migrate(connection, _users(name=str))


def test_null_in_a_column_that_the_model_requires_fails_the_script(connection: sqlite3.Connection) -> None:
    connection.executescript("CREATE TABLE users (id INTEGER PRIMARY KEY, n TEXT); INSERT INTO users VALUES (1, NULL);")
    with pytest.raises(ScriptError, match="NOT NULL constraint failed"):
        _migrate(connection, _users(n=str))


def test_nothing_runs_while_a_rename_is_possible(connection: sqlite3.Connection) -> None:
    connection.executescript(
        "CREATE TABLE users (id INTEGER PRIMARY KEY, mail TEXT, x BLOB); INSERT INTO users VALUES (1, 'a', x'00');"
    )
    model = _users(email=str | None, age=int | None)
    ops = _ops(connection, model)
    text = script_text(ops)
    _run(connection, text)
    assert script_name(ops) == "change_users"
    assert _rows(connection, "SELECT * FROM users") == [(1, "a", b"\x00", None)]
    _run(connection, _choose(script_text(_ops(connection, model)), 1))
    assert _rows(connection, "SELECT id, email, x, age FROM users") == [(1, "a", b"\x00", None)]
    assert "x are deleted with it" in _migrate(connection, model)


@pytest.mark.parametrize("declared", ["TEXT", "TEXT UNIQUE"])
def test_the_last_option_is_that_nothing_was_renamed(connection: sqlite3.Connection, declared: str) -> None:
    connection.execute(f"CREATE TABLE users (id INTEGER PRIMARY KEY, mail {declared})")
    connection.execute("INSERT INTO users VALUES (1, 'a')")
    model = _users(email=str | None)
    text = script_text(_ops(connection, model))
    assert "rename" in script_name(_ops(connection, model))
    _run(connection, _choose(text, -1))
    assert diff(sqlite_structure([model]), inspect(connection)).is_empty
    assert _rows(connection, "SELECT * FROM users") == [(1, None)]


def test_a_renamed_table_keeps_its_rows_and_what_refers_to_it(connection: sqlite3.Connection) -> None:
    connection.executescript(
        """CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL); INSERT INTO people VALUES (1, 'a');
        CREATE TABLE Pet (id INTEGER PRIMARY KEY, owner User_ID REFERENCES people (id));
        INSERT INTO Pet VALUES (1, 1);"""
    )
    user = _users(name=str)
    models = (user, _model("Pet", {"owner": user | None}))
    _run(connection, _choose(script_text(_ops(connection, *models)[-1:]), 1))
    assert diff(sqlite_structure(models), inspect(connection)).describe() == ()
    assert _rows(connection, "SELECT name FROM users JOIN Pet ON owner = users.id") == [("a",)]


def test_changes_that_sqlite_cannot_make_are_left_to_the_developer_in_a_comment(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, a TEXT) STRICT")
    connection.execute("INSERT INTO users VALUES (1, 'x')")
    text = script_text(_ops(connection, _users(a=str | None, when=date | None)))
    _run(connection, text)
    assert "-- undecided: users\n" in text
    assert 'unknown datatype for _new_users.when: "DATE"' in text
    assert _rows(connection, "SELECT * FROM users") == [(1, "x")]


def test_a_view_that_needs_a_dropped_column_fails_the_script(connection: sqlite3.Connection) -> None:
    script = "CREATE TABLE users (id INTEGER PRIMARY KEY, a TEXT {}, b BLOB); CREATE VIEW seen AS SELECT a FROM users;"
    for unique in ("", "UNIQUE"):
        connection.executescript("DROP VIEW IF EXISTS seen; DROP TABLE IF EXISTS users;" + script.format(unique))
        with pytest.raises(ScriptError, match="no such column: a"):
            _migrate(connection, _users(b=bytes | None))


@pytest.mark.parametrize(
    "columns",
    [
        "id INTEGER, name TEXT NOT NULL",
        "id INT PRIMARY KEY, name TEXT NOT NULL",
        "id TEXT PRIMARY KEY, name TEXT NOT NULL",
        "id, name TEXT NOT NULL",
        "'id' INTEGER, `name` TEXT NOT NULL",
    ],
)
def test_an_id_becomes_the_primary_key(connection: sqlite3.Connection, columns: str) -> None:
    connection.execute(f"CREATE TABLE users ({columns})")
    connection.execute("INSERT INTO users VALUES ('4', 'a'), ('9', 'b')")
    _migrate(connection, _users(name=str))
    assert _rows(connection, "SELECT id, name FROM users ORDER BY id") == [(4, "a"), (9, "b")]


@pytest.mark.parametrize("rest", ["PRIMARY KEY (id, name))", "PRIMARY KEY (name)) WITHOUT ROWID"])
def test_another_primary_key_is_left_to_the_developer(connection: sqlite3.Connection, rest: str) -> None:
    connection.execute(f"CREATE TABLE users (id INTEGER, name TEXT NOT NULL, {rest}")
    text = script_text(_ops(connection, _users(name=str)))
    _run(connection, text)
    assert "-- undecided: users\n-- users cannot be changed by a generated script." in text


def test_the_index_of_a_dropped_column_goes_with_it_and_others_stay(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, a TEXT, b BLOB)")
    connection.execute("CREATE INDEX both ON users (a, b)")
    connection.execute("CREATE INDEX one ON users (b)")
    assert "-- The index both is dropped with them." in _migrate(connection, _users(b=bytes | None))
    assert [index.name for index in dependents(connection, "users").indexes] == ["one"]


TYPES: list[Any] = [str, int, float, bytes, bool, date, list]
FIELDS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e"]),
    st.tuples(st.sampled_from(TYPES), st.booleans(), st.booleans(), st.booleans()),
    max_size=4,
)
MODELS = st.dictionaries(st.sampled_from(["One", "Two", "Three"]), FIELDS, max_size=3)
DEFAULTS: dict[Any, Any] = {str: "it's", int: 3, float: 0.5, bytes: b"x", bool: True, date: date(2020, 1, 1), list: [1]}
VALUES: dict[str, Any] = {
    "TEXT": "t", "INTEGER": 4, "REAL": 2.5, "BLOB": b"\x01", "BOOL": 1, "DATE": "2021-01-01", "JSON": "[]"
}  # fmt: skip


def _random_models(drawn: dict[str, dict[str, tuple[Any, bool, bool, bool]]]) -> list[type[TableRow]]:
    found: list[type[TableRow]] = []
    for name, fields in drawn.items():
        annotations: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        for field, (kind, nullable, has_default, is_relation) in fields.items():
            target = name if is_relation and nullable else None
            annotations[field] = f"{target} | None" if target else kind | None if nullable else kind
            if has_default and not target:
                defaults[field] = DEFAULTS[kind]
        found.append(_model(name, annotations, **defaults))
    return found


def _fill(connection: sqlite3.Connection) -> None:
    for table in inspect(connection).tables:
        for row in (1, 2):
            values = [row if each.primary_key else VALUES.get(each.type, row) for each in table.columns]
            marks = ", ".join("?" * len(values))
            names = ", ".join(f'"{column.name}"' for column in table.columns)
            connection.execute(f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})', values)


def _by_hand(text: str) -> str:
    """As a developer who writes zero where a value is asked for."""
    return re.sub(r"^SELECT .*NULL.*$", lambda line: re.sub(r"\bNULL\b", "0", line[0]), text, flags=re.MULTILINE)


def _columns(connection: sqlite3.Connection) -> dict[tuple[str, str], list[Any]]:
    return {
        (table.name, column.name): [
            value for (value,) in _rows(connection, f'SELECT "{column.name}" FROM "{table.name}" ORDER BY id')
        ]
        for table in inspect(connection).tables
        for column in table.columns
    }


def _is_same(before: Any, after: Any) -> bool:
    """Whether a value is what it was, but for the type that its column now gives it."""
    return bool(before == after) or str(before) == str(after) or f"{before}.0" == str(after)


@UNHURRIED
@given(old=MODELS, new=MODELS)
def test_any_model_becomes_any_other_and_columns_that_stay_keep_their_values(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    models = _random_models(new)
    expected = sqlite_structure(models)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _run(connection, script_text(_ops(connection, *_random_models(old))))
        _fill(connection)
        first = before = _columns(connection)
        refused = ""
        for _ in range(ROUNDS_MAX):
            ops = _ops(connection, *models)
            if not ops:
                break
            text = script_text(ops)
            undecided = any(isinstance(op, Choice) for op in ops)
            before = _columns(connection)
            try:
                _run(connection, _by_hand(_choose(text, 1) if undecided else text))
            except ScriptError as error:
                refused = error.message
                break
        if refused:
            # A column that was not a relation may have values that are not ids: then nothing
            # changes.
            assert "to a missing row of" in refused
            assert _columns(connection) == before
            return
        assert diff(expected, inspect(connection)).describe() == ()
        last = _columns(connection)
        for place in first.keys() & last.keys():
            assert len(first[place]) == len(last[place])
            assert all(map(_is_same, first[place], last[place]))


def test_a_generated_script_says_how_to_merge_it_with_earlier_ones(tmp_path: Path) -> None:
    generated = scene("models_only", tmp_path).migrate.generate()
    assert generated is not None
    header = [line for line in generated.read_text().splitlines() if line.startswith("--")]
    assert "-- To merge it with earlier scripts that production has not run yet:" in header
    assert [line.split()[1:3] for line in header if line[5:6].isdigit()] == [
        ["1.", "rm"],
        ["2.", "restore"],
        ["3.", "generate"],
        ["4.", "apply"],
    ]
