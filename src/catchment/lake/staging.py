"""Staging folders of running jobs, and how maintenance detects which jobs still run.

    <data path>/_catchment_staging/<job>/alive.lock    held by the driver while the job runs
    <data path>/_catchment_staging/<job>/<attempt>/…   output of one attempt of one task
    <data path>/_catchment_staging/<job>/insert/…      output of finished tasks, to be inserted
    <table folder>/<job>/<batch>/…                     output of finished tasks, to be registered

A job writes only below folders named by its id, so a file that no snapshot lists can be traced to
its job. If the job runs, the file is left alone; if the job is dead and old enough, the file is an
orphan. The age comes from the id, not from the file: a hard link is as old as the file it was made
from.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath

from catchment.errors import StorageFailedError
from catchment.foundation import events, files, ids
from catchment.foundation.clock import Clock

FOLDER = "_catchment_staging"
_LOCK = "alive.lock"
_LOCK_S_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolder:
    """The staging folder of one running job."""

    job_id: str
    path: Path

    def table_folder(self, table_folder: str, batch: int) -> Path:
        """Return the folder of one batch of files to be registered."""
        return files.local_path(table_folder) / self.job_id / f"{batch:04d}"

    def insert_folder(self, table_uuid: str, batch: int) -> Path:
        """Return the folder of one batch of files to be inserted into the table."""
        return self.path / "insert" / f"{batch:04d}-{table_uuid}"


class Staging:
    """The staging area of one lake."""

    def __init__(self, data_path: str, *, clock: Clock) -> None:
        self._path = files.local_path(data_path) / FOLDER
        self._clock = clock

    @contextmanager
    def job(self) -> Iterator[JobFolder]:
        """Create a folder for a new job, alive inside the context; removed if the job succeeds."""
        job_id = ids.new_job_id(self._clock)
        folder = JobFolder(job_id=job_id, path=self._path / job_id)
        # A process that checks whether the job runs holds the lock for an instant.
        with files.FileLock(folder.path / _LOCK, clock=self._clock).held(timeout_s=_LOCK_S_MAX):
            yield folder
            try:
                files.remove_tree(folder.path)
            except StorageFailedError as error:
                # The work is done; the next maintenance removes files of a late second attempt.
                events.emit("staging_left", level=logging.WARNING, job=job_id, reason=error.message)

    def live_jobs(self) -> frozenset[str]:
        """Return the jobs that run now, in any process of this host."""
        if not self._path.exists():
            return frozenset()
        return frozenset(entry.name for entry in self._path.iterdir() if not self._is_dead(entry))

    def remove_dead(self, *, before: datetime) -> list[str]:
        """Remove the staging folders of dead jobs that started before then; return the jobs."""
        dead = self.dead_jobs(before=before)
        for job_id in dead:
            files.remove_tree(self._path / job_id)
        return dead

    def dead_jobs(self, *, before: datetime) -> list[str]:
        """Return jobs that started before then, have a staging folder, and do not run any more."""
        if not self._path.exists():
            return []
        return sorted(
            entry.name for entry in self._path.iterdir() if is_older(entry.name, before) and self._is_dead(entry)
        )

    def _is_dead(self, folder: Path) -> bool:
        lock = folder / _LOCK
        return not lock.exists() or files.FileLock(lock, clock=self._clock).is_free()


def job_of(path: str) -> str | None:
    """Return the job that wrote the file, by the folders in its path."""
    return next((part for part in PurePath(path).parts if ids.job_started_at(part) is not None), None)


def is_older(job_id: str, moment: datetime) -> bool:
    """Return whether the job started before then."""
    started_at = ids.job_started_at(job_id)
    return started_at is not None and started_at < moment
