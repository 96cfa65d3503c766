"""The staging area: running jobs, and dead ones that are old enough to be removed."""

import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from catchment.lake import staging
from catchment.lake.staging import FOLDER, JobFolder, Staging
from catchment.testing import FakeClock
from tests.shortcuts import warm

# Starts a job in the data path named on its command line, says its id, and runs until its stdin is
# closed.
JOB = """
import sys
from catchment.foundation.clock import SystemClock
from catchment.lake.staging import Staging
with Staging(sys.argv[1], clock=SystemClock()).job() as job:
    print(job.job_id, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def area(tmp_path: Path, clock: FakeClock) -> Staging:
    return Staging(str(tmp_path), clock=clock)


def _die(area: Staging) -> JobFolder:
    """A job that failed, with something left in its folder."""
    with suppress(RuntimeError), area.job() as job:
        (job.path / "attempt").mkdir()
        (job.path / "attempt" / "a.parquet").touch()
        raise RuntimeError
    return job


def test_a_job_lives_in_a_folder_of_its_own_which_goes_when_it_ends_well(area: Staging, tmp_path: Path) -> None:
    with area.job() as job:
        (job.path / "a.parquet").touch()
        assert job.path == tmp_path / FOLDER / job.job_id
        assert area.live_jobs() == {job.job_id}
    assert not job.path.exists()
    assert area.live_jobs() == frozenset()


def test_jobs_that_run_together_are_all_alive(area: Staging) -> None:
    with area.job() as one, area.job() as other:
        assert area.live_jobs() == {one.job_id, other.job_id}


def test_without_any_job_none_is_listed_as_running_or_dead(area: Staging, clock: FakeClock) -> None:
    assert area.live_jobs() == frozenset()
    assert area.dead_jobs(before=clock.now()) == []
    assert area.remove_dead(before=clock.now()) == []


def test_a_job_that_failed_is_dead_and_leaves_its_folder(area: Staging, clock: FakeClock) -> None:
    job = _die(area)
    assert (job.path / "attempt" / "a.parquet").exists()
    assert area.live_jobs() == frozenset()
    assert area.dead_jobs(before=clock.now() + timedelta(seconds=1)) == [job.job_id]


def test_a_job_of_another_process_lives_until_that_is_killed(area: Staging, tmp_path: Path) -> None:
    process = warm.Process([sys.executable, "-c", JOB, str(tmp_path)], stdin=warm.PIPE, stdout=warm.PIPE)
    with process:
        assert process.stdout is not None
        job_id = process.stdout.readline().strip()
        assert area.live_jobs() == {job_id}
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert area.live_jobs() == frozenset()
    assert (tmp_path / FOLDER / job_id).exists()


def test_dead_jobs_go_by_the_age_in_their_id_and_live_ones_never(area: Staging, clock: FakeClock) -> None:
    with area.job() as live:
        clock.advance(3600)
        old = _die(area)
        clock.advance(3600)
        young = _die(area)
        before = clock.now()
        assert area.dead_jobs(before=before) == [old.job_id]
        assert area.remove_dead(before=before) == [old.job_id]
        assert not old.path.exists()
        assert young.path.exists()
        assert live.path.exists()
        assert area.remove_dead(before=before) == []


def test_the_age_of_the_files_does_not_count(area: Staging, clock: FakeClock) -> None:
    # A hard link is as old as the file it was made from, which may be years.
    job = _die(area)
    for path in (job.path, *job.path.rglob("*")):
        os.utime(path, (0, 0))
    assert area.remove_dead(before=clock.now()) == []


def test_files_that_no_job_created_are_kept_and_block_nothing(area: Staging, tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / FOLDER / "notes").mkdir(parents=True)
    (tmp_path / FOLDER / "file").touch()
    assert area.remove_dead(before=clock.now() + timedelta(days=10_000)) == []
    assert area.live_jobs() == frozenset()
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["file", "notes"]


def test_a_batch_is_placed_in_a_folder_that_names_its_job(tmp_path: Path) -> None:
    job = JobFolder(job_id="job-000000000001-0123456789ab", path=tmp_path)
    placed = job.table_folder("/data/main/events/", 12)
    assert placed == Path("/data/main/events/job-000000000001-0123456789ab/0012")
    assert staging.job_of(f"{placed}/day=1/000000.parquet") == job.job_id


def test_a_file_that_no_job_wrote_has_none() -> None:
    assert staging.job_of("/data/main/events/ducklake-0123.parquet") is None
    assert staging.job_of("/data/job-events/a.parquet") is None


def test_a_job_is_older_only_than_moments_after_its_start(area: Staging, clock: FakeClock) -> None:
    with area.job() as job:
        assert not staging.is_older(job.job_id, clock.now())
        assert staging.is_older(job.job_id, clock.now() + timedelta(milliseconds=1))
    assert not staging.is_older("notes", clock.now() + timedelta(days=10_000))
