"""Events: heard by listeners, and logged as prose or as JSON lines."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from catchment import events
from catchment.events import Event


@pytest.fixture(autouse=True)
def _restored_logger() -> Iterator[None]:
    logger = logging.getLogger("catchment")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_listener_hears_what_happens_while_it_listens() -> None:
    heard: list[Event] = []
    events.emit("too_early")
    with events.listening(heard.append):
        events.emit("delivered", rows=7)
        events.emit("retired")
    events.emit("too_late")
    assert heard == [Event("delivered", {"rows": 7}), Event("retired")]


def test_a_listener_is_let_go_when_the_block_fails() -> None:
    heard: list[Event] = []
    with pytest.raises(RuntimeError), events.listening(heard.append):
        raise RuntimeError
    events.emit("delivered")
    assert heard == []


def test_everybody_who_listens_hears_everything() -> None:
    one: list[Event] = []
    two: list[Event] = []
    with events.listening(one.append), events.listening(two.append):
        events.emit("delivered")
    assert one == two == [Event("delivered")]


def test_a_listener_may_stop_listening_while_it_is_told() -> None:
    heard: list[Event] = []
    inner = events.listening(heard.append)

    def leave(_: Event) -> None:
        inner.__exit__(None, None, None)

    with events.listening(leave):
        inner.__enter__()
        events.emit("delivered")
    events.emit("later")
    assert heard == [Event("delivered")]


def test_the_log_is_prose_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="info", as_json=False)
    events.emit("delivered", rows=7, table="main.events")
    events.emit("retired")
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split(" ", 3)[2:] for line in said.err.splitlines()] == [
        ["INFO", "delivered rows=7 table=main.events"],
        ["INFO", "retired"],
    ]


def test_the_log_is_one_json_object_a_line_whatever_the_facts_hold(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="info", as_json=True)
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    events.emit("delivered", path=Path("/a"), text='line\nbreak "quoted" {x}', at_moment=moment, rows=7, none=None)
    said = capsys.readouterr()
    assert said.out == ""
    lines = [json.loads(line) for line in said.err.splitlines()]
    assert len(lines) == 1
    assert datetime.fromisoformat(lines[0].pop("at")).tzinfo == UTC
    assert lines == [
        {
            "level": "info",
            "action": "delivered",
            "path": "/a",
            "text": 'line\nbreak "quoted" {x}',
            "at_moment": str(moment),
            "rows": 7,
            "none": None,
        }
    ]


def test_what_a_library_logs_under_our_name_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="warning", as_json=True)
    logging.getLogger("catchment.other").warning("It is %s.", "late")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["action"], line["message"]) == ("warning", "catchment.other", "It is late.")


def test_what_is_below_the_level_is_not_logged_but_heard(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="warning", as_json=False)
    heard: list[Event] = []
    with events.listening(heard.append):
        events.emit("delivered")
        events.emit("lost", level=logging.WARNING)
    assert [event.verb for event in heard] == ["delivered", "lost"]
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["lost"]


def test_configuring_again_replaces_the_log_instead_of_doubling_it(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="info", as_json=False)
    events.configure_logging(level="info", as_json=True)
    events.emit("delivered")
    assert json.loads(capsys.readouterr().err)["action"] == "delivered"


def test_our_log_does_not_reach_the_program_that_embeds_us(caplog: pytest.LogCaptureFixture) -> None:
    events.configure_logging(level="info", as_json=False)
    events.emit("delivered")
    assert caplog.records == []
