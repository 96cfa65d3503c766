"""Sessions of one server for each module."""

from collections.abc import Iterator

import pytest

from catchment.foundation.settings import Settings
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from tests.server.sessions.in_process import FOUNDER, sessions_of


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionRegistry]:
    home = tmp_path_factory.mktemp("sessions")
    with sessions_of(Settings(home=home, lake_threads_max=1, queue_auto_create_tables=True)) as registry:
        yield registry


@pytest.fixture
def session(registry: SessionRegistry) -> Iterator[Session]:
    session = registry.open(FOUNDER)
    yield session
    registry.close(session)
