"""Fixtures of the queue's suite, every test of which runs on every layout of the buffer, and of legacy imports."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.foundation.settings import Settings
from catchment.lake import Lake
from tests.buffer_scenes import LAYOUTS, MakeQueue, QueueScene
from tests.conftest import MakeSettings
from tests.legacy_scenes import MakeScene, make_scene
from tests.made_lakes import put_lake


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    """Each layout in turn."""
    return str(request.param)


@pytest.fixture
def make_queue(layout: str, make_settings: MakeSettings) -> Iterator[MakeQueue]:
    """A queue with settings of the test's own, and an empty table of events in its lake."""
    with ExitStack() as stack:
        # Most tests are not about the catalog: they take the one that opens fastest.
        def make(catalog: str = "duckdb", **values: object) -> QueueScene:
            kind = "sessions" if layout == "sessions" else "shared"
            settings = make_settings(catalog, queue_layout=kind, **values)
            put_lake(settings, events=True)
            return stack.enter_context(closing(QueueScene(layout, settings)))

        yield make


@pytest.fixture
def queue(make_queue: MakeQueue) -> QueueScene:
    """A queue with the settings that a newcomer gets."""
    return make_queue()


@pytest.fixture(scope="module")
def legacy_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, Settings]]:
    """One lake for a module's imports: opening one costs more than most of them."""
    home = tmp_path_factory.mktemp("lake")
    settings = Settings(home=home, lake_catalog=SecretStr(f"duckdb:{home / 'catalog.duckdb'}"))
    with Lake.from_settings(settings) as lake:
        yield lake, settings


@pytest.fixture
def make(tmp_path: Path, legacy_lake: tuple[Lake, Settings]) -> Iterator[MakeScene]:
    """A legacy home, not imported yet, and a lake without tables for it; its ledger knows imports of other tests."""
    lake, settings = legacy_lake
    yield lambda *odd, **more: make_scene(tmp_path, lake, settings, odd=odd, **more)
    with lake.cursor() as cursor:
        for table in lake.tables():
            cursor.execute(f"DROP TABLE {table}")
