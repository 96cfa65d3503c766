"""Settings: precedence, refusals and their messages, and secrets that stay secret."""

import json
import os
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from catchment.errors import SettingsError
from catchment.foundation import settings
from catchment.foundation.settings import Settings, declared, environment, load_settings

SECRET = "hunter2"
CATALOG = f"postgres:host=127.0.0.1 user=me password={SECRET}"
NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]
VARIABLES = {each.name: each.variable for each in declared()}


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith((settings.PREFIX, settings.QUEUE_PREFIX))]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def _write(home: Path, text: str) -> None:
    (home / settings.FILE_NAME).write_text(text, encoding="utf-8")


def _refused(home: Path | None = None) -> SettingsError:
    with pytest.raises(SettingsError) as raised:
        load_settings(home)
    return raised.value


def test_every_setting_has_a_default(home: Path) -> None:
    found = load_settings(home)
    assert found.home == home
    assert found.catalog_url.get_secret_value() == f"sqlite:{home}/catalog.sqlite"
    assert found.data_path == f"{home}/data"


def test_the_default_home_is_a_folder_in_the_current_one(tmp_path: Path) -> None:
    assert load_settings().data_path == str(tmp_path / "catchment-data" / "data")


def test_the_file_wins_over_the_default(home: Path) -> None:
    _write(home, 'log_level = "debug"\nlake_threads_max = 3\nlog_json = true')
    found = load_settings(home)
    assert (found.log_level, found.lake_threads_max, found.log_json) == ("debug", 3, True)


def test_the_environment_wins_over_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(home, 'log_level = "debug"\nlake_name = "pond"')
    monkeypatch.setenv("CATCHMENT_LOG_LEVEL", "error")
    found = load_settings(home)
    assert (found.log_level, found.lake_name) == ("error", "pond")


def test_an_empty_variable_counts_as_not_set(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(home, 'log_level = "debug"')
    monkeypatch.setenv("CATCHMENT_LOG_LEVEL", "")
    monkeypatch.setenv("CATCHMENT_LAKE_NAME", "")
    found = load_settings(home)
    assert (found.log_level, found.lake_name) == ("debug", "lake")


def test_the_home_of_the_command_line_wins_over_that_of_the_environment(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHMENT_HOME", str(tmp_path / "other"))
    _write(home, 'lake_name = "pond"')
    found = load_settings(home)
    assert (found.home, found.lake_name) == (home, "pond")


def test_the_file_is_read_from_the_home_that_the_environment_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_HOME", str(home))
    _write(home, 'lake_name = "pond"')
    found = load_settings()
    assert (found.home, found.lake_name) == (home, "pond")


def test_an_unknown_variable_is_refused_with_the_nearest_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_LAKE_CATALOGUE", "sqlite:x")
    error = _refused()
    assert "CATCHMENT_LAKE_CATALOGUE" in error.message
    assert error.hint == "Did you mean CATCHMENT_LAKE_CATALOG?"


def test_an_unknown_key_is_refused_with_the_nearest_setting_and_the_file(home: Path) -> None:
    _write(home, 'log_levle = "debug"')
    error = _refused(home)
    assert "'log_levle'" in error.message
    assert str(home / settings.FILE_NAME) in error.message
    assert error.hint == "Did you mean log_level?"


@pytest.mark.parametrize("name", settings._REMOVED)
def test_a_removed_setting_is_refused_with_what_became_of_it(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name not in Settings.model_fields
    variable = settings._variable(name)
    monkeypatch.setenv(variable, "1")
    error = _refused()
    assert error.message == f"The environment sets {variable}, which {settings._REMOVED[name]}."
    assert error.hint == "Unset the variable."
    monkeypatch.delenv(variable)
    _write(home, f"{name} = 1")
    error = _refused(home)
    assert error.message == f"{home / settings.FILE_NAME} sets {name!r}, which {settings._REMOVED[name]}."
    assert error.hint == "Remove it from the file."


def test_a_removed_setting_names_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_SPARK_TASK_FAILURES_MAX", "8")
    assert "merged into spark_conf, as spark.task.maxFailures" in _refused().message


def test_the_queues_settings_have_the_names_of_its_design(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUCKLING_QUEUE_BUFFER_MAX_ROWS", "7")
    monkeypatch.setenv("DUCKLING_QUEUE_LAYOUT", "sessions")
    found = load_settings()
    assert (found.queue_buffer_max_rows, found.queue_layout) == (7, "sessions")
    monkeypatch.setenv("DUCKLING_QUEUE_LAYOUTS", "shared")
    assert _refused().hint == "Did you mean DUCKLING_QUEUE_LAYOUT?"


def test_the_queues_defaults_are_those_of_its_design() -> None:
    found = load_settings()
    assert found.queue_enable
    assert found.queue_path == found.home.absolute() / "duckling_queue"
    assert (found.queue_buffer_max_rows, found.queue_flush_chunk_rows) == (50_000, 50_000)
    assert (found.queue_rotate_size_bytes, found.queue_rotate_interval_seconds) == (100_000_000, 300)
    assert (found.queue_flush_interval_seconds, found.queue_max_parallel_flushes) == (60, 2)
    assert (found.queue_max_db_bytes, found.queue_auto_create_tables) == (0, False)
    assert found.queue_flushed_keep_hours == 3 * 24


def test_a_name_that_resembles_no_setting_is_refused_with_a_pointer_to_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CATCHMENT_ZZZZZZ", "1")
    assert _refused().hint == "`catchment settings` lists the settings."


def test_the_settings_file_cannot_move_the_home_it_is_in(home: Path) -> None:
    _write(home, 'home = "/elsewhere"')
    error = _refused(home)
    assert "'home'" in error.message
    assert error.hint == "CATCHMENT_HOME sets the home, or --home does."


@pytest.mark.parametrize("name", [*NUMBERS, "log_level", "log_json", "lake_name"])
def test_a_wrong_value_in_the_environment_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[name], "no such value!")
    assert f"{name}: " in _refused().message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lake_threads_max", 1025),
        ("lake_transaction_seconds_max", 0),
        ("lake_target_file_bytes", 1024),
        ("lake_threads_max", -1),
        ("queue_flush_chunk_rows", 0),
        ("queue_max_db_bytes", -1),
        ("deliver_task_memory_mb", 1),
        ("spark_driver_memory_mb", 1),
        ("spark_task_seconds_max", 0),
    ],
)
def test_a_number_out_of_bounds_is_named(name: str, value: int, home: Path) -> None:
    _write(home, f"{name} = {value}")
    assert f"{name}: " in _refused(home).message


@pytest.mark.parametrize("name", ["lake_snapshot_keep_hours", "lake_orphan_keep_hours", "queue_flushed_keep_hours"])
@pytest.mark.parametrize("value", ["inf", "1e300", "1000001", "nan"])
def test_an_age_that_the_calendar_has_no_room_for_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES[name], value)
    message = _refused().message
    assert f"{name}: " in message
    assert value == "nan" or "less than or equal to 1000000" in message


@pytest.mark.parametrize("name", ["main", "temp", "SYSTEM", "memory", "pg_catalog", "information_schema"])
def test_a_lake_s_name_that_duckdb_has_taken_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_LAKE_NAME", name)
    assert f"lake_name must not be '{name}'" in _refused().message


def test_all_wrong_values_are_named_at_once(home: Path) -> None:
    _write(home, 'log_level = "loud"\nspark_driver_memory_mb = 1')
    message = _refused(home).message
    assert "log_level: " in message
    assert "spark_driver_memory_mb: " in message


@pytest.mark.parametrize("content", [b"log_level = ", b"\xff\xfe"], ids=["not TOML", "not UTF-8"])
def test_a_file_that_cannot_be_read_is_named(content: bytes, home: Path) -> None:
    (home / settings.FILE_NAME).write_bytes(content)
    error = _refused(home)
    assert str(home / settings.FILE_NAME) in error.message
    assert "with text in quotation marks" in (error.hint or "")


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.touch()
    assert str(home) in _refused(home).message


def test_spark_settings_come_as_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_SPARK_CONF", " spark.a = 1 ,spark.b=x=y,,")
    assert load_settings().spark_conf == {"spark.a": "1", "spark.b": "x=y"}


def test_spark_settings_come_as_a_table_whose_values_may_hold_commas(home: Path) -> None:
    _write(home, '[spark_conf]\n"spark.jars" = "a.jar,b.jar"')
    assert load_settings(home).spark_conf == {"spark.jars": "a.jar,b.jar"}


def test_spark_settings_in_the_file_may_be_pairs_too(home: Path) -> None:
    _write(home, 'spark_conf = "spark.a=1"')
    assert load_settings(home).spark_conf == {"spark.a": "1"}


def test_spark_settings_without_a_value_are_refused_and_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_SPARK_CONF", f"spark.a=1,{SECRET}")
    message = _refused().message
    assert "pair 2 has no `=`" in message
    assert SECRET not in message


def test_spark_settings_that_are_not_spark_s_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_SPARK_CONF", "spark.a=1,hadoop.b=2")
    message = _refused().message
    assert "hadoop.b" in message
    assert "spark.a" not in message


def test_a_catalog_s_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_LAKE_CATALOG", CATALOG)
    found = load_settings()
    assert found.catalog_url.get_secret_value() == CATALOG
    for shown in (repr(found), str(found), found.model_dump_json(), json.dumps(found.model_dump(), default=str)):
        assert SECRET not in shown


def test_a_credential_among_spark_s_settings_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_SPARK_CONF", f"spark.hadoop.fs.s3a.secret.key={SECRET}")
    found = load_settings()
    assert found.spark_conf == {"spark.hadoop.fs.s3a.secret.key": SECRET}
    assert SECRET not in repr(found)
    assert SECRET not in str(found)


@pytest.mark.parametrize(
    "text",
    [
        f'lake_catalog = "{CATALOG}"\nlog_level = "loud"',
        f'lake_catalog = ["{CATALOG}"]',
        f'lake_catalog = "{CATALOG}',
        f'lake_catalogue = "{CATALOG}"',
        f'lake_catalog = "{CATALOG}"\nlake_snapshot_keep_hours = 0.001',
    ],
    ids=["another is wrong", "wrong type", "broken file", "misspelt", "wrong together"],
)
def test_a_password_is_never_in_an_error(text: str, home: Path) -> None:
    _write(home, text)
    error = _refused(home)
    assert SECRET not in f"{error!s} {error!r} {error.hint} {error.facts}"


def test_snapshots_that_expire_under_a_long_transaction_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_LAKE_TRANSACTION_SECONDS_MAX", "3600")
    monkeypatch.setenv("CATCHMENT_LAKE_SNAPSHOT_KEEP_HOURS", "10")
    assert load_settings().lake_snapshot_keep_hours == 10
    monkeypatch.setenv("CATCHMENT_LAKE_SNAPSHOT_KEEP_HOURS", "9.99")
    message = _refused().message
    assert "lake_snapshot_keep_hours" in message
    assert "lake_transaction_seconds_max" in message


def test_a_process_lives_with_the_settings_it_started_with(home: Path) -> None:
    found = Settings(home=home)
    with pytest.raises(ValidationError, match="frozen"):
        found.log_level = "debug"


def test_every_setting_has_help_that_is_a_sentence() -> None:
    assert [each.name for each in declared()] == list(Settings.model_fields)
    for each in declared():
        assert each.help[:1].isupper(), each.name
        assert each.help.endswith("."), each.name
        # The queue's settings keep the names that people know.
        known = each.name.removeprefix("queue_").upper()
        assert each.variable == (f"CATCHMENT_{known}" if known == each.name.upper() else f"DUCKLING_QUEUE_{known}")


def test_exactly_the_numeric_settings_have_a_unit() -> None:
    # A port counts nothing.
    assert {each.name for each in declared() if each.unit} == set(NUMBERS) - {"server_port"}


def test_the_default_shown_is_the_default_used(home: Path) -> None:
    used = Settings(home=home)
    for each in declared():
        value = getattr(used, each.name)
        if each.name in NUMBERS:
            assert value == float(each.default)
        elif each.name != "home":
            assert ("" if value is None else str(value)) == each.default


def test_a_secret_is_not_shown_as_a_default() -> None:
    assert all(not isinstance(field.default, SecretStr) for field in Settings.model_fields.values())


def test_child_processes_get_what_the_user_has_not_set_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHMENT_TEST_SET", "theirs")

    def fail() -> None:
        with environment(CATCHMENT_TEST_SET="ours", CATCHMENT_TEST_UNSET="ours"):
            assert os.environ["CATCHMENT_TEST_SET"] == "theirs"
            assert os.environ["CATCHMENT_TEST_UNSET"] == "ours"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert os.environ["CATCHMENT_TEST_SET"] == "theirs"
    assert "CATCHMENT_TEST_UNSET" not in os.environ


def test_an_empty_java_home_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    assert settings.java_home() is None
    monkeypatch.setenv("JAVA_HOME", "/jvm")
    assert settings.java_home() == "/jvm"


def test_options_of_the_command_line_win_and_omitted_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHMENT_SERVER_HOST", "127.0.0.2")
    (tmp_path / "catchment.toml").write_text("server_port = 1")
    assert load_settings(tmp_path, server_port=0, server_host=None).server_port == 0
    assert load_settings(tmp_path, server_port=None, server_host=None).server_host == "127.0.0.2"
    with pytest.raises(SettingsError, match="server_port"):
        load_settings(tmp_path, server_port=-1)


def test_the_users_file_is_in_the_home_by_default(tmp_path: Path) -> None:
    assert Settings(home=tmp_path).users_path == tmp_path / "users.json"
    assert Settings(home=tmp_path, server_users_file=tmp_path / "other").users_path == tmp_path / "other"


def test_rows_are_flushed_to_the_lake_by_its_name_and_to_no_other_catalog(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CATCHMENT_HOME", str(tmp_path))
    monkeypatch.setenv("DUCKLING_QUEUE_TARGET_CATALOG", "swanlake")
    with pytest.raises(SettingsError, match="queue_target_catalog must be the lake's name, 'lake', or be left out"):
        load_settings()
    monkeypatch.setenv("CATCHMENT_LAKE_NAME", "swanlake")
    assert load_settings().lake_name == "swanlake"
