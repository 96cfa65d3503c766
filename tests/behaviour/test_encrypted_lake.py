"""A lake that encrypts its data files: what is delivered must stay readable, and never lie there as plain text."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import InputError, InvariantError
from catchment.lake import Commit, Lake, extensions
from catchment.lake.attach import PostgresCatalog, SqliteCatalog, parse_catalog
from catchment.lake.commit import RegisterFiles
from catchment.pipeline import Mode
from catchment.pipeline.target import draft, drafted
from catchment.settings import Settings
from tests.buffer_scenes import QueueScene
from tests.scenes import EVENTS, assert_exactly_once, create_table, deliverer, event_files, rows_of, source_of


def make_encrypted(settings: Settings) -> None:
    """A lake of DuckLake's own making, with nothing of ours in it."""
    catalog = parse_catalog(settings.catalog_url.get_secret_value())
    settings.home.mkdir(parents=True, exist_ok=True)
    with extensions.connect() as connection:
        extensions.load(connection, "ducklake")
        target = str(catalog).partition(":")[2]
        if isinstance(catalog, SqliteCatalog):
            extensions.load(connection, "sqlite")
            target = f"sqlite:{catalog.path}"
        elif isinstance(catalog, PostgresCatalog):
            extensions.load(connection, "postgres")
            target = f"postgres:{catalog.conninfo}"
        connection.execute(f"ATTACH 'ducklake:{target}' AS made (DATA_PATH '{settings.data_path}/', ENCRYPTED)")


@pytest.fixture
def encrypted(settings: Settings) -> Iterator[Lake]:
    make_encrypted(settings)
    with Lake.from_settings(settings) as lake:
        create_table(lake)
        yield lake


def test_a_lake_says_that_it_is_encrypted(encrypted: Lake) -> None:
    assert encrypted.is_encrypted()
    assert encrypted.table(EVENTS).encrypted


def test_a_plain_lake_says_that_it_is_not_encrypted(lake: Lake) -> None:
    create_table(lake)
    assert not lake.is_encrypted()
    assert not lake.table(EVENTS).encrypted


def assert_encrypted(lake: Lake) -> None:
    """No file that the lake knows can be read without its key, and none is left that can."""
    query = "SELECT count(*), count(encryption_key) FROM __ducklake_metadata_lake.ducklake_data_file"
    ((files, keys),) = rows_of(lake, query)
    assert files == keys != 0
    for path in Path(lake.address.data_path).rglob("*.parquet"):
        with duckdb.connect() as connection, pytest.raises(duckdb.Error, match="encrypted"):
            connection.execute(f"SELECT * FROM read_parquet('{path}')").fetchall()


@pytest.mark.parametrize("partition_by", [(), ("kind",)], ids=["plain", "split"])
def test_rows_are_inserted_into_an_encrypted_lake_exactly_once(
    partition_by: tuple[str, ...], settings: Settings, tmp_path: Path
) -> None:
    make_encrypted(settings)
    with Lake.from_settings(settings) as lake:
        create_table(lake, partition_by=partition_by)
        source = source_of(event_files(tmp_path / "in", 3))
        plan = deliverer(lake, settings).plan(source)
        assert (plan.mode, plan.insert_reason) == (Mode.INSERT, "the lake encrypts its files")
        for delivered in (3, 0):
            assert deliverer(lake, settings).run(source).delivered == delivered
        assert_exactly_once(lake, 3)
        assert_encrypted(lake)


def test_a_table_to_be_made_in_an_encrypted_lake_is_planned_to_be_inserted_into(
    encrypted: Lake, settings: Settings, tmp_path: Path
) -> None:
    source = source_of(event_files(tmp_path / "in", 2))
    plan = deliverer(encrypted, settings).plan_new(source, drafted(draft(source), encrypted=encrypted.is_encrypted()))
    assert plan.mode is Mode.INSERT


def test_files_cannot_be_adopted_into_an_encrypted_lake(encrypted: Lake, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the lake encrypts its files"):
        deliverer(encrypted, settings).plan(source_of(event_files(tmp_path / "in", 1)), Mode.ADOPT)


def test_a_plain_file_is_never_registered_in_an_encrypted_lake(encrypted: Lake, tmp_path: Path) -> None:
    (path,) = event_files(Path(encrypted.table(EVENTS).folder) / "by-hand", 1)
    change = RegisterFiles(table=EVENTS, folder=str(path.parent), names=frozenset({path.name}), partitioned=False)
    with pytest.raises(InvariantError, match="encrypted lake"):
        encrypted.commit(Commit(message="by hand", changes=(change,)))
    assert rows_of(encrypted) == []


def test_the_queue_flushes_into_an_encrypted_lake(settings: Settings) -> None:
    make_encrypted(settings)
    with closing(QueueScene("shared", settings)) as scene:
        create_table(scene.lake)
        scene.coordinator.enqueue(EVENTS, pa.table({"id": [1, 2], "kind": ["a", "b"]}))
        assert scene.coordinator.force_flush_all().ok
        assert rows_of(scene.lake) == [(1,), (2,)]
        assert_encrypted(scene.lake)
        assert scene.lake.audit().ok
