"""`ControlDatabase`: created or upgraded by the process that opens it.

A program upgrades an older database. It refuses a database of a newer program, one with scripts
that differ from this program's, and one that is not Catchment's.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from catchment.control.contract import ControlEngine, ControlStatus, ControlTransaction
from catchment.control.sqlite import SqliteControl
from catchment.errors import SettingsError
from catchment.foundation import events
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.settings import Settings

SCRIPTS = Path(__file__).with_name("scripts")
SCRIPTS_POSTGRES = Path(__file__).with_name("scripts_postgres")


class ControlDatabase:
    """The upgraded control database. Thread-safe: every transaction has its own connection."""

    def __init__(self, engine: ControlEngine) -> None:
        """Callers use `open`, which verifies and upgrades the database."""
        self._engine = engine

    @classmethod
    def open(cls, settings: Settings, *, clock: Clock | None = None) -> "ControlDatabase":
        """Open the database that the settings name; create it if missing, upgrade it if older."""
        engine = _engine(settings, clock or SystemClock())
        applied = engine.upgrade()
        if applied:
            events.emit("control_upgraded", database=engine.place, scripts=list(applied))
        return cls(engine)

    @staticmethod
    def examine(settings: Settings) -> ControlStatus:
        """Return the status of the database, without side effects, or raise as `open` would."""
        return _engine(settings, SystemClock()).examine()

    @property
    def place(self) -> str:
        """Location of the database, without secrets."""
        return self._engine.place

    @property
    def path(self) -> Path | None:
        """The database file; None for PostgreSQL."""
        return self._engine.path

    def transaction(self) -> AbstractContextManager[ControlTransaction]:
        """Open an exclusive write transaction: committed at the end, rolled back on an error."""
        return self._engine.transaction()

    def reading(self) -> AbstractContextManager[ControlTransaction]:
        """Open a transaction that reads a single point in time and changes nothing."""
        return self._engine.reading()


def _engine(settings: Settings, clock: Clock) -> ControlEngine:
    url = settings.control_url.get_secret_value()
    kind, _, rest = url.partition(":")
    if kind in ("postgres", "postgresql") and rest:
        # Imported here because only a PostgreSQL control database needs the PostgreSQL client.
        from catchment.control.postgres import PostgresControl

        return PostgresControl(url if rest.startswith("//") else rest, scripts=SCRIPTS_POSTGRES, clock=clock)
    if kind == "sqlite" and rest:
        return SqliteControl(Path(rest), scripts=SCRIPTS, clock=clock)
    raise SettingsError("CATCHMENT_CONTROL_DB is not of the form `sqlite:PATH` or `postgres:CONNINFO`.")
