"""Empty lakes that are copies of one: creating a lake takes longer than most tests use it.

What a copy has of its own is what tells it from the others: where its data lies, and its
identities. Every lake of a test that is about how lakes are made is made.
"""

import atexit
import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import assert_never
from uuid import uuid4

import duckdb
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier
from pydantic import SecretStr

from catchment.foundation import sql
from catchment.foundation.clock import Clock
from catchment.foundation.settings import Settings
from catchment.lake import Lake, extensions
from catchment.lake.attach import DuckDbCatalog, PostgresCatalog, SqliteCatalog, parse_catalog
from tests.sample_events import create_table

CATALOGS = ("duckdb", "sqlite", "postgres")


def new_lake(settings: Settings, *, clock: Clock | None = None, events: bool = False) -> Lake:
    """The lake of the settings, to be opened: empty, or with a table of events."""
    put_lake(settings, events=events)
    return Lake.from_settings(settings, clock=clock)


def put_lake(settings: Settings, *, events: bool = False) -> None:
    """Have an empty lake where the settings say, with a table of events where that is asked for."""
    address = Lake.from_settings(settings).address
    match address.catalog:
        case SqliteCatalog(path=path):
            _copy(_made("sqlite", events=events), path)
            with closing(sqlite3.connect(path)) as connection, connection:
                for statement in _differences(address.data_path):
                    connection.execute(statement)
        case DuckDbCatalog(path=path):
            _copy(_made("duckdb", events=events), path)
            with _editor().cursor() as editor:
                editor.execute(f"ATTACH {sql.literal(str(path))} AS made")
                editor.execute("USE made")
                for statement in _differences(address.data_path):
                    editor.execute(statement)
                editor.execute("USE memory")
                editor.execute("DETACH made")
        case PostgresCatalog(conninfo=conninfo):
            _copy_database(conninfo, events=events)
            with psycopg.connect(conninfo) as database:
                for statement in _differences(address.data_path):
                    database.execute(statement.encode())
        case _ as unreachable:
            assert_never(unreachable)


def make_encrypted(settings: Settings) -> None:
    """A lake of DuckLake's own making, with nothing of ours in it."""
    catalog = parse_catalog(settings.catalog_url.get_secret_value())
    settings.home.mkdir(parents=True, exist_ok=True)
    with extensions.connect() as connection:
        extensions.load(connection, "ducklake")
        target = str(catalog).partition(":")[2]
        if isinstance(catalog, SqliteCatalog):
            extensions.load(connection, "sqlite")
            target = f"sqlite:{catalog.path}"
        elif isinstance(catalog, PostgresCatalog):
            extensions.load(connection, "postgres")
            target = f"postgres:{catalog.conninfo}"
        connection.execute(f"ATTACH 'ducklake:{target}' AS made (DATA_PATH '{settings.data_path}/', ENCRYPTED)")


def _make(settings: Settings, *, events: bool) -> None:
    with Lake.from_settings(settings) as lake:
        if events:
            create_table(lake)


@cache
def _made(kind: str, *, events: bool) -> Path:
    home = Path(tempfile.mkdtemp(prefix="catchment-made-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    catalog = home / f"catalog.{kind}"
    _make(Settings(home=home, lake_catalog=SecretStr(f"{kind}:{catalog}")), events=events)
    assert not [path for path in home.iterdir() if "wal" in path.name], "a part of the catalog is in another file"
    return catalog


def _copy_database(conninfo: str, *, events: bool) -> None:
    """Have a copy of a lake where an empty database is."""
    name = Identifier(str(conninfo_to_dict(conninfo)["dbname"]))
    server = make_conninfo(conninfo, dbname="postgres")
    made = _made_database(server, events=events)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("DROP DATABASE {}").format(name))
        connection.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(name, made))


@cache
def _made_database(server: str, *, events: bool) -> Identifier:
    name = f"made_{'with' if events else 'without'}_events"
    home = Path(tempfile.mkdtemp(prefix="catchment-made-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        catalog = f"postgres:{make_conninfo(server, dbname=name)}"
        _make(Settings(home=home, lake_catalog=SecretStr(catalog)), events=events)
        # A database with connections cannot be copied.
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    return Identifier(name)


def _copy(made: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert not path.exists()
    shutil.copyfile(made, path)


def _differences(data_path: str) -> tuple[str, ...]:
    place, identity = sql.literal(f"{data_path.rstrip('/')}/"), sql.literal(str(uuid4()))
    return (
        f"UPDATE ducklake_metadata SET value = {place} WHERE key = 'data_path'",
        f"UPDATE ducklake_schema SET schema_uuid = {identity} WHERE schema_name = 'main'",
        f"UPDATE ducklake_table SET table_uuid = {identity} WHERE table_name = 'events'",
    )


@cache
def _editor() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})
