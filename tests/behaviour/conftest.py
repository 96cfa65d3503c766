"""Fixtures of the queue's suite: every test of it runs on every layout of the buffer, and on the model."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.buffer_scenes import LAYOUTS, MakeQueue, QueueScene
from tests.conftest import MakeSettings
from tests.scenes import create_table


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
            scene = stack.enter_context(closing(QueueScene(layout, settings)))
            create_table(scene.lake)
            return scene

        yield make


@pytest.fixture
def queue(make_queue: MakeQueue) -> QueueScene:
    """A queue with the settings that a newcomer gets."""
    return make_queue()
