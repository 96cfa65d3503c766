"""The control database in PostgreSQL, for several hosts. Its tables are in the schema `catchment`.

An upgrade is one transaction, which is atomic by itself: no backup is made.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import psycopg
from psycopg import errors as pg_errors
from psycopg.conninfo import conninfo_to_dict

from catchment.control.contract import ControlStatus, ControlTransaction, Rows
from catchment.errors import ControlUnavailableError, SettingsError, StateError
from catchment.foundation.clock import Clock
from catchment.lake.attach import PostgresCatalog
from catchment.schema.applied_scripts import AppliedScript
from catchment.schema.scripts import Script, read_folder

SCHEMA = "catchment"
# An arbitrary constant; the catalog of a lake in the same database uses another one.
_WRITER_KEY = 0x43415443484E
# A lost host is detected after about 20 s, even if the network reports nothing.
_CONNECT = {"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3}
# A process that stalls in the middle of a transaction must not keep other processes from writing.
_BOUNDS = (
    "SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s';"
    " SET LOCAL idle_in_transaction_session_timeout = '5s';"
    f" SET LOCAL search_path TO {SCHEMA}"
)
_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
_TRANSIENT = (psycopg.OperationalError, psycopg.InterfaceError, pg_errors.IdleInTransactionSessionTimeout)


class PostgresControl:
    """A schema of a PostgreSQL database. Writers are serialized, as in a SQLite file."""

    def __init__(self, conninfo: str, *, scripts: Path, clock: Clock) -> None:
        try:
            self._options: dict[str, Any] = {**_CONNECT, **conninfo_to_dict(conninfo)}
        except psycopg.Error:
            # The reason is withheld: the message would quote the connection string, including the
            # password.
            raise SettingsError(
                "The PostgreSQL connection string of the control database cannot be parsed.",
                hint="CATCHMENT_CONTROL_DB is `postgres:host=… dbname=…`; put values with spaces in single quotes.",
            ) from None
        self._shown = PostgresCatalog(conninfo)
        self._scripts = scripts
        self._clock = clock

    @property
    def place(self) -> str:
        return str(self._shown)

    @property
    def path(self) -> None:
        return None

    def upgrade(self) -> tuple[str, ...]:
        if not self.examine().pending:
            return ()
        with self.transaction() as session:
            # Another process may have been faster.
            pending = self._pending(session)
            session.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            session.execute(
                "CREATE TABLE IF NOT EXISTS _migrations (number BIGINT PRIMARY KEY, filename TEXT NOT NULL,"
                " script TEXT NOT NULL, started_at TEXT NOT NULL, finished_at TEXT NOT NULL)"
            )
            for script in pending:
                self._apply(session, script)
        return tuple(script.filename for script in pending)

    def examine(self) -> ControlStatus:
        with self.reading() as session:
            pending = self._pending(session)
        names = [script.filename for script in self._known()]
        waiting = tuple(script.filename for script in pending)
        return ControlStatus(
            place=self.place,
            exists=len(waiting) < len(names),
            applied=tuple(name for name in names if name not in waiting),
            pending=waiting,
            is_backed_up=False,
        )

    @contextmanager
    def transaction(self) -> Iterator[ControlTransaction]:
        with self._connected() as connection:
            connection.execute(f"{_BOUNDS}; SELECT pg_advisory_xact_lock({_WRITER_KEY})".encode())
            yield _PostgresSession(connection)

    @contextmanager
    def reading(self) -> Iterator[ControlTransaction]:
        with self._connected() as connection:
            connection.execute(f"{_ONE_MOMENT}; {_BOUNDS}".encode())
            yield _PostgresSession(connection)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        """Open a connection in a transaction: committed at the end, or rolled back on an error."""
        try:
            with psycopg.connect(**self._options) as connection:
                yield connection
        except _TRANSIENT as error:
            reason = self._shown.redact(str(error)).strip()
            raise ControlUnavailableError(f"The control database {self.place} does not answer: {reason}") from None

    def _known(self) -> tuple[Script, ...]:
        return read_folder(self._scripts).scripts

    def _pending(self, session: ControlTransaction) -> tuple[Script, ...]:
        """Return the pending scripts; StateError if applied ones are not this program's."""
        known = {script.number: script for script in self._known()}
        applied = self._applied(session)
        unknown = [record.filename for record in applied if record.number not in known]
        if unknown:
            raise StateError(
                f"{self.place} was written by a newer Catchment: this one does not have {', '.join(unknown)}.",
                hint="Install that version again.",
                unknown=unknown,
            )
        for record in applied:
            if known[record.number].text != record.script:
                self._refuse(
                    f"is not what this Catchment expects: {record.filename} is not the script that was applied"
                )
        done = {record.number for record in applied}
        return tuple(script for number, script in known.items() if number not in done)

    def _applied(self, session: ControlTransaction) -> tuple[AppliedScript, ...]:
        if session.execute("SELECT to_regclass(?)", [f"{SCHEMA}._migrations"]).fetchone()[0] is None:
            others = "SELECT count(*) FROM pg_tables WHERE schemaname = ?"
            if session.execute(others, [SCHEMA]).fetchone()[0]:
                self._refuse(f"contains tables in a schema {SCHEMA!r} that are not those of a control database")
            return ()
        rows = session.execute(
            "SELECT number, filename, script, started_at, finished_at FROM _migrations ORDER BY number"
        ).fetchall()
        fields = ("number", "filename", "script", "started_at", "finished_at")
        return tuple(AppliedScript(**dict(zip(fields, row, strict=True))) for row in rows)

    def _apply(self, session: ControlTransaction, script: Script) -> None:
        started_at = self._clock.now().isoformat()
        session.execute(script.text)
        session.execute(
            "INSERT INTO _migrations VALUES (?, ?, ?, ?, ?)",
            [script.number, script.filename, script.text, started_at, self._clock.now().isoformat()],
        )

    def _refuse(self, why: str) -> NoReturn:
        raise StateError(
            f"{self.place} {why}.", hint="Set CATCHMENT_CONTROL_DB to another database, or restore a backup of it."
        )


class _PostgresSession:
    """Accepts `?` as the placeholder, instead of psycopg's `%s`."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        if not values:
            return self._connection.execute(statement.encode())
        return self._connection.execute(statement.replace("?", "%s").encode(), values)
