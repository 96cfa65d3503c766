"""A lake that encrypts its data files: what is delivered must stay readable, and never lie there as plain text."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from catchment.errors import InputError, NotSupportedError
from catchment.lake import Lake, extensions
from catchment.lake.attach import PostgresCatalog, SqliteCatalog, parse_catalog
from catchment.pipeline.target import draft, drafted
from catchment.settings import Settings
from tests.buffer_scenes import QueueScene
from tests.scenes import EVENTS, create_table, deliverer, event_files, rows_of, source_of


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


def test_plain_files_are_never_registered_in_an_encrypted_lake(
    encrypted: Lake, settings: Settings, tmp_path: Path
) -> None:
    source = source_of(event_files(tmp_path / "in", 2))
    with pytest.raises(NotSupportedError, match="encrypted lake"):
        deliverer(encrypted, settings).plan(source)
    with pytest.raises(NotSupportedError, match="encrypted lake"):
        deliverer(encrypted, settings).plan_new(source, drafted(draft(source), encrypted=True))
    assert rows_of(encrypted) == []


def test_the_queue_acknowledges_no_row_for_an_encrypted_lake(settings: Settings) -> None:
    make_encrypted(settings)
    scene = QueueScene("shared", settings)
    try:
        create_table(scene.lake)
        with pytest.raises(InputError, match="encrypted lake"):
            scene.coordinator.enqueue(EVENTS, pa.table({"id": [1], "kind": ["a"]}))
    finally:
        scene.close()
