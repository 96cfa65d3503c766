"""Scenes of schema migrations: a scenario's folder, copied to where a test may change everything."""

import importlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

from catchment.foundation.backoff import Backoff
from catchment.schema.check import CheckResult
from catchment.schema.migrate import Migrate
from catchment.schema.models import TableRow
from catchment.schema.sqlite_engine import SqliteEngine

SCENARIOS = Path(__file__).parent / "scenarios"
# For tests in which somebody stays in the way.
IMPATIENT = Backoff(attempts_max=2, first_ms=1)
Rows = list[tuple[object, ...]]


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
        """Change the database behind the back of migrations."""
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
