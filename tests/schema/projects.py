"""Projects to migrate: a SQLite file or a schema of a lake, with its scripts and models."""

import importlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from typing import Any

from catchment.foundation.backoff import Backoff
from catchment.lake import Lake
from catchment.schema.check import CheckResult, State
from catchment.schema.lake_engine import LakeEngine
from catchment.schema.migrate import Migrate
from catchment.schema.models import TableRow
from catchment.schema.sqlite_engine import SqliteEngine

SCENARIOS = Path(__file__).parent / "scenarios"
# For tests in which another process keeps its lock.
IMPATIENT = Backoff(attempts_max=2, first_ms=1)
Rows = list[tuple[Any, ...]]


@dataclass
class Scene:
    """A database with its scripts and models, in a folder of the test's own."""

    engine: SqliteEngine
    models: list[type[TableRow]]

    @property
    def migrate(self) -> Migrate:
        return Migrate(self.engine, self.models)

    @property
    def path(self) -> Path:
        return self.engine.path

    def check(self) -> CheckResult:
        return self.migrate.check()

    def script(self, filename: str) -> Path:
        """The file of a script, there or not."""
        return self.engine.scripts / filename

    def write(self, filename: str, text: str) -> str:
        """Write a script; returns its name."""
        self.engine.scripts.mkdir(exist_ok=True)
        self.script(filename).write_bytes(text.encode())
        return filename

    def rename(self, filename: str, to: str) -> Path:
        return self.script(filename).rename(self.script(to))

    def rows(self, query: str, path: Path | None = None) -> Rows:
        """What a query finds."""
        with closing(sqlite3.connect(path or self.path)) as connection:
            return connection.execute(query).fetchall()

    def run(self, *statements: str) -> None:
        """Change the database without a script."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def content(self) -> list[str]:
        """Everything that is in the database, as SQL text."""
        return dump(self.path)

    def files(self) -> set[str]:
        """Every file there is, but the lock."""
        root = self.path.parent
        found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        return found - {f"{self.path.name}.lock"}


def scene(name: str, folder: Path, *, busy: Backoff | None = None) -> Scene:
    """The scenario of that name, in a new folder below `folder`."""
    source = SCENARIOS / name
    database = folder / name / "mydb.sqlite"
    database.parent.mkdir()
    if (source / ".migrations").exists():
        copytree(source / ".migrations", database.with_name("mydb.sqlite.migrations"))
    for text, target in (("db.sql", database), ("ref.sql", database.with_name("mydb.sqlite.ref"))):
        if (source / text).exists():
            with closing(sqlite3.connect(target)) as connection:
                connection.executescript((source / text).read_text(encoding="utf-8"))
    models = importlib.import_module(f"tests.schema.scenarios.{name}.models").MODELS
    return Scene(engine=SqliteEngine(database, busy=busy) if busy else SqliteEngine(database), models=list(models))


def dump(path: Path) -> list[str]:
    """Everything that is in a database, as SQL text."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@dataclass
class LakeScene:
    """A schema of a lake with its scripts and models."""

    lake: Lake
    folder: Path
    schema: str = "main"
    models: list[type[TableRow]] = field(default_factory=list)

    @property
    def engine(self) -> LakeEngine:
        return LakeEngine(self.lake, schema=self.schema, folder=self.folder)

    @property
    def migrate(self) -> Migrate:
        return Migrate(self.engine, self.models)

    def check(self) -> CheckResult:
        return self.migrate.check()

    def script(self, filename: str) -> Path:
        return self.engine.scripts / filename

    def write(self, filename: str, text: str) -> str:
        self.engine.scripts.mkdir(parents=True, exist_ok=True)
        self.script(filename).write_text(text)
        return filename

    def generate(self) -> Path:
        path = self.migrate.generate()
        assert path is not None
        return path

    def become(self, *models: type[TableRow], edit: Callable[[str], str] = lambda text: text) -> str:
        """Change the models, generate, edit and apply; returns the script."""
        self.models = list(models)
        path = self.generate()
        path.write_text(edit(path.read_text()))
        self.migrate.apply(path.name)
        return path.read_text()

    def settled(self) -> bool:
        return self.check().state is State.CURRENT

    def rows(self, query: str) -> Rows:
        with self.lake.cursor() as cursor:
            cursor.execute(f'USE "{self.lake.name}"."{self.schema}"')
            return cursor.execute(query).fetchall()

    def run(self, *statements: str) -> None:
        """Change the lake without a script."""
        with self.lake.write() as connection:
            connection.execute(f'USE "{self.lake.name}"."{self.schema}"')
            for statement in statements:
                connection.execute(statement)

    def content(self) -> dict[str, Any]:
        """Every table with its columns and rows, and the records."""
        observed = self.engine.observe()
        tables = {
            table.name: (table.columns, sorted(self.rows(f'FROM "{table.name}"'), key=repr))
            for table in observed.structure.tables
        }
        return {"tables": tables, "history": observed.history}

    def uuids(self) -> dict[str, str]:
        query = (
            f"SELECT table_name, table_uuid::VARCHAR FROM __ducklake_metadata_{self.lake.name}.ducklake_table "
            "JOIN "
            f"__ducklake_metadata_{self.lake.name}.ducklake_schema s USING (schema_id) "
            f"WHERE ducklake_table.end_snapshot IS NULL AND s.schema_name = '{self.schema}'"
        )
        return dict(self.rows(query))


def model(table: str, annotations: dict[str, Any], **defaults: Any) -> type[TableRow]:
    """A model made of annotations and defaults."""
    return type(table.title(), (TableRow,), {"__tablename__": table, "__annotations__": annotations, **defaults})


def database_with(folder: Path, statements: str, *models: type[TableRow]) -> Scene:
    """Return a project without scripts, whose database was made by these statements."""
    path = folder / "mydb.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    return Scene(engine=SqliteEngine(path), models=list(models))


def apply_text(here: Scene, text: str) -> None:
    """Write the next script and apply it."""
    here.migrate.apply(here.write(f"{len(here.check().applied) + 1:03d}.next.sql", text))


def generated(here: Scene) -> str:
    """Generate a script, and return its text."""
    path = here.migrate.generate()
    assert path is not None
    return path.read_text()


def become_current(here: Scene) -> str:
    """Generate a script and apply it, after which the database is as its models; return the text."""
    text = generated(here)
    here.migrate.apply(here.check().pending[0])
    assert here.check().state is State.CURRENT
    return text
