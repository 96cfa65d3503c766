"""Lakes of other programs: what a read finds, what the first write adds, and imports into them."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from pydantic import SecretStr

from catchment import doctor
from catchment.app import App
from catchment.errors import InputError, LakeMissingError, SettingsError
from catchment.foundation import faults
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.settings import Settings
from catchment.lake import Column, Commit, extensions
from catchment.lake.commit import CreateTable
from catchment.lake.tables import metadata_of
from catchment.pipeline import Deliverer, ParquetFiles
from catchment.pipeline.legacy.folders import ImportFolders, ImportJournal, ImportPhase
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import LegacyImport
from catchment.schema import LakeEngine
from catchment.status import readings
from catchment.testing import InlineRunner
from tests.conftest import MakeSettings
from tests.pipeline.legacy.generated_tree import LegacyHome, make_legacy_home, snapshot_tree
from tests.pipeline.legacy.legacy_home import LOG, SMALL, CutError, cut_off
from tests.repo.source_tree import ROOT

TABLE = TableId("main", LOG)
COLUMNS = "tp_id VARCHAR, tp_partition VARCHAR, tp_index VARCHAR, tp_date DATE"


@pytest.fixture(params=["sqlite", "duckdb"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    catalog = f"{request.param}:{tmp_path / 'their.catalog'}"
    return Settings(home=tmp_path / "home", lake_catalog=SecretStr(catalog), lake_data_path=str(tmp_path / "theirs"))


def _plainly(settings: Settings, *statements: str, data_path: str | None = None) -> None:
    """What plain DuckDB does to the lake, as a program that has never heard of Catchment."""
    kind, _, path = settings.catalog_url.get_secret_value().partition(":")
    target = f"ducklake:{'' if kind == 'duckdb' else f'{kind}:'}{path}"
    with extensions.connect() as connection:
        extensions.load(connection, "ducklake")
        if kind != "duckdb":
            extensions.load(connection, kind)
        connection.execute(f"ATTACH '{target}' AS theirs (DATA_PATH '{data_path or settings.data_path}')")
        connection.execute("USE theirs")
        for statement in statements:
            connection.execute(statement)


def _catalog(settings: Settings) -> Path:
    return Path(settings.catalog_url.get_secret_value().partition(":")[2])


def _bytes(settings: Settings) -> bytes:
    return _catalog(settings).read_bytes()


def _job(app: App, home: LegacyHome) -> LegacyImport:
    return LegacyImport(
        ImportFolders.tailpipe(home.home),
        ImportOptions(),
        find_lake=app.find_lake,
        deliverer=lambda: Deliverer(app.lake, InlineRunner(), app.settings),
        parallelism=2,
        adopt_bytes_min=16 << 20,
        data_path=Path(app.settings.data_path),
        clock=SystemClock(),
    )


@pytest.fixture
def app(settings: Settings) -> Iterator[App]:
    with App(settings) as app:
        yield app


@pytest.fixture
def home(tmp_path: Path) -> LegacyHome:
    return make_legacy_home(tmp_path / "tp", tables=SMALL)


def _count(app: App, table: str = LOG) -> int:
    with app.existing_lake.cursor() as cursor:
        return len(cursor.execute(f"SELECT 1 FROM {table}").fetchall())


def test_reading_a_lake_that_another_program_made_shows_its_tables_and_changes_no_byte(
    settings: Settings, tmp_path: Path
) -> None:
    _plainly(settings, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1), (2)")
    before = _bytes(settings)
    with App(settings) as app:
        seen = readings.lake(app).lake
        assert [each.table for each in seen.tables] == ["main.t"]
        assert seen.last_deliveries == ()
        audit = app.audit()
        assert audit.ok
        assert audit.producers == ()
        assert not app.existing_lake.has_ledger
        assert app.existing_lake.join(ProducerId("legacy", "x", "1")).seq == 0
        assert app.existing_lake.dead_letters() == []
        engine = LakeEngine(app.existing_lake, folder=tmp_path)
        assert [table.name for table in engine.observe().structure.tables] == ["t"]
        app.maintain(dry_run=True)
    (said,) = [each.detail for each in doctor.examine(settings) if each.name == "lake"]
    assert "1 table" in said
    assert "no ledger yet" in said
    assert _bytes(settings) == before


def test_a_lake_of_another_program_in_postgresql_is_read_prepared_and_imported_into(
    make_settings: MakeSettings, home: LegacyHome
) -> None:
    settings = make_settings("postgres")
    with App(settings) as app:
        assert app.find_lake() is None
    _plainly(settings, f"CREATE TABLE {LOG} ({COLUMNS})")
    with App(settings) as app:
        job = _job(app, home)
        (planned,) = job.plan().tables
        assert (planned.exists, app.existing_lake.has_ledger) == (True, False)
        assert job.run().ok
        assert job.verify().ok
        with pytest.raises(InputError, match=LOG):
            job.undo()


def test_a_delivery_into_a_table_of_another_program_is_planned_before_the_lake_has_a_ledger(
    settings: Settings, tmp_path: Path
) -> None:
    _plainly(settings, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1), (2)")
    before = _bytes(settings)
    file = tmp_path / "more.parquet"
    duckdb.sql("SELECT 3::INTEGER AS a").write_parquet(str(file))
    source = ParquetFiles([file], TableId("main", "t"))
    with App(settings) as app:
        assert app.find_lake() is not None
        plan = Deliverer(app.existing_lake, InlineRunner(), settings).plan(source)
        assert sum(len(batch.units) for batch in plan.batches) == 1
        assert _bytes(settings) == before
        deliverer = Deliverer(app.lake, InlineRunner(), settings)
        assert deliverer.deliver(deliverer.plan(source), source.retire).ok
        assert app.audit().ok
        assert _count(app, "t") == 3


def test_the_first_write_adds_a_schema_and_options_and_leaves_tables_alone(settings: Settings) -> None:
    _plainly(
        settings,
        "CREATE TABLE t (a INTEGER)",
        "INSERT INTO t VALUES (1), (2)",
        "CALL theirs.set_option('parquet_compression', 'snappy', table_name => 't')",
    )
    with App(settings) as app:
        found = app.existing_lake.table(TableId("main", "t"))
        lake = app.lake
        assert lake.has_ledger
        assert lake.table(TableId("main", "t")) == found
        with lake.cursor() as cursor:
            metadata = metadata_of(lake.name)
            names = cursor.execute(f"SELECT schema_name FROM {metadata}.ducklake_schema ORDER BY 1").fetchall()
            assert names == [("_catchment",), ("main",)]
            kept = cursor.execute(
                f"SELECT value FROM {metadata}.ducklake_metadata WHERE key = 'parquet_compression' AND scope = 'table'"
            ).fetchall()
            assert kept == [("snappy",)]
            assert cursor.execute("SELECT a FROM t ORDER BY a").fetchall() == [(1,), (2,)]


def test_the_documents_name_every_option_that_the_first_write_sets(app: App) -> None:
    page = (ROOT / "docs" / "howto" / "use-an-existing-lake.md").read_text(encoding="utf-8")
    with app.lake.cursor() as cursor:
        rows = cursor.execute(f"SELECT key FROM {metadata_of(app.lake.name)}.ducklake_metadata").fetchall()
    names = {key for (key,) in rows} - {"version", "created_by", "data_path", "encrypted"}
    assert names
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_a_lake_without_the_ledger_again_keeps_what_was_delivered(settings: Settings) -> None:
    """What the documents say about going back."""
    with App(settings) as app:
        table = CreateTable(table=TableId("main", "t"), columns=(Column(name="a", type="INTEGER"),))
        app.lake.commit(Commit(message="t", changes=(table,)))
    _plainly(settings, "DROP SCHEMA _catchment CASCADE", "INSERT INTO t VALUES (1)")
    with App(settings) as app:
        found = [app.existing_lake.has_ledger, app.lake.has_ledger]
        assert found == [False, True]
        assert _count(app, "t") == 1


def test_maintenance_adds_a_ledger_to_a_lake_of_another_program_and_works_on_it(settings: Settings) -> None:
    _plainly(settings, "CREATE TABLE t (a INTEGER)", "INSERT INTO t SELECT * FROM range(100)")
    with App(settings) as app:
        assert app.maintain(dry_run=False).ok
        assert app.existing_lake.has_ledger
        assert _count(app, "t") == 100


def test_a_schema_of_another_programs_lake_is_restored_to_a_snapshot_from_before_the_ledger(
    settings: Settings, tmp_path: Path
) -> None:
    _plainly(settings, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1), (2)")
    with App(settings) as app:
        LakeEngine(app.existing_lake, folder=tmp_path).mark_reference()
    _plainly(settings, "DELETE FROM t")
    with App(settings) as app:
        LakeEngine(app.existing_lake, folder=tmp_path).restore()
        assert _count(app, "t") == 2


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
def test_a_reader_sees_the_ledger_that_another_process_has_added_since(settings: Settings) -> None:
    _plainly(settings, "CREATE TABLE t (a INTEGER)")
    with App(settings) as reader, App(settings) as writer:
        found = [reader.existing_lake.has_ledger, writer.lake.has_ledger, reader.existing_lake.has_ledger]
        assert found == [False, True, True]
        assert reader.audit().ok


def test_a_catalog_without_a_lake_is_still_no_lake(settings: Settings) -> None:
    with App(settings) as app:
        assert app.find_lake() is None
        with pytest.raises(LakeMissingError):
            app.audit()
    assert not _catalog(settings).exists()


@pytest.mark.parametrize("spelling", ["theirs", "theirs/", "link"])
def test_a_data_path_in_another_spelling_is_the_same_folder(
    settings: Settings, tmp_path: Path, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may have given it relative to its own folder, or through a link."""
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path)
    if spelling == "link":
        (tmp_path / "link").symlink_to("theirs")
        spelling = str(tmp_path / "link")
    _plainly(settings, "CREATE TABLE t AS SELECT * FROM range(100)", data_path=spelling)
    monkeypatch.chdir("/")
    with App(settings) as app:
        assert _count(app, "t") == 100
        app.lake.insert(TableId("main", "t"), duckdb.sql("SELECT 5::BIGINT AS range").to_arrow_table())
        assert _count(app, "t") == 101


def test_another_data_path_is_refused_with_that_of_the_lake(settings: Settings, tmp_path: Path) -> None:
    _plainly(settings, "CREATE TABLE t (a INTEGER)", data_path="elsewhere/of/theirs")
    with App(settings) as app, pytest.raises(SettingsError, match="elsewhere/of/theirs"):
        _ = app.existing_lake


def test_a_plan_sees_the_tables_of_another_program_and_writes_nothing(app: App, home: LegacyHome) -> None:
    _plainly(app.settings, f"CREATE TABLE {LOG} ({COLUMNS})")
    before = _bytes(app.settings)
    (planned,) = _job(app, home).plan().tables
    assert planned.exists
    assert _bytes(app.settings) == before


def test_an_import_goes_into_a_table_of_another_program_and_is_verified_beside_its_rows(
    app: App, home: LegacyHome
) -> None:
    _plainly(app.settings, f"CREATE TABLE {LOG} ({COLUMNS})", f"INSERT INTO {LOG} (tp_id) SELECT 'mine' FROM range(3)")
    job = _job(app, home)
    assert job.run(job.plan()).ok
    assert job.status().tables_made == ()
    assert job.verify().ok
    assert _count(app) == 3 + home.rows(LOG)


def test_an_undo_never_drops_a_table_of_another_program(app: App, home: LegacyHome) -> None:
    """Not even an empty one, of which the imported rows are all there is."""
    _plainly(app.settings, f"CREATE TABLE {LOG} ({COLUMNS})")
    job = _job(app, home)
    assert job.run().ok
    with pytest.raises(InputError, match=LOG):
        job.undo()
    assert _count(app) == home.rows(LOG)


def _meanwhile(job: LegacyImport, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program makes the table right after the run has opened the lake."""
    open_lake = job._deliverer

    def then() -> Deliverer:
        made = open_lake()
        if made.lake.find_table(TABLE) is None:
            with made.lake.cursor() as cursor:
                cursor.execute(f"CREATE TABLE {LOG} ({COLUMNS})")
        return made

    monkeypatch.setattr(job, "_deliverer", then)


def test_a_table_that_another_program_makes_after_the_plan_is_planned_for_before_anything_moves(
    app: App, home: LegacyHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(app, home)
    planned = job.plan()
    assert not planned.tables[0].exists
    _meanwhile(job, app.settings, monkeypatch)
    assert job.run(planned).ok
    assert job.status().tables_made == ()
    assert job.verify().ok


def test_a_lake_that_cannot_be_opened_refuses_the_run_before_anything_moves(
    settings: Settings, home: LegacyHome
) -> None:
    before = snapshot_tree(home.data)
    with App(settings) as app:
        job = _job(app, home)
        planned = job.plan()
        _plainly(settings, "CREATE TABLE t (a INTEGER)", data_path="elsewhere/of/theirs")
        with pytest.raises(SettingsError):
            job.run(planned)
        assert job.detect() is ImportPhase.READY
    assert snapshot_tree(home.data) == before


def _cut(app: App, home: LegacyHome, point: str) -> LegacyImport:
    job = _job(app, home)
    with faults.armed(point, cut_off), pytest.raises(CutError):
        job.run()
    return job


def test_a_table_whose_commit_was_cut_off_is_not_taken_for_the_imports_own(app: App, home: LegacyHome) -> None:
    """What was not committed was not made: a table of that name, made later, is another program's."""
    job = _cut(app, home, "deliver.before_commit")
    assert job.status().tables_made == ()
    with app.lake.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {LOG} ({COLUMNS})")
    assert job.run().ok
    assert job.status().tables_made == ()
    with pytest.raises(InputError, match=LOG):
        job.undo()
    assert _count(app) == home.rows(LOG)


@pytest.mark.parametrize("then", ["undo", "run"])
def test_a_table_that_was_made_right_before_the_process_ended_is_known_as_the_imports_own(
    app: App, home: LegacyHome, then: str
) -> None:
    before = snapshot_tree(home.data)
    job = _cut(app, home, "legacy.after_tables")
    assert job.folders.journal().tables_made == {}
    assert job.status().tables_made == (str(TABLE),)
    if then == "run":
        assert job.run().ok
        assert job.verify().ok
    assert job.undo() == (str(TABLE),)
    assert app.existing_lake.find_table(TABLE) is None
    assert snapshot_tree(home.data) == before


def test_a_table_that_took_the_place_of_an_imported_one_is_left_by_an_undo(app: App, home: LegacyHome) -> None:
    job = _job(app, home)
    assert job.run().ok
    with app.lake.cursor() as cursor:
        cursor.execute(f"DROP TABLE {LOG}")
        cursor.execute(f"CREATE TABLE {LOG} (mine INTEGER)")
    assert job.undo() == ()
    assert app.existing_lake.find_table(TABLE) is not None


def test_a_journal_of_an_earlier_version_names_tables_without_their_uuids(tmp_path: Path) -> None:
    place = ImportFolders.tailpipe(tmp_path)
    place.migration.mkdir(parents=True)
    place.journal_path.write_text('{"tables_made": ["main.a"]}', encoding="utf-8")
    assert place.journal() == ImportJournal(tables_made={"main.a": ""})
    assert place.journal().has_made("main.a", "any")
    assert not place.journal().has_made("main.b", "any")
