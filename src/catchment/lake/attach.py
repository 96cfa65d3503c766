"""Addresses of lakes, and the ATTACH that opens them."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

import duckdb

from catchment.errors import CatchmentError, ConflictError, LakeMissingError, LakeUnavailableError, SettingsError
from catchment.foundation import files, sql
from catchment.foundation.backoff import Backoff, retry
from catchment.foundation.clock import Clock
from catchment.lake import extensions, tables

ATTACH_BACKOFF = Backoff(attempts_max=8, first_ms=50, wait_ms_max=2_000)
_SQLITE_BUSY_TIMEOUT_MS = 5_000
# DuckLake's own retries inside COMMIT: of conflicts on the catalog's keys, not on the ledger.
CONNECTION_SETTINGS: dict[str, sql.Value] = {
    "ducklake_max_retry_count": 20,
    "ducklake_retry_wait_ms": 50,
    "ducklake_retry_backoff": 1.3,
}


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
        from psycopg.conninfo import make_conninfo

        shown = {key: value for key, value in self._facts().items() if "password" not in key}
        return f"postgres:{make_conninfo('', **shown)}"

    def redact(self, text: str) -> str:
        """Return the text without secrets; DuckDB quotes connection strings in its messages."""
        text = text.replace(self.conninfo, str(self))
        secrets = [str(value) for key, value in self._facts().items() if "password" in key]
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    def _facts(self) -> dict[str, Any]:
        # Imported here and below, because only a lake with such a catalog needs the client of
        # PostgreSQL.
        from psycopg.conninfo import conninfo_to_dict

        return conninfo_to_dict(self.conninfo)


Catalog = DuckDbCatalog | SqliteCatalog | PostgresCatalog


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeAddress:
    """Address of a lake: catalog, folder of the data files, and the name to attach it as."""

    catalog: Catalog
    data_path: str
    name: str = "lake"

    @property
    def detects_conflicts(self) -> bool:
        """Whether a transaction can commit after others have, unless their changes conflict.

        With a SQLite catalog it cannot: SQLite refuses the write of a transaction that has read an
        older state, so a writer must keep others from committing from its first write on.
        """
        return not isinstance(self.catalog, SqliteCatalog)


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
                return _postgres(url if rest.startswith("//") else rest)
    raise SettingsError(
        "The lake's catalog has an unknown form.",
        hint="CATCHMENT_LAKE_CATALOG is `sqlite:PATH`, `duckdb:PATH` or `postgres:CONNINFO`.",
    )


def _postgres(conninfo: str) -> PostgresCatalog:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error:
        # The parser's message is left out: it would quote the connection string with its password.
        raise SettingsError(
            "The PostgreSQL connection string of the lake's catalog cannot be read.",
            hint="CATCHMENT_LAKE_CATALOG is `postgres:host=… dbname=…`; put values with spaces in single quotes.",
        ) from None
    return PostgresCatalog(conninfo)


def error_text(error: duckdb.Error, address: LakeAddress) -> str:
    """Return DuckDB's error text without secrets."""
    text = str(error)
    return address.catalog.redact(text) if isinstance(address.catalog, PostgresCatalog) else text


def open_connection(
    address: LakeAddress,
    *,
    clock: Clock,
    settings: Mapping[str, sql.Value],
    threads: int | None = None,
    create: bool = True,
) -> duckdb.DuckDBPyConnection:
    """Return a new DuckDB instance with the lake attached and `settings` applied.

    With `create`, a missing lake is created and a SQLite catalog is prepared for several processes.
    Without it, attaching changes nothing.
    """
    if any(letter in address.data_path for letter in "*?["):
        raise SettingsError(
            f"The data path {address.data_path} would be read as a pattern.", hint="Avoid `*`, `?` and `[`."
        )
    connection = extensions.connect(threads=threads)
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
    more: dict[str, sql.Value] = {"CREATE_IF_NOT_EXISTS": create}
    if create and isinstance(address.catalog, SqliteCatalog):
        # Stored in the file, so it applies to every later connection.
        more["META_JOURNAL_MODE"] = "WAL"
    retry(lambda: _attach(connection, address, more), policy=ATTACH_BACKOFF, clock=clock, on=ConflictError)
    if retry(lambda: _is_encrypted(connection, address), policy=ATTACH_BACKOFF, clock=clock, on=ConflictError):
        # DuckDB itself only decrypts; encryption needs this extension.
        extensions.load(connection, "httpfs")
    return connection


def _is_encrypted(connection: duckdb.DuckDBPyConnection, address: LakeAddress) -> bool:
    try:
        return tables.is_encrypted(connection, address.name)
    except duckdb.Error as error:
        raise _attach_error(error, address) from None


def detach(address: LakeAddress, connection: duckdb.DuckDBPyConnection) -> None:
    """Detach a DuckDB catalog from a replaced instance, so that the new one can open it.

    A process can open a DuckDB file only once. The file is closed when the last transaction of the
    instance has ended.
    """
    if isinstance(address.catalog, DuckDbCatalog):
        with suppress(duckdb.Error):
            connection.execute(f"DETACH {sql.identifier(address.name)}")


def _attach(connection: duckdb.DuckDBPyConnection, address: LakeAddress, more: Mapping[str, sql.Value]) -> None:
    target, options = _target(address.catalog)
    options |= {"DATA_PATH": address.data_path.rstrip("/") + "/", **more}
    attach = f"ATTACH {sql.literal(target)} AS {sql.identifier(address.name)}"
    try:
        try:
            connection.execute(f"{attach} {sql.options(options)}")
        except duckdb.Error as error:
            if not _is_other_spelling(str(error), address.data_path):
                raise
            # For this session only; the path in the catalog stays unchanged.
            connection.execute(f"{attach} {sql.options({**options, 'OVERRIDE_DATA_PATH': True})}")
    except duckdb.Error as error:
        raise _attach_error(error, address) from None


def _target(catalog: Catalog) -> tuple[str, dict[str, sql.Value]]:
    match catalog:
        case DuckDbCatalog(path=path):
            return f"ducklake:{path}", {}
        case SqliteCatalog(path=path):
            return f"ducklake:sqlite:{path}", {"META_BUSY_TIMEOUT": _SQLITE_BUSY_TIMEOUT_MS}
        case PostgresCatalog(conninfo=conninfo):
            return f"ducklake:postgres:{conninfo}", {}
        case _ as unreachable:
            assert_never(unreachable)


def _kept_path(text: str) -> str | None:
    """Return the catalog's data path from DuckLake's error about another one, or None."""
    found = re.search(r'existing data path in the catalog "([^"]*)"', text)
    return found[1] if found else None


def _is_other_spelling(text: str, data_path: str) -> bool:
    """Return whether the catalog's data path in DuckLake's error is the same folder as `data_path`.

    Another program may have stored it relative to its working directory, or through a link.
    """
    kept = _kept_path(text)
    if not kept or "://" in kept:
        return False
    parts = Path(kept).parts
    if Path(kept).is_absolute():
        return files.real_path(kept) == files.real_path(data_path)
    return bool(parts) and Path(data_path).parts[-len(parts) :] == parts


def _wrong_data_path(text: str, address: LakeAddress) -> SettingsError:
    # DuckDB's text suggests an option of ATTACH, which users cannot pass here.
    kept = _kept_path(text)
    where = f"in {kept}" if kept else "elsewhere"
    return SettingsError(
        f"The lake at {address.catalog} keeps its data {where}, not in {address.data_path}.",
        hint="Set CATCHMENT_LAKE_DATA_PATH to the folder that the lake was created with.",
    )


def _attach_error(error: duckdb.Error, address: LakeAddress) -> CatchmentError:
    text = error_text(error, address)
    if "does not match existing data path" in text:
        return _wrong_data_path(text, address)
    if "creating a new DuckLake is explicitly disabled" in text:
        return LakeMissingError(f"There is no lake at {address.catalog}.")
    if "database is locked" in text or "already exists" in text or "duplicate key" in text:
        return ConflictError(f"Another process is opening the lake at {address.catalog}: {text}")
    if "already attached by database" in text:
        # DuckDB keeps a file open if it failed to write its log.
        return LakeUnavailableError(
            f"The lake at {address.catalog} cannot be opened again by this process: {text}",
            hint="Restart the process. Nothing that was committed is lost.",
        )
    return LakeUnavailableError(f"The lake at {address.catalog} cannot be opened: {text}")
