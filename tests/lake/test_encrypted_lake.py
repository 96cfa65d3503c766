"""A lake that encrypts its files: deliveries stay readable, and are never stored as plain text."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import InputError, InvariantError
from catchment.foundation.settings import Settings
from catchment.lake import Commit, Lake
from catchment.lake.commit import RegisterFiles
from catchment.pipeline import Mode
from catchment.pipeline.target_table import draft, table_of_draft
from tests.conftest import MakeSettings
from tests.queue.queues import QueueScene
from tests.sample_events import EVENTS, assert_exactly_once, create_table, deliverer, event_files, rows_of, source_of
from tests.server.raw_client import Client, ingest, server
from tests.shortcuts.made_lakes import make_encrypted


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
    plan = deliverer(encrypted, settings).plan_new(
        source, table_of_draft(draft(source), encrypted=encrypted.is_encrypted())
    )
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


def test_a_server_writes_to_an_encrypted_lake_by_statement_by_stream_and_by_queue(make_settings: MakeSettings) -> None:
    settings = make_settings("sqlite", server_port=0)
    make_encrypted(settings)
    with server(settings) as running, closing(Client(running.uri)) as client:
        client.update("CREATE TABLE events (id BIGINT, kind VARCHAR)")
        client.update("INSERT INTO events SELECT i, 'x' FROM range(100) r(i)")
        long = pa.table({"id": pa.array(range(100, 20_100), pa.int64()), "kind": ["y" * 300] * 20_000})
        assert client.put(ingest("events", create=False), long) == 20_000
        client.update("INSERT INTO duckling_queue.events VALUES (-1, 'queued')")
        client.update("CALL duckling_queue_flush()")
    with Lake.from_settings(settings) as lake:
        assert rows_of(lake, "SELECT count(*), min(id), max(id) FROM events") == [(20_101, -1, 20_099)]
        assert_encrypted(lake)
        assert lake.audit().ok


def test_keys_in_the_environment_are_not_in_the_settings_of_the_instance(
    encrypted: Lake, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    encrypted.close()
    with Lake.from_settings(settings) as lake:
        assert rows_of(lake, "SELECT current_setting('s3_access_key_id'), current_setting('s3_secret_access_key')") == [
            ("", "")
        ]
