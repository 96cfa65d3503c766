"""Settings: each declared once with its unit and one line of help, read from the environment and `catchment.toml`.

The environment wins over the file. The only place that reads the environment.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from catchment.errors import SettingsError

PREFIX = "CATCHMENT_"
FILE_NAME = "catchment.toml"
MIB = 1024 * 1024


def _setting(default: Any, text: str, *, unit: str | None = None, **bounds: Any) -> Any:
    return Field(default, description=text, json_schema_extra={"unit": unit}, **bounds)


class Settings(BaseSettings):
    """Everything that can be set. Frozen: a process lives with the settings it started with."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    home: Path = _setting(Path("catchment-data"), "Folder that holds everything which is not put elsewhere.")
    log_level: str = _setting("warning", "Least level that is logged.", pattern="^(debug|info|warning|error)$")
    log_json: bool = _setting(False, "Log one JSON object a line instead of prose.")

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
    lake_snapshot_keep_hours: float = _setting(
        168, "Age at which upkeep expires snapshots; must exceed the longest transaction tenfold.", unit="hours", gt=0
    )
    lake_orphan_keep_hours: float = _setting(
        48, "Age at which upkeep deletes files that no snapshot and no running job knows.", unit="hours", gt=0
    )

    deliver_units_per_commit_max: int = _setting(5_000, "Units delivered by one commit.", unit="units", ge=1)
    deliver_adopt_bytes_min: int = _setting(
        16 * MIB,
        "In mode `auto`, files of this size and up are adopted as they are, smaller ones coalesced.",
        unit="bytes",
        ge=0,
    )
    deliver_task_memory_mb: int = _setting(1024, "Memory of DuckDB in one Spark task; more spills.", unit="MiB", ge=64)

    spark_master: str = _setting("local[*]", "Spark master: `local[N]`, `spark://…`, `yarn`, `k8s://…`.")
    spark_driver_memory_mb: int = _setting(1024, "Heap of Spark's driver JVM.", unit="MiB", ge=512)
    spark_task_failures_max: int = _setting(4, "Tries of one Spark task before its job fails.", unit="tries", ge=1)
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
            values["spark_conf"] = {key.strip(): value.strip() for key, _, value in pairs}
        return values

    @model_validator(mode="after")
    def _check_together(self) -> "Settings":
        foreign = [key for key in self.spark_conf if not key.startswith("spark.")]
        if foreign:
            raise ValueError(f"spark_conf holds only `spark.*` keys, not {', '.join(foreign)}")
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
    def data_path(self) -> str:
        """The data path with its default filled in."""
        return self.lake_data_path or str(self.home.absolute() / "data")


@dataclass(frozen=True, slots=True)
class Declared:
    """One setting as the reference documentation shows it."""

    name: str
    variable: str
    default: str
    unit: str
    help: str


def declared() -> tuple[Declared, ...]:
    """All settings, in the order of their declaration."""
    return tuple(
        Declared(
            name=name,
            variable=_variable(name),
            default="" if field.default is None else str(field.default),
            unit=_unit(field.json_schema_extra),
            help=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    )


def load_settings(home: Path | None = None) -> Settings:
    """Read the settings; `home` (the command line's) wins over the environment's."""
    _refuse_unknown_variables()
    folder = home or Path(os.environ.get(_variable("home")) or Settings.model_fields["home"].default)
    values = {key: value for key, value in _read_file(folder / FILE_NAME).items() if not os.environ.get(_variable(key))}
    try:
        return Settings(**{**values, "home": folder})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
        raise SettingsError(f"Wrong settings: {problems}.", hint="`catchment --help` lists the settings.") from None


def java_home() -> str | None:
    """Where the user says that Java is."""
    return os.environ.get("JAVA_HOME") or None


def cpu_count() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    return PREFIX + name.upper()


def _unit(extra: object) -> str:
    return str(extra.get("unit") or "") if isinstance(extra, dict) else ""


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", hint="Is the home a folder?") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from None
    for name in values:
        if name not in Settings.model_fields or name == "home":
            raise SettingsError(
                f"{path} sets {name!r}, which is no setting.", hint=_nearest(name, Settings.model_fields)
            )
    return values


def _refuse_unknown_variables() -> None:
    known = {setting.variable: None for setting in declared()}
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in known:
            raise SettingsError(
                f"The environment sets {variable}, which is no setting.", hint=_nearest(variable, known)
            )


def _nearest(name: str, known: dict[str, Any]) -> str | None:
    bare = {each.removeprefix(PREFIX): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1)
    return f"Did you mean {bare[near[0]]}?" if near else "`catchment --help` lists the settings."
