"""Catalog and storage that fail during a delivery: it retries, and stays exactly once."""

from pathlib import Path

import pytest

from catchment.errors import CommitUnknownError, ConflictError, FencedError, LakeUnavailableError
from catchment.foundation import faults
from catchment.lake import lake as lake_module
from catchment.pipeline import Deliverer, ParquetFiles, Retirement
from catchment.testing import EmbeddedPostgres, InlineRunner
from tests.conftest import MakeSettings
from tests.sample_events import EVENTS, assert_exactly_once, deliverer, event_files, once, rows_of, source_of
from tests.shortcuts.made_lakes import new_lake


def test_a_commit_whose_connection_breaks_is_redone_once_the_ledger_was_asked(
    make_settings: MakeSettings, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    settings = make_settings("postgres")
    conninfo = settings.catalog_url.get_secret_value().removeprefix("postgres:")
    with new_lake(settings, events=True) as lake:
        files = event_files(tmp_path / "in", 3)
        with faults.armed("deliver.before_commit", once(lambda: postgres.terminate_connections(conninfo))):
            report = deliverer(lake, settings).run(source_of(files))
        assert report.delivered == 3
        assert_exactly_once(lake, 3)


def test_a_broken_connection_during_commit_is_not_called_a_conflict(
    make_settings: MakeSettings, postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "COMMIT_ATTEMPTS_MAX", 1)
    settings = make_settings("postgres")
    conninfo = settings.catalog_url.get_secret_value().removeprefix("postgres:")
    with new_lake(settings, events=True) as lake:
        files = event_files(tmp_path / "in", 1)
        cut = faults.armed("deliver.before_commit", lambda: postgres.terminate_connections(conninfo))
        with cut, pytest.raises(CommitUnknownError):
            deliverer(lake, settings).run(source_of(files))
        deliverer(lake, settings).run(source_of(files))
        assert_exactly_once(lake, 1)


def test_a_commit_that_landed_without_an_answer_is_found_in_the_ledger(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings("duckdb")

    def lose_the_answer() -> None:
        raise CommitUnknownError

    with new_lake(settings, events=True) as lake:
        with faults.armed("deliver.after_commit", once(lose_the_answer)):
            report = deliverer(lake, settings).run(source_of(event_files(tmp_path / "in", 4)))
        assert (report.delivered, report.skipped) == (4, 0)
        assert_exactly_once(lake, 4)


@pytest.mark.parametrize("catalog", ["duckdb", "sqlite", "postgres"])
def test_conflicts_are_redone_and_the_files_kept(catalog: str, make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(catalog)
    failures = [ConflictError("lost a race"), LakeUnavailableError("gone for a moment"), ConflictError("lost again")]

    def fail() -> None:
        if failures:
            raise failures.pop()

    with new_lake(settings, events=True) as lake:
        tasks: list[object] = []
        work = Deliverer(lake, InlineRunner(after_task=tasks.append), settings)
        with faults.armed("deliver.before_commit", fail):
            assert work.run(source_of(event_files(tmp_path / "in", 4))).delivered == 4
        assert len(tasks) == 1
        assert_exactly_once(lake, 4)


def test_a_delivery_gives_up_after_a_bounded_number_of_conflicts(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "COMMIT_ATTEMPTS_MAX", 3)
    settings = make_settings("duckdb")
    reached: list[int] = []

    def fail() -> None:
        reached.append(1)
        raise ConflictError("always")

    with new_lake(settings, events=True) as lake:
        files = event_files(tmp_path / "in", 1)
        with faults.armed("deliver.before_commit", fail), pytest.raises(ConflictError, match="always"):
            deliverer(lake, settings).run(source_of(files))
        assert len(reached) == 3
        assert deliverer(lake, settings).run(source_of(files)).delivered == 1


def test_a_delivery_whose_producer_is_taken_over_stops_and_leaves_nothing(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings("duckdb")
    with new_lake(settings, events=True) as lake:
        source = source_of(event_files(tmp_path / "in", 2))
        take_over = InlineRunner(after_task=lambda _: lake.claim(source.producer))
        with pytest.raises(FencedError):
            Deliverer(lake, take_over, settings).run(source)
        assert rows_of(lake) == []
        # A fresh start takes part under the new epoch.
        assert deliverer(lake, settings).run(source).delivered == 2


def test_a_source_that_cannot_be_removed_is_reported_and_is_retired_by_the_next_run(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings("duckdb")
    files = event_files(tmp_path / "in", 2)
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == files[1]:
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    with new_lake(settings, events=True) as lake:
        source = ParquetFiles(files, EVENTS, retirement=Retirement.REMOVE)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            report = deliverer(lake, settings).run(source)
        assert (report.delivered, report.ok) == (2, False)
        assert "Permission denied" in report.failures[0].reason
        assert [path.exists() for path in files] == [False, True]
        assert deliverer(lake, settings).run(ParquetFiles(files[1:], EVENTS, retirement=Retirement.REMOVE)).skipped == 1
        assert not files[1].exists()
        assert_exactly_once(lake, 2)
