"""Statements that are meant to end the server: only their own sessions notice them."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.clock import SystemClock
from tests.server.engine import attack_statements
from tests.server.engine.storm import connected, survive
from tests.server.raw_client import Client, put_messages
from tests.server.server_process import ServerProcess

_SEED = 11
_GENERATED = 200
# A statement may run for so long; then it is interrupted, and a second later its engine is killed.
_STATEMENT_S_MAX = 2
_ANSWER_S_MAX = 60.0
# Other sessions work again within this time after the answer to an attack.
_RECOVERED_S_MAX = 2.0
# The engine has ended, or is busy.
_AGAIN = (grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED)
# Those that end the server's work in one way each: its stack, an internal failure, no reaction.
_EVERY_WAY = (attack_statements.KNOWN[0], attack_statements.KNOWN[3], attack_statements.KNOWN[5])


class Attacks:
    """Runs statements one after the other, and measures when other sessions work again."""

    def __init__(self, texts: Sequence[str], seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self.recovered_s: list[float] = []
        # Statements that the server answered with an error of its own.
        self.failed_inside: list[str] = []
        self._texts = texts
        self._random = random.Random(seed)

    def __call__(self, server: ServerProcess) -> None:
        with connected(server) as other:
            other.update("CREATE TABLE attacked (a UBIGINT)")
            for text in self._texts:
                # Temporary tables go with their engine, and the session's next statement says so.
                with connected(server) as client:
                    self.answers[self._answer(client, text)] += 1
                    self.recovered_s.append(_recovery_s(other))

    def _answer(self, client: Client, text: str) -> str:
        """Send it in one of the ways that drivers do; the answer's status."""
        ways = (self._query, self._update, self._prepare, self._schema)
        try:
            self._random.choice(ways)(client, text)
        except grpc.RpcError as error:
            if "its log has the details" in str(error.details()):
                self.failed_inside.append(text)
            return str(error.code().name)
        return "OK"

    @staticmethod
    def _query(client: Client, text: str) -> None:
        call: Any = client.asking(sql.CommandStatementQuery(query=text))
        call.result(timeout=_ANSWER_S_MAX)

    @staticmethod
    def _update(client: Client, text: str) -> None:
        client.upload(put_messages(sql.CommandStatementUpdate(query=text))).result(timeout=_ANSWER_S_MAX)

    @staticmethod
    def _prepare(client: Client, text: str) -> None:
        prepared = client.prepare(text)
        client.read(sql.CommandPreparedStatementQuery(prepared_statement_handle=prepared.prepared_statement_handle))

    @staticmethod
    def _schema(client: Client, text: str) -> None:
        client.schema(sql.CommandStatementQuery(query=text))


def _recovery_s(client: Client) -> float:
    """How long another session waits for its next answer."""
    clock = SystemClock()
    begun_s = clock.monotonic_s()
    while True:
        try:
            assert client.query("SELECT 42 AS x") == [{"x": 42}]
        except grpc.RpcError as error:
            if error.code() not in _AGAIN:
                raise
        else:
            return clock.monotonic_s() - begun_s


def attack(home: Path, texts: Sequence[str]) -> Attacks:
    attacks = Attacks(texts, _SEED)
    survive(
        home,
        attacks,
        seed=_SEED,
        CATCHMENT_SERVER_MEMORY_MB="1000",
        CATCHMENT_SERVER_STATEMENT_SECONDS_MAX=str(_STATEMENT_S_MAX),
    )
    assert attacks.failed_inside == []
    # At least one statement ended an engine.
    assert attacks.answers["ABORTED"]
    return attacks


def test_an_attack_of_every_kind_harms_only_its_own_session(tmp_path: Path) -> None:
    attack(tmp_path / "home", _EVERY_WAY)


@pytest.mark.soak
def test_known_and_generated_attacks_harm_only_their_own_sessions(tmp_path: Path) -> None:
    texts = [*attack_statements.KNOWN, *attack_statements.generated(_SEED, _GENERATED)]
    assert max(attack(tmp_path / "home", texts).recovered_s) < _RECOVERED_S_MAX
