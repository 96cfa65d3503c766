"""Fixtures of the whole run: a Spark session, a PostgreSQL server, lakes and queues."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pydantic import SecretStr

# Before the first import of gRPC: sets how gRPC forks, and tests start Java from this process.
import catchment.server  # noqa: F401
from catchment.foundation.pandas_probe import skip_pandas_probe
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import SparkRunner
from catchment.queue import buffer_factory
from catchment.testing import EmbeddedPostgres
from tests.queue.queues import LAYOUTS, MakeQueue, QueueScene
from tests.shortcuts.made_lakes import CATALOGS, new_lake, put_lake

OTHER_FILE_SYSTEMS = (Path("/dev/shm"), Path("/var/tmp"))
MakeSettings = Callable[..., Settings]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests with the Spark session first, so that one process of the run has them all."""
    items.sort(key=lambda item: "spark_runner" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session", autouse=True)
def _spared_cores() -> Iterator[None]:
    """Tests keep the cores busy by themselves.

    Threads that share a small statement cost nearly twice its CPU. A worker of Spark costs a
    second's before its first task, which is most of what a command with little to do takes; the
    run's own session has two.
    """
    skip_pandas_probe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CATCHMENT_LAKE_THREADS_MAX", "1")
        patch.setenv("CATCHMENT_SPARK_MASTER", "local[1]")
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres()
    yield server
    server.close()


@pytest.fixture(scope="session")
def spark_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    """The one Spark session of the run, with two task slots whatever the machine has."""
    home = tmp_path_factory.mktemp("spark")
    with SparkRunner(Settings(home=home, spark_master="local[2]")) as runner:
        yield runner


@pytest.fixture
def other_file_system(tmp_path: Path) -> Iterator[Path]:
    """A folder that no hard link reaches from `tmp_path`, which is in memory or on a disk."""
    others = [each for each in OTHER_FILE_SYSTEMS if each.is_dir() and each.stat().st_dev != tmp_path.stat().st_dev]
    if not others:
        pytest.skip("this machine has one file system only")
    with tempfile.TemporaryDirectory(dir=others[0]) as folder:
        yield Path(folder)


@pytest.fixture
def make_settings(tmp_path: Path, request: pytest.FixtureRequest) -> MakeSettings:
    """Settings for a lake of the test's own, with a catalog of the kind asked for."""

    def make(catalog: str = "sqlite", **values: object) -> Settings:
        home = tmp_path / catalog
        url = f"{catalog}:{home / f'catalog.{catalog}'}"
        if catalog == "postgres":
            url = f"postgres:{request.getfixturevalue('postgres').new_database()}"
        return Settings(**{"home": home, "lake_catalog": SecretStr(url), **values})  # type: ignore[arg-type]

    return make


@pytest.fixture(params=CATALOGS)
def settings(request: pytest.FixtureRequest, make_settings: MakeSettings) -> Settings:
    """Settings for each kind of catalog; one of them with all threads of a user's lake."""
    return make_settings(request.param, lake_threads_max=0 if request.param == "duckdb" else 1)


@pytest.fixture
def lake(settings: Settings) -> Iterator[Lake]:
    """An empty lake, with each kind of catalog in turn."""
    with new_lake(settings) as lake:
        yield lake


@pytest.fixture
def sqlite_lake(make_settings: MakeSettings) -> Iterator[Lake]:
    """An empty lake with the default kind of catalog."""
    with new_lake(make_settings()) as lake:
        yield lake


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
            kind = layout if layout in buffer_factory.LAYOUTS else "shared"
            settings = make_settings(catalog, queue_layout=kind, **values)
            put_lake(settings, events=True)
            return stack.enter_context(closing(QueueScene(layout, settings)))

        yield make


@pytest.fixture
def queue(make_queue: MakeQueue) -> QueueScene:
    """A queue with the settings that a newcomer gets."""
    return make_queue()
