"""The demo's writers: two ADBC clients that insert row after row through the queue, and count what is acknowledged."""

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import adbc_driver_flightsql.dbapi as flight

from catchment.foundation.clock import Clock
from catchment.server.users import Users
from catchment.server.values import Role
from catchment.tenants.model import TenantId

NAMES = ("kitchen", "cellar")
TABLE = "readings"
DEFAULT_UNIT = "celsius"
# As often as somebody types; the machine shall have time for the rest of the story.
_PAUSE_S = 0.05
# A write that waits for a tenant's move is answered well before.
_ANSWER_S_MAX = 20.0
_OLD = f"INSERT INTO duckling_queue.{TABLE} (id, sensor, celsius) VALUES (?, ?, ?)"
_NEW = f"INSERT INTO duckling_queue.{TABLE} (id, sensor, celsius, unit) VALUES (?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Login:
    """Who a writer is, and where it connects to."""

    name: str
    uri: str
    user: str
    password: str = field(repr=False)


class DemoWriter:
    """One client with one connection; rows are numbered from 1, each is one statement and one ack."""

    def __init__(self, login: Login, clock: Clock) -> None:
        self.login = login
        self.acked = 0
        self.acked_with_unit = 0
        self.errors: list[str] = []
        self.waited_s_max = 0.0
        self._sent = 0
        self._with_unit = False
        self._is_left_alone = False
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"demo-{login.name}", daemon=True)

    def start(self) -> None:
        """Write until it is stopped."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more; the write under way is still answered."""
        self._stopping.set()

    def wait(self) -> None:
        """Until the write under way is answered, for a while; one that is not is an error, and left alone."""
        if self._thread.ident is None or self._is_left_alone:
            return
        self._thread.join(_ANSWER_S_MAX)
        if self._thread.is_alive():
            self._is_left_alone = True
            self.errors.append(f"the last write is not answered after {_ANSWER_S_MAX:g} s")

    def use_unit(self) -> None:
        """Write the new column from now on."""
        self._with_unit = True

    def measure_anew(self) -> None:
        """Forget the longest wait so far."""
        self.waited_s_max = 0.0

    def _run(self) -> None:
        options = {"username": self.login.user, "password": self.login.password}
        try:
            with (
                flight.connect(self.login.uri, db_kwargs=options, autocommit=True) as connection,
                connection.cursor() as cursor,
            ):
                while not self._stopping.wait(_PAUSE_S):
                    self._write(cursor)
        except flight.Error as error:
            self.errors.append(str(error))

    def _write(self, cursor: flight.Cursor) -> None:
        self._sent += 1
        row = (self._sent, self.login.name, 15 + self._sent % 40 / 4)
        with_unit = self._with_unit
        started_s = self._clock.monotonic_s()
        try:
            if with_unit:
                cursor.execute(_NEW, (*row, "kelvin"))
            else:
                cursor.execute(_OLD, row)
        except flight.Error as error:
            self.errors.append(str(error))
        else:
            self.acked += 1
            self.acked_with_unit += with_unit
        self.waited_s_max = max(self.waited_s_max, self._clock.monotonic_s() - started_s)


@dataclass(frozen=True, slots=True)
class Writers:
    """All of them."""

    each: tuple[DemoWriter, ...]

    @classmethod
    def of(cls, tenant: TenantId, users: Users, uris: Sequence[str], clock: Clock) -> "Writers":
        """Two users of the tenant, one on each server; those of earlier runs are let go."""
        for user in users.all():
            users.remove(user.name)
        logins = [
            Login(name, uri, f"{name}-{tenant}", secrets.token_urlsafe(12))
            for name, uri in zip(NAMES, uris, strict=True)
        ]
        for login in logins:
            users.add(login.user, Role.WRITER, login.password, tenant=tenant)
        return cls(tuple(DemoWriter(login, clock) for login in logins))

    @property
    def acked(self) -> int:
        return sum(writer.acked for writer in self.each)

    @property
    def errors(self) -> list[str]:
        return [f"{writer.login.name}: {error}" for writer in self.each for error in writer.errors]

    @property
    def waited_ms_max(self) -> float:
        return max(writer.waited_s_max for writer in self.each) * 1000

    def start(self) -> None:
        """Have all begin."""
        for writer in self.each:
            writer.start()

    def stop(self) -> None:
        """Have all end, within a bound."""
        for writer in self.each:
            writer.stop()
        for writer in self.each:
            writer.wait()
