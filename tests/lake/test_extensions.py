"""Extensions come from their wheels, never from the network; a missing wheel is a clear error."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from catchment.errors import EXIT_NEEDS_YOU, ExtensionMissingError
from catchment.lake import extensions


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An instance without installed extensions that would download into a visible folder."""
    with extensions.connect() as connection:
        connection.execute(f"SET extension_directory = '{tmp_path / 'downloads'}'")
        yield connection


def _fake_wheel(folder: Path, name: str) -> Path:
    """A package that shadows the extension's wheel; return the path of its binary."""
    package = folder / f"duckdb_extension_{name}"
    binaries = package / "extensions" / f"v{duckdb.__version__}"
    binaries.mkdir(parents=True)
    (package / "__init__.py").touch()
    return binaries / f"{name}.duckdb_extension"


@pytest.mark.parametrize("name", extensions.KNOWN)
def test_an_extension_loads_without_anything_installed_or_downloaded(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path, name: str
) -> None:
    extensions.load(connection, name)
    loaded = connection.execute("SELECT extension_name FROM duckdb_extensions() WHERE loaded").fetchall()
    assert any(name in found for (found,) in loaded)
    assert not (tmp_path / "downloads").exists()


def test_loading_an_extension_again_does_no_harm(connection: duckdb.DuckDBPyConnection) -> None:
    for _ in range(2):
        extensions.load(connection, "sqlite")


def test_duckdb_never_fetches_an_extension_by_itself(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    with pytest.raises(duckdb.Error):
        connection.execute("ATTACH 'ducklake:nowhere.db' AS lake")
    assert not (tmp_path / "downloads").exists()


def test_a_wheel_that_is_not_installed_is_named(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(ExtensionMissingError, match="duckdb_extension_nonesuch is not installed") as raised:
        extensions.load(connection, "nonesuch")
    assert raised.value.hint
    assert raised.value.exit_code == EXIT_NEEDS_YOU


def test_a_wheel_of_another_duckdb_is_named_with_the_version_it_should_have(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_wheel(tmp_path, "sqlite")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ExtensionMissingError, match=duckdb.__version__) as raised:
        extensions.load(connection, "sqlite")
    assert "duckdb_extension_sqlite" in raised.value.message
    assert "Reinstall" in (raised.value.hint or "")


def test_a_binary_that_duckdb_refuses_is_named_with_duckdb_s_reason(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_wheel(tmp_path, "sqlite").write_bytes(b"this is no extension" * 100)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ExtensionMissingError, match=r"refuses its sqlite extension: .+") as raised:
        extensions.load(connection, "sqlite")
    assert raised.value.hint


def test_an_extension_without_duckdbs_signature_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path(str(importlib.util.find_spec("duckdb_extension_sqlite").origin)).parent  # type: ignore[union-attr]
    binary = real / "extensions" / f"v{duckdb.__version__}" / "sqlite.duckdb_extension"
    content = bytearray(binary.read_bytes())
    content[-1] ^= 1
    folder = _fake_wheel(tmp_path, "sqlite")
    folder.write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        extensions.connect(check_signatures=True) as connection,
        pytest.raises(ExtensionMissingError, match="signature"),
    ):
        extensions.load(connection, "sqlite")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A DuckDB file with one row."""
    path = tmp_path / "some.db"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS i")
    return path


def test_a_file_is_read_by_several_at_once_and_may_be_written_when_they_are_done(file: Path) -> None:
    with extensions.attached(file) as one, extensions.attached(file) as other:
        assert one.execute("FROM t").fetchall() == other.execute("FROM t").fetchall() == [(7,)]
        with pytest.raises(duckdb.Error, match="read-only"):
            one.execute("INSERT INTO t VALUES (8)")
    with duckdb.connect(file) as connection:
        connection.execute("INSERT INTO t VALUES (8)")
    with extensions.attached(file) as again:
        assert again.execute("SELECT sum(i) FROM t").fetchall() == [(15,)]


def test_a_file_that_cannot_be_read_does_not_spoil_the_next(file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database" * 1_000)
    for _ in range(2):
        with pytest.raises(duckdb.Error), extensions.attached(damaged):
            pass
        with pytest.raises(ZeroDivisionError), extensions.attached(file):
            _ = 1 / 0
        with extensions.attached(file) as connection:
            assert connection.execute("FROM t").fetchall() == [(7,)]
