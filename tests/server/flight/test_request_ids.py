"""Request ids: where they come from, and their place in the log and in errors."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NoReturn, cast

import grpc
import pytest

from catchment.errors import InputError, LimitError
from catchment.flight_protocol.request_ids import REQUEST_HEADER, request_id, request_id_headers
from catchment.foundation import events
from catchment.foundation.events import Event
from catchment.server.flight.calls import CallLimits, Calls

GIVEN = "0f8fad5b-d9cb-469f-a165-70867728950e"


class AbortedError(Exception):
    """What gRPC raises when a call is aborted."""


class Context:
    """What a call is to gRPC, as far as it is asked."""

    def __init__(self, *headers: tuple[str, str | bytes]) -> None:
        self.headers = headers
        self.trailers: dict[str, str] = {}
        self.said: tuple[grpc.StatusCode, str] | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.headers

    def time_remaining(self) -> float:
        return 60.0

    def add_callback(self, _callback: Callable[[], None]) -> bool:
        return True

    def cancel(self) -> None:
        """There is no connection to cut off."""

    def set_trailing_metadata(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self.trailers = dict(trailers)

    def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        self.said = (code, text)
        raise AbortedError


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    found: list[Event] = []
    with events.listening(found.append):
        yield found


def _fail(context: Context, error: Exception, name: str = "GetFlightInfo", *, log_sql: bool = False) -> None:
    with (
        closing(Calls(CallLimits(statements_max=1, seconds_max=60.0), log_sql=log_sql)) as calls,
        pytest.raises(AbortedError),
    ):
        _answer(calls, context, error, name)


def _answer(calls: Calls, context: Context, error: Exception, name: str) -> None:
    with calls.answering(cast("grpc.ServicerContext", context), name) as call:
        call.text = "SELECT secret"
        events.identify(session="s1", user="ada")
        raise error


@pytest.mark.parametrize("given", [GIVEN, "a", "7", "a.b_c:d-e", "x" * 64])
def test_a_valid_request_id_is_adopted(given: str) -> None:
    assert request_id([("user-agent", "x"), (REQUEST_HEADER, given)]) == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\nb", "ä", '"', "-a", "../a", b"bytes"])
def test_an_invalid_request_id_is_replaced_and_generated_ones_differ(given: str | bytes) -> None:
    made = [request_id([(REQUEST_HEADER, given)]) for _ in range(100)]
    assert given not in made
    assert len(set(made)) == 100


def test_a_generated_request_id_is_valid_so_that_other_shards_adopt_it() -> None:
    made = request_id([])
    assert request_id([(REQUEST_HEADER, made)]) == made


def test_calls_to_other_servers_carry_the_id_of_their_request_if_there_is_one() -> None:
    assert request_id_headers() == ()
    with events.context(request="r1"):
        assert request_id_headers() == ((REQUEST_HEADER, "r1"),)


def test_the_error_and_the_log_have_the_same_id(heard: list[Event]) -> None:
    context = Context((REQUEST_HEADER, GIVEN))
    _fail(context, InputError("secret is not a table"))
    assert context.trailers == {"catchment-error": "InputError", REQUEST_HEADER: GIVEN}
    (event,) = heard
    assert (event.verb, event.facts.pop("seconds") >= 0) == ("statement_failed", True)
    ids = {"request": GIVEN, "session": "s1", "user": "ada"}
    assert event.facts == {**ids, "call": "GetFlightInfo", "error": "InputError", "code": "invalid_argument"}


def test_with_the_setting_the_log_has_what_the_client_wrote(heard: list[Event]) -> None:
    _fail(Context(), InputError("secret is not a table"), log_sql=True)
    assert (heard[0].facts["sql"], heard[0].facts["reason"]) == ("SELECT secret", "secret is not a table")


def test_a_failed_call_that_is_not_a_statement_is_logged_as_a_call(heard: list[Event]) -> None:
    _fail(Context(), InputError("no"), "Handshake")
    assert [event.verb for event in heard] == ["call_failed"]


def test_an_unexpected_error_names_its_request_in_the_text_too(heard: list[Event]) -> None:
    context = Context((REQUEST_HEADER, "r1"))
    _fail(context, ZeroDivisionError("secret"))
    assert context.said == (grpc.StatusCode.INTERNAL, "The server failed; its log has the details. (request r1)")
    assert [(event.verb, event.facts["request"]) for event in heard] == [
        ("call_crashed", "r1"),
        ("statement_failed", "r1"),
    ]
    assert "secret" not in json.dumps(heard[1].facts)


@pytest.mark.parametrize(("error", "level"), [(LimitError("too many"), "WARNING"), (InputError("no"), "INFO")])
def test_only_internal_failures_are_logged_as_warnings(
    error: Exception, level: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("catchment"), "propagate", True)
    # pytest adds its own handler here too if a test before this one ended the propagation.
    monkeypatch.setattr(logging.getLogger("catchment"), "handlers", [])
    with caplog.at_level(logging.DEBUG, logger="catchment"):
        _fail(Context(), error)
    (record,) = caplog.records
    facts: dict[str, Any] = vars(record)["facts"]
    assert (record.levelname, facts.get("reason")) == (level, "too many" if level == "WARNING" else None)


def test_a_call_leaves_no_ids_in_the_context() -> None:
    _fail(Context(), InputError("no"))
    assert events.current("request") is None
