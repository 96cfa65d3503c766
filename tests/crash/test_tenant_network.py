"""The network between two shards is cut during a move: writers go on, and no row is lost."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tests.crash.fleet import Fleet, assert_once, fleet_in, new_tenant
from tests.tenants.two_shards import A, B, Writers
from tests.waiting import wait_until

_CHUNK_BYTES = 65_536


class Proxy:
    """Forwards bytes between clients and a port, unless it is cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_cut = False
        self._mutex = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        with self._mutex:
            self._is_cut = True
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._mutex:
                if self._is_cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while chunk := one.recv(_CHUNK_BYTES):
                other.sendall(chunk)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            with self._mutex:
                self._open.discard(each)
            each.close()


@contextmanager
def behind_proxy(fleet: Fleet) -> Iterator[Proxy]:
    """The second shard, reached through a proxy by every client."""
    proxy = Proxy(fleet.shards[B].port)
    known = fleet.store.shard(B)
    fleet.store.change_shard(replace(known, location=f"grpc://127.0.0.1:{proxy.port}"))
    try:
        yield proxy
    finally:
        proxy.close()


def test_writers_go_on_while_the_target_cannot_be_reached_and_the_move_ends_when_it_can(tmp_path: Path) -> None:
    with fleet_in(tmp_path) as fleet, behind_proxy(fleet) as proxy:
        tenant = new_tenant(fleet)
        source = fleet.remotes.connect(A, fleet.store.shard(A).location)
        with Writers(fleet.gateway(), tenant) as writers:
            assert fleet.move(tenant, "move", "move.after_dual_write") == -9
            wait_until(lambda: source.lag(tenant).is_sync, "the copy follows")
            proxy.cut()
            writers.wait_for_more(50)
            assert not source.lag(tenant).is_sync
            with fleet.mover(tenant, "move") as mover:
                writers.wait_for_more(50)
                assert mover.poll() is None
                proxy.mend()
                assert mover.wait(timeout=60) == 0
            writers.wait_for_more()
        assert writers.unknown == set()
        assert_once(fleet, tenant, B, writers)


def test_a_network_cut_right_after_the_switch_leaves_one_primary_that_is_found_once_reachable(tmp_path: Path) -> None:
    with fleet_in(tmp_path) as fleet, behind_proxy(fleet) as proxy:
        tenant = new_tenant(fleet)
        with Writers(fleet.gateway(), tenant) as writers:
            writers.wait_for_more()
            assert fleet.move(tenant, "move", "move.after_switch") == -9
            proxy.cut()
            assert fleet.store.tenant(tenant).shard == B
            proxy.mend()
            # The target was not informed: it asks at the first write of the new epoch.
            writers.wait_for_more()
            assert fleet.move(tenant, "move") == 0
            writers.wait_for_more()
        assert_once(fleet, tenant, B, writers)
