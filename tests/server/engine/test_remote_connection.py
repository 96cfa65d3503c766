"""A connection to an engine is kept or closed after an error, whichever side reports it."""

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import LimitError
from catchment.server.engine import frames
from catchment.server.engine.databases import ParserDatabase
from catchment.server.engine.engine_process import ChannelUser, EngineProcess
from catchment.server.engine.remote_connection import RemoteConnection

ROWS = pa.table({"a": [1, 2, 3]})


class Engine:
    """A process, as far as a connection uses it: has one answer for each kind of request."""

    is_running = True

    def __init__(self, answer: Callable[[str], frames.Answer]) -> None:
        self._answer = answer
        # What other threads see of a connection that is being opened.
        self.seen: list[tuple[bool, bool]] = []

    def number_channel(self) -> int:
        return 1

    def open_channel(self, number: int, user: ChannelUser, theirs: socket.socket) -> None:
        assert number == 1
        self.seen.append((user.is_closed, user.is_computing))
        self._theirs = theirs.dup()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def drop(self, channel: int) -> None:
        """Do nothing: nothing runs."""

    def _serve(self) -> None:
        with self._theirs:
            try:
                while True:
                    number, verb, _ = frames.receive_request(self._theirs)
                    answer = {"thread": threading.get_native_id()} if verb == "connect" else self._answer(verb)
                    frames.send(self._theirs, number, answer)
            except (EOFError, pickle.UnpicklingError):
                # Its end, or rows, which this engine does not expect.
                pass

    def join(self) -> None:
        self._thread.join()


@contextmanager
def connected(answer: Callable[[str], frames.Answer]) -> Iterator[RemoteConnection]:
    with connected_to(Engine(answer)) as connection:
        yield connection


@contextmanager
def connected_to(engine: Engine) -> Iterator[RemoteConnection]:
    with RemoteConnection(cast(EngineProcess, engine), 1, ParserDatabase()) as connection:
        yield connection
    engine.join()


def test_a_connection_that_is_being_opened_counts_as_open_and_idle() -> None:
    engine = Engine(lambda _: {})
    with connected_to(engine):
        assert engine.seen == [(False, False)]


@pytest.mark.parametrize("error", [LimitError("x"), pa.ArrowInvalid("x"), duckdb.ConversionException("x")], ids=repr)
def test_an_error_that_an_engine_reports_leaves_the_connection_open(error: Exception) -> None:
    with connected(lambda verb: frames.error_answer(error) if verb == "execute" else {}) as connection:
        with pytest.raises(type(error)):
            connection.execute("SELECT 42")
        assert not connection.is_closed
        connection.unregister("x")


def test_an_error_in_the_middle_of_an_exchange_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BODY_BYTES_MAX", 8)
    with connected(lambda _: {}) as connection:
        with pytest.raises(LimitError):
            connection.register("x", ROWS)
        assert connection.is_closed
