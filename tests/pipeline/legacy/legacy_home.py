"""A legacy home with known rows, its lake, and imports whose tasks run in this process.

What a tree holds is read by pyarrow, and what its folders mean is known from the generator: nothing
here asks the product about the source.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from catchment.foundation import files, sql
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.lake import Delivery, Lake
from catchment.pipeline import Deliverer
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import LegacyImport
from catchment.pipeline.runner import Runner
from catchment.testing import InlineRunner
from tests.pipeline.legacy.generated_tree import (
    TABLE_KEY,
    LegacyHome,
    LegacyLeaf,
    LegacyTable,
    Odd,
    make_legacy_home,
    snapshot_tree,
)

LOG = "aws_cloudtrail_log"
# Two leaves of two files each: small enough for every test, large enough that a leaf is not a file.
SMALL = (LegacyTable(name=LOG, leaves=2, files_per_leaf=2, rows_per_file=10),)
ADOPT_ALL = 1
ADOPT_NOTHING = 1 << 40
_COLLECTED_LATER = 7


class CutError(Exception):
    """The process ends here, as far as the test is concerned."""


def cut_off() -> None:
    """What a crash point does that ends the process."""
    raise CutError


Snapshot = dict[str, tuple[int, str]]
Rows = list[tuple[str, str]]


@dataclass(slots=True, kw_only=True)
class Scene:
    """A home, the lake it goes into, and what the home held before anything was moved."""

    home: LegacyHome
    place: ImportFolders
    settings: Settings
    lake: Lake
    before: Snapshot
    rows: Mapping[str, Rows]

    def job(
        self,
        options: ImportOptions | None = None,
        *,
        adopt_bytes_min: int = 16 << 20,
        units_per_commit_max: int | None = None,
        runner: Runner | None = None,
        has_lake: bool = True,
    ) -> LegacyImport:
        """An import of the home, as a new process would make it."""
        return LegacyImport(
            self.place,
            options or ImportOptions(),
            find_lake=lambda: self.lake if has_lake else None,
            deliverer=lambda: Deliverer(
                self.lake, runner or InlineRunner(), self.settings, units_per_commit_max=units_per_commit_max
            ),
            parallelism=2,
            adopt_bytes_min=adopt_bytes_min,
            data_path=Path(self.lake.address.data_path),
            clock=SystemClock(),
        )

    def folder(self, leaf: LegacyLeaf | str, root: Path | None = None) -> Path:
        """Where a leaf is, in the backup if nothing else is said."""
        return (root or self.place.migrated) / (leaf if isinstance(leaf, str) else leaf.path)

    def execute(self, query: str) -> list[tuple[Any, ...]]:
        """Something that another program does to the lake."""
        with self.lake.cursor() as cursor:
            return cursor.execute(query).fetchall()

    def count(self, table: str = LOG) -> int:
        """The table's rows, or none without the table."""
        if table not in {each.name for each in self.lake.tables()}:
            return 0
        return int(self.execute(f"SELECT count(*) FROM {table}")[0][0])

    def modes(self) -> dict[str, str]:
        """How each leaf came in, by the ledger."""
        return {each.source: str(each.mode) for each in self.deliveries()}

    def deliveries(self) -> list[Delivery]:
        """What the ledger has of the tables that are there now."""
        found = (self.lake.find_table(each) for each in self.lake.tables())
        uuids = {table.uuid for table in found if table is not None}
        with self.lake.ledger() as ledger:
            return [each for each in ledger.deliveries() if each.table_uuid in uuids]


MakeScene = Callable[..., Scene]


def make_scene(
    folder: Path, lake: Lake, settings: Settings, *, odd: Iterable[Odd] = (), workspace: str = "default", **more: Any
) -> Scene:
    """A home below the folder, not imported yet."""
    tables = more.pop("tables", SMALL)
    home = make_legacy_home(folder / "tp", tables=tables, workspace=workspace, odd=frozenset(odd), **more)
    return Scene(
        home=home,
        place=ImportFolders.tailpipe(home.home),
        settings=settings,
        lake=lake,
        before=snapshot_tree(home.data),
        rows={table.name: source_rows(home, table.name) for table in home.tables},
    )


def collect_again(scene: Scene) -> None:
    """Put other rows into the same leaves, as the program that writes the tree does later."""
    home = make_legacy_home(scene.home.home.parent / "again", tables=SMALL, seed=_COLLECTED_LATER)
    files.remove_tree(scene.place.data)
    shutil.copytree(home.data, scene.place.data)


def source_rows(home: LegacyHome, table: str, leaves: Iterable[LegacyLeaf] | None = None) -> Rows:
    """Every row of the table's leaves, as pyarrow reads the files and as the folders say."""
    chosen = home.leaves if leaves is None else leaves
    return sorted(row for leaf in chosen if leaf.table == table for row in leaf_rows(home.data / leaf.path, leaf))


def leaf_rows(folder: Path, leaf: LegacyLeaf) -> Iterator[tuple[str, str]]:
    """The rows of one leaf, with the values of its folders."""
    partition, index, day = leaf.values
    keys = {TABLE_KEY: leaf.table, "tp_partition": partition, "tp_index": index}
    keys_of_day = {"tp_date": None if day is None else date.fromisoformat(day)}
    for name in leaf.files:
        with pq.ParquetFile(folder / name) as file:
            yield from (_row(row | keys | keys_of_day) for row in file.read().to_pylist())


def lake_rows(scene: Scene, table: str = LOG) -> Rows:
    """Every row that the lake has of the table."""
    if table not in {each.name for each in scene.lake.tables()}:
        return []
    with scene.lake.cursor() as cursor:
        found = cursor.execute(f"SELECT * FROM {sql.identifier(table)}")
        names = [each[0] for each in found.description or ()]
        return sorted(_row(dict(zip(names, row, strict=True))) for row in found.fetchall())


def _row(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row["tp_id"]), repr(_plain(row))


def _plain(value: Any) -> Any:
    """A value in one spelling: fields that are missing are NULL, and NaN is itself."""
    match value:
        case dict():
            return {name: _plain(each) for name, each in sorted(value.items()) if each is not None}
        case list():
            return [_plain(each) for each in value]
        case float() if math.isnan(value):
            return "NaN"
        case _:
            return value


def assert_imported(scene: Scene, options: ImportOptions | None = None) -> None:
    """The lake has the source's rows, the backup its bytes, and nothing is left."""
    for table, rows in scene.rows.items():
        assert lake_rows(scene, table) == rows
    assert_backed_up(scene)
    proof = scene.job(options).verify()
    assert proof.ok, proof.mismatches
    assert proof.rows == sum(map(len, scene.rows.values()))
    audit = scene.lake.audit()
    assert audit.ok, audit.findings


def assert_backed_up(scene: Scene) -> None:
    """The backup is the tree as it was, and `migrating/` is completely empty."""
    assert snapshot_tree(scene.place.migrated) == scene.before
    assert_nothing_left(scene)


def assert_nothing_left(scene: Scene) -> None:
    """Not even an empty folder is left in `migrating/`."""
    top = scene.place.migration / "migrating"
    assert not top.exists() or list(top.iterdir()) == []
    assert not scene.place.data.exists() or list(scene.place.data.iterdir()) == []


def columns_of(scene: Scene, table: str = LOG) -> dict[str, str]:
    """The table's columns in the lake with their types."""
    found = scene.execute(f"DESCRIBE {sql.identifier(table)}")
    return {str(row[0]): str(row[1]) for row in found}


def leaf_of(scene: Scene, odd: Odd) -> LegacyLeaf:
    """The one leaf with that oddity."""
    (found,) = (leaf for leaf in scene.home.leaves if leaf.odd is odd)
    return found


def clean_leaf(scene: Scene) -> LegacyLeaf:
    """A leaf without any oddity."""
    return next(leaf for leaf in scene.home.leaves if leaf.odd is None)


def without(scene: Scene, *odd: Odd) -> Rows:
    """The rows of the first table in leaves without these oddities."""
    gone = {row for leaf in scene.home.leaves if leaf.odd in odd for row in _ids(scene, leaf)}
    return [row for row in scene.rows[LOG] if row[0] not in gone]


def _ids(scene: Scene, leaf: LegacyLeaf) -> set[str]:
    roots = (scene.home.data, scene.place.migrating, scene.place.migrated)
    folder = next(root / leaf.path for root in roots if (root / leaf.path).is_dir())
    return {row[0] for row in leaf_rows(folder, leaf)}
