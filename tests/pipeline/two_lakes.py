"""Two lakes for backfills, and a table of the first that is copied into the second."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from pydantic import SecretStr

from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.digest import table_digest
from catchment.lake.snapshot_schema import differences, schema_at
from catchment.pipeline.backfill import Backfill, BackfillReport
from tests.sample_events import deliverer
from tests.shortcuts.made_lakes import new_lake

A = TableId("t7", "a")
ROWS = "SELECT i AS id, 'x' || i AS kind FROM range({}, {}) r(i)"


@dataclass(frozen=True)
class Scene:
    """Two lakes, and a table `t7.a` of the first that tests fill."""

    source: Lake
    target: Lake
    settings: Settings
    folder: Path

    def do(self, *statements: str) -> None:
        with self.source.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def fill(self, *bounds: int) -> None:
        """A file of rows between each two numbers."""
        for first, last in pairwise(bounds):
            self.do(f"INSERT INTO t7.a BY NAME {ROWS.format(first, last)}")

    def backfill(self, **limits: int) -> Backfill:
        target = deliverer(self.target, self.settings)
        target.bounds = replace(target.bounds, **limits)
        return Backfill(self.source, target)

    def run(self, snapshot: int | None = None, token: str = "m1") -> BackfillReport:
        backfill = self.backfill()
        return backfill.run(backfill.plan("t7", snapshot or self.source.newest_snapshot(), token))

    def modes(self) -> dict[str, int]:
        """How many units the ledger says were adopted, and how many rewritten."""
        with self.target.ledger() as ledger:
            modes = [each.mode for each in ledger.deliveries() if each.source.endswith(".parquet")]
        return {mode: modes.count(mode) for mode in sorted(set(modes))}

    def assert_same(self, snapshot: int | None = None) -> int:
        """Both lakes have the same rows in every table, and the audit agrees."""
        rows = 0
        at = snapshot or self.source.newest_snapshot()
        with self.source.snapshot() as one, self.target.snapshot() as other:
            for past in schema_at(self.source, "t7", at):
                name, columns = past.table.id, past.table.columns
                wanted = table_digest(one, self.source.name, name, columns, snapshot=at)
                assert table_digest(other, self.target.name, name, self.target.table(name).columns) == wanted
                assert differences(past.table, self.target.table(name)) == []
                rows += wanted[0]
        report = self.target.audit()
        assert report.ok, report.findings
        return rows


def make_scene(stack: ExitStack, folder: Path, catalog: str, **urls: str) -> Scene:
    """Two lakes with catalogs of the kind, or at the urls, and an empty table in the first."""
    made = []
    for name in ("source", "target"):
        url = urls.get(name, f"{catalog}:{folder / name / 'catalog'}")
        settings = Settings(home=folder / name, lake_catalog=SecretStr(url))
        made.append((stack.enter_context(new_lake(settings)), settings))
    scene = Scene(source=made[0][0], target=made[1][0], settings=made[1][1], folder=folder)
    scene.do("CREATE SCHEMA t7", "CREATE TABLE t7.a (id BIGINT NOT NULL, kind VARCHAR DEFAULT 'none')")
    return scene
