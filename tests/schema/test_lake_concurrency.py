"""Migrations of lake tables beside other appliers, unknown commits, deliveries and audits."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from catchment.errors import CommitUnknownError, ScriptError
from catchment.foundation import faults
from catchment.lake import Lake
from catchment.lake.instance import Origin
from catchment.lake.locks import CommitLock
from catchment.pipeline import ParquetFiles
from tests.conftest import MakeSettings
from tests.queue.queues import QueueScene
from tests.sample_events import EVENTS, deliverer, event_files, rows_of
from tests.schema.projects import LakeScene, model


class _Nobody(CommitLock):
    """A lock that excludes no other process."""

    @contextmanager
    def held(self, timeout_s: float, purpose: str = "") -> Iterator[None]:
        del timeout_s, purpose
        yield


@pytest.mark.parametrize("number", [1, 2])
def test_of_two_appliers_that_no_lock_keeps_apart_one_commits(
    tmp_path: Path, make_settings: MakeSettings, number: int
) -> None:
    address = Lake.from_settings(make_settings("duckdb")).address
    with Lake(address, commit_lock=_Nobody()) as lake:
        one, other = (LakeScene(lake=lake, folder=tmp_path / name) for name in ("one", "other"))
        one.run("CREATE TABLE t (id BIGINT)")
        for here in (one, other):
            here.write("001.first.sql", f"INSERT INTO t VALUES ({number});\n")
            here.write("002.second.sql", "INSERT INTO t VALUES (2);\n")
        if number == 2:
            one.migrate.apply("001.first.sql")
            one.run("DELETE FROM t")
        script = one.check().pending[0]
        turns = iter([lambda: other.migrate.apply(script)])
        racing = faults.armed("schema.before_commit", lambda: next(turns, lambda: None)())
        with racing, pytest.raises(ScriptError, match="just been applied by another process"):
            one.migrate.apply(script)
        # Appending rows never conflicts in DuckLake: without the fence both would be there.
        assert one.rows("FROM t") == [(number,)]
        assert [record.number for record in one.engine.observe().history] == [1, 2][:number]


@pytest.mark.parametrize("landed", [True, False])
def test_after_a_commit_of_unknown_fate_the_records_tell_whether_to_try_again(
    sqlite_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    here = LakeScene(lake=sqlite_lake, folder=tmp_path / "schema")
    here.run("CREATE TABLE t (id BIGINT)")
    commit = sqlite_lake._commit
    turns = iter([True])

    def torn(connection: duckdb.DuckDBPyConnection, origin: Origin, **how: bool) -> None:
        if not next(turns, False):
            commit(connection, origin, **how)
            return
        connection.execute("COMMIT" if landed else "ROLLBACK")
        raise CommitUnknownError("The connection broke.")

    here.write("001.more.sql", "INSERT INTO t VALUES (3);\n")
    monkeypatch.setattr(sqlite_lake, "_commit", torn)
    here.migrate.apply("001.more.sql")
    assert here.rows("FROM t") == [(3,)]
    assert [record.number for record in here.engine.observe().history] == [1]


def test_deliveries_and_migrations_go_together_and_a_restore_brings_nothing_twice(
    tmp_path: Path, make_settings: MakeSettings
) -> None:
    settings = make_settings("sqlite")
    with Lake.from_settings(settings) as lake:
        here = LakeScene(lake=lake, folder=tmp_path / "schema")
        here.become(model("events", {"kind": str | None}))
        sources = event_files(tmp_path / "in", 3)

        def deliver(count: int) -> None:
            deliverer(lake, settings).run(ParquetFiles(sources[:count], EVENTS))

        deliver(2)
        backup = here.migrate.backup()
        # The files that were registered are of the old columns.
        here.become(model("events", {"kind": str | None, "note": str | None, "n": int | None}, n=3))
        assert here.rows("SELECT count(*) FROM events WHERE note IS NULL AND n = 3") == [(20,)]
        deliver(3)
        assert here.rows("SELECT count(*) FROM events WHERE note IS NULL") == [(30,)]
        here.migrate.restore(backup.name)
        assert rows_of(lake) == [(n,) for n in range(20)]
        deliver(3)
        assert rows_of(lake) == [(n,) for n in range(20)], "what was delivered counts as delivered"
        report = lake.audit()
        assert report.ok, report.findings
        assert all("rows were deleted or rewritten since" in note for note in report.notes)
        # The new table has no deliveries: the audit says so.
        backup = here.migrate.backup()
        here.run("ALTER TABLE events DROP COLUMN kind")
        here.migrate.restore(backup.name)
        assert lake.audit().ok
        assert any("was dropped" in note for note in lake.audit().notes)


def test_rows_that_were_queued_before_a_script_arrive_after_it_and_a_restore_does_not_send_them_again(
    queue: QueueScene, tmp_path: Path
) -> None:
    here = LakeScene(lake=queue.lake, folder=tmp_path / "schema")
    queue.write(range(3))
    queue.coordinator.force_flush_all()
    backup = here.migrate.backup()
    queue.write(range(3, 5))
    here.write("001.add_note.sql", "ALTER TABLE events ADD COLUMN note VARCHAR;\n")
    here.migrate.apply("001.add_note.sql")
    queue.coordinator.force_flush_all()
    assert rows_of(queue.lake) == [(n,) for n in range(5)]
    assert here.rows("SELECT count(*) FROM events WHERE note IS NULL") == [(5,)]
    here.migrate.restore(backup.name)
    queue.coordinator.force_flush_all()
    assert rows_of(queue.lake) == [(n,) for n in range(3)]
    assert queue.lake.audit().ok


@pytest.fixture
def unlocked(make_settings: MakeSettings) -> Iterator[Lake]:
    """A lake whose writers nothing keeps apart."""
    with Lake(Lake.from_settings(make_settings("duckdb")).address, commit_lock=_Nobody()) as lake:
        yield lake


@pytest.mark.parametrize("is_restored", [False, True])
def test_of_two_appliers_of_a_schemas_first_script_one_commits(
    unlocked: Lake, tmp_path: Path, is_restored: bool
) -> None:
    LakeScene(lake=unlocked, folder=tmp_path / "main").become(model("t0", {"a": int | None}))
    one, other = (LakeScene(lake=unlocked, folder=tmp_path / name, schema="shop") for name in ("one", "other"))
    with unlocked.write() as connection:
        connection.execute("CREATE SCHEMA lake.shop")
    one.run("CREATE TABLE t (id BIGINT)")
    for here in (one, other):
        here.write("001.first.sql", "INSERT INTO t VALUES (1);\n")
    if is_restored:
        one.migrate.apply("001.first.sql")
        one.migrate.restore("pre_001")
    turns = iter([lambda: other.migrate.apply("001.first.sql")])
    racing = faults.armed("schema.before_commit", lambda: next(turns, lambda: None)())
    with racing, pytest.raises(ScriptError, match="just been applied by another process"):
        one.migrate.apply("001.first.sql")
    assert one.rows("FROM t") == [(1,)]
    assert [record.number for record in one.engine.observe().history] == [1]


def test_a_script_that_is_applied_during_a_restore_goes_with_its_record(unlocked: Lake, tmp_path: Path) -> None:
    LakeScene(lake=unlocked, folder=tmp_path / "main").become(model("t0", {"a": int | None}))
    with unlocked.write() as connection:
        connection.execute("CREATE SCHEMA lake.shop")
    one, other = (LakeScene(lake=unlocked, folder=tmp_path / name, schema="shop") for name in ("one", "other"))
    one.run("CREATE TABLE t (id BIGINT)")
    before, backup = one.content(), one.migrate.backup()
    other.write("001.first.sql", "INSERT INTO t VALUES (1);\n")
    turns = iter([lambda: other.migrate.apply("001.first.sql")])
    with faults.armed("schema.between_restore", lambda: next(turns, lambda: None)()):
        one.migrate.restore(backup.name)
    assert one.content() == before
