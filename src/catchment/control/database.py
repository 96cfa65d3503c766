"""`ControlDatabase`: opened by whoever starts, and by that created or upgraded.

A program takes a database that is older than itself, and brings it up to date. It refuses one that a newer program has
written, one whose scripts are not those that this program ships, and one that is not Catchment's.
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
    """The control database, up to date. Every transaction has a connection of its own, so any thread may use it."""

    def __init__(self, engine: ControlEngine) -> None:
        """Use `open`, which sees that the database is what this program needs."""
        self._engine = engine

    @classmethod
    def open(cls, settings: Settings, *, clock: Clock | None = None) -> "ControlDatabase":
        """The database that the settings name; made where there is none, upgraded where it is older."""
        engine = _engine(settings, clock or SystemClock())
        applied = engine.upgrade()
        if applied:
            events.emit("control_upgraded", database=engine.place, scripts=list(applied))
        return cls(engine)

    @staticmethod
    def examine(settings: Settings) -> ControlStatus:
        """How it stands, without any effect; refused where `open` would refuse it."""
        return _engine(settings, SystemClock()).examine()

    @property
    def place(self) -> str:
        """Where it is, without secrets."""
        return self._engine.place

    @property
    def path(self) -> Path | None:
        """Its file; None for PostgreSQL."""
        return self._engine.path

    def transaction(self) -> AbstractContextManager[ControlTransaction]:
        """One transaction that may write, alone: committed at the end, rolled back by an error."""
        return self._engine.transaction()

    def reading(self) -> AbstractContextManager[ControlTransaction]:
        """One transaction that sees a single moment, and changes nothing."""
        return self._engine.reading()


def _engine(settings: Settings, clock: Clock) -> ControlEngine:
    url = settings.control_url.get_secret_value()
    kind, _, rest = url.partition(":")
    if kind in ("postgres", "postgresql") and rest:
        # Imported here, because only such a database needs the client of PostgreSQL.
        from catchment.control.postgres import PostgresControl

        return PostgresControl(url if rest.startswith("//") else rest, scripts=SCRIPTS_POSTGRES, clock=clock)
    if kind == "sqlite" and rest:
        return SqliteControl(Path(rest), scripts=SCRIPTS, clock=clock)
    raise SettingsError("CATCHMENT_CONTROL_DB is not of the form `sqlite:PATH` or `postgres:CONNINFO`.")
