"""Engines are killed at random under writers and readers: every row once, and nothing left behind."""

import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from catchment.foundation.clock import SystemClock
from tests.conftest import MakeSettings
from tests.server.engine.storm import engines, survive
from tests.server.server_process import ServerProcess

_SECONDS, _SOAK_SECONDS = 6.0, 150.0
_SEED = 7
_FLUSHED_ALL_THE_TIME = {
    "DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS": "2",
    "DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS": "2",
}
_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)


@pytest.fixture(params=["sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest, make_settings: MakeSettings) -> str:
    return make_settings(request.param).catalog_url.get_secret_value()


def storm(home: Path, layout: str, catalog: str, seconds: float, **environment: str) -> None:
    chance, kills = random.Random(_SEED), 0

    def kill_engines(server: ServerProcess) -> None:
        nonlocal kills
        pause, clock = threading.Event(), SystemClock()
        end_s = clock.monotonic_s() + seconds
        while clock.monotonic_s() < end_s:
            pause.wait(chance.uniform(0.2, 1.5))
            for engine in engines(server):
                with suppress(ProcessLookupError):
                    os.kill(engine, chance.choice(_SIGNALS))
                    kills += 1

    environment |= {"DUCKLING_QUEUE_LAYOUT": layout, "CATCHMENT_LAKE_CATALOG": catalog}
    survive(home, kill_engines, seed=_SEED, **environment)
    assert kills > 1


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["shared", "sessions"])
def test_rows_are_there_once_however_often_engines_are_killed(layout: str, catalog: str, tmp_path: Path) -> None:
    storm(tmp_path / "home", layout, catalog, _SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["shared", "sessions"])
def test_rows_are_there_once_after_minutes_of_killed_engines(layout: str, catalog: str, tmp_path: Path) -> None:
    storm(tmp_path / "home", layout, catalog, _SOAK_SECONDS, **_FLUSHED_ALL_THE_TIME)
