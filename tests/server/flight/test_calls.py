"""Calls: what the log has of a failure, and the end of a result that is not read to its end."""

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, cast

import duckdb
import grpc
import pyarrow as pa
import pytest

from catchment.errors import CancelledError
from catchment.foundation import events
from catchment.foundation.events import Event
from catchment.server.flight.calls import CallLimits, Calls
from catchment.server.values import Call
from tests.server.flight.test_request_ids import AbortedError, Context
from tests.waiting import BEAT_S, PATIENCE_S


def _facts(error: Exception) -> dict[str, Any]:
    """What is said of a statement that fails so."""
    heard: list[Event] = []
    with closing(Calls(CallLimits(statements_max=1, seconds_max=60.0))) as calls, events.listening(heard.append):
        answering = calls.answering(cast("grpc.ServicerContext", Context()), "GetFlightInfo")
        with pytest.raises(AbortedError), answering:
            raise error
    return next(event.facts for event in heard if event.verb == "statement_failed")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (duckdb.IOException('IO Error: Cannot open file "/lake/a.parquet": No space left on device'), None),
        (duckdb.HTTPException("HTTP Error: 503 for s3://lake"), None),
        (duckdb.OutOfMemoryException("Out of Memory Error: failed to pin block (1.0 GiB/1.0 GiB used)"), None),
        (duckdb.ConnectionException("Connection Error: the database is gone"), None),
        # As Arrow passes it on while rows are read.
        (OSError("IO Error: Could not read enough bytes"), None),
        (pa.ArrowInvalid("Out of Memory Error: no room"), None),
        (
            duckdb.IOException("IO Error: No files found\n\nLINE 1: SELECT secret\n        ^"),
            "IO Error: No files found",
        ),
        (
            duckdb.IOException(
                'IO Error: Failed to execute query "INSERT INTO t VALUES (\'secret\', "x")": server closed the'
                " connection\nLINE 1: INSERT INTO t VALUES ('secret')"
            ),
            'IO Error: Failed to execute query "…": server closed the connection',
        ),
    ],
)
def test_internal_failures_are_logged_with_duckdbs_message_and_without_the_statement(
    error: Exception, reason: str | None
) -> None:
    assert _facts(error)["reason"] == (reason or str(error))


@pytest.mark.parametrize(
    "error",
    [
        duckdb.CatalogException("Catalog Error: Table with name secret does not exist!"),
        duckdb.ConversionException("Conversion Error: Could not convert string 'secret' to INT32"),
        duckdb.InternalException("INTERNAL Error: secret"),
        pa.ArrowInvalid("Conversion Error: Could not convert string 'secret' to INT32"),
        OSError("secret"),
    ],
)
def test_other_errors_of_duckdb_are_not_repeated_in_the_log(error: Exception) -> None:
    assert "reason" not in _facts(error)


def test_nothing_is_built_for_a_result_once_its_reader_has_left() -> None:
    call, building, ended = Call(), threading.Event(), threading.Event()

    def messages() -> Iterator[bytes]:
        for number in range(3):
            yield bytes([number])
        building.set()
        try:
            while not ended.wait(BEAT_S):
                call.refuse_stopped()
        finally:
            ended.set()

    with closing(Calls(CallLimits(statements_max=1, seconds_max=60.0))) as calls:
        stream = calls.streamed(messages(), call, cast("grpc.ServicerContext", Context()))
        assert [next(stream) for _ in range(3)] == [bytes([number]) for number in range(3)]
        assert building.wait(PATIENCE_S)
        cast("Generator[bytes, None, None]", stream).close()
        was_waited_for = ended.is_set()
        ended.set()
    assert was_waited_for
    with pytest.raises(CancelledError):
        call.refuse_stopped()
