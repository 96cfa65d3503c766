"""One browser for each process of the run, emptied for every test; a loud skip if there is none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.stage import Window, find_chromium

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests with a browser early, after those with Spark, so that one process runs them all.

    Without a browser one test stands for all of them, and its skip reason says so.
    """
    items.sort(key=lambda item: HERE not in item.path.parents)
    found = [item for item in items if HERE in item.path.parents]
    if not found or find_chromium() is not None:
        return
    first, *others = found
    reason = "NO BROWSER: the pages were NOT tested in one; `bin/ensure-chromium` installs Chromium and its driver"
    first.add_marker(pytest.mark.skip(reason=f"{reason} (tests left out: {len(found)})"))
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """The browser."""
    found = find_chromium()
    assert found is not None
    window = Window(*found, profile=tmp_path_factory.mktemp("chromium"))
    yield window
    window.close()


@pytest.fixture
def window(chromium: Window) -> Window:
    """The browser, as if it had just been opened."""
    chromium.clear()
    return chromium
