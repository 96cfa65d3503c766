"""Fixtures of legacy imports."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.foundation.settings import Settings
from catchment.lake import Lake
from tests.pipeline.legacy.legacy_home import MakeScene, make_scene


@pytest.fixture(scope="module")
def legacy_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, Settings]]:
    """One lake for a module's imports: opening one costs more than most of them."""
    home = tmp_path_factory.mktemp("lake")
    settings = Settings(home=home, lake_catalog=SecretStr(f"duckdb:{home / 'catalog.duckdb'}"))
    with Lake.from_settings(settings) as lake:
        yield lake, settings


@pytest.fixture
def make(tmp_path: Path, legacy_lake: tuple[Lake, Settings]) -> Iterator[MakeScene]:
    """A legacy home, not imported yet, and a lake without tables."""
    lake, settings = legacy_lake
    yield lambda *odd, **more: make_scene(tmp_path, lake, settings, odd=odd, **more)
    with lake.cursor() as cursor:
        for table in lake.tables():
            cursor.execute(f"DROP TABLE {table}")
