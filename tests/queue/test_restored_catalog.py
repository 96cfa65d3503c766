"""A catalog restored from a backup beside a newer buffer: the how-to is right, and helps."""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from catchment.errors import FlushFailedError
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.audit import AuditReport
from tests.conftest import MakeSettings
from tests.queue.queues import assert_drained, event_rows, ids_in, new_queue, open_queue
from tests.repo.source_tree import ROOT
from tests.sample_events import EVENTS, deliverer, source_of

HOW_TO = ROOT / "docs" / "howto" / "back-up-and-restore.md"


def _script(name: str) -> str:
    """A script of the how-to, by the name in its first line; it looks at files of any age."""
    found = re.search(rf"^```python\n# {name}\n(.*?)^```$", HOW_TO.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    return re.sub(r"datetime\(\d{4}, .*?, tzinfo", "datetime(2000, 1, 1, tzinfo", found[1])


def _catalog(settings: Settings) -> Path:
    return Path(settings.catalog_url.get_secret_value().removeprefix("sqlite:"))


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(target)) as writing:
        reading.backup(writing)


@pytest.fixture
def settings(make_settings: MakeSettings, tmp_path: Path) -> Settings:
    """A lake that has rows 1 to 10, and a buffer that has given it 20 and holds 21 to 25."""
    settings = make_settings("sqlite")
    backup = tmp_path / "catalog.backup"
    with new_queue(settings) as queue:
        queue.enqueue(EVENTS, event_rows(range(1, 11)))
        queue.force_flush_all()
        _copy(_catalog(settings), backup)
        queue.enqueue(EVENTS, event_rows(range(11, 21)))
        queue.force_flush_all()
        queue.enqueue(EVENTS, event_rows(range(21, 26)))
    for path in settings.home.glob("catalog.sqlite*"):
        path.unlink()
    _copy(backup, _catalog(settings))
    return settings


def _audit(settings: Settings) -> AuditReport:
    with Lake.from_settings(settings) as lake:
        return lake.audit()


def test_a_flush_after_rows_that_a_restored_lake_lacks_is_refused_and_the_rows_stay(settings: Settings) -> None:
    with open_queue(settings) as queue:
        with pytest.raises(FlushFailedError, match=r"is at seq 10, but unit .* starts at 21"):
            queue.force_flush_all()
        with queue.fresh(EVENTS) as fresh:
            assert sorted(fresh.rows()["id"].to_pylist()) == [*range(1, 11), *range(21, 26)]
        assert ids_in(queue.lake) == list(range(1, 11))
        # Writers do not notice.
        assert queue.enqueue(EVENTS, event_rows(range(26, 27))).seq_first == 26


def test_the_scripts_of_the_how_to_find_the_rows_and_let_the_queue_go_on(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CATCHMENT_HOME", str(settings.home))
    exec(_script("list_unknown.py"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "main.events lacks 10 rows of the queue"
    listed = [Path(line.partition(" rows in ")[2]) for line in said[1:]]
    # The older of the two is that of the rows which the catalog knows: it was made before the
    # backup.
    assert len(listed) == 2
    rescued = tmp_path / "rescued.parquet"
    shutil.copy(listed[1], rescued)
    with Lake.from_settings(settings) as lake:
        assert deliverer(lake, settings).run(source_of([rescued])).rows == 10
    exec(_script("go_on.py"), {})
    with open_queue(settings) as queue:
        queue.force_flush_all()
        assert ids_in(queue.lake) == list(range(1, 26))
        assert_drained(queue)
    assert _audit(settings).ok
