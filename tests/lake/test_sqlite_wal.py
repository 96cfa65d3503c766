"""The WAL of a SQLite catalog stays while a server has the lake open, and blocks nothing."""

import sqlite3
import sys
from pathlib import Path

import pytest

from catchment.foundation.files import SharedFile
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.sqlite_wal import OpenWal
from tests.shortcuts import warm

_OTHER = """
import sys
from pathlib import Path
from catchment.lake import Lake
from catchment.foundation.settings import Settings
with Lake.from_settings(Settings(home=Path(sys.argv[1]))) as lake, lake.write() as connection:
    connection.execute("INSERT INTO main.t VALUES (2)")
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(home=tmp_path)
    with Lake.from_settings(settings) as lake, lake.write() as connection:
        connection.execute("CREATE TABLE main.t (n INT)")
    return settings


def _beside(settings: Settings) -> set[str]:
    """What lies beside the catalog and is SQLite's own."""
    return {path.name[-4:] for path in settings.home.rglob("*.sqlite-*")}


def _numbers(lake: Lake) -> list[int]:
    with lake.snapshot() as connection:
        return [row[0] for row in connection.execute("FROM t ORDER BY ALL").fetchall()]


def _write(lake: Lake, number: int) -> None:
    with lake.write() as connection:
        connection.execute(f"INSERT INTO main.t VALUES ({number})")


def test_the_wal_stays_while_the_lake_is_open_and_goes_with_it(settings: Settings) -> None:
    with Lake.from_settings(settings, holds_wal=True) as lake:
        for number in range(3):
            _write(lake, number)
            assert _numbers(lake) == list(range(number + 1))
            assert _beside(settings) == {"-wal", "-shm"}
    assert _beside(settings) == set()
    with Lake.from_settings(settings) as lake:
        assert _numbers(lake) == [0, 1, 2]
        # A lake that few use does without.
        assert _beside(settings) == set()


def test_other_processes_read_and_write_beside_it(settings: Settings) -> None:
    with Lake.from_settings(settings, holds_wal=True) as lake:
        _write(lake, 1)
        assert warm.run([sys.executable, "-c", _OTHER, str(settings.home)], timeout=60).returncode == 0
        assert _beside(settings) == {"-wal", "-shm"}
        _write(lake, 3)
        assert _numbers(lake) == [1, 2, 3]


def test_lakes_of_one_catalog_open_and_close_independently(settings: Settings) -> None:
    with Lake.from_settings(settings, holds_wal=True) as lake:
        with Lake.from_settings(settings, holds_wal=True) as other:
            _write(other, 1)
        _write(lake, 2)
        assert _numbers(lake) == [1, 2]
        lake.open()
    assert _beside(settings) == set()


def test_a_database_without_a_wal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "plain.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (n INT)")
    wal = OpenWal(path)
    assert not wal.hold()
    with sqlite3.connect(path, timeout=0) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    wal.release()


def test_a_shared_byte_is_held_against_this_process_too(tmp_path: Path) -> None:
    path = tmp_path / "plain.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (n INT)")
    file = SharedFile(path)
    assert file.share(0x4000_0000)
    with pytest.raises(sqlite3.OperationalError, match="locked"), sqlite3.connect(path, timeout=0) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    file.close()
