"""Where a session's operations run: here, or on the shard of its tenant's primary."""

import threading
from collections.abc import Callable
from typing import TypeVar

from catchment.flight_protocol.headers import SHARD
from catchment.server.sessions.backend import Backend
from catchment.server.shards.forward import Forwarding
from catchment.server.shards.peers import PeerSession
from catchment.server.values import Call, Principal

T = TypeVar("T")


class Dispatcher:
    """Runs operations of one session where its tenant has its primary. Thread-safe."""

    def __init__(self, backend: Backend, principal: Principal) -> None:
        self._backend = backend
        self._principal = principal
        self._mutex = threading.Lock()
        self._forwarding: Forwarding | None = None

    def forwarding(self) -> Forwarding | None:
        """Return the forwarding to the tenant's primary; None if the session has no tenant, or was
        forwarded itself.
        """
        routing, tenant = self._backend.tenants, self._principal.tenant
        if routing is None or tenant is None or self._principal.name == SHARD:
            return None
        with self._mutex:
            if self._forwarding is None:
                self._forwarding = Forwarding(routing, tenant, self._principal, self._backend.clock)
            return self._forwarding

    def run(self, here: Callable[[], T], there: Callable[[PeerSession], T], call: Call) -> T:
        """Run one operation or the other, depending on where the primary is."""
        forwarding = self.forwarding()
        return here() if forwarding is None else forwarding.run(here, there, call)

    def begin(self, here: Callable[[], T], call: Call) -> T:
        """Run an operation that opens a transaction; for a tenant, only on its primary."""
        forwarding = self.forwarding()
        return here() if forwarding is None else forwarding.begin(here, call)

    def release(self) -> None:
        """Close the session's sessions on other servers: its client may never return."""
        with self._mutex:
            forwarding, self._forwarding = self._forwarding, None
        if forwarding is not None:
            forwarding.close()
