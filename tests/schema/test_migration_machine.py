"""Random migrations: rows that were inserted are there, unless a script dropped them.

Models change at random, scripts are generated, chosen from, edited, renamed, deleted, applied,
killed on the way and undone by restores. `migration_model` has the expected rows, from dictionaries
and the scripts.
"""

import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from catchment.errors import BackupMissingError, ScriptError, StateError
from catchment.foundation import faults
from catchment.schema.check import CheckResult, State
from catchment.schema.migrate import Migrate
from catchment.schema.sqlite_engine import SqliteEngine
from tests.schema.migration_killer import BACKUPS_KEPT, Killer, do
from tests.schema.migration_model import (
    COLUMNS,
    FIRST_BY_HAND,
    KINDS,
    TABLES,
    Field,
    Held,
    Models,
    Value,
    classes,
    columns_of,
    decided,
    forgetting,
    is_as,
    is_open,
    left_to_people,
    made_by_hand,
    mismatches,
    number_of,
    plain,
    tables_of,
    targets_of,
    views_of,
)
from tests.schema.projects import dump

ROUNDS_MAX = 16
KINDS_OTHER = {kind: [each for each in KINDS if each != kind] for kind in (*KINDS, "relation")}
FIELDS = {"a": Field("text"), "b": Field("integer"), "order": Field("real")}
ALLOWED = {State.PENDING: {"apply"}, State.DRIFT: {"generate"}, State.CURRENT: {"generate"}}
REACHED = {
    "apply": ("schema.before_backup", "schema.after_backup", "schema.before_commit", "schema.after_commit"),
    "restore": ("schema.before_backup", "schema.between_restore"),
    "generate": ("schema.before_script",),
    "check": ("schema.before_script",),
}
# Where the database is what it was.
BEFORE = ("schema.before_backup", "schema.after_backup", "schema.before_commit", "schema.before_script")
# Does a step, and says whether it was interrupted at the point.
Interrupt = Callable[[str, str | None, str], bool]


class InterruptedStepError(Exception):
    """A step fails at a crash point."""


class SchemaMachine(RuleBasedStateMachine):
    """One database with its scripts and its models, and what it must hold."""

    killer: ClassVar[Killer]

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="catchment-machine-")) / "my.sqlite"
        self.engine = SqliteEngine(self.path, backups_keep=BACKUPS_KEPT)
        self.numbers = count(1)
        self.models: Models = {"users": dict(FIELDS), "posts": {**FIELDS, "a": Field("relation", target="users")}}
        self.models_settled: Models = {}
        self.held = Held()
        self.reference: Held | None = None
        self.backups: dict[tuple[str, int], Held] = {}
        # The text of scripts that were generated, and what had run when they were: they promise
        # nothing in another state.
        self.generated: dict[str, set[tuple[str, ...]]] = {}

    @property
    def migrate(self) -> Migrate:
        return Migrate(self.engine, classes(self.models))

    @initialize(
        data=st.data(),
        journal=st.sampled_from(["delete", "wal"]),
        page_bytes=st.sampled_from([512, 4096]),
        is_by_hand=st.booleans(),
    )
    def start(self, data: st.DataObject, journal: str, page_bytes: int, is_by_hand: bool) -> None:
        """With small pages a restore takes more than one step, between which it can be killed."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(f"PRAGMA page_size = {page_bytes}")
            connection.execute(f"PRAGMA journal_mode = {journal}")
            connection.execute("VACUUM")
        self.check_tells_what_is_so_and_changes_nothing()
        if is_by_hand:
            self.engine.scripts.mkdir()
            (self.engine.scripts / "001.by_hand.sql").write_text(FIRST_BY_HAND, encoding="utf-8")
        self.go_on_until_current(data)
        self.put_rows_in(data, 3)

    @rule(data=st.data(), changes=st.integers(1, 3), rounds=st.integers(1, 6))
    def change_the_models(self, data: st.DataObject, changes: int, rounds: int) -> None:
        for _ in range(changes):
            self._change(data, data.draw(st.sampled_from(TABLES)))
        self.put_rows_in(data, 1)
        self.go_on(data, rounds)

    @rule()
    def take_the_models_back(self) -> None:
        self.models = deepcopy(self.models_settled)

    @rule(data=st.data(), number=st.integers(1, 5))
    def put_rows_in(self, data: st.DataObject, number: int) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("PRAGMA foreign_keys = ON")
            for table in tables_of(connection):
                for _ in range(number):
                    row = self._row(data, connection, table)
                    if row is not None:
                        names = "".join(f', "{name}"' for name in row)
                        holes = ", ?" * len(row)
                        query = f'INSERT INTO "{table}" (id{names}) VALUES (?{holes})'
                        key = next(self.numbers)
                        connection.execute(query, (key, *row.values()))
                        self.held.rows.setdefault(table, {})[key] = row

    @rule(data=st.data(), rounds=st.integers(1, 4))
    def go_on(self, data: st.DataObject, rounds: int) -> None:
        """Do what the state asks for, some times; the choices are made at random."""
        for _ in range(rounds):
            self._go_on(data)

    @rule(data=st.data())
    def go_on_until_current(self, data: st.DataObject) -> None:
        """Generating and applying comes to an end, or to a script that the data does not allow."""
        for _ in range(ROUNDS_MAX):
            if not self._go_on(data):
                return
            if self.migrate.look().state is State.CURRENT:
                return
        raise AssertionError("It does not come to rest.")

    @rule(step=st.sampled_from(["apply", "generate", "restore"]), is_next=st.booleans())
    def try_any_step(self, step: str, is_next: bool) -> None:
        result = self.migrate.check()
        argument = None
        if step == "apply":
            argument = result.pending[0 if is_next else -1] if result.pending else "001.nothing.sql"
        allowed = step in ALLOWED.get(result.state, set()) | {"restore"}
        if allowed and argument in (None, *result.pending[:1]):
            if step == "apply":
                self._apply(result)
            elif step == "restore":
                self._restore(None)
            elif result.state is State.CURRENT:
                assert self.migrate.generate() is None
            else:
                self._generate()
            return
        before = self._everything()
        with pytest.raises(StateError):
            do(self.migrate, step, argument)
        assert self._everything() == before

    @rule()
    def rehearse(self) -> None:
        """A rehearsal runs the pending scripts of the reference, if any, and changes nothing."""
        is_pending = self.migrate.check().state is State.PENDING
        before = self._everything()
        is_refused = False
        try:
            self.migrate.rehearse()
        except StateError:
            is_refused = True
        assert self.reference is not None or is_refused == (not is_pending)
        assert self._everything() == before

    @rule(data=st.data())
    def restore_a_backup(self, data: st.DataObject) -> None:
        kept = [backup.name for backup in self.engine.backups()]
        if kept:
            self._restore(data.draw(st.sampled_from(kept)))

    @rule(kept=st.integers(0, 3))
    def consolidate(self, kept: int) -> None:
        """Delete the last scripts, and go back to the reference."""
        gone = [path for path in self._files() if number_of(path) > kept]
        result = self.migrate.look()
        if self.reference is not None and result.state is not State.ERROR and kept < len(self.held.ran) and gone:
            for path in gone:
                path.unlink()
            self._restore(None)

    @rule(is_there=st.booleans())
    def make_or_remove_the_reference(self, is_there: bool) -> None:
        self.engine.reference.unlink(missing_ok=True)
        self.reference = None
        if is_there:
            backup = self.migrate.backup()
            self._note_backups(self.held)
            shutil.copyfile(self.path.with_name("my.sqlite.bak") / backup.name, self.engine.reference)
            self.reference = deepcopy(self.held)

    @rule(data=st.data())
    def disturb_the_files(self, data: st.DataObject) -> None:
        found = self._files()
        if not found:
            return
        path = data.draw(st.sampled_from(found))
        raw = path.read_bytes()
        match data.draw(st.sampled_from(["edit", "break", "crlf", "rename", "renumber", "delete", "copy", "misname"])):
            case "edit":
                path.write_bytes(raw + b"-- Somebody was here.\n")
            case "break":
                path.write_bytes(raw + b"INSERT INTO nowhere VALUES (1);\n")
            case "crlf":
                path.write_bytes(raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
            case "rename":
                path.rename(path.with_name(f"{path.name[:3]}.another_name.sql"))
            case "renumber":
                path.rename(path.with_name(f"{data.draw(st.integers(1, 9)):03d}.other_number.sql"))
            case "delete":
                path.unlink()
            case "copy":
                path.with_name(f"{path.name[:3]}.copy.sql").write_bytes(raw)
            case "misname":
                path.with_name("notes.sql").write_bytes(raw)

    @rule()
    def put_the_files_in_order(self) -> None:
        """As version control would: what ran is there as it ran, and nothing else."""
        for path in self._files():
            path.unlink()
        self.migrate.check()

    @rule(data=st.data())
    def write_a_script_by_hand(self, data: st.DataObject) -> None:
        result = self.migrate.check()
        if result.state not in (State.DRIFT, State.CURRENT):
            return
        number = len(result.applied) + 1
        with closing(sqlite3.connect(self.path)) as connection:
            statement = self._by_hand(data, connection, f"by_hand_{next(self.numbers)}")
        self.engine.scripts.mkdir(exist_ok=True)
        (self.engine.scripts / f"{number:03d}.by_hand.sql").write_text(statement, encoding="utf-8")
        self.go_on(data, 1)

    @rule(data=st.data())
    def kill_a_step(self, data: st.DataObject) -> None:
        """The database is as before or as after, and which of the two, the point says."""
        self._interrupted(data, self._killed)

    @rule(data=st.data())
    def fail_a_step(self, data: st.DataObject) -> None:
        self._interrupted(data, self._failed)

    @invariant()
    def check_tells_what_is_so_and_changes_nothing(self) -> None:
        has_journal = any(path.stat().st_size for path in self.path.parent.glob("my.sqlite-*"))
        before = self.path.read_bytes()
        result = self.migrate.check()
        assert has_journal or self.path.read_bytes() == before
        assert result.state is _first_match(result)
        scripts = {path.name: plain(path) for path in self._files()}
        misnamed = [name for name in scripts if not re.fullmatch(r"\d{3}\..+\.sql", name)]
        by_number = sorted((int(name[:3]), name) for name in scripts if name not in misnamed)
        is_sound = [number for number, _ in by_number] == [*range(1, len(by_number) + 1)]
        assert bool(result.errors) == (not is_sound or bool(misnamed) or self._is_conflict(result))
        if is_sound:
            ran = dict(enumerate(self.held.ran, 1))
            assert result.pending == [name for number, name in by_number if number not in ran]
            assert result.divergent == [
                name for number, name in by_number if ran.get(number, scripts[name]) != scripts[name]
            ]
            assert not result.missing
        with closing(sqlite3.connect(self.path)) as connection:
            assert result.model_diff.is_empty == is_as(connection, self.models)

    @invariant()
    def the_database_holds_what_was_put_in(self) -> None:
        mismatch = self._mismatch(self.held)
        assert mismatch is None, mismatch

    def teardown(self) -> None:
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def _change(self, data: st.DataObject, table: str) -> None:
        if table not in self.models:
            self.models[table] = dict(FIELDS)
            return
        changes = [self._rename_table, self._drop_table] + [
            self._change_field,
            self._change_field,
            self._rename_field,
        ] * 4
        data.draw(st.sampled_from(changes))(data, table)

    def _rename_table(self, data: st.DataObject, table: str) -> None:
        free = [name for name in TABLES if name not in self.models]
        if free:
            new = data.draw(st.sampled_from(free))
            self.models = {
                new if name == table else name: {
                    column: replace(each, target=new) if each.target == table else each
                    for column, each in fields.items()
                }
                for name, fields in self.models.items()
            }

    def _drop_table(self, _: st.DataObject, table: str) -> None:
        del self.models[table]
        for name, fields in self.models.items():
            self.models[name] = {column: each for column, each in fields.items() if each.target != table}

    def _change_field(self, data: st.DataObject, table: str) -> None:
        fields = self.models[table]
        column = data.draw(st.sampled_from(COLUMNS))
        if column in fields and data.draw(st.integers(0, 7)) == 7:
            del fields[column]
            return
        before = fields.get(column, Field("text"))
        match data.draw(st.sampled_from(["kind", "kind", "relation", "nullable", "default"])):
            case "kind":
                fields[column] = replace(before, kind=data.draw(st.sampled_from(KINDS_OTHER[before.kind])), target=None)
            case "relation" if column not in fields or before.target:
                target = data.draw(st.sampled_from(sorted(self.models)))
                fields[column] = Field("relation", target=target, nullable=before.nullable)
            case "nullable":
                fields[column] = replace(before, nullable=not before.nullable)
            case _:
                fields[column] = replace(before, has_default=not before.has_default and not before.target)

    def _rename_field(self, data: st.DataObject, table: str) -> None:
        fields = self.models[table]
        free = [name for name in COLUMNS if name not in fields]
        if fields and free:
            old, new = data.draw(st.sampled_from(sorted(fields))), data.draw(st.sampled_from(free))
            self.models[table] = {new if name == old else name: each for name, each in fields.items()}

    def _row(self, data: st.DataObject, connection: sqlite3.Connection, table: str) -> dict[str, Value] | None:
        """Values for a new row; None where there cannot be one, because it would refer to nothing."""
        choice = random.Random(data.draw(st.integers(0, 2**16)))
        targets = targets_of(connection, table)
        row: dict[str, Value] = {}
        for name, declared, is_needed, _ in columns_of(connection, table):
            options: list[Value] = [] if is_needed or choice.random() < 0.9 else [None]
            if name in targets:
                if targets[name] not in tables_of(connection):
                    return None
                options += [key for (key,) in connection.execute(f'SELECT id FROM "{targets[name]}" LIMIT 9')]
            else:
                # Mostly those that survive another type, or all scripts would fail.
                values = next(kind[3] for kind in KINDS.values() if kind[1] == declared)
                options += values if choice.random() < 0.2 else values[:2]
            if is_needed and not options:
                return None
            row[name] = choice.choice(options or [None])
        return row

    def _go_on(self, data: st.DataObject) -> bool:
        """One step; False where the data did not allow it."""
        result = self.migrate.check()
        match result.state:
            case State.ERROR if self._is_conflict(result):
                self.make_or_remove_the_reference(is_there=True)
            case State.DIVERGED if self.reference is not None and len(self.reference.ran) < len(self.held.ran):
                self._restore(None)
            case State.ERROR | State.DIVERGED:
                self.put_the_files_in_order()
            case State.DRIFT:
                self._generate()
            case State.PENDING:
                self._choose(data, self.engine.scripts / result.pending[0])
                if not self._apply(result):
                    self.put_the_files_in_order()
                    self.take_the_models_back()
                    return False
            case State.CURRENT:
                self.models_settled = deepcopy(self.models)
        return True

    def _generate(self) -> None:
        """A generated script makes every change, but for dropping a column that a view uses."""
        path = self.migrate.generate()
        assert path is not None
        text = plain(path)
        self.generated.setdefault(text, set()).add(tuple(self.held.ran))
        with closing(sqlite3.connect(self.path)) as connection:
            for table, view, column in left_to_people(text):
                assert view in views_of(connection, table, column)
                assert column not in self.models[table]

    def _choose(self, data: st.DataObject, path: Path) -> None:
        """Choose an option of every open decision; drop views that are in the way first."""
        text = plain(path)
        if text not in self.generated or not is_open(text):
            return
        chosen = decided(text, lambda options: data.draw(st.integers(1, options)))
        if is_open(chosen):
            with closing(sqlite3.connect(self.path)) as connection:
                chosen = forgetting(connection, chosen)
        else:
            self.generated.setdefault(chosen, set()).update(self.generated[text])
        path.write_text(chosen, encoding="utf-8")

    def _apply(self, result: CheckResult) -> bool:
        """Apply the next script; False where it failed, which has changed nothing."""
        text = plain(self.engine.scripts / result.pending[0])
        before, content = deepcopy(self.held), dump(self.path)
        try:
            self.migrate.apply(result.pending[0])
        except ScriptError:
            assert dump(self.path) == content
            assert self._may_fail(text)
            self._note_backups(before, is_whole=not is_open(text))
            return False
        self.held.run(text)
        self._note_backups(before)
        return True

    def _may_fail(self, text: str) -> bool:
        """A generated script fails only because of rows or objects that were made by hand."""
        is_generated = tuple(self.held.ran) in self.generated.get(text, ()) and not is_open(text)
        return not is_generated or any(self.held.rows.values()) or bool(self._hand_made())

    def _hand_made(self) -> list[tuple[str, str]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return made_by_hand(connection)

    def _is_conflict(self, result: CheckResult) -> bool:
        """Whether a number that the reference has is that of another script on the disk."""
        if self.reference is None or result.divergent:
            return False
        texts: dict[int, set[str]] = {}
        for path in self._files():
            if re.fullmatch(r"\d{3}\..+\.sql", path.name):
                texts.setdefault(number_of(path), set()).add(plain(path))
        return any(number in texts and text not in texts[number] for number, text in enumerate(self.reference.ran, 1))

    def _restore(self, name: str | None) -> None:
        target = self._backup(name)
        before = deepcopy(self.held)
        if target is None:
            content = self._everything()
            with pytest.raises(BackupMissingError):
                self.migrate.restore(name)
            assert self._everything() == content
            return
        self.migrate.restore(name)
        self.held = deepcopy(target)
        self._note_backups(before)

    def _backup(self, name: str | None) -> Held | None:
        """What a backup holds, or the reference."""
        return self.reference if name is None else self.backups[name, self._ages()[name]]

    def _ages(self) -> dict[str, int]:
        folder = self.path.with_name("my.sqlite.bak")
        return {each.name: (folder / each.name).stat().st_mtime_ns for each in self.engine.backups()}

    def _note_backups(self, held: Held, *, is_whole: bool = True) -> None:
        """Every new backup has this content; a finished step kept no more than allowed."""
        ages = self._ages()
        self.backups = {key: self.backups.get(key) or deepcopy(held) for key in ages.items()}
        for kind in ("pre", "manual", "replaced"):
            assert not is_whole or sum(name.startswith(kind) for name in ages) <= BACKUPS_KEPT

    def _by_hand(self, data: st.DataObject, connection: sqlite3.Connection, name: str) -> str:
        made = [(kind, each) for kind, each in self._hand_made() if kind in ("view", "trigger")]
        forgets: bool = data.draw(st.booleans())
        if made and forgets:
            kind, each = data.draw(st.sampled_from(made))
            return f'-- by hand: forget {each} - -\nDROP {kind} "{each}";\n'
        places = [(table, column[0]) for table in tables_of(connection) for column in columns_of(connection, table)]
        if not places:
            return "SELECT 1;\n"
        table, column = data.draw(st.sampled_from(places))
        kind = data.draw(st.sampled_from(["index", "view", "trigger"]))
        statement = {
            "index": f'CREATE INDEX "{name}" ON "{table}" ("{column}")',
            "view": f'CREATE VIEW "{name}" AS SELECT id, "{column}" FROM "{table}"',
            "trigger": f'CREATE TRIGGER "{name}" AFTER DELETE ON "{table}" BEGIN SELECT old."{column}"; SELECT 1; END',
        }[kind]
        return f"-- by hand: {kind} {name} {table} {column}\n{statement};\n"

    def _interrupted(self, data: st.DataObject, interrupt: Interrupt) -> None:
        self._change(data, data.draw(st.sampled_from(TABLES)))
        self.go_on(data, data.draw(st.integers(0, 2)))
        result = self.migrate.look()
        steps: list[tuple[str, str | None]] = [("restore", backup.name) for backup in self.engine.backups()]
        steps += [(step, None) for step in ALLOWED.get(result.state, set()) - {"apply"} if result.state is State.DRIFT]
        steps += [("restore", None)] if self.reference is not None else []
        if result.state is State.PENDING:
            self._choose(data, self.engine.scripts / result.pending[0])
            text = plain(self.engine.scripts / result.pending[0])
            steps += [("apply", result.pending[0])] * (2 * len(steps) + 1)
        step, argument = data.draw(st.sampled_from([*steps, ("check", None)]))
        point = data.draw(st.sampled_from(REACHED[step]))
        if step == "check":
            for path in self._files()[:1]:
                path.unlink()
        before = deepcopy(self.held)
        target = self._backup(argument) if step == "restore" else None
        is_interrupted = interrupt(step, argument, point)
        self._note_backups(before, is_whole=False)
        if step == "apply":
            is_applied = len(self._records()) > len(before.ran)
            assert not is_interrupted or is_applied == (point not in BEFORE)
            if is_applied:
                self.held.run(text)
        elif target is not None and not (is_interrupted and (point in BEFORE or self._mismatch(before) is None)):
            self.held = deepcopy(target)

    def _killed(self, step: str, argument: str | None, point: str) -> bool:
        return self.killer.is_killed(self.path, self.models, step, argument, point)

    def _failed(self, step: str, argument: str | None, point: str) -> bool:
        def fail() -> None:
            raise InterruptedStepError

        try:
            with faults.armed(point, fail):
                do(self.migrate, step, argument)
        except InterruptedStepError:
            return True
        except (ScriptError, BackupMissingError):
            return False
        return False

    def _files(self) -> list[Path]:
        return sorted(self.engine.scripts.glob("*.sql"))

    def _everything(self) -> object:
        return dump(self.path), [(path.name, path.read_bytes()) for path in self._files()], self._ages()

    def _records(self) -> list[tuple[int, str]]:
        with closing(sqlite3.connect(self.path)) as connection:
            if not columns_of(connection, "_migrations"):
                return []
            return connection.execute("SELECT number, script FROM _migrations ORDER BY number").fetchall()

    def _mismatch(self, held: Held) -> str | None:
        """In what the database is not what it must be."""
        if self._records() != [*enumerate(held.ran, 1)]:
            return "the record of what ran"
        with closing(sqlite3.connect(self.path)) as connection:
            return next(mismatches(connection, held), None)


def _first_match(result: CheckResult) -> State:
    lists = {State.ERROR: result.errors, State.DIVERGED: result.divergent, State.PENDING: result.pending}
    rest = State.CURRENT if result.model_diff.is_empty else State.DRIFT
    return next((state for state, each in lists.items() if each), rest)


FEW = settings(
    deadline=None,
    max_examples=45,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
)


def _run(few_or_many: settings) -> None:
    with Killer() as killer:
        machine = type("Machine", (SchemaMachine,), {"killer": killer})
        run_state_machine_as_test(machine, settings=few_or_many)


def test_inserted_rows_survive_any_sequence_of_migrations_unless_a_script_dropped_them() -> None:
    _run(FEW)


@pytest.mark.soak
def test_inserted_rows_survive_long_sequences_of_migrations_unless_a_script_dropped_them() -> None:
    _run(settings(FEW, max_examples=1_500, stateful_step_count=60, derandomize=False, print_blob=True))
