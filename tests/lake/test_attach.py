"""Attaching: the address of a lake, its statements, and secrets that never appear in messages."""

import pickle
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from catchment.errors import CatchmentError, LakeUnavailableError, SettingsError
from catchment.foundation.settings import Settings
from catchment.lake import Lake, LakeAddress, parse_catalog
from catchment.lake.attach import DuckDbCatalog, PostgresCatalog, SqliteCatalog, open_connection
from catchment.testing import EmbeddedPostgres, FakeClock

SECRET = "hunter2"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A loopback port that refuses connections, reserved by being bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def _everything(error: CatchmentError) -> str:
    """All that a log, a terminal or a Spark driver could show of the error."""
    shown = "".join(traceback.format_exception(error))
    return f"{shown} {error!r} {error.hint} {error.facts} {pickle.dumps(error)!r}"


@pytest.mark.parametrize("kind", [DuckDbCatalog, SqliteCatalog])
def test_a_catalog_file_is_known_by_its_absolute_path(
    kind: type[DuckDbCatalog | SqliteCatalog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = {DuckDbCatalog: "duckdb", SqliteCatalog: "sqlite"}[kind]
    assert parse_catalog(f"{name}:sub/a b.db") == kind(tmp_path / "sub" / "a b.db")
    assert parse_catalog(f"{name}:/x:y.db") == kind(Path("/x:y.db"))
    assert str(parse_catalog(f"{name}:/x.db")) == f"{name}:/x.db"


@pytest.mark.parametrize(
    ("url", "conninfo"),
    [
        ("postgres:host=db dbname=lake", "host=db dbname=lake"),
        ("postgresql:host=db dbname=lake", "host=db dbname=lake"),
        ("postgres://me@db/lake", "postgres://me@db/lake"),
        ("postgresql://me@db/lake", "postgresql://me@db/lake"),
    ],
)
def test_a_postgres_catalog_is_given_as_libpq_takes_it(url: str, conninfo: str) -> None:
    assert parse_catalog(url) == PostgresCatalog(conninfo)


@pytest.mark.parametrize(
    "url", ["", "sqlite", "sqlite:", "postgres:", ":x", "mysql:x", f"mysql://me:{SECRET}@h/d", "/x"]
)
def test_a_catalog_of_another_form_is_refused_with_the_forms_there_are(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_catalog(url)
    assert "CATCHMENT_LAKE_CATALOG is `sqlite:PATH`" in (raised.value.hint or "")
    assert SECRET not in _everything(raised.value)


@pytest.mark.parametrize(
    "conninfo",
    [
        f"host=db password={SECRET} dbname=lake",
        f"host=db password='{SECRET} \\'x' dbname=lake",
        f"postgresql://me:{SECRET}@db/lake",
        f"postgresql://me@db/lake?password={SECRET}",
        f"host=db dbname=lake sslkey=/k sslpassword={SECRET}",
    ],
)
def test_a_password_is_never_in_the_text_of_a_catalog_and_the_rest_is(conninfo: str) -> None:
    catalog = PostgresCatalog(conninfo)
    address = LakeAddress(catalog=catalog, data_path="/data")
    for shown in (str(catalog), repr(catalog), str(address), repr(address)):
        assert SECRET not in shown
    assert "host=db" in str(catalog)
    assert "dbname=lake" in str(catalog)


@pytest.mark.parametrize("conninfo", ["gibberish", f"host=db password=two {SECRET}", "host=db nonesuch=1"])
def test_a_conninfo_that_libpq_cannot_read_is_a_wrong_setting_and_not_quoted(conninfo: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        _open(parse_catalog(f"postgres:{conninfo}"), tmp_path)
    assert raised.value.hint
    assert SECRET not in _everything(raised.value)


@pytest.mark.parametrize(
    "form",
    [
        "host=127.0.0.1 port={port} user=me password={secret} dbname=lake",
        "host='127.0.0.1' port='{port}' user='me' password='{secret}' dbname='lake'",
        "postgresql://me:{secret}@127.0.0.1:{port}/lake",
        "postgresql://me:%68unter2@127.0.0.1:{port}/lake",
    ],
    ids=["pairs", "quoted pairs", "URL", "URL with escapes"],
)
def test_a_postgres_that_does_not_answer_is_said_without_the_password(
    form: str, closed_port: int, tmp_path: Path
) -> None:
    catalog = PostgresCatalog(form.format(port=closed_port, secret=SECRET))
    with pytest.raises(LakeUnavailableError) as raised:
        _open(catalog, tmp_path)
    assert str(closed_port) in raised.value.message
    assert raised.value.hint
    shown = _everything(raised.value)
    assert SECRET not in shown
    assert "%68unter2" not in shown


def test_a_postgres_that_goes_away_is_said_without_the_password(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    conninfo = postgres.new_database()
    name = conninfo_to_dict(conninfo)["dbname"]
    catalog = PostgresCatalog(make_conninfo(conninfo, password=SECRET))
    with Lake(LakeAddress(catalog=catalog, data_path=str(tmp_path)), clock=FakeClock()) as lake:
        assert lake.tables() == ()
        with psycopg.connect(make_conninfo(conninfo, dbname="postgres"), autocommit=True) as server:
            server.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(str(name))))
        postgres.terminate_connections(conninfo)
        with pytest.raises(LakeUnavailableError) as reading:
            lake.tables()
        with pytest.raises(LakeUnavailableError) as writing, lake.write():
            pytest.fail("a transaction was opened")
    assert SECRET not in _everything(reading.value)
    assert SECRET not in _everything(writing.value)


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_lake_with_another_data_path_is_refused_with_the_setting_to_change(kind: str, tmp_path: Path) -> None:
    catalog = parse_catalog(f"{kind}:{tmp_path / 'catalog'}")
    with Lake(LakeAddress(catalog=catalog, data_path=str(tmp_path / "first"))) as lake:
        assert lake.tables() == ()
    with pytest.raises(SettingsError) as raised:
        Lake(LakeAddress(catalog=catalog, data_path=str(tmp_path / "second"))).open()
    assert f"in {tmp_path}/first/, not in {tmp_path}/second." in raised.value.message
    assert "OVERRIDE" not in raised.value.message
    assert "CATCHMENT_LAKE_DATA_PATH" in (raised.value.hint or "")


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_file_that_is_not_a_catalog_is_refused_with_its_path(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    path.write_bytes(b"this is no catalog" * 1000)
    with pytest.raises(LakeUnavailableError, match=str(path)):
        _open(parse_catalog(f"{kind}:{path}"), tmp_path)
    assert path.read_bytes() == b"this is no catalog" * 1000


def test_a_lake_is_attached_under_its_name_with_its_settings_in_force(tmp_path: Path) -> None:
    address = LakeAddress(
        catalog=DuckDbCatalog(tmp_path / "new" / "folder" / "catalog"), data_path=str(tmp_path / "data"), name="pond"
    )
    settings: dict[str, str | int | float | bool | None] = {"ducklake_max_retry_count": 17}
    with open_connection(address, clock=FakeClock(), settings=settings) as connection:
        attached = connection.execute("SELECT count(*) FROM duckdb_databases() WHERE database_name = 'pond'").fetchone()
        in_force = connection.execute("SELECT current_setting('ducklake_max_retry_count')::INTEGER").fetchone()
    assert attached == (1,)
    assert in_force == (17,)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_lake_takes_as_many_threads_as_it_may(threads: int, tmp_path: Path) -> None:
    with Lake.from_settings(Settings(home=tmp_path, lake_threads_max=threads)) as lake, lake.cursor() as cursor:
        assert cursor.execute("SELECT current_setting('threads')").fetchone() == (threads,)


def _open(catalog: DuckDbCatalog | SqliteCatalog | PostgresCatalog, folder: Path) -> None:
    address = LakeAddress(catalog=catalog, data_path=str(folder / "data"))
    open_connection(address, clock=FakeClock(), settings={}).close()
