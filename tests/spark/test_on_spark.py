"""The real runtime: Spark's workers, lost workers, speculative twins, executors, a missing Java."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from catchment.errors import JavaMissingError, SparkFailedError
from catchment.foundation import events
from catchment.foundation.events import Event
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import Deliverer, Mode, SparkRunner, java, spark_driver
from catchment.pipeline.java import archive_path
from catchment.pipeline.plan import TaskSpec
from catchment.pipeline.spark_master import parallelism
from catchment.pipeline.work import Input, OutputShape, Task, UnitPart
from tests.conftest import MakeSettings
from tests.repo.source_tree import ROOT
from tests.sample_events import (
    EVENT_COLUMNS,
    assert_exactly_once,
    create_table,
    event_files,
    rows_of,
    source_of,
    write_parquet,
)
from tests.shortcuts.made_lakes import new_lake

MARKER_S_MAX = 60
NOT_PREPARED = "Spark's classes are not prepared: `catchment doctor --prepare` does that, and `make test` too."


@pytest.fixture
def lake(make_settings: MakeSettings) -> Iterator[Lake]:
    with Lake.from_settings(make_settings("sqlite")) as lake:
        yield lake


@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.ADOPT, Mode.AUTO])
def test_spark_delivers_every_row_once(
    mode: Mode, lake: Lake, make_settings: MakeSettings, spark_runner: SparkRunner, tmp_path: Path
) -> None:
    create_table(lake)
    deliverer = Deliverer(lake, spark_runner, make_settings("sqlite"))
    source = source_of(event_files(tmp_path / "in", 12))
    assert (deliverer.run(source, mode=mode).delivered, deliverer.run(source, mode=mode).skipped) == (12, 12)
    assert_exactly_once(lake, 12)


def test_a_corrupt_file_on_spark_fails_its_own_unit(
    lake: Lake, make_settings: MakeSettings, spark_runner: SparkRunner, tmp_path: Path
) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 5)
    files[4].write_bytes(b"PAR1 no more PAR1")
    report = Deliverer(lake, spark_runner, make_settings("sqlite")).run(source_of(files))
    assert [failure.path for failure in report.failures] == [str(files[4])]
    assert_exactly_once(lake, 4)


def test_a_worker_keeps_its_connection_between_tasks(spark_runner: SparkRunner) -> None:
    def identity(_: int) -> tuple[int, int]:
        from catchment.pipeline import kernel

        return os.getpid(), id(kernel.connection_of(64))

    context = spark_runner.context
    seen = [context.parallelize([1, 2], 2).map(identity).collect() for _ in range(3)]
    by_worker: dict[int, set[int]] = {}
    for pid, connection in (each for some in seen for each in some):
        by_worker.setdefault(pid, set()).add(connection)
    assert all(len(connections) == 1 for connections in by_worker.values())
    assert sum(len(some) for some in seen) > len(by_worker)


def test_a_worker_starts_with_what_it_needs_imported_and_nothing_from_an_archive(spark_runner: SparkRunner) -> None:
    def found(_: int) -> tuple[str, list[str], bool]:
        import sys

        import pyspark

        from catchment import spark_daemon

        archives = [each for each in sys.path if each not in spark_daemon.installed_first(sys.path)]
        # Not of this process, which may have done a task before.
        mapped = psutil.Process(os.getppid()).memory_maps()
        return pyspark.__file__, archives, any("_duckdb" in each.path for each in mapped)

    [(place, archives, is_prepared)] = spark_runner.context.parallelize([1], 1).map(found).collect()
    assert Path(place).exists(), "it is in a zip"
    assert archives == []
    assert is_prepared


def _kill_the_workers_once_one_has_written(folder: Path, killed: list[int]) -> None:
    """Wait for the first staged file, then kill all of Spark's Python workers."""
    deadline = threading.Event()
    timer = threading.Timer(MARKER_S_MAX, deadline.set)
    timer.start()
    # Not without a pause: the task that is to be killed needs the core as well.
    while not killed and not deadline.wait(0.002):
        if any(folder.rglob("*.parquet")):
            for pid in _workers():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    timer.cancel()


def _workers() -> list[int]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.worker" in " ".join(process.cmdline()) and not process.children():
                found.append(process.pid)
        except psutil.Error:
            # It ended while it was looked at.
            continue
    return found


def test_a_task_whose_worker_is_killed_is_done_again_and_counted_once(
    make_settings: MakeSettings, spark_runner: SparkRunner, tmp_path: Path
) -> None:
    settings = make_settings("duckdb")
    with new_lake(settings, events=True) as lake:
        files = [write_parquet(tmp_path / "in" / f"{n}.parquet", _many(n)) for n in range(4)]
        killed: list[int] = []
        folder = Path(settings.data_path)
        killer = threading.Thread(target=_kill_the_workers_once_one_has_written, args=(folder, killed))
        killer.start()
        report = Deliverer(lake, spark_runner, settings).run(source_of(files), mode=Mode.REWRITE)
        killer.join()
        assert killed, "no worker was killed while it wrote: the test proved nothing"
        assert report.delivered == 4
        assert rows_of(lake, "SELECT count(*), count(DISTINCT id) FROM events") == [(4_000_000, 4_000_000)]
        assert lake.audit().ok


def _many(n: int) -> str:
    return f"SELECT {n} * 1_000_000 + i AS id, hash(i)::VARCHAR AS kind FROM range(1_000_000) r(i)"


def test_a_speculative_twin_of_a_task_leaves_only_unregistered_files(
    lake: Lake, make_settings: MakeSettings, spark_runner: SparkRunner, tmp_path: Path
) -> None:
    create_table(lake)

    class Twice:
        """Runs every task twice, as speculation does, and gives back the second result of each."""

        parallelism = 2

        def run(self, tasks: list[Task]) -> list[object]:
            results = spark_runner.run([*tasks, *tasks])
            return list({result.number: result for result in results}.values())

    report = Deliverer(lake, Twice(), make_settings("sqlite")).run(source_of(event_files(tmp_path / "in", 6)))  # type: ignore[arg-type]
    assert report.delivered == 6
    assert_exactly_once(lake, 6)


def test_a_job_that_spark_gives_up_on_is_an_error_with_its_cause_and_commits_nothing(
    spark_runner: SparkRunner, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    (path,) = event_files(tmp_path, 1)
    stint = TaskSpec(mode=Mode.REWRITE, parts=(UnitPart(unit_id="u", input=Input(uri=str(path), bytes=1)),))
    task = Task(
        number=1,
        mode=stint.mode,
        parts=stint.parts,
        shape=OutputShape(columns=EVENT_COLUMNS),
        folder=str(blocked / "below"),
        memory_mb=64,
        digest=False,
    )
    with pytest.raises(SparkFailedError, match="Not a directory"):
        spark_runner.run([task])


@pytest.mark.parametrize(
    ("master", "expected"), [("local[3]", 3), ("local", 1), ("local[5,2]", 5), ("local-cluster[2,3,1024]", 6)]
)
def test_parallelism_is_read_off_the_master(master: str, expected: int) -> None:
    assert parallelism(Settings(spark_master=master)) == expected


def test_without_java_the_error_says_what_to_install(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError) as caught:
        _ = SparkRunner(make_settings("sqlite")).spark
    assert "openjdk-17" in str(caught.value.hint)


def _played(scene: str, home: Path) -> None:
    """Each case runs in its own process, because a process can have one Spark."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.lost_jvm", str(home), scene],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.returncode == 0


@pytest.mark.parametrize(
    "scene",
    [
        "refused",
        "interrupted",
        "killed_while_it_starts",
        "hangs",
        "hangs_after_it_answered",
        "ends_at_once",
        "ends_as_if_all_were_well",
        "dies",
    ],
)
def test_a_failed_start_leaves_no_process_running(scene: str, tmp_path: Path) -> None:
    _played(scene, tmp_path)


@pytest.mark.parametrize("scene", ["lost", "killed_at_random"])
def test_a_session_that_is_lost_is_started_again_and_there_is_never_more_than_one_jvm(
    scene: str, tmp_path: Path
) -> None:
    _played(scene, tmp_path)


@pytest.mark.parametrize("scene", ["hanging_tasks", "hanging_job"])
def test_a_hanging_task_is_ended_in_time_and_spark_goes_on(scene: str, tmp_path: Path) -> None:
    _played(scene, tmp_path)


def test_a_flush_whose_jvm_was_killed_backs_off_names_the_cause_and_delivers_later(tmp_path: Path) -> None:
    _played("flush", tmp_path)


def test_a_second_session_in_a_process_is_refused_and_the_first_goes_on(
    spark_runner: SparkRunner, make_settings: MakeSettings
) -> None:
    spark_runner.context.parallelize([1], 1).sum()
    with pytest.raises(SparkFailedError, match="can have only one"):
        _ = SparkRunner(make_settings()).context
    assert spark_runner.context.parallelize([1, 2], 1).sum() == 3


def test_a_program_run_by_spark_submit_uses_the_given_jvm_and_leaves_it_running(tmp_path: Path) -> None:
    tool = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    ended = subprocess.run(
        [tool, "--driver-java-options", java.driver_options(), ROOT / "tests" / "spark" / "submitted.py", tmp_path],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["[10]", "[20]"]), ended.stderr


def test_java_maps_the_classes_that_were_prepared(spark_runner: SparkRunner) -> None:
    archive = archive_path()
    if not archive.exists():
        pytest.skip(NOT_PREPARED)
    gateway = spark_runner.context._gateway
    assert gateway is not None
    assert str(archive.resolve()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


# PySpark leaves the pipe open to a Java that ended at once.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_spark_starts_without_an_archive_that_is_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only Java is started: a process has room for one context."""
    whole = archive_path()
    if not whole.exists():
        pytest.skip(NOT_PREPARED)
    torn = tmp_path / "torn.jsa"
    torn.write_bytes(whole.read_bytes()[: 1 << 20])
    monkeypatch.setattr(java, "archive_path", lambda: torn)
    # Java leaves an account of its death where it ran.
    monkeypatch.chdir(tmp_path)
    heard: list[Event] = []
    settings = Settings(home=tmp_path / "home")
    with (tmp_path / "log").open("wb") as log, events.listening(heard.append):
        gateway = spark_driver._launch(spark_driver._conf(settings), log, str(tmp_path / "log"), MARKER_S_MAX)
        gateway.shutdown()
        gateway.proc.stdin.close()
        assert gateway.proc.wait(timeout=MARKER_S_MAX) == 0
        gc.collect()
    assert [event.verb for event in heard] == ["spark_archive_unfit"]
