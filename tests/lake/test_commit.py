"""Commits on every kind of catalog: all or nothing, with typed failures."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from catchment.errors import (
    ConflictError,
    FencedError,
    InputError,
    InvariantError,
    PreconditionError,
    TypeConflictError,
)
from catchment.foundation import faults
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Claim, Commit, Delivery, Lake
from catchment.lake.commit import (
    AddColumn,
    Advance,
    Change,
    CreateTable,
    InsertRows,
    RecordUnits,
    RegisterFiles,
    TableIs,
    Undelivered,
)
from catchment.lake.lake import LakeLimits
from catchment.lake.ledger import Ledger
from catchment.lake.locks import CommitLock
from catchment.lake.types import Column
from catchment.testing import FakeClock
from tests.conftest import MakeSettings
from tests.sample_events import EVENT_COLUMNS, EVENTS, PRODUCER, create_table, once, rows_of, write_parquet

# Enough files for a commit to get an instance of its own.
_MANY = 100


def _delivery(lake: Lake, claim: Claim, unit: str, rows: int = 10) -> Delivery:
    return Delivery(
        unit_id=unit,
        producer=claim.producer,
        epoch=claim.epoch,
        seq_first=claim.seq + 1,
        seq_last=claim.seq + 1,
        table=EVENTS,
        table_uuid=lake.table(EVENTS).uuid,
        mode="rewrite",
        rows=rows,
        bytes=100,
        digest=None,
        source="a test",
        job_id="job",
        delivered_at=lake.clock.now(),
    )


def _files(lake: Lake, folder: str, count: int = 1) -> RegisterFiles:
    path = Path(lake.table(EVENTS).folder) / folder
    first = write_parquet(path / "a.parquet", "SELECT i AS id, 'k' AS kind FROM range(10) r(i)")
    others = [path / f"{number}.parquet" for number in range(1, count)]
    for each in others:
        shutil.copyfile(first, each)
    names = frozenset(each.name for each in (first, *others))
    return RegisterFiles(table=EVENTS, folder=str(path), names=names, partitioned=False)


def _deliver(lake: Lake, claim: Claim, unit: str, folder: str, count: int = 1) -> Commit:
    changes: tuple[Change, ...] = (
        Advance(claim=claim, seq_to=claim.seq + 1),
        RecordUnits(deliveries=(_delivery(lake, claim, unit, rows=10 * count),)),
        _files(lake, folder, count),
    )
    requirement = Undelivered(unit_ids=(unit,), table_uuid=lake.table(EVENTS).uuid)
    return Commit(message="deliver", requires=(requirement,), changes=changes)


def test_files_rows_and_ledger_land_in_one_snapshot(lake: Lake) -> None:
    create_table(lake)
    claim = lake.claim(PRODUCER)
    before = rows_of(lake, "SELECT max(snapshot_id) FROM lake.snapshots()")[0][0]
    lake.commit(_deliver(lake, claim, "u1", "one"))
    after = rows_of(lake, "SELECT max(snapshot_id) FROM lake.snapshots()")[0][0]
    assert isinstance(before, int)
    assert after == before + 1
    assert len(rows_of(lake)) == 10
    uuid = lake.table(EVENTS).uuid
    with lake.ledger() as ledger:
        assert ledger.delivered(["u1", "u2"], uuid)["u1"].snapshot_id == after
        assert ledger.read(PRODUCER) == Claim(producer=PRODUCER, epoch=claim.epoch, seq=1)


def test_a_commit_that_fails_half_way_leaves_nothing(lake: Lake) -> None:
    create_table(lake)
    claim = lake.claim(PRODUCER)
    good = _deliver(lake, claim, "u1", "one")
    broken = InsertRows(table=EVENTS, query="SELECT 'not a number' AS id, 'k' AS kind")
    with pytest.raises(InputError):
        lake.commit(Commit(message="deliver", changes=(*good.changes, broken)))
    assert rows_of(lake) == []
    uuid = lake.table(EVENTS).uuid
    with lake.ledger() as ledger:
        assert ledger.delivered(["u1"], uuid) == {}
        assert ledger.read(PRODUCER) == claim
    lake.commit(good)
    assert len(rows_of(lake)) == 10


def test_an_older_epoch_is_fenced(lake: Lake) -> None:
    create_table(lake)
    old = lake.claim(PRODUCER)
    new = lake.claim(PRODUCER)
    with pytest.raises(FencedError, match=f"epoch {new.epoch}"):
        lake.commit(_deliver(lake, old, "u1", "one"))
    assert rows_of(lake) == []
    lake.commit(_deliver(lake, new, "u1", "two"))


def test_a_watermark_that_moved_is_a_conflict(lake: Lake) -> None:
    create_table(lake)
    claim = lake.claim(PRODUCER)
    lake.commit(_deliver(lake, claim, "u1", "one"))
    with pytest.raises(ConflictError, match="seq 1"):
        lake.commit(_deliver(lake, claim, "u2", "two"))


def test_a_unit_that_is_there_already_is_a_conflict(lake: Lake) -> None:
    create_table(lake)
    lake.commit(_deliver(lake, lake.claim(PRODUCER), "u1", "one"))
    with pytest.raises(ConflictError, match="delivered since the plan was made"):
        lake.commit(_deliver(lake, lake.join(PRODUCER), "u1", "two"))
    assert len(rows_of(lake)) == 10


@pytest.mark.parametrize(("catalog", "expected"), [("sqlite", 1), ("postgres", 1), ("duckdb", 3)])
def test_a_commit_of_many_files_has_one_thread_and_readers_keep_theirs(
    catalog: str, expected: int, make_settings: MakeSettings
) -> None:
    threads = "SELECT current_setting('threads')::BIGINT AS id, 'threads' AS kind"
    with Lake.from_settings(make_settings(catalog, lake_threads_max=3)) as lake:
        create_table(lake)
        told = InsertRows(table=EVENTS, query=threads)
        lake.commit(Commit(message="many", changes=(told, _files(lake, "many", _MANY))))
        assert rows_of(lake, f"SELECT id FROM {EVENTS} WHERE kind = 'threads'") == [(expected,)]
        assert rows_of(lake, threads) == [(3, "threads")]
        assert len(rows_of(lake)) == 10 * _MANY + 1


@pytest.mark.parametrize("count", [1, _MANY])
@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_the_fence_holds_without_the_commit_lock(catalog: str, count: int, make_settings: MakeSettings) -> None:
    with Lake.from_settings(make_settings(catalog)) as lake:
        create_table(lake)
        with _unlocked(lake) as one, _unlocked(lake) as two:
            claim = one.claim(PRODUCER)
            early, late = (_deliver(by, claim, "u1", name, count) for by, name in ((one, "early"), (two, "late")))
            # All of the second transaction is done when the first commits, and both saw the same
            # snapshot.
            with faults.armed("deliver.before_commit", once(lambda: one.commit(early))), pytest.raises(ConflictError):
                two.commit(late)
            assert len(rows_of(two)) == 10 * count
            # The connection whose COMMIT failed was thrown away: the lake goes on.
            two.commit(_deliver(two, two.join(PRODUCER), "u2", "next", count))
            assert len(rows_of(one)) == 20 * count
        assert lake.audit().ok


def test_two_processes_that_seed_the_same_producer_make_one_row(make_settings: MakeSettings) -> None:
    with Lake.from_settings(make_settings("sqlite")) as lake, _unlocked(lake) as one, _unlocked(lake) as two:

        def seed_while_another_does() -> None:
            with two.write() as connection:
                Ledger(connection, two.name).seed(PRODUCER, two.clock.now())
                one.claim(PRODUCER)

        with pytest.raises(ConflictError):
            seed_while_another_does()
        assert two.join(PRODUCER) == one.join(PRODUCER)
        assert [claim.producer for claim in _producers(one)] == [PRODUCER]


def _unlocked(lake: Lake) -> Lake:
    """The same lake as another process would have it, with a lock that excludes no other process."""
    return Lake(lake.address, commit_lock=CommitLock())


def _producers(lake: Lake) -> list[Claim]:
    with lake.ledger() as ledger:
        return ledger.producers()


def test_a_table_that_changed_since_the_plan_is_refused(lake: Lake) -> None:
    create_table(lake)
    before = lake.table(EVENTS)
    lake.commit(Commit(message="add", changes=(AddColumn(table=EVENTS, column=Column(name="x", type="DATE")),)))
    requirement = TableIs(table=before)
    commit = Commit(message="deliver", requires=(requirement,), changes=(_files(lake, "a"),))
    with pytest.raises(PreconditionError, match="has changed"):
        lake.commit(commit)
    assert rows_of(lake) == []


def test_a_stray_file_in_the_folder_stops_the_registration(lake: Lake) -> None:
    create_table(lake)
    files = _files(lake, "one")
    write_parquet(Path(files.folder) / "stray.parquet", "SELECT 1::BIGINT AS id, 'k' AS kind")
    with pytest.raises(InvariantError, match="1 unexpected files"):
        lake.commit(Commit(message="deliver", changes=(files,)))
    assert rows_of(lake) == []


def test_a_transaction_open_for_too_long_is_rolled_back(make_settings: MakeSettings) -> None:
    clock = FakeClock()
    with Lake.from_settings(make_settings("duckdb"), clock=clock) as lake:
        lake.limits = LakeLimits(transaction_s_max=5)

        def dawdle() -> None:
            with lake.write() as connection:
                connection.execute("CREATE TABLE late (a INTEGER)")
                clock.advance(6)

        with pytest.raises(ConflictError, match="open for 6 s"):
            dawdle()
        assert lake.tables() == ()


def test_user_tables_are_not_inlined_and_the_ledger_is(lake: Lake) -> None:
    create_table(lake)
    lake.commit(Commit(message="one row", changes=(InsertRows(table=EVENTS, query="SELECT 1 AS id, 'k' AS kind"),)))
    lake.claim(PRODUCER)
    inlined = rows_of(
        lake,
        "SELECT DISTINCT t.table_name FROM __ducklake_metadata_lake.ducklake_inlined_data_tables i "
        "JOIN __ducklake_metadata_lake.ducklake_table t USING (table_id) ORDER BY ALL",
    )
    files = rows_of(lake, "SELECT count(*) FROM __ducklake_metadata_lake.ducklake_data_file")
    assert files == [(1,)]
    assert ("producers",) in inlined


def test_a_column_that_cannot_be_delivered_is_refused_before_the_table_exists(lake: Lake) -> None:
    change = CreateTable(table=TableId("new", "t"), columns=(Column(name="h", type="BIT"),))
    with pytest.raises(TypeConflictError, match="no such type"):
        lake.commit(Commit(message="create", changes=(change,)))
    assert lake.tables() == ()


def test_texts_that_ducklake_takes_for_placeholders_stay_out_of_its_metadata(lake: Lake) -> None:
    change = CreateTable(table=EVENTS, columns=EVENT_COLUMNS)
    lake.commit(Commit(message="to {SNAPSHOT_ID}", changes=(change,), info={"source": "a{DATA_PATH}b"}))
    query = "SELECT commit_message, commit_extra_info FROM lake.snapshots() ORDER BY snapshot_id DESC LIMIT 1"
    assert rows_of(lake, query) == [("to (SNAPSHOT_ID)", '{"source": "a(DATA_PATH)b"}')]


def test_columns_come_back_as_they_were_declared(lake: Lake) -> None:
    columns = (
        Column(name="a", type="INTEGER", nullable=False),
        Column(name="b c", type="VARCHAR", default="'it''s'"),
        Column(name="d", type="STRUCT(x INTEGER, y VARCHAR[])[]"),
        Column(name="e", type="TIMESTAMP WITH TIME ZONE"),
    )
    table = TableId("we ird", "T/1")
    create_table(lake, table, columns, partition_by=("b c",))
    found = lake.table(table)
    unbound = tuple(column.unbound for column in found.columns)
    assert unbound == (columns[0], replace(columns[1], initial="it's"), *columns[2:])
    assert {column.table_uuid for column in found.columns} == {found.uuid}
    assert [(key.column, key.transform) for key in found.partition_by] == [("b c", "identity")]


def test_the_columns_of_a_table_are_cached_until_a_table_changes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lake.find_shape(EVENTS) is None
    create_table(lake)
    shape = lake.find_shape(EVENTS)
    assert shape == lake.table(EVENTS)
    with lake.write() as connection:
        connection.execute(f"INSERT INTO {EVENTS} (id) VALUES (1)")
    with monkeypatch.context() as patch:
        patch.delattr(Lake, "_find_table")
        assert lake.find_shape(EVENTS) is shape
    change = AddColumn(table=EVENTS, column=Column(name="more", type="INTEGER"))
    lake.commit(Commit(message="add", changes=(change,)))
    assert lake.find_shape(EVENTS) == lake.table(EVENTS)
    with lake.write() as connection:
        connection.execute(f"DROP TABLE {EVENTS}")
    assert lake.find_shape(EVENTS) is None


def test_a_lake_that_has_its_options_is_opened_without_a_write(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lake.from_settings(settings):
        pass
    told: list[LakeLimits] = []
    monkeypatch.setattr(Lake, "_set_options", lambda lake: told.append(lake.limits))
    with Lake.from_settings(settings):
        assert told == []
    with Lake.from_settings(settings.model_copy(update={"lake_target_file_bytes": 1_000_000})) as lake:
        assert told == [lake.limits]
