"""Fixtures of the acceptance tests: a shared server, because a start is expensive."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.acceptance.installed import Installed, Wheel, build, install
from tests.server.server_process import ServerProcess, serving

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on defaults. It never flushes: nothing in it comes of age during a test."""
    with serving(tmp_path_factory.mktemp("server"), DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS="86400") as running:
        yield running


@pytest.fixture
def table() -> str:
    """The name of a table that no other test has."""
    return f"t{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """The wheel of this checkout."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def installed(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, installed, and out of reach of the checkout."""
    return install(wheel, tmp_path_factory.mktemp("user"))
