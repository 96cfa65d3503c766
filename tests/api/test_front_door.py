"""The front door: everything that the command line does, as calls of one object."""

import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import catchment
from catchment.errors import BufferHeldError, InputError, LakeMissingError, SettingsError, StateError, TableMissingError
from catchment.testing import InlineRunner

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture(autouse=True)
def _tasks_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has one Spark session; what is shown here needs none."""
    monkeypatch.setattr("catchment.app.SparkRunner", lambda _settings: InlineRunner())


def test_importing_the_package_imports_no_engine_and_no_settings() -> None:
    program = "import sys, catchment; print([m for m in ('duckdb', 'pyarrow', 'pydantic', 'grpc') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_values_are_importable_from_the_package_and_a_wrong_name_is_an_attribute_error() -> None:
    assert all(getattr(catchment, name) for name in catchment.__all__)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = catchment.nothing_like_it


def test_opening_a_home_creates_nothing_until_it_is_used(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with catchment.open(home) as c:
        assert c.settings.home == home
    assert not home.exists()


def test_a_wrong_setting_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="queue_layout"):
        catchment.open(tmp_path, queue_layout="heap")


def test_rows_are_written_read_flushed_and_audited_by_four_calls(tmp_path: Path) -> None:
    with catchment.open(tmp_path, queue_auto_create_tables=True) as c:
        ack = c.queue.enqueue("shop.orders", ROWS)
        assert (ack.rows, c.queue.read("shop.orders")["n"].to_pylist()) == (3, [1, 2, 3])
        assert [state.state.rows for state in c.queue.status().tables] == [3]
        with pytest.raises(TableMissingError, match=r"shop\.gone"):
            c.lake.snapshot("shop.gone")
        assert c.queue.audit().buffered == {catchment.TableId("shop", "orders"): 3}
        report = c.queue.flush()
        assert (report.rows, c.lake.query("SELECT sum(n) AS s FROM shop.orders")["s"].to_pylist()) == (3, [6])
        assert c.audit().ok
        assert c.queue.audit().ok
        assert [file.rows for file in c.lake.snapshot("shop.orders").files] == [3]
        assert c.status()["health"]["state"] == "ok"


def test_a_home_that_was_closed_can_be_opened_again_with_its_buffered_rows(tmp_path: Path) -> None:
    with catchment.open(tmp_path, queue_auto_create_tables=True) as c:
        c.queue.enqueue("orders", ROWS)
    with catchment.open(tmp_path, queue_auto_create_tables=True) as c:
        assert c.queue.read("orders").num_rows == 3


def test_a_file_is_delivered_once_and_a_missing_table_is_refused_unless_it_may_be_created(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    duckdb.sql("SELECT 1 AS n").write_parquet(str(file))
    with catchment.open(tmp_path / "home") as c:
        with pytest.raises(InputError, match="has no table"):
            c.lake.deliver("items", [file])
        plan, change = c.lake.delivery("items", [file], create=True).preview()
        assert change is not None
        assert sum(len(batch.units) for batch in plan.batches) == 1
        delivered = [c.lake.deliver("items", [file], create=True).delivered for _ in range(2)]
        assert delivered == [1, 0]
        assert c.lake.tables() == (catchment.TableId.parse("items"),)


def test_a_tree_is_imported_by_one_call(tmp_path: Path) -> None:
    tree = tmp_path / "sales"
    duckdb.sql("SELECT i % 2 AS day, i AS n FROM range(10) r(i)").write_parquet(str(tree), partition_by=["day"])
    with catchment.open(tmp_path / "home") as c:
        with pytest.raises(InputError, match="'foo' is not one of"):
            c.legacy.job(tree=tree, keys="day:INTEGER", mode="foo")
        assert c.legacy.job(tree=tree, keys="day:INTEGER", mode="insert").options.mode is catchment.Mode.INSERT
        report = c.legacy.run(tree=tree, keys="day:INTEGER")
        assert (report.ok, report.rows) == (True, 10)
        assert c.legacy.job(tree=tree, keys="day:INTEGER").verify().ok


def test_a_schema_is_migrated_by_models_in_the_program(tmp_path: Path) -> None:
    class Customer(catchment.TableRow):
        __tablename__ = "customers"

        name: str

    with catchment.open(tmp_path / "home") as c, c.schema.open(tmp_path / "app.sqlite", [Customer]) as migrate:
        done = c.schema.develop(migrate)
        assert (done.result.state.name, migrate.database.row_counts()) == ("CURRENT", {"customers": 0})
        with pytest.raises(InputError, match="copy of the production database"):
            migrate.database.mark_reference()


def test_scripts_and_backups_of_a_lake_are_kept_in_the_folder_that_is_named(tmp_path: Path) -> None:
    class Reading(catchment.TableRow):
        __tablename__ = "readings"

        celsius: float

    folder = tmp_path / "schemas"
    with (
        catchment.open(tmp_path / "home") as c,
        c.schema.open("lake:weather", [Reading], folder=folder) as migrate,
    ):
        script = migrate.generate()
        assert script is not None
        assert script.is_relative_to(folder)
        migrate.apply(script.name)
        assert c.lake.tables() == (catchment.TableId("weather", "readings"),)


def test_a_buffer_that_a_server_has_open_is_read_and_flushed_through_the_server(tmp_path: Path) -> None:
    settings = {"server_port": 0, "server_web_port": "off", "queue_auto_create_tables": True}
    with catchment.open(tmp_path, **settings) as c:
        c.queue.enqueue("orders", ROWS)
    with catchment.open(tmp_path, **settings) as c, c.serve() as server:
        assert server.uri.startswith("grpc://127.0.0.1:")
        with pytest.raises(BufferHeldError):
            c.queue.enqueue("orders", ROWS)
        assert c.queue.status().tables[0].state.rows == 3
        assert c.queue.read("orders")["n"].to_pylist() == [1, 2, 3]
        assert c.queue.flush().rows == 3
        assert c.queue.read("orders").num_rows == 3


def test_tenants_need_a_control_database(tmp_path: Path) -> None:
    with catchment.open(tmp_path) as c, pytest.raises(StateError, match="no control database"):
        c.tenants.tenants()


def test_a_closed_catchment_refuses_calls_also_of_parts_that_were_kept(tmp_path: Path) -> None:
    with catchment.open(tmp_path, queue_auto_create_tables=True) as c:
        queue = c.queue
        queue.enqueue("orders", ROWS)
    for call in (lambda: queue.read("orders"), lambda: c.lake.tables()):
        with pytest.raises(StateError, match="closed"):
            call()


@pytest.mark.parametrize(
    "statement", ["INSERT INTO orders VALUES (1)", "CREATE TABLE x (n INT)", "SELECT 1; DROP TABLE orders"]
)
def test_a_query_that_would_change_the_lake_is_refused(tmp_path: Path, statement: str) -> None:
    with catchment.open(tmp_path, queue_auto_create_tables=True) as c:
        c.queue.enqueue("orders", ROWS)
        with pytest.raises(InputError, match="SELECT statements only"):
            c.lake.query(statement)
        with pytest.raises(InputError, match="gone does not exist"):
            c.lake.query("SELECT * FROM gone")
        assert c.lake.query("WITH one AS (SELECT ? AS n) FROM one", [1])["n"].to_pylist() == [1]


def test_modes_and_paths_are_given_as_text_or_as_values(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    duckdb.sql("SELECT 1 AS n").write_parquet(str(file))
    with catchment.open(tmp_path / "home") as c:
        with pytest.raises(InputError, match="'foo' is not one of"):
            c.lake.deliver("items", file, mode="foo", create=True)
        assert c.lake.deliver("items", str(file), mode="rewrite", retire="remove", create=True).delivered == 1
    assert not file.exists()


def test_a_read_of_a_mistyped_home_creates_nothing(tmp_path: Path) -> None:
    with catchment.open(tmp_path / "hmoe") as c, pytest.raises(LakeMissingError):
        c.queue.read("orders")
    assert not (tmp_path / "hmoe").exists()


def test_an_unknown_setting_names_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'queue_autocreate_tables' is not a setting") as error:
        catchment.open(tmp_path, queue_autocreate_tables=True)
    assert "queue_auto_create_tables" in (error.value.hint or "")


def test_a_traceback_shows_the_hint_below_the_message() -> None:
    error = InputError("It is wrong.", hint="Make it right.")
    assert "".join(traceback.format_exception(error)).endswith("It is wrong.\nhint: Make it right.\n")


@pytest.mark.parametrize("rows", [[{"n": 1}], {"n": [1]}], ids=["list of dicts", "dict"])
def test_rows_that_are_not_arrow_get_a_hint_how_to_make_them(tmp_path: Path, rows: Any) -> None:
    with catchment.open(tmp_path, queue_auto_create_tables=True) as c, pytest.raises(InputError) as error:
        c.queue.enqueue("orders", rows)
    assert "from_pylist" in (error.value.hint or "")
