"""Settings: declared once, with unit and help; read from the environment and `catchment.toml`.

The environment overrides the file. No other module reads the environment or TOML files.
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
# The queue's settings keep the prefix of the design documents.
QUEUE_PREFIX = "DUCKLING_QUEUE_"
_QUEUE = "queue_"
FILE_NAME = "catchment.toml"
MIB = 1024 * 1024
SERVER_PORT = 4214
WEB_PORT = 4215
PORT_MAX = 65_535
# More than a century: within the calendar's range, and longer than any retention needs.
HOURS_MAX = 1_000_000
# Databases that exist in every DuckDB instance, and names that DuckDB reserves for schemas.
_LAKE_NAMES_TAKEN = ("main", "temp", "system", "memory", "pg_catalog", "information_schema")


# Former settings, and their replacements.
_REMOVED = {
    "deliver_adopt_bytes_min": "is a constant now, 16 MiB; `--mode adopt` and `--mode rewrite` override it",
    "deliver_units_per_commit_max": "is a constant now, 5,000; 2,500 in a legacy import",
    "lake_commit_attempts_max": "is a constant now, 20",
    "lake_lock_timeout_seconds": "is a constant now, 120 s per attempt to commit",
    "queue_checkpoint_bytes": "is a constant now, 512 MiB",
    "queue_full_wait_seconds": "is a constant now, 5 s",
    "queue_retry_seconds_max": "is a constant now, 300 s",
    "server_batch_rows_max": "is a constant now, 1,000,000 rows",
    "server_message_bytes_max": "is a constant now, 64 MiB",
    "server_prepared_max": "is a constant now, 1,000 per session",
    "server_result_bytes_max": "is a constant now, 256 MiB",
    "server_slow_statement_seconds": "is a constant now, 1 s",
    "server_stall_seconds_max": "is a constant now, 60 s",
    "server_statement_bytes_max": "is a constant now, 1 MiB",
    "shard_report_seconds": "is a constant now, 5 s",
    "spark_restart_seconds_max": "is a constant now, 60 s",
    "spark_task_failures_max": "was merged into spark_conf, as spark.task.maxFailures",
    "status_seconds_max": "is a constant now, 15 s",
    "status_tables_max": "is a constant now, 200",
    "tenant_copy_wait_seconds": "is a constant now, 2 s",
    "tenant_gate_seconds_max": "is the option --gate-seconds of `catchment tenant move`",
    "tenant_gate_wait_seconds": "is a constant now, 10 s",
    "tenant_route_seconds_max": "is a constant now, 30 s",
    "tenant_routes_max": "is a constant now, 100,000",
    "tenant_usage_seconds_max": "is a constant now, 10 s",
}
# Settings are listed in groups, by the first word of their names.
_GROUPS = {
    "home": "General",
    "log": "General",
    "lake": "Lake",
    "deliver": "Lake",
    "queue": "Queue",
    "control": "Tenants and shards",
    "shard": "Tenants and shards",
    "server": "Server",
    "status": "Server",
    "spark": "Spark",
}


def _setting(default: Any, text: str, *, unit: str | None = None, **bounds: Any) -> Any:
    return Field(default, description=text, json_schema_extra={"unit": unit}, **bounds)


class Settings(BaseSettings):
    """All settings. Frozen: a process keeps the settings that it started with."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)
    _reads_environment: ClassVar[bool] = True

    home: Path = _setting(Path("catchment-data"), "Data folder, for everything without its own path setting.")
    log_level: str = _setting("warning", "Minimum log level.", pattern="^(debug|info|warning|error)$")
    log_json: bool | None = _setting(
        None, "Log JSON, one object per line, instead of text; default: yes, unless stderr is a terminal."
    )
    log_sql: bool = _setting(False, "Whether log lines may contain the text of statements and of errors about them.")

    lake_catalog: SecretStr | None = _setting(
        None,
        "DuckLake catalog: `sqlite:PATH`, `duckdb:PATH` or `postgres:CONNINFO`; default: a SQLite file in the home.",
    )
    lake_data_path: str | None = _setting(None, "Folder of the lake's Parquet files; default: `data` in the home.")
    lake_name: str = _setting("lake", "Name under which DuckDB attaches the lake.", pattern="^[A-Za-z][A-Za-z0-9_]*$")
    lake_target_file_bytes: int = _setting(128 * MIB, "Target size of Parquet files.", unit="bytes", ge=MIB)
    lake_transaction_seconds_max: float = _setting(
        600, "Maximum duration of a write transaction; a longer one is rolled back and repeated.", unit="seconds", gt=0
    )
    lake_threads_max: int = _setting(
        0, "DuckDB threads in a process that opens the lake; 0: one per core.", unit="threads", ge=0, le=1024
    )
    lake_snapshot_keep_hours: float = _setting(
        168,
        "Age at which maintenance expires snapshots; must be at least ten times the longest transaction.",
        unit="hours",
        gt=0,
        le=HOURS_MAX,
    )
    lake_orphan_keep_hours: float = _setting(
        48,
        "Age at which maintenance deletes files that no snapshot lists and no running job owns.",
        unit="hours",
        gt=0,
        le=HOURS_MAX,
    )

    control_db: SecretStr | None = _setting(
        None,
        "Database of tenants, shards and moves: `sqlite:PATH`, or `postgres:CONNINFO` for several hosts; "
        "default: a SQLite file in the home.",
    )

    shard_name: str | None = _setting(
        None, "Name of this server as a shard; tenants are placed in shards.", pattern="^[a-z][a-z0-9-]{0,62}$"
    )
    shard_secret: SecretStr | None = _setting(
        None, "Secret with which shards and movers authenticate; the same on all.", min_length=16
    )
    shard_ca: Path | None = _setting(
        None, "Certificates of the authority that issued the other shards' certificates; default: the system's."
    )

    deliver_task_memory_mb: int = _setting(
        1024, "DuckDB memory limit of one Spark task; it spills beyond that.", unit="MiB", ge=64
    )

    queue_enable: bool = _setting(True, "Whether small writes are buffered.")
    queue_layout: str = _setting(
        "shared",
        "Buffer layout: one `buffer.duckdb` (`shared`) or one file per session (`sessions`).",
        pattern="^(shared|sessions)$",
    )
    queue_root: Path | None = _setting(None, "Folder of the buffer; default: `duckling_queue` in the home.")
    queue_buffer_max_rows: int = _setting(50_000, "Number of rows at which a table is flushed.", unit="rows", ge=1)
    queue_rotate_size_bytes: int = _setting(
        100_000_000, "Size at which a table, or a session's file, is flushed.", unit="bytes", ge=1
    )
    queue_rotate_interval_seconds: float = _setting(
        300, "Age of its oldest row at which a table is flushed.", unit="seconds", gt=0
    )
    queue_flush_interval_seconds: float = _setting(
        60, "Interval at which the sweeper checks for tables that are due.", unit="seconds", gt=0
    )
    queue_max_parallel_flushes: int = _setting(2, "Maximum number of concurrent flushes.", unit="flushes", ge=1, le=64)
    queue_target_catalog: str | None = _setting(None, "Catalog that rows are flushed to: the lake's name.")
    queue_flush_chunk_rows: int = _setting(50_000, "Maximum number of rows in one slice of a table.", unit="rows", ge=1)
    queue_max_db_bytes: int = _setting(
        0,
        "Maximum size of the buffer on disk, at which writes wait and are then refused; 0: no limit.",
        unit="bytes",
        ge=0,
    )
    queue_bypass: bool = _setting(
        False, "At the buffer's size limit, write to the lake directly instead of refusing writes."
    )
    queue_auto_create_tables: bool = _setting(False, "Create a missing table from the first rows written to it.")
    queue_schema_check_seconds: float = _setting(
        1,
        "How long writes may rely on known columns before the lake is checked for changes by other processes; "
        "0: check before every write.",
        unit="seconds",
        ge=0,
        le=60,
    )
    queue_flushed_keep_hours: float = _setting(
        72, "Retention of a session's file after its rows are in the lake.", unit="hours", ge=0, le=HOURS_MAX
    )
    queue_lease_postgres: SecretStr | None = _setting(
        None, "PostgreSQL that leases sessions' files to hosts; default: the lake's, if it has one, else file locks."
    )

    server_host: str = _setting("127.0.0.1", "Address that `catchment serve` listens on.", min_length=1)
    server_port: int = _setting(SERVER_PORT, "Port of the Flight SQL server; 0: any free port.", ge=0, le=PORT_MAX)
    server_web_port: int | Literal["off"] | None = _setting(
        None,
        "Port of `/metrics`, `/status.json` and `/healthz`; 0: any free port; `off`: none. "
        "Default: 4215, or any free port if the Flight SQL server's is not 4214.",
    )
    server_auth: bool | None = _setting(
        None, "Whether clients must log in; default: yes, unless the server listens on loopback and has no users."
    )
    server_users_file: Path | None = _setting(None, "File of the users; default: `users.json` in the home.")
    server_tls_certificate: Path | None = _setting(None, "The server's certificate chain, PEM.")
    server_tls_key: Path | None = _setting(None, "The private key of the certificate, PEM.")
    server_sessions_max: int = _setting(100, "Maximum number of open sessions.", unit="sessions", ge=1)
    server_session_idle_seconds: float = _setting(
        900, "Idle time after which a session is closed.", unit="seconds", gt=0
    )
    server_transaction_idle_seconds: float = _setting(
        60, "Idle time after which a transaction is rolled back.", unit="seconds", gt=0
    )
    server_statement_seconds_max: float = _setting(300, "Statement timeout.", unit="seconds", gt=0)
    server_statements_max: int = _setting(
        32, "Maximum number of concurrent statements: this many reads, and as many others.", unit="statements", ge=1
    )
    server_write_bytes_max: int = _setting(
        1024 * MIB,
        "Maximum size of one write to the queue, or of all writes to it in one transaction.",
        unit="bytes",
        ge=MIB,
    )
    server_engines: int = _setting(
        1,
        "Processes that run clients' SQL; sessions are spread over them. With a `duckdb:` catalog, the server runs it.",
        unit="processes",
        ge=1,
        le=16,
    )
    server_memory_mb: int = _setting(
        0,
        "DuckDB memory limit of each engine process; it spills to the home beyond that; 0: its part of the machine.",
        unit="MiB",
        ge=0,
    )
    server_shutdown_seconds: float = _setting(
        30,
        "How long a shutdown waits for running statements and for the last flush.",
        unit="seconds",
        ge=0,
    )

    status_schema_project: Path | None = _setting(
        None, "Folder of a project whose database the status compares with its models; this runs the models' code."
    )

    spark_master: str = _setting("local[*]", "Spark master: `local[N]`, `spark://…`, `yarn`, `k8s://…`.")
    spark_driver_memory_mb: int = _setting(1024, "Heap of Spark's driver JVM.", unit="MiB", ge=512)
    spark_start_seconds_max: float = _setting(
        120, "Timeout for starting Java, and then for starting Spark in it.", unit="seconds", gt=0
    )
    spark_task_seconds_max: float = _setting(
        600,
        "Timeout of a Spark task; its output is tried again later.",
        unit="seconds",
        gt=0,
    )
    spark_conf: Annotated[dict[str, str], NoDecode] = _setting(
        {},
        "Additional `spark.*` settings: comma-separated `key=value` pairs, or a table with quoted keys in the file.",
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
                # Not quoted: it may be the rest of a secret that contains a comma.
                raise ValueError(f"spark_conf must be comma-separated `key=value` pairs, and pair {bare[0]} has no `=`")
            values["spark_conf"] = {key.strip(): value.strip() for key, _, value in pairs}
        return values

    @model_validator(mode="after")
    def _check_together(self) -> "Settings":
        foreign = [key for key in self.spark_conf if not key.startswith("spark.")]
        if foreign:
            raise ValueError(f"spark_conf must have only `spark.*` keys, not {', '.join(foreign)}")
        if self.lake_name.lower() in _LAKE_NAMES_TAKEN:
            raise ValueError(f"lake_name must not be {self.lake_name!r}, which DuckDB reserves")
        if self.queue_target_catalog not in (None, self.lake_name):
            raise ValueError(f"queue_target_catalog must be the lake's name, {self.lake_name!r}, or be left out")
        if isinstance(self.server_web_port, int) and not 0 <= self.server_web_port <= PORT_MAX:
            raise ValueError(f"server_web_port must be a port, 0 to {PORT_MAX}, or `off`")
        if self.lake_snapshot_keep_hours * 3600 < 10 * self.lake_transaction_seconds_max:
            raise ValueError(
                "lake_snapshot_keep_hours must be at least ten times lake_transaction_seconds_max: "
                "a transaction whose first snapshot has expired cannot detect conflicts"
            )
        return self

    @property
    def catalog_url(self) -> SecretStr:
        """The catalog, or its default."""
        return self.lake_catalog or SecretStr(f"sqlite:{self.home.absolute() / 'catalog.sqlite'}")

    @property
    def control_url(self) -> SecretStr:
        """The control database, or its default."""
        return self.control_db or SecretStr(f"sqlite:{self.home.absolute() / 'control.sqlite'}")

    @property
    def queue_path(self) -> Path:
        """The queue's folder, or its default."""
        return (self.queue_root or self.home / "duckling_queue").absolute()

    @property
    def web_port(self) -> int | None:
        """The port of the web server, or its default; None if it is off."""
        if self.server_web_port is None:
            # A second server on the machine, with another port, gets any free web port by default.
            return WEB_PORT if self.server_port == SERVER_PORT else 0
        return None if self.server_web_port == "off" else self.server_web_port

    @property
    def users_path(self) -> Path:
        """The users' file, or its default."""
        return (self.server_users_file or self.home / "users.json").absolute()

    @property
    def data_path(self) -> str:
        """The data path, or its default."""
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
        # Other sources are not used; searching them would double the time.
        return (init_settings, env_settings) if cls._reads_environment else (init_settings,)


class _FileSettings(Settings):
    """Settings from a file alone."""

    _reads_environment: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting, as the reference documentation shows it."""

    name: str
    group: str
    variable: str
    default: str
    unit: str
    help: str


def declared() -> tuple[SettingInfo, ...]:
    """Return all settings, in the order of their declaration."""
    return tuple(
        SettingInfo(
            name=name,
            group=_GROUPS[name.partition("_")[0]],
            variable=_variable(name),
            default="" if field.default is None else str(field.default),
            unit=_unit(field.json_schema_extra),
            help=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    )


def load_settings(home: Path | None = None, **given: Any) -> Settings:
    """Read the settings; `home` and `given` values override the environment."""
    _refuse_unknown_variables()
    for name in given:
        if name not in Settings.model_fields:
            raise SettingsError(
                f"{name!r} is not a setting.", hint=_nearest(name, dict.fromkeys(Settings.model_fields))
            )
    folder = home or Path(os.environ.get(_variable("home")) or Settings.model_fields["home"].default)
    values = {key: value for key, value in _read_file(folder / FILE_NAME).items() if not os.environ.get(_variable(key))}
    try:
        chosen = {name: value for name, value in given.items() if value is not None}
        return Settings(**{**values, **_queue_values(), **chosen, "home": folder})
    except ValidationError as error:
        raise SettingsError(
            f"Wrong settings: {_problems(error)}.", hint="`catchment settings` lists the settings."
        ) from None


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())


def settings_of(home: Path) -> Settings:
    """Read another home's settings from its file alone, without this process's environment."""
    try:
        return _FileSettings(**{**_read_file(home / FILE_NAME), "home": home})
    except ValidationError as error:
        raise SettingsError(
            f"Wrong settings in {home / FILE_NAME}: {_problems(error)}.",
            hint="`catchment settings` lists the settings.",
        ) from None


def java_home() -> str | None:
    """Return the user's JAVA_HOME."""
    return os.environ.get("JAVA_HOME") or None


def spark_gateway_given() -> bool:
    """Return whether this program runs inside a JVM of Spark, as under `spark-submit`."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_submit_arguments() -> str:
    """Return the user's arguments for starting Spark's JVM, as PySpark reads them."""
    return os.environ.get("PYSPARK_SUBMIT_ARGS") or "pyspark-shell"


def default_variable(name: str, value: str) -> None:
    """Set a variable for libraries in this process and its children, unless the user has set it."""
    os.environ.setdefault(name, value)


@contextmanager
def environment(**defaults: str) -> Iterator[None]:
    """Set variables for child processes inside the context, unless the user has set them."""
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


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; empty if there is none. Raises SettingsError if it is unreadable."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        hint = f"Is {path.parent} a folder, and may this user read {path.name}?"
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", hint=hint) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "Write one `name = value` per line, with text in quotation marks."
        raise SettingsError(f"{path} is not valid TOML: {error}.", hint=hint) from None


def _read_file(path: Path) -> dict[str, Any]:
    values = read_toml(path)
    for name in values:
        if name == "home":
            raise SettingsError(
                f"{path} sets 'home', but the file is in the home itself.",
                hint="CATCHMENT_HOME sets the home, or --home does.",
            )
        if name in _REMOVED:
            raise SettingsError(f"{path} sets {name!r}, which {_REMOVED[name]}.", hint="Remove it from the file.")
        if name not in Settings.model_fields:
            raise SettingsError(
                f"{path} sets {name!r}, which is not a setting.", hint=_nearest(name, Settings.model_fields)
            )
    return values


def _refuse_unknown_variables() -> None:
    known = {setting.variable: None for setting in declared()}
    removed = {_variable(name): fate for name, fate in _REMOVED.items()}
    for variable in os.environ:
        if variable in removed:
            raise SettingsError(
                f"The environment sets {variable}, which {removed[variable]}.", hint="Unset the variable."
            )
        if variable.startswith((PREFIX, QUEUE_PREFIX)) and variable not in known:
            raise SettingsError(
                f"The environment sets {variable}, which is not a setting.", hint=_nearest(variable, known)
            )


def _nearest(name: str, known: dict[str, Any]) -> str | None:
    bare = {each.removeprefix(PREFIX).removeprefix(QUEUE_PREFIX): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX).removeprefix(QUEUE_PREFIX), bare, n=1)
    return f"Did you mean {bare[near[0]]}?" if near else "`catchment settings` lists the settings."
