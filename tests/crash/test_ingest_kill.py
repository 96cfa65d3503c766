"""SIGKILL of the server during a long stream: the lake has all rows or none, and no stray file."""

import signal
import sys
from pathlib import Path

import pytest

from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.maintenance import maintain
from tests.repo.source_tree import ROOT
from tests.sample_events import NOW
from tests.server.sessions.test_bulk import COUNT
from tests.shortcuts import warm

KILLED = [point for point in faults.POINTS if point.startswith("ingest.")]


@pytest.mark.parametrize("point", KILLED)
def test_a_stream_that_a_kill_cuts_off_is_there_whole_or_not_at_all(tmp_path: Path, point: str) -> None:
    settings = Settings(home=tmp_path)
    with Lake.from_settings(settings) as lake, lake.write() as connection:
        connection.execute("CREATE TABLE main.events (id BIGINT, text VARCHAR)")
    ended = warm.run([sys.executable, "-m", "tests.crash.ingest_child", str(tmp_path), point], cwd=ROOT, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with Lake.from_settings(settings) as lake:
        written = list(Path(lake.address.data_path).glob("main/events/**/*.parquet"))
        assert written, "nothing was on its way"
        with lake.snapshot() as connection:
            there = connection.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchall()
        landed = point == "ingest.after_commit"
        assert there == ([(COUNT, COUNT)] if landed else [(0, 0)])
        # What the lake does not know is cleaned away, what it knows is not.
        maintain(lake, NOW)
        assert [path.exists() for path in written] == [landed] * len(written)
        with lake.snapshot() as connection:
            assert connection.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchall() == there
