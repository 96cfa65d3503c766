"""Settings: each declared once with its unit and one line of help, read from the environment and `catchment.toml`.

The environment wins over the file. The only place that reads the environment, and TOML files.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from catchment.errors import SettingsError

PREFIX = "CATCHMENT_"
# The queue's settings keep the names that people know.
QUEUE_PREFIX = "DUCKLING_QUEUE_"
_QUEUE = "queue_"
FILE_NAME = "catchment.toml"
PROJECT_FILE_NAME = "pyproject.toml"
MIB = 1024 * 1024
SERVER_PORT = 4214
WEB_PORT = 4215
PORT_MAX = 65_535
# More than a century: the calendar has room for it, and nothing is meant to be kept for longer.
HOURS_MAX = 1_000_000
# Databases that DuckDB has by itself in every instance, and what it takes for a schema of its own.
_LAKE_NAMES_TAKEN = ("main", "temp", "system", "memory", "pg_catalog", "information_schema")


def _setting(default: Any, text: str, *, unit: str | None = None, **bounds: Any) -> Any:
    return Field(default, description=text, json_schema_extra={"unit": unit}, **bounds)


class Settings(BaseSettings):
    """Everything that can be set. Frozen: a process lives with the settings it started with."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)
    _reads_environment: ClassVar[bool] = True

    home: Path = _setting(Path("catchment-data"), "Folder that holds everything which is not put elsewhere.")
    log_level: str = _setting("warning", "Least level that is logged.", pattern="^(debug|info|warning|error)$")
    log_json: bool | None = _setting(
        None, "Log one JSON object a line instead of words for a person; default: unless stderr is a terminal."
    )
    log_sql: bool = _setting(False, "Whether the log may hold the text of statements, and of errors about them.")

    lake_catalog: SecretStr | None = _setting(
        None,
        "DuckLake catalog: `sqlite:PATH`, `duckdb:PATH` or `postgres:CONNINFO`; default is a SQLite file in the home.",
    )
    lake_data_path: str | None = _setting(None, "Folder of the lake's Parquet files; default `data` in the home.")
    lake_name: str = _setting("lake", "Name that the lake is attached as.", pattern="^[A-Za-z][A-Za-z0-9_]*$")
    lake_target_file_bytes: int = _setting(128 * MIB, "Size aimed at for Parquet files.", unit="bytes", ge=MIB)
    lake_commit_attempts_max: int = _setting(
        20, "Tries of one commit against conflicting writers before giving up.", unit="tries", ge=1, le=1000
    )
    lake_lock_timeout_seconds: float = _setting(
        120, "Longest wait for the lock that serialises commits.", unit="seconds", gt=0
    )
    lake_transaction_seconds_max: float = _setting(
        600, "A write transaction open for longer is rolled back and redone.", unit="seconds", gt=0
    )
    lake_threads_max: int = _setting(
        0, "Threads of DuckDB in a process that opens the lake; 0 is one per core.", unit="threads", ge=0, le=1024
    )
    lake_snapshot_keep_hours: float = _setting(
        168,
        "Age at which upkeep expires snapshots; must exceed the longest transaction tenfold.",
        unit="hours",
        gt=0,
        le=HOURS_MAX,
    )
    lake_orphan_keep_hours: float = _setting(
        48,
        "Age at which upkeep deletes files that no snapshot and no running job knows.",
        unit="hours",
        gt=0,
        le=HOURS_MAX,
    )

    control_db: SecretStr | None = _setting(
        None,
        "Database of tenants, shards, moves and users: `sqlite:PATH`, or for several hosts `postgres:CONNINFO`; "
        "default is a SQLite file in the home.",
    )

    tenant_route_seconds_max: float = _setting(
        30, "A tenant's route is read from the control database again when it is this old.", unit="seconds", gt=0
    )
    tenant_routes_max: int = _setting(100_000, "Routes of tenants that are kept in memory.", unit="routes", ge=1)
    tenant_usage_seconds_max: float = _setting(
        10, "What a tenant uses is measured again for its limits when the last measure is this old.",
        unit="seconds", ge=0,
    )  # fmt: skip

    tenant_gate_wait_seconds: float = _setting(
        10, "Longest wait of a write while its tenant changes its home.", unit="seconds", gt=0
    )
    tenant_gate_seconds_max: float = _setting(
        5, "A home that changes takes its writers back when nothing is decided after this.", unit="seconds", gt=0
    )
    tenant_copy_wait_seconds: float = _setting(
        2, "A write that its tenant's copy has not confirmed by then is acknowledged without it.", unit="seconds", gt=0
    )

    shard_name: str | None = _setting(
        None, "Name under which this server is a shard; tenants live in shards.", pattern="^[a-z][a-z0-9-]{0,62}$"
    )
    shard_secret: SecretStr | None = _setting(
        None, "What shards, and those who move tenants, log in to each other with; the same for all.", min_length=16
    )
    shard_ca: Path | None = _setting(
        None, "Certificates that other shards' certificates are issued by; default is what the system trusts."
    )
    shard_report_seconds: float = _setting(
        5, "How often a shard tells the control database how it is.", unit="seconds", gt=0
    )

    deliver_units_per_commit_max: int = _setting(5_000, "Units delivered by one commit.", unit="units", ge=1)
    deliver_adopt_bytes_min: int = _setting(
        16 * MIB,
        "In mode `auto`, files of this size and up are adopted as they are, smaller ones coalesced.",
        unit="bytes",
        ge=0,
    )
    deliver_task_memory_mb: int = _setting(1024, "Memory of DuckDB in one Spark task; more spills.", unit="MiB", ge=64)

    queue_enable: bool = _setting(True, "Whether small writes are buffered at all.")
    queue_layout: str = _setting(
        "shared", "One `buffer.duckdb` for all (`shared`), or one file per session (`sessions`).",
        pattern="^(shared|sessions)$",
    )  # fmt: skip
    queue_root: Path | None = _setting(None, "Folder of the buffer; default `duckling_queue` in the home.")
    queue_buffer_max_rows: int = _setting(50_000, "A table is flushed at this many rows.", unit="rows", ge=1)
    queue_rotate_size_bytes: int = _setting(
        100_000_000, "A table, or a session's file, is flushed at this size.", unit="bytes", ge=1
    )
    queue_rotate_interval_seconds: float = _setting(
        300, "A table is flushed when its oldest row is this old.", unit="seconds", gt=0
    )
    queue_flush_interval_seconds: float = _setting(60, "How often the sweeper looks.", unit="seconds", gt=0)
    queue_max_parallel_flushes: int = _setting(2, "Flushes that run at the same time.", unit="flushes", ge=1, le=64)
    queue_target_catalog: str | None = _setting(None, "Catalog that rows are flushed to: the lake's name.")
    queue_flush_chunk_rows: int = _setting(50_000, "Most rows of one slice of a table.", unit="rows", ge=1)
    queue_max_db_bytes: int = _setting(
        0, "Most that the buffer takes on the disk before writes are pushed back; 0 is no cap.", unit="bytes", ge=0
    )
    queue_bypass: bool = _setting(False, "At the cap, write to the lake directly instead of pushing back.")
    queue_full_wait_seconds: float = _setting(
        5, "At the cap, how long a write waits for a flush to make room.", unit="seconds", ge=0
    )
    queue_auto_create_tables: bool = _setting(False, "Create a missing table from the first rows written to it.")
    queue_schema_check_seconds: float = _setting(
        1, "How long writes may go by a table's columns before the lake is asked whether another process changed them; "
        "0 asks before every write.",
        unit="seconds", ge=0, le=60,
    )  # fmt: skip
    queue_flushed_keep_hours: float = _setting(
        72, "How long a session's file is kept after the lake has it.", unit="hours", ge=0, le=HOURS_MAX
    )
    queue_retry_seconds_max: float = _setting(
        300, "Longest wait between two tries of a flush that fails.", unit="seconds", gt=0
    )
    queue_checkpoint_bytes: int = _setting(
        512 * MIB, "Size of the buffer's WAL at which DuckDB writes it back in the middle of writes.",
        unit="bytes", ge=MIB,
    )  # fmt: skip
    queue_lease_postgres: SecretStr | None = _setting(
        None, "PostgreSQL that leases sessions' files to hosts; default the lake's, if it has one, else file locks."
    )

    server_host: str = _setting("127.0.0.1", "Address that `catchment serve` listens on.", min_length=1)
    server_port: int = _setting(SERVER_PORT, "Port of the Flight SQL server; 0 is any that is free.", ge=0, le=PORT_MAX)
    server_web_port: int | Literal["off"] | None = _setting(
        None,
        "Port of `/metrics`, `/status.json` and `/healthz`; 0 is any that is free, `off` is none. "
        "Default 4215; any that is free where the Flight SQL server's is not 4214.",
    )
    server_auth: bool | None = _setting(
        None, "Whether clients must log in; default yes, unless the server listens on loopback and has no users."
    )
    server_users_file: Path | None = _setting(None, "File of the users; default `users.json` in the home.")
    server_tls_certificate: Path | None = _setting(None, "The server's certificate chain, PEM.")
    server_tls_key: Path | None = _setting(None, "The private key of the certificate, PEM.")
    server_sessions_max: int = _setting(100, "Sessions open at the same time.", unit="sessions", ge=1)
    server_session_idle_seconds: float = _setting(
        900, "A session is closed when nothing was asked of it for so long.", unit="seconds", gt=0
    )
    server_transaction_idle_seconds: float = _setting(
        60, "A transaction is rolled back when nothing was asked of it for so long.", unit="seconds", gt=0
    )
    server_statement_seconds_max: float = _setting(300, "A statement may take so long.", unit="seconds", gt=0)
    server_stall_seconds_max: float = _setting(
        60, "A call waits so long for its client to take or send the next message.", unit="seconds", gt=0
    )
    server_slow_statement_seconds: float = _setting(
        1, "A statement that took longer is remembered for the status, up to 50 of them.", unit="seconds", ge=0
    )
    server_statements_max: int = _setting(
        32, "Statements that run at the same time: so many that read, and as many others.", unit="statements", ge=1
    )
    server_statement_bytes_max: int = _setting(MIB, "Longest text of a statement.", unit="bytes", ge=1024)
    server_message_bytes_max: int = _setting(64 * MIB, "Largest message that is taken.", unit="bytes", ge=MIB)
    server_batch_rows_max: int = _setting(1_000_000, "Most rows of one batch that is taken.", unit="rows", ge=1)
    server_write_bytes_max: int = _setting(
        1024 * MIB, "Most that one write to the queue, or one transaction's writes to it, may hold.",
        unit="bytes", ge=MIB,
    )  # fmt: skip
    server_result_bytes_max: int = _setting(
        256 * MIB, "Most of a result that is kept for a client which asks for something else before it has read it.",
        unit="bytes", ge=MIB,
    )  # fmt: skip
    server_prepared_max: int = _setting(1_000, "Prepared statements of one session.", unit="statements", ge=1)
    server_memory_mb: int = _setting(
        0, "Memory of DuckDB in the server; more spills to the home; 0 is DuckDB's default.", unit="MiB", ge=0
    )
    server_shutdown_seconds: float = _setting(
        30, "How long the end of the server waits for statements under way and for the last flush.",
        unit="seconds", ge=0,
    )  # fmt: skip

    status_seconds_max: float = _setting(
        15, "What the status says of lake, imports and tenants is asked for again when it is this old.",
        unit="seconds", ge=0,
    )  # fmt: skip
    status_tables_max: int = _setting(
        200, "Tables, and tenants, that the status lists one by one; sums are over all.", unit="tables", ge=1, le=10_000
    )
    status_schema_project: Path | None = _setting(
        None, "Folder of a project whose database the status compares with its models, which are run for that."
    )

    spark_master: str = _setting("local[*]", "Spark master: `local[N]`, `spark://…`, `yarn`, `k8s://…`.")
    spark_driver_memory_mb: int = _setting(1024, "Heap of Spark's driver JVM.", unit="MiB", ge=512)
    spark_start_seconds_max: float = _setting(
        120, "Longest that Java, and then Spark in it, may take to start; it is ended then.", unit="seconds", gt=0
    )
    spark_restart_seconds_max: float = _setting(
        60, "Longest wait before Spark is started again after a start that failed.", unit="seconds", gt=0
    )
    spark_task_failures_max: int = _setting(4, "Tries of one Spark task before its job fails.", unit="tries", ge=1)
    spark_task_seconds_max: float = _setting(
        600, "A Spark task that takes longer is ended, and what it was to write is tried again later.",
        unit="seconds", gt=0,
    )  # fmt: skip
    spark_conf: Annotated[dict[str, str], NoDecode] = _setting(
        {},
        "Further `spark.*` settings: `key=value` pairs with commas between, or a table with quoted keys in the file.",
        repr=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _split_pairs(cls, values: dict[str, Any]) -> dict[str, Any]:
        given = values.get("spark_conf")
        if isinstance(given, str):
            pairs = [pair.partition("=") for pair in given.split(",") if pair.strip()]
            bare = [number for number, (_, is_pair, _) in enumerate(pairs, 1) if not is_pair]
            if bare:
                # Not quoted: it may be the rest of a secret with a comma in it.
                raise ValueError(
                    f"spark_conf holds `key=value` pairs with commas between, and pair {bare[0]} has no `=`"
                )
            values["spark_conf"] = {key.strip(): value.strip() for key, _, value in pairs}
        return values

    @model_validator(mode="after")
    def _check_together(self) -> "Settings":
        foreign = [key for key in self.spark_conf if not key.startswith("spark.")]
        if foreign:
            raise ValueError(f"spark_conf holds only `spark.*` keys, not {', '.join(foreign)}")
        if self.lake_name.lower() in _LAKE_NAMES_TAKEN:
            raise ValueError(f"lake_name must not be {self.lake_name!r}, which DuckDB has taken")
        if self.queue_target_catalog not in (None, self.lake_name):
            raise ValueError(f"queue_target_catalog must be the lake's name, {self.lake_name!r}, or be left out")
        if isinstance(self.server_web_port, int) and not 0 <= self.server_web_port <= PORT_MAX:
            raise ValueError(f"server_web_port is a port, 0 to {PORT_MAX}, or `off`")
        if self.lake_snapshot_keep_hours * 3600 < 10 * self.lake_transaction_seconds_max:
            raise ValueError(
                "lake_snapshot_keep_hours must be at least ten times lake_transaction_seconds_max: "
                "expiring the snapshot a transaction started from hides its conflicts"
            )
        return self

    @property
    def catalog_url(self) -> SecretStr:
        """The catalog with its default filled in."""
        return self.lake_catalog or SecretStr(f"sqlite:{self.home.absolute() / 'catalog.sqlite'}")

    @property
    def control_url(self) -> SecretStr:
        """The control database with its default filled in."""
        return self.control_db or SecretStr(f"sqlite:{self.home.absolute() / 'control.sqlite'}")

    @property
    def queue_path(self) -> Path:
        """The queue's root with its default filled in."""
        return (self.queue_root or self.home / "duckling_queue").absolute()

    @property
    def web_port(self) -> int | None:
        """The port of the web server with its default filled in; None where there is to be none."""
        if self.server_web_port is None:
            # A second server on the machine has another port, and then needs no second setting.
            return WEB_PORT if self.server_port == SERVER_PORT else 0
        return None if self.server_web_port == "off" else self.server_web_port

    @property
    def users_path(self) -> Path:
        """The users' file with its default filled in."""
        return (self.server_users_file or self.home / "users.json").absolute()

    @property
    def data_path(self) -> str:
        """The data path with its default filled in."""
        return self.lake_data_path or str(self.home.absolute() / "data")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # Nothing is in files of the other kinds, and looking for it takes as long as all the rest.
        return (init_settings, env_settings) if cls._reads_environment else (init_settings,)


class _Written(Settings):
    """Settings that nothing but a file says."""

    _reads_environment: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting as the reference documentation shows it."""

    name: str
    variable: str
    default: str
    unit: str
    help: str


def declared() -> tuple[SettingInfo, ...]:
    """All settings, in the order of their declaration."""
    return tuple(
        SettingInfo(
            name=name,
            variable=_variable(name),
            default="" if field.default is None else str(field.default),
            unit=_unit(field.json_schema_extra),
            help=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    )


def load_settings(home: Path | None = None, **given: Any) -> Settings:
    """Read the settings; `home` and whatever else is `given` (the command line's) win over the environment's."""
    _refuse_unknown_variables()
    folder = home or Path(os.environ.get(_variable("home")) or Settings.model_fields["home"].default)
    values = {key: value for key, value in _read_file(folder / FILE_NAME).items() if not os.environ.get(_variable(key))}
    try:
        chosen = {name: value for name, value in given.items() if value is not None}
        return Settings(**{**values, **_queue_values(), **chosen, "home": folder})
    except ValidationError as error:
        raise SettingsError(
            f"Wrong settings: {_problems(error)}.", hint="`catchment --help` lists the settings."
        ) from None


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())


def settings_of(home: Path) -> Settings:
    """The settings of another home, by its file alone: this process's environment is not that one's."""
    try:
        return _Written(**{**_read_file(home / FILE_NAME), "home": home})
    except ValidationError as error:
        raise SettingsError(
            f"Wrong settings in {home / FILE_NAME}: {_problems(error)}.", hint="`catchment --help` lists the settings."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectTable:
    """What a project's `pyproject.toml` says under one name; paths in it count from the file's folder."""

    file: Path
    values: dict[str, Any]


def project_table(folder: Path, *names: str) -> ProjectTable | None:
    """The table of that name in the nearest `pyproject.toml`, from the folder up; None where there is no such file."""
    found = next((each for each in (folder, *folder.parents) if (each / PROJECT_FILE_NAME).is_file()), None)
    if found is None:
        return None
    values: Any = _read_toml(found / PROJECT_FILE_NAME)
    for name in names:
        values = values.get(name, {})
        if not isinstance(values, dict):
            raise SettingsError(f"{found / PROJECT_FILE_NAME}: [{'.'.join(names)}] is not a table.")
    return ProjectTable(file=found / PROJECT_FILE_NAME, values=values)


def java_home() -> str | None:
    """Where the user says that Java is."""
    return os.environ.get("JAVA_HOME") or None


def spark_gateway_given() -> bool:
    """Whether the program runs in a JVM of Spark already, as `spark-submit` has it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_submit_arguments() -> str:
    """What the user wants a JVM of Spark to be started with, as PySpark reads it."""
    return os.environ.get("PYSPARK_SUBMIT_ARGS") or "pyspark-shell"


def cpu_count() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_variable(name: str, value: str) -> None:
    """Set a variable for this process and its children, unless the user has: for libraries that read nothing else."""
    os.environ.setdefault(name, value)


@contextmanager
def environment(**defaults: str) -> Iterator[None]:
    """Give child processes variables that the user has not set, for a while."""
    missing = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def _variable(name: str) -> str:
    if name.startswith(_QUEUE):
        return QUEUE_PREFIX + name.removeprefix(_QUEUE).upper()
    return PREFIX + name.upper()


def _queue_values() -> dict[str, str]:
    names = [name for name in Settings.model_fields if name.startswith(_QUEUE)]
    return {name: os.environ[_variable(name)] for name in names if os.environ.get(_variable(name))}


def _unit(extra: object) -> str:
    return str(extra.get("unit") or "") if isinstance(extra, dict) else ""


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        hint = f"Is {path.parent} a folder, and may this user read {path.name}?"
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", hint=hint) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "Write `name = value` in each line, with text in quotation marks."
        raise SettingsError(f"{path} is not valid TOML: {error}.", hint=hint) from None


def _read_file(path: Path) -> dict[str, Any]:
    values = _read_toml(path)
    for name in values:
        if name == "home":
            raise SettingsError(
                f"{path} sets 'home', which it lies in.", hint="CATCHMENT_HOME sets the home, or --home does."
            )
        if name not in Settings.model_fields:
            raise SettingsError(
                f"{path} sets {name!r}, which is no setting.", hint=_nearest(name, Settings.model_fields)
            )
    return values


def _refuse_unknown_variables() -> None:
    known = {setting.variable: None for setting in declared()}
    for variable in os.environ:
        if variable.startswith((PREFIX, QUEUE_PREFIX)) and variable not in known:
            raise SettingsError(
                f"The environment sets {variable}, which is no setting.", hint=_nearest(variable, known)
            )


def _nearest(name: str, known: dict[str, Any]) -> str | None:
    bare = {each.removeprefix(PREFIX).removeprefix(QUEUE_PREFIX): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX).removeprefix(QUEUE_PREFIX), bare, n=1)
    return f"Did you mean {bare[near[0]]}?" if near else "`catchment --help` lists the settings."
