"""Comparison of schema migrations for SQLite: this tool, Alembic and sqlite-utils.

    python -m benchmarks.schema_tools --markdown table.md

Nothing is timed. Each tool makes the same change, as its documentation shows, on a separate
database with the same rows. Plain SQLite then checks the result: is the change there, are the rows
there, did the tool stop or continue. The peers are installed from PyPI into a temporary environment
and run there as programs.
"""

import argparse
import json
import re
import sqlite3
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import CatchmentError, ScriptError
from catchment.schema.check import State
from catchment.schema.migrate import Migrate
from catchment.schema.models import TableRow
from catchment.schema.sqlite_engine import SqliteEngine

PEERS = ("alembic", "sqlite-utils")
ROUNDS_MAX = 6
TRIALS = 5
Spec = dict[str, dict[str, str]]
Judge = Callable[[sqlite3.Connection], str]

USERS = "CREATE TABLE users (id INTEGER NOT NULL PRIMARY KEY, name TEXT, age TEXT)"
ROWS = "INSERT INTO users VALUES (1, 'Ada', '36'), (2, 'Grace', '85')"
CHILDREN = (
    "CREATE TABLE posts (id INTEGER NOT NULL PRIMARY KEY, author {relation}, "
    "FOREIGN KEY(author) REFERENCES users (id) ON DELETE CASCADE)"
)
AGE_IS_INTEGER: Spec = {"users": {"name": "str?", "age": "int?"}}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change: database before, models after, checks, and the call for sqlite-utils."""

    title: str
    start: tuple[str, ...]
    models: Spec
    call: str
    is_whole: Judge
    is_changed: str
    chosen: tuple[str, ...] = ()
    indexed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a change with one tool."""

    found: str
    ended: str
    data: str
    why: str = ""

    def __str__(self) -> str:
        return "; ".join(part for part in (self.found, self.ended, self.data) if part)


def same(query: str, *expected: object) -> Judge:
    """Return a judge that compares the first column of a query with the expected values."""

    def judge(connection: sqlite3.Connection) -> str:
        try:
            found = [row[0] for row in connection.execute(query)]
        except sqlite3.Error as error:
            return f"LOST ({error})"
        return "data whole" if found == [*expected] else f"LOST: {found} instead of {[*expected]}"

    return judge


def every(*judges: Judge) -> Judge:
    """Return a judge that runs others and returns the first complaint."""

    def judge(connection: sqlite3.Connection) -> str:
        said = [each(connection) for each in judges]
        return next((each for each in said if each != "data whole"), "data whole")

    return judge


def _refuses(statement: str) -> Judge:
    def judge(connection: sqlite3.Connection) -> str:
        try:
            connection.execute(statement)
        except sqlite3.IntegrityError:
            return "data whole"
        connection.rollback()
        return f"LOST: the database now accepts {statement.partition(' VALUES ')[2]}"

    return judge


def _type_is(column: str, declared: str) -> str:
    return f"SELECT type = '{declared}' FROM pragma_table_info('users') WHERE name = '{column}'"


def _has(column: str) -> str:
    return f"SELECT 1 FROM pragma_table_info('users') WHERE name = '{column}'"


CHANGES = (
    Change(
        title="rename a column with data",
        start=(USERS, ROWS),
        models={"users": {"full_name": "str?", "age": "str?"}},
        call="db['users'].transform(rename={'name': 'full_name'})",
        is_whole=same("SELECT full_name FROM users ORDER BY id", "Ada", "Grace"),
        is_changed=_has("full_name"),
        chosen=("name became full_name",),
    ),
    Change(
        title="two columns renamed at once, which is which unknown",
        start=(USERS, ROWS),
        models={"users": {"called": "str?", "years": "str?"}},
        call="db['users'].transform(rename={'name': 'called', 'age': 'years'})",
        is_whole=same("SELECT called || years FROM users ORDER BY id", "Ada36", "Grace85"),
        is_changed=_has("years"),
        chosen=("name became called", "age became years"),
    ),
    Change(
        title="another type, and the data fits",
        start=(USERS, ROWS),
        models=AGE_IS_INTEGER,
        call="db['users'].transform(types={'age': int})",
        is_whole=same("SELECT age FROM users ORDER BY id", 36, 85),
        is_changed=_type_is("age", "INTEGER"),
    ),
    Change(
        title="another type, and the data does not fit (007)",
        start=(USERS, ROWS, "UPDATE users SET age = '007' WHERE id = 1"),
        models=AGE_IS_INTEGER,
        call="db['users'].transform(types={'age': int})",
        is_whole=same("SELECT CAST(age AS TEXT) FROM users ORDER BY id", "007", "85"),
        is_changed=_type_is("age", "INTEGER"),
    ),
    Change(
        title="NOT NULL on a column with NULLs",
        start=(USERS, ROWS, "UPDATE users SET age = NULL WHERE id = 1"),
        models={"users": {"name": "str?", "age": "str"}},
        call="db['users'].transform(not_null={'age'})",
        is_whole=same("SELECT coalesce(age, 'NULL') FROM users ORDER BY id", "NULL", "85"),
        is_changed="SELECT \"notnull\" FROM pragma_table_info('users') WHERE name = 'age'",
    ),
    Change(
        title="a new NOT NULL column without a default",
        start=(USERS, ROWS),
        models={"users": {"name": "str?", "age": "str?", "email": "str"}},
        call="db['users'].add_column('email', str); db['users'].transform(not_null={'email'})",
        is_whole=same("SELECT name || age FROM users ORDER BY id", "Ada36", "Grace85"),
        is_changed=_has("email"),
    ),
    Change(
        title="drop a column that an index uses",
        start=(USERS, ROWS, "CREATE INDEX by_age ON users (age)", "CREATE INDEX by_name ON users (name)"),
        models={"users": {"name": "str?"}},
        call="db['users'].transform(drop={'age'})",
        is_whole=every(
            same("SELECT name FROM users ORDER BY id", "Ada", "Grace"),
            same("SELECT name FROM sqlite_schema WHERE name = 'by_name'", "by_name"),
        ),
        indexed=("name",),
        is_changed="SELECT NOT EXISTS (SELECT 1 FROM pragma_table_info('users') WHERE name = 'age')",
    ),
    Change(
        title="rebuild a table that children refer to (ON DELETE CASCADE, foreign keys on)",
        start=(USERS, ROWS, CHILDREN, "INSERT INTO posts VALUES (1, 1), (2, 2)"),
        models={**AGE_IS_INTEGER, "posts": {"author": "users?"}},
        call="db['users'].transform(types={'age': int})",
        is_whole=same("SELECT author FROM posts ORDER BY id", 1, 2),
        is_changed=_type_is("age", "INTEGER"),
    ),
    Change(
        title="UNIQUE, CHECK and COLLATE by hand, and a rebuild",
        start=(
            "CREATE TABLE users (id INTEGER NOT NULL PRIMARY KEY, name TEXT COLLATE NOCASE UNIQUE, "
            "age TEXT CHECK (age <> ''))",
            ROWS,
        ),
        models=AGE_IS_INTEGER,
        call="db['users'].transform(types={'age': int})",
        is_whole=every(
            same("SELECT age FROM users ORDER BY id", 36, 85),
            same("SELECT id FROM users WHERE name = 'ADA'", 1),
            _refuses("INSERT INTO users (name, age) VALUES ('Ada', 1)"),
            _refuses("INSERT INTO users (name, age) VALUES ('New', '')"),
        ),
        is_changed=_type_is("age", "INTEGER"),
    ),
    Change(
        title="a trigger and a view, and a rebuild",
        start=(
            USERS,
            ROWS,
            "CREATE TRIGGER on_rename AFTER UPDATE OF name ON users BEGIN SELECT new.age; END",
            "CREATE VIEW names AS SELECT name FROM users",
        ),
        models=AGE_IS_INTEGER,
        call="db['users'].transform(types={'age': int})",
        is_whole=every(
            same("SELECT age FROM users ORDER BY id", 36, 85),
            same("SELECT name FROM sqlite_schema WHERE type = 'trigger'", "on_rename"),
            same("SELECT name FROM names ORDER BY name", "Ada", "Grace"),
        ),
        is_changed=_type_is("age", "INTEGER"),
    ),
)

# Each program takes the folder of the database and an order in JSON; it prints JSON.
ALEMBIC = '''
import contextlib, io, json, pathlib, sys
from alembic import command
from alembic.config import Config

folder, order = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
config = Config(str(folder / "alembic.ini"), stdout=io.StringIO())
config.set_main_option("script_location", str(folder / "alembic"))
config.set_main_option("path_separator", "os")
config.attributes["order"] = order
config.attributes["url"] = f"sqlite:///{folder / 'my.sqlite'}"
ENVIRONMENT = """
import sqlalchemy as sa
from alembic import context

TYPES = {"str": sa.TEXT, "int": sa.INTEGER}
config = context.config
metadata = sa.MetaData()
for table, fields in config.attributes["order"].get("models", {}).items():
    columns = [sa.Column("id", sa.INTEGER, primary_key=True)]
    for name, kind in fields.items():
        plain = kind.rstrip("?")
        keys = [] if plain in TYPES else [sa.ForeignKey(plain + ".id", ondelete="CASCADE")]
        columns.append(sa.Column(name, TYPES.get(plain, sa.INTEGER), *keys, nullable=kind.endswith("?")))
    made = sa.Table(table, metadata, *columns)
    for name in config.attributes["order"]["indexed"] if table == "users" else ():
        sa.Index(f"by_{name}", made.c[name])
engine = sa.create_engine(config.attributes["url"])
sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
"""
answer = {"plan": "", "error": ""}
if order.get("waits"):
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
with contextlib.redirect_stdout(io.StringIO()):
    if not (folder / "alembic").exists():
        command.init(config, str(folder / "alembic"))
        (folder / "alembic" / "env.py").write_text(ENVIRONMENT)
    try:
        if order["step"] == "change":
            made = command.revision(config, message="change", autogenerate=True)
            answer["plan"] = pathlib.Path(made.path).read_text()
            command.upgrade(config, "head")
        elif order["step"] == "write":
            made = command.revision(config, message="by hand")
            text = pathlib.Path(made.path).read_text()
            start = text.index("def upgrade")
            body = "".join(f"    op.execute({each!r})\\n" for each in order["statements"])
            end = text.index("def downgrade")
            text = text[:start] + "def upgrade():\\n" + body + "\\n\\n" + text[end:]
            pathlib.Path(made.path).write_text(text)
        elif order["step"] == "upgrade":
            command.upgrade(config, "head")
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
'''
SQLITE_UTILS = """
import json, pathlib, sys
from sqlite_utils import Database, Migrations

folder, order = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
db = Database(str(folder / "my.sqlite"))
db.execute("PRAGMA foreign_keys = ON")
migrations = Migrations("project")
answer = {"plan": "", "error": ""}

@migrations(name="change", transactional=order.get("transactional", True))
def change(db):
    exec(order.get("call", ""), {"db": db})
    for statement in order.get("statements", []):
        db.execute(statement)

if order.get("waits"):
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
try:
    migrations.apply(db)
except Exception as error:
    answer["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
"""
# This tool as a program, so that two can run at once.
OURS = """
import pathlib, sys
from catchment.errors import StateError
from catchment.schema.sqlite_engine import SqliteEngine
from catchment.schema.migrate import Migrate

migrate = Migrate(SqliteEngine(pathlib.Path(sys.argv[1]) / "my.sqlite"), [])
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
try:
    migrate.apply("001.change.sql")
except StateError:
    sys.exit(3)
"""


class Bench:
    """A working folder, and an environment with the peers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0
        self._python = folder / "peers" / "bin" / "python"
        venv.create(folder / "peers", with_pip=True)
        subprocess.run([self._python, "-m", "pip", "install", "--quiet", *PEERS], check=True, capture_output=True)

    def versions(self) -> dict[str, str]:
        """Return the versions of the tools and libraries."""
        names = (*PEERS, "sqlalchemy")
        program = f"import importlib.metadata as m; print(*[m.version(name) for name in {names!r}])"
        ended = subprocess.run([self._python, "-c", program], capture_output=True, text=True, check=True)
        return {**dict(zip(names, ended.stdout.split(), strict=True)), "SQLite": sqlite3.sqlite_version}

    def folder(self, *start: str, relation: str = "INTEGER") -> Path:
        """Create a folder with a database in it."""
        self._runs += 1
        folder = self._folder / str(self._runs)
        folder.mkdir()
        with closing(sqlite3.connect(folder / "my.sqlite")) as connection, connection:
            for statement in start:
                connection.execute(statement.format(relation=relation))
        return folder

    def start_peer(self, program: str, folder: Path, order: dict[str, object]) -> subprocess.Popen[str]:
        """Start a peer's program."""
        command = [str(self._python), "-W", "ignore", "-c", program, str(folder), json.dumps(order)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def peer(self, program: str, folder: Path, order: dict[str, object]) -> dict[str, str]:
        """Run a peer's program and return its answer."""
        out, error = self.start_peer(program, folder, order).communicate()
        answer: dict[str, str] = json.loads(out) if out else {"plan": "", "error": error.strip().splitlines()[-1]}
        return answer


def ours(bench: Bench, change: Change) -> Outcome:
    """Generate, choose if the script has options, and apply, until nothing is left to do."""
    folder = bench.folder(*change.start, relation="Users_ID")
    migrate = Migrate(SqliteEngine(folder / "my.sqlite"), _classes(change.models))
    found, error = "does not find it", ""
    wanted = [*change.chosen]
    for _ in range(ROUNDS_MAX):
        result = migrate.check()
        try:
            if result.state is State.DRIFT:
                migrate.generate()
                found = found if found.startswith("asks") else "finds it"
            elif result.state is State.PENDING:
                migrate.apply(result.pending[0])
        except ScriptError as refused:
            path = folder / "my.sqlite.migrations" / result.pending[0]
            if "undecided" not in path.read_text(encoding="utf-8") or not wanted:
                error = refused.message
                break
            found = "asks before anything runs"
            _choose(path, wanted)
    return _judged(folder, change, found=found, error=error)


def alembic(bench: Bench, change: Change) -> Outcome:
    """Autogenerate in batch mode and upgrade, with foreign keys enforced, as in an application."""
    folder = bench.folder(*change.start)
    answer = bench.peer(ALEMBIC, folder, {"step": "change", "models": change.models, "indexed": change.indexed})
    body = answer["plan"].partition("def upgrade")[2].partition("def downgrade")[0]
    is_empty = bool(answer["plan"]) and "op." not in body
    found = "does not find it" if is_empty else "finds drop and add" if change.chosen else "finds it"
    return _judged(folder, change, found=found, error=answer["error"])


def sqlite_utils(bench: Bench, change: Change) -> Outcome:
    """Run the call that a developer would write, as one migration."""
    folder = bench.folder(*change.start)
    answer = bench.peer(SQLITE_UTILS, folder, {"step": "change", "call": change.call})
    found = "written by hand"
    if "transaction is open" in answer["error"]:
        found = "written by hand, refused in a transaction, done without one"
        answer = bench.peer(SQLITE_UTILS, folder, {"step": "change", "call": change.call, "transactional": False})
    return _judged(folder, change, found=found, error=answer["error"])


def failing(bench: Bench) -> dict[str, Outcome]:
    """Run a script whose second statement fails; check that the database is as before."""
    statements = ["ALTER TABLE users ADD COLUMN email TEXT", "INSERT INTO nowhere VALUES (1)"]
    found: dict[str, Outcome] = {}
    for tool, folder in _written(bench, statements).items():
        _upgrade(bench, tool, folder, statements)
        with closing(sqlite3.connect(folder / "my.sqlite")) as connection:
            is_half = connection.execute(_has("email")).fetchone()
        found[tool] = Outcome(found="", ended="stops", data="LEFT HALF DONE" if is_half else "database as before")
    return found


def edited(bench: Bench) -> dict[str, Outcome]:
    """Edit a script after it was applied; check whether the tool notices."""
    before, after = ["ALTER TABLE users ADD COLUMN email TEXT"], ["ALTER TABLE users ADD COLUMN phone TEXT"]
    found: dict[str, Outcome] = {}
    for tool, folder in _written(bench, before).items():
        _upgrade(bench, tool, folder, before)
        for path in folder.rglob("*.sql" if tool == "ours" else "versions/*.py"):
            path.write_text(path.read_text(encoding="utf-8").replace(before[0], after[0]), encoding="utf-8")
        is_noticed = False
        if tool == "ours":
            result = Migrate(SqliteEngine(folder / "my.sqlite"), []).check()
            is_noticed = result.state is State.DIVERGED and bool(result.differences)
        else:
            is_noticed = bool(_upgrade(bench, tool, folder, after))
        ended = "noticed, shown as a diff" if is_noticed else "NOT NOTICED"
        found[tool] = Outcome(found="", ended=ended, data="")
    return found


def together(bench: Bench) -> dict[str, Outcome]:
    """Start two appliers at once, several times; check that the script runs once."""
    statements = ["UPDATE users SET age = age + 1"]
    ends: dict[str, Counter[tuple[int, int]]] = {}
    for _ in range(TRIALS):
        for tool, folder in _written(bench, statements).items():
            two = [_started(bench, tool, folder, statements) for _ in range(2)]
            for each in two:
                assert each.stdout
                each.stdout.readline()
            for each in two:
                assert each.stdin
                each.stdin.write("go\n")
                each.stdin.flush()
            failed = sum(_has_failed(each) for each in two)
            with closing(sqlite3.connect(folder / "my.sqlite")) as connection:
                runs = connection.execute("SELECT CAST(age AS INTEGER) - 36 FROM users WHERE id = 1").fetchone()[0]
            ends.setdefault(tool, Counter())[runs, failed] += 1
    return {tool: Outcome(found="", ended="; ".join(_ended(counted)), data="") for tool, counted in ends.items()}


def _has_failed(process: subprocess.Popen[str]) -> bool:
    out, _ = process.communicate()
    return bool(process.returncode) or ('"error"' in out and bool(json.loads(out)["error"]))


def _ended(counted: "Counter[tuple[int, int]]") -> Iterator[str]:
    for (runs, failed), number in sorted(counted.items()):
        times = {1: "once"}.get(runs, f"{runs} TIMES")
        yield f"{number} of {TRIALS}: run {times}, {failed} of the two reported a failure"


def _classes(models: Spec) -> list[type[TableRow]]:
    kinds: dict[str, str] = {"str": "str", "int": "int"}
    return [
        type(
            table.capitalize(),
            (TableRow,),
            {
                "__tablename__": table,
                "__module__": __name__,
                "__annotations__": {
                    name: kinds.get(kind.rstrip("?"), kind.rstrip("?").capitalize())
                    + (" | None" if kind.endswith("?") else "")
                    for name, kind in fields.items()
                },
            },
        )
        for table, fields in models.items()
    ]


def _choose(path: Path, wanted: list[str]) -> None:
    """Uncomment the first option in the script whose title is wanted."""
    text = path.read_text(encoding="utf-8")
    title = next(each for each in wanted if each in text)
    wanted.remove(title)
    option = re.escape(title)
    text = re.sub(rf"(-- \[\d+\] {option}[^\n]*\n)-- ", r"\1", text)
    path.write_text(re.sub(r"-- undecided:.*\n", "", text), encoding="utf-8")


def _judged(folder: Path, change: Change, *, found: str, error: str) -> Outcome:
    with closing(sqlite3.connect(folder / "my.sqlite")) as connection:
        row = connection.execute(change.is_changed).fetchone()
        is_changed = bool(row and row[0])
        data = change.is_whole(connection)
        left = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%tmp%'")]
    if error and not is_changed:
        before = "LEFT HALF DONE: " + ", ".join(left) if left else "database as before"
        return Outcome(found=found, ended="stops", data=before, why=_short(error))
    ended = "" if is_changed else "NOT DONE"
    return Outcome(found=found, ended=ended, data=data)


def _short(error: str) -> str:
    """Return the first line of an error, without class names in front."""
    line = error.strip().splitlines()[0]
    return re.sub(r"^(?:[\w.]+: )?(?:\([\w.]+\) )?", "", line)[:70]


def _written(bench: Bench, statements: list[str]) -> dict[str, Path]:
    """Create, for each tool, a database and a script with these statements."""
    folders = {tool: bench.folder(USERS, ROWS) for tool in ("ours", *PEERS)}
    scripts = folders["ours"] / "my.sqlite.migrations"
    scripts.mkdir()
    (scripts / "001.change.sql").write_text(";\n".join([*statements, ""]), encoding="utf-8")
    bench.peer(ALEMBIC, folders["alembic"], {"step": "write", "statements": statements})
    return folders


def _upgrade(bench: Bench, tool: str, folder: Path, statements: list[str]) -> str:
    """Apply the pending script; return the error, or an empty text."""
    if tool == "ours":
        try:
            Migrate(SqliteEngine(folder / "my.sqlite"), []).apply("001.change.sql")
        except CatchmentError as error:
            return error.message
        return ""
    program = ALEMBIC if tool == "alembic" else SQLITE_UTILS
    return bench.peer(program, folder, {"step": "upgrade", "statements": statements})["error"]


def _started(bench: Bench, tool: str, folder: Path, statements: list[str]) -> subprocess.Popen[str]:
    if tool == "ours":
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", OURS, str(folder)]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    program = ALEMBIC if tool == "alembic" else SQLITE_UTILS
    return bench.start_peer(program, folder, {"step": "upgrade", "statements": statements, "waits": True})


def rows(bench: Bench) -> list[tuple[str, Outcome, Outcome, Outcome]]:
    """Run every change with every tool."""
    found = [
        (change.title, ours(bench, change), alembic(bench, change), sqlite_utils(bench, change)) for change in CHANGES
    ]
    for title, outcomes in (
        ("a script that fails in the middle", failing(bench)),
        ("an applied script is edited", edited(bench)),
        ("two appliers at once", together(bench)),
    ):
        found.append((title, outcomes["ours"], outcomes["alembic"], outcomes["sqlite-utils"]))
    return found


def markdown(found: list[tuple[str, Outcome, Outcome, Outcome]], versions: dict[str, str]) -> str:
    """Return the table, followed by the versions."""
    lines = ["| change | this tool | Alembic | sqlite-utils |", "|---|---|---|---|"]
    lines += [f"| {number}. {' | '.join(map(str, row))} |" for number, row in enumerate(found, 1)]
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join([*lines, "", f"Run with {said}."]) + "\n"


def main() -> None:
    """Run everything and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, help="a file to write the table to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catchment-schema-tools-") as folder:
        bench = Bench(Path(folder))
        found, versions = rows(bench), bench.versions()
    for number, (title, *outcomes) in enumerate(found, 1):
        print(f"{number}. {title}")
        for tool, outcome in zip(("ours", *PEERS), outcomes, strict=True):
            print(f"   {tool:13}{outcome}" + (f" ({outcome.why})" if outcome.why else ""))
    if options.markdown:
        options.markdown.write_text(markdown(found, versions), encoding="utf-8")


if __name__ == "__main__":
    main()
