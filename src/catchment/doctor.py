"""Doctor: checks this machine and the configured stores; each failed check has a hint."""

import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from catchment.control import ControlDatabase
from catchment.errors import (
    CatchmentError,
    LakeMissingError,
    LakeUnavailableError,
    SettingsError,
    StorageFailedError,
)
from catchment.foundation import files
from catchment.foundation.settings import FILE_NAME, Settings, settings_of
from catchment.foundation.text import plural
from catchment.lake import Lake, extensions, parse_catalog
from catchment.lake.attach import DuckDbCatalog, PostgresCatalog
from catchment.pipeline import SparkRunner
from catchment.pipeline.java import archive_path, find_java

_PYTHON_MIN = (3, 11)
# In a connection string, and in the name of a setting of Spark.
_PASSWORD = re.compile(r"\bpassword\s*=|//[^/@\s]*:[^/@\s]*@", re.IGNORECASE)
_SECRET_NAME = re.compile(r"password|secret|token|key", re.IGNORECASE)
_FREE_BYTES_MIN = 2 * 1024**3
_IS_RIGHT = "Is {} correct, does the database run, and may this user read and write it?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def examine(settings: Settings, *, prepare: bool = False) -> Iterator[Check]:
    """Run all checks, in the order in which a missing part would be noticed; `prepare` makes later
    starts of Spark faster.
    """
    yield _python()
    yield _check("java", _java)
    yield _check("extensions", _extensions)
    yield _check("disk", lambda: _disk(settings))
    yield _check("secrets", lambda: _secrets(settings))
    yield _check("lake", lambda: _lake(settings), hint=_IS_RIGHT.format("CATCHMENT_LAKE_CATALOG"))
    yield _check("control", lambda: _control(settings), hint=_IS_RIGHT.format("CATCHMENT_CONTROL_DB"))
    if prepare:
        yield _check("archive", lambda: _prepare(settings))
    log = f"See Spark's log: {settings.home.absolute() / 'spark.log'}."
    yield _check("spark", lambda: _spark(settings), hint=log)


def _check(name: str, look: Callable[[], str], *, hint: str | None = None) -> Check:
    """Run one check; `hint` replaces a missing hint, or one that would recommend the doctor again."""
    try:
        return Check(name=name, ok=True, detail=look())
    except CatchmentError as error:
        asks_again = error.hint is None or "catchment doctor" in error.hint
        return Check(name=name, ok=False, detail=error.message, hint=hint if asks_again else error.hint)
    except OSError as error:
        detail = f"{error.filename or name}: {error.strerror or error}."
        return Check(name=name, ok=False, detail=detail, hint=StorageFailedError.default_hint)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info[:2] >= _PYTHON_MIN
    return Check(name="python", ok=ok, detail=version, hint=None if ok else "Install Python 3.11 or newer.")


def _java() -> str:
    java = find_java()
    return f"Java {java.version} at {java.path}"


def _extensions() -> str:
    with extensions.connect(check_signatures=True) as connection:
        for name in extensions.KNOWN:
            extensions.load(connection, name)
    return f"{', '.join(extensions.KNOWN)} load from their wheels, signed"


def _disk(settings: Settings) -> str:
    free = min(files.free_bytes(settings.home), files.free_bytes(files.local_path(settings.data_path)))
    if free < _FREE_BYTES_MIN:
        raise LakeUnavailableError(
            f"Only {free / 1e9:.1f} GB are free at {settings.data_path}.",
            hint="Free space, or set CATCHMENT_LAKE_DATA_PATH to a folder on a larger disk.",
        )
    return f"{free / 1e9:.1f} GB free at {settings.data_path}"


def _secrets(settings: Settings) -> str:
    """Refuse files with secrets that any user of this machine may read or change."""
    candidates = [settings.users_path, settings.server_tls_key]
    if _contains_secrets(settings_of(settings.home)):
        candidates.append(settings.home / FILE_NAME)
    found = [path for path in candidates if path is not None and path.exists()]
    exposed = shlex.join(str(path) for path in found if path.stat().st_mode & stat.S_IRWXO)
    if exposed:
        raise SettingsError(
            f"Every user of this machine can access a file with secrets: {exposed}.", hint=f"Run `chmod o= {exposed}`."
        )
    return f"{plural(len(found), 'file')} with secrets, closed to other users"


def _contains_secrets(written: Settings) -> bool:
    databases = (written.lake_catalog, written.control_db, written.queue_lease_postgres)
    return (
        written.shard_secret is not None
        or any(_PASSWORD.search(each.get_secret_value()) for each in databases if each is not None)
        or any(map(_SECRET_NAME.search, written.spark_conf))
    )


def _lake(settings: Settings) -> str:
    catalog = parse_catalog(settings.catalog_url.get_secret_value())
    if isinstance(catalog, PostgresCatalog):
        try:
            psycopg.connect(catalog.conninfo, connect_timeout=5).close()
        except psycopg.Error as error:
            raise LakeUnavailableError(
                f"{catalog} cannot be reached: {error}",
                hint="Is the server running and CATCHMENT_LAKE_CATALOG correct?",
            ) from None
    lake = Lake.from_settings(settings)
    try:
        lake.open(create=False)
        found = f"{plural(len(lake.tables()), 'table')} at {lake.address.catalog}"
        if isinstance(catalog, DuckDbCatalog):
            found += "; it admits one process, so a server runs clients' SQL itself, and a crash of DuckDB ends it"
        return found if lake.has_ledger else f"{found}; no ledger yet: the first command that writes adds one"
    except LakeMissingError:
        places = [] if isinstance(catalog, PostgresCatalog) else [catalog.path.parent]
        _require_writable(*places, files.local_path(settings.data_path))
        return f"none yet; it will be created at {catalog}"
    finally:
        lake.close()


def _control(settings: Settings) -> str:
    status = ControlDatabase.examine(settings)
    if not status.exists and settings.control_url.get_secret_value().startswith("sqlite:"):
        _require_writable(Path(status.place).parent)
    return str(status)


def _require_writable(*places: Path) -> None:
    """Refuse a folder that this user cannot create files in; creates nothing."""
    for place in places:
        folder = files.nearest(place)
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise StorageFailedError(
                f"{folder} is not a folder that this user may write to.",
                hint="Grant this user write access, or use another folder: --home, or CATCHMENT_HOME.",
            )


def _prepare(settings: Settings) -> str:
    # Imported here because it imports Spark's client.
    from catchment.pipeline.spark_driver import prepare

    archive = archive_path()
    prepare(settings, archive)
    return f"Spark's classes are prepared for Java in {archive} ({files.size_of(archive) / 1e6:.0f} MB)"


def _spark(settings: Settings) -> str:
    with SparkRunner(settings) as runner:
        # Run a Python task, as a delivery does. A query in Spark SQL would double the time.
        return runner.probe()
