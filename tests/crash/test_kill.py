"""SIGKILL at every crash point, then resume: every row exactly once, and the audit agrees."""

import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.maintenance import maintain
from catchment.lake.staging import Staging
from catchment.pipeline import Deliverer, Mode, ParquetFiles, Retirement, SparkRunner
from tests.conftest import MakeSettings
from tests.crash.test_ingest_kill import KILLED as INGEST
from tests.crash.test_legacy_kill import KILLED as LEGACY
from tests.crash.test_queue_kill import KILLED as QUEUE
from tests.crash.test_schema_kill import KILLED as SCHEMA
from tests.crash.test_tenant_kill import KILLED as TENANTS
from tests.repo.source_tree import ROOT
from tests.sample_events import EVENTS, NOW, assert_exactly_once, deliverer, event_files, rows_of, source_of
from tests.shortcuts import warm
from tests.shortcuts.made_lakes import new_lake

# Those of the queue, of migrations, legacy imports, tenants and long streams are killed in modules
# of their own.
DELIVERY = [point for point in faults.POINTS if point.startswith(("deliver.", "retire."))]
UPKEEP = [point for point in faults.POINTS if point.startswith("upkeep.")]
COMMITTED = (
    "deliver.after_commit",
    "deliver.before_clean",
    "retire.before_unit",
    "retire.between_inputs",
    "retire.after_unit",
)
UNITS = 6
# There mode and catalog make a difference; with another one, the other points have theirs in the
# long campaigns.
AROUND_THE_COMMIT = ("deliver.after_write", "deliver.after_place", "deliver.before_commit", "deliver.after_commit")
DELIVERED = [
    *((point, Mode.REWRITE, "sqlite") for point in DELIVERY),
    *(
        pytest.param(point, mode, catalog, marks=() if point in AROUND_THE_COMMIT else pytest.mark.soak)
        for mode, catalog in ((Mode.ADOPT, "sqlite"), (Mode.INSERT, "sqlite"), (Mode.REWRITE, "postgres"))
        for point in DELIVERY
    ),
]


def _killed(act: str, settings: Settings, point: str, mode: Mode, files: Sequence[Path]) -> None:
    """Run the child until it is killed at the point; anything else it does is a failure."""
    url = settings.catalog_url.get_secret_value()
    command = [sys.executable, "-m", "tests.crash.child", act, str(settings.home), url, point, mode, *map(str, files)]
    ended = warm.run(command, cwd=ROOT, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def _resume(
    lake: Lake, settings: Settings, files: Sequence[Path], mode: Mode, runner: SparkRunner | None = None
) -> None:
    """Start again as an operator would: with the files that are still there."""
    left = [path for path in files if path.exists()]
    if left:
        source = ParquetFiles(left, EVENTS, retirement=Retirement.REMOVE)
        work = deliverer(lake, settings) if runner is None else Deliverer(lake, runner, settings)
        assert work.run(source, mode=mode).ok


@pytest.mark.parametrize(("point", "mode", "catalog"), DELIVERED)
def test_a_delivery_killed_anywhere_is_exactly_once_after_resuming(
    point: str, mode: Mode, catalog: str, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(catalog)
    files = event_files(tmp_path / "in", UNITS)
    with new_lake(settings, events=True) as lake:
        _killed("deliver", settings, point, mode, files)
        # Truly mid-flight: the lake has all or nothing, and the sources are there while it has
        # nothing.
        assert len(rows_of(lake)) == (UNITS * 10 if point in COMMITTED else 0)
        assert point in COMMITTED or all(path.exists() for path in files)
        assert Staging(lake.address.data_path, clock=lake.clock).live_jobs() == frozenset()
        _resume(lake, settings, files, mode)
        assert_exactly_once(lake, UNITS)
        assert not any(path.exists() for path in files)
        # Twice: what the first run replaces is old enough for the second one only.
        for _ in range(2):
            maintain(lake, NOW)
        assert_exactly_once(lake, UNITS)
        on_disk = {str(path) for path in Path(lake.address.data_path).rglob("main/**/*.parquet")}
        assert on_disk == {
            str(row[0]) for row in rows_of(lake, "SELECT data_file FROM ducklake_list_files('lake', 'events')")
        }


@pytest.mark.parametrize("point", ["deliver.after_place", "deliver.after_commit"])
def test_a_delivery_on_spark_killed_with_its_driver_is_exactly_once_after_resuming(
    point: str, make_settings: MakeSettings, spark_runner: SparkRunner, tmp_path: Path
) -> None:
    settings = make_settings("sqlite")
    files = event_files(tmp_path / "in", UNITS)
    with new_lake(settings, events=True) as lake:
        _killed("spark", settings, point, Mode.REWRITE, files)
        _resume(lake, settings, files, Mode.REWRITE, spark_runner)
        assert_exactly_once(lake, UNITS)


@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
@pytest.mark.parametrize("point", UPKEEP)
def test_maintenance_killed_anywhere_loses_nothing(
    point: str, catalog: str, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(catalog)
    files = event_files(tmp_path / "in", UNITS)
    with new_lake(settings, events=True) as lake:
        for upto in range(1, UNITS + 1):
            deliverer(lake, settings).run(source_of(files[:upto]))
        _killed("maintain", settings, point, Mode.AUTO, [])
        assert_exactly_once(lake, UNITS)
        maintain(lake, NOW)
        assert deliverer(lake, settings).run(source_of(files)).skipped == UNITS
        assert_exactly_once(lake, UNITS)


@pytest.mark.soak
@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_a_lake_survives_a_long_row_of_kills(catalog: str, make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(catalog)
    files = event_files(tmp_path / "in", UNITS * 30)
    luck = random.Random(7)
    with new_lake(settings, events=True) as lake:
        for start in range(0, len(files), UNITS):
            some = files[start : start + UNITS]
            mode = luck.choice([Mode.REWRITE, Mode.ADOPT])
            _killed("deliver", settings, luck.choice(DELIVERY), mode, some)
            if luck.random() < 0.5:
                _killed("maintain", settings, luck.choice(UPKEEP), mode, [])
            _resume(lake, settings, some, mode)
            assert_exactly_once(lake, start // UNITS * UNITS + UNITS)


def test_every_crash_point_is_killed_by_a_test() -> None:
    assert {*DELIVERY, *UPKEEP, *QUEUE, *SCHEMA, *LEGACY, *TENANTS, *INGEST} == set(faults.POINTS)
