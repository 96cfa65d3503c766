"""Scenes of migrations of lake tables: a lake, a folder of scripts, and models that a test changes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catchment.lake import Lake
from catchment.schema.check import CheckResult, State
from catchment.schema.lake_engine import LakeEngine
from catchment.schema.migrate import Migrate
from catchment.schema.models import TableRow

Rows = list[tuple[Any, ...]]


def model(table: str, annotations: dict[str, Any], **defaults: Any) -> type[TableRow]:
    """A model made of annotations and defaults."""
    return type(table.title(), (TableRow,), {"__tablename__": table, "__annotations__": annotations, **defaults})


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
        """Change the lake behind the back of migrations."""
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
