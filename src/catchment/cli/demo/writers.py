"""The demo's writers: two ADBC clients that insert single rows through the queue and count acks."""

import secrets
import threading
from collections.abc import Sequence

import adbc_driver_flightsql.dbapi as flight

from catchment import Catchment
from catchment.foundation.clock import Clock
from catchment.server.values import Role
from catchment.tenants.model import TenantId

NAMES = ("kitchen", "cellar")
TABLE = "readings"
# Leaves the machine time for the rest of the demo.
_PAUSE_S = 0.05
# A write that waits for a tenant's move is answered well before.
_ANSWER_S_MAX = 20.0
_OLD = f"INSERT INTO duckling_queue.{TABLE} (id, sensor, celsius) VALUES (?, ?, ?)"
_NEW = f"INSERT INTO duckling_queue.{TABLE} (id, sensor, celsius, unit) VALUES (?, ?, ?, 'kelvin')"


class DemoWriter:
    """One client with one connection. Rows are numbered from 1; each is one statement and one ack."""

    def __init__(self, name: str, uri: str, clock: Clock, **login: str) -> None:
        self.name = name
        self.with_unit = False
        self.acked = 0
        self.acked_with_unit = 0
        self.errors: list[str] = []
        self.waited_s_max = 0.0
        self._uri = uri
        self._login = login
        self._clock = clock
        self._sent = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"demo-{name}", daemon=True)

    def start(self) -> None:
        """Write until it is stopped."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further write."""
        self._stopping.set()

    def wait(self) -> None:
        """Wait for the current write; after a while, record an error and give up."""
        if self._thread.is_alive():
            self._thread.join(_ANSWER_S_MAX)
        unanswered = f"the last write is not answered after {_ANSWER_S_MAX:g} s"
        if self._thread.is_alive() and unanswered not in self.errors:
            self.errors.append(unanswered)

    def _run(self) -> None:
        try:
            with (
                flight.connect(self._uri, db_kwargs=self._login, autocommit=True) as connection,
                connection.cursor() as cursor,
            ):
                while not self._stopping.wait(_PAUSE_S):
                    self._write(cursor)
        except flight.Error as error:
            self.errors.append(str(error))

    def _write(self, cursor: flight.Cursor) -> None:
        self._sent += 1
        with_unit, started_s = self.with_unit, self._clock.monotonic_s()
        try:
            cursor.execute(_NEW if with_unit else _OLD, (self._sent, self.name, 15 + self._sent % 40 / 4))
        except flight.Error as error:
            self.errors.append(str(error))
        else:
            self.acked += 1
            self.acked_with_unit += with_unit
        self.waited_s_max = max(self.waited_s_max, self._clock.monotonic_s() - started_s)


class Writers(tuple[DemoWriter, ...]):
    """All writers."""

    __slots__ = ()

    @classmethod
    def of(cls, tenant: TenantId, opened: Catchment, uris: Sequence[str], clock: Clock) -> "Writers":
        """Return a writer for each server, as a user of the tenant. Removes users of earlier runs."""
        for earlier in opened.users.all():
            opened.users.remove(earlier.name)
        made = []
        for name, uri in zip(NAMES, uris, strict=True):
            user, password = f"{name}-{tenant}", secrets.token_urlsafe(12)
            opened.users.add(user, Role.WRITER, password, tenant=tenant)
            made.append(DemoWriter(name, uri, clock, username=user, password=password))
        return cls(made)

    @property
    def acked(self) -> int:
        return sum(writer.acked for writer in self)

    @property
    def errors(self) -> list[str]:
        return [f"{writer.name}: {error}" for writer in self for error in writer.errors]

    def start(self) -> None:
        """Start all writers."""
        for writer in self:
            writer.start()

    def stop(self) -> None:
        """Stop all writers and wait for their current writes, for a limited time."""
        for writer in self:
            writer.stop()
        for writer in self:
            writer.wait()
