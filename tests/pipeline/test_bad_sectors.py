"""A disk that refuses a file: the file fails alone, and is delivered once the disk works."""

import errno
import os
from pathlib import Path

import pytest

from catchment.lake import Lake
from catchment.pipeline import Mode
from tests.conftest import MakeSettings
from tests.sample_events import assert_exactly_once, create_table, deliverer, event_files, rows_of, source_of


def test_a_file_that_cannot_be_synced_fails_alone(
    sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(sqlite_lake)
    paths = event_files(tmp_path / "in", 4)
    lost = {paths[1].stat().st_ino}
    sync = os.fdatasync

    def refusing(descriptor: int) -> None:
        # The system reports a lost write once: a second fsync succeeds.
        if (inode := os.fstat(descriptor).st_ino) in lost:
            lost.remove(inode)
            raise OSError(errno.EIO, "a fault of the test's")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refusing)
        report = deliverer(sqlite_lake, make_settings()).run(source_of(paths), mode=Mode.ADOPT)
    assert [failure.path for failure in report.failures] == [str(paths[1])]
    assert "a fault of the test's" in report.failures[0].reason
    assert rows_of(sqlite_lake) == [(n,) for n in (*range(10), *range(20, 40))]
    assert deliverer(sqlite_lake, make_settings()).run(source_of(paths), mode=Mode.ADOPT).delivered == 1
    assert_exactly_once(sqlite_lake, 4)
