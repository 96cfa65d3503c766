"""A connection to an engine is kept or closed after an error, whichever side reports it."""

import pickle
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
from catchment.server.engine.engine_process import EngineProcess
from catchment.server.engine.remote_connection import RemoteConnection

ROWS = pa.table({"a": [1, 2, 3]})


class Engine:
    """A process, as far as a connection uses it: has one answer for each kind of request."""

    is_running = True

    def __init__(self, answer: Callable[[str], frames.Answer]) -> None:
        self._answer = answer
        self._ours, self._theirs = frames.pair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def open_channel(self, user: object) -> tuple[int, object]:
        del user
        return 1, self._ours

    def drop(self, channel: int) -> None:
        """Do nothing: nothing runs."""

    def _serve(self) -> None:
        with self._theirs:
            try:
                while True:
                    number, verb, _ = frames.receive_request(self._theirs)
                    frames.send(self._theirs, number, self._answer(verb))
            except (EOFError, pickle.UnpicklingError):
                # Its end, or rows, which this engine does not expect.
                pass

    def join(self) -> None:
        self._thread.join()


@contextmanager
def connected(answer: Callable[[str], frames.Answer]) -> Iterator[RemoteConnection]:
    engine = Engine(answer)
    with RemoteConnection(cast(EngineProcess, engine), 1, ParserDatabase()) as connection:
        yield connection
    engine.join()


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
