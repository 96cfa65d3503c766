"""Where a lake is, and the ATTACH that opens it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import duckdb
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from catchment import files, sql
from catchment.backoff import Backoff, retry
from catchment.clock import Clock
from catchment.errors import ConflictError, LakeUnavailableError, SettingsError
from catchment.lake import extensions

ATTACH_BACKOFF = Backoff(attempts_max=8, first_ms=50, wait_ms_max=2_000)
_SQLITE_BUSY_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class DuckDbCatalog:
    """A catalog in a DuckDB file: fastest, but one process at a time, readers included."""

    path: Path

    def __str__(self) -> str:
        return f"duckdb:{self.path}"


@dataclass(frozen=True, slots=True)
class SqliteCatalog:
    """A catalog in a SQLite file: several processes of one host."""

    path: Path

    def __str__(self) -> str:
        return f"sqlite:{self.path}"


@dataclass(frozen=True, slots=True)
class PostgresCatalog:
    """A catalog in PostgreSQL: several hosts."""

    conninfo: str = field(repr=False)

    def __str__(self) -> str:
        shown = {key: value for key, value in conninfo_to_dict(self.conninfo).items() if key != "password"}
        return f"postgres:{make_conninfo('', **shown)}"


Catalog = DuckDbCatalog | SqliteCatalog | PostgresCatalog


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeAddress:
    """All that is needed to open a lake: catalog, folder of the data files, and the name to attach it as."""

    catalog: Catalog
    data_path: str
    name: str = "lake"


def parse_catalog(url: str) -> Catalog:
    """Read `sqlite:PATH`, `duckdb:PATH` or `postgres:CONNINFO`."""
    kind, _, rest = url.partition(":")
    if rest:
        match kind:
            case "duckdb":
                return DuckDbCatalog(Path(rest).absolute())
            case "sqlite":
                return SqliteCatalog(Path(rest).absolute())
            case "postgres" | "postgresql":
                return PostgresCatalog(url if rest.startswith("//") else rest)
    raise SettingsError(
        "The lake's catalog is given in a form that is not known.",
        hint="CATCHMENT_LAKE_CATALOG is `sqlite:PATH`, `duckdb:PATH` or `postgres:CONNINFO`.",
    )


def open_connection(
    address: LakeAddress, *, clock: Clock, settings: Mapping[str, sql.Value]
) -> duckdb.DuckDBPyConnection:
    """A new DuckDB instance with the lake attached, created where there is none, and `settings` in force."""
    connection = extensions.connect()
    extensions.load(connection, "ducklake")
    match address.catalog:
        case DuckDbCatalog(path=path):
            files.make_folder(path.parent)
        case SqliteCatalog(path=path):
            files.make_folder(path.parent)
            extensions.load(connection, "sqlite")
        case PostgresCatalog():
            extensions.load(connection, "postgres")
        case _ as unreachable:
            assert_never(unreachable)
    for name, value in settings.items():
        connection.execute(f"SET {name} = {sql.literal(value)}")
    retry(lambda: _attach(connection, address), policy=ATTACH_BACKOFF, clock=clock, on=ConflictError)
    return connection


def _attach(connection: duckdb.DuckDBPyConnection, address: LakeAddress) -> None:
    target, options = _target(address.catalog)
    options["DATA_PATH"] = address.data_path.rstrip("/") + "/"
    try:
        connection.execute(f"ATTACH {sql.literal(target)} AS {sql.identifier(address.name)} {sql.options(options)}")
    except duckdb.Error as error:
        raise _attach_error(error, address) from None


def _target(catalog: Catalog) -> tuple[str, dict[str, sql.Value]]:
    match catalog:
        case DuckDbCatalog(path=path):
            return f"ducklake:{path}", {}
        case SqliteCatalog(path=path):
            return f"ducklake:sqlite:{path}", {"META_JOURNAL_MODE": "WAL", "META_BUSY_TIMEOUT": _SQLITE_BUSY_TIMEOUT_MS}
        case PostgresCatalog(conninfo=conninfo):
            return f"ducklake:postgres:{conninfo}", {}
        case _ as unreachable:
            assert_never(unreachable)


def _attach_error(error: duckdb.Error, address: LakeAddress) -> ConflictError | LakeUnavailableError | SettingsError:
    # DuckDB quotes the connection string in its messages; a password must not travel with them.
    text = str(error)
    if isinstance(address.catalog, PostgresCatalog):
        text = text.replace(address.catalog.conninfo, str(address.catalog))
        password = conninfo_to_dict(address.catalog.conninfo).get("password")
        text = text.replace(str(password), "***") if password else text
    if "does not match existing data path" in text or "DATA_PATH" in text:
        return SettingsError(
            f"The lake at {address.catalog} keeps its data elsewhere than {address.data_path}: {text}",
            hint="Set CATCHMENT_LAKE_DATA_PATH to the folder that the lake was made with.",
        )
    if "database is locked" in text or "already exists" in text or "duplicate key" in text:
        return ConflictError(f"Another process is opening the lake at {address.catalog}: {text}")
    return LakeUnavailableError(f"The lake at {address.catalog} cannot be opened: {text}")
