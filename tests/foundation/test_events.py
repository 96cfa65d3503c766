"""Events reach listeners, and are logged as prose or JSON lines with the ids of their context."""

import contextvars
import gc
import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from catchment.foundation import events, log_lines
from catchment.foundation.events import Event
from catchment.foundation.log_lines import VALUE_LETTERS_MAX


@pytest.fixture(autouse=True)
def _restored_logger() -> Iterator[None]:
    logger, root = logging.getLogger("catchment"), logging.getLogger()
    before, at_the_root = (logger.handlers[:], logger.level, logger.propagate), root.handlers[:]
    installed = events._root_handler
    yield
    # Together: otherwise a handler of an earlier test stays at the root for good, its stream
    # closed.
    root.handlers[:], events._root_handler = at_the_root, installed
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_listener_receives_the_events_of_its_block() -> None:
    heard: list[Event] = []
    events.emit("too_early")
    with events.listening(heard.append):
        events.emit("delivered", rows=7)
        events.emit("retired")
    events.emit("too_late")
    assert heard == [Event("delivered", {"rows": 7}), Event("retired")]


def test_a_listener_is_removed_when_the_block_fails() -> None:
    heard: list[Event] = []
    with pytest.raises(RuntimeError), events.listening(heard.append):
        raise RuntimeError
    events.emit("delivered")
    assert heard == []


def test_a_listener_that_fails_affects_neither_the_emitter_nor_other_listeners(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Event) -> None:
        raise ValueError("deaf")

    events.configure_logging(level="info", as_json=True)
    heard: list[Event] = []
    with events.listening(fail), events.listening(heard.append):
        events.emit("committed", rows=7)
        events.emit("retired")
    assert [event.verb for event in heard] == ["committed", "retired"]
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    # Once: one that fails at every event would fill the log.
    assert [(line["level"], line["action"]) for line in lines] == [
        ("error", "catchment"),
        ("info", "committed"),
        ("info", "retired"),
    ]
    assert "committed" in lines[0]["message"]
    assert lines[0]["exception"].endswith("ValueError: deaf")


def test_an_interrupt_in_a_listener_is_not_held_back() -> None:
    def interrupt(_: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), events.listening(interrupt):
        events.emit("committed")


def test_every_listener_receives_every_event() -> None:
    one: list[Event] = []
    two: list[Event] = []
    with events.listening(one.append), events.listening(two.append):
        events.emit("delivered")
    assert one == two == [Event("delivered")]


def test_a_listener_may_stop_listening_during_an_event() -> None:
    heard: list[Event] = []
    inner = events.listening(heard.append)

    def leave(_: Event) -> None:
        inner.__exit__(None, None, None)

    with events.listening(leave):
        inner.__enter__()
        events.emit("delivered")
    events.emit("later")
    assert heard == [Event("delivered")]


def test_the_log_can_be_prose(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="info", as_json=False)
    events.emit("delivered", rows=7, table="main.events")
    events.emit("retired")
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split(" ", 1)[1] for line in said.err.splitlines()] == [
        "info    delivered  table=main.events rows=7",
        "info    retired",
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


def test_a_librarys_messages_under_our_logger_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="warning", as_json=True)
    logging.getLogger("catchment.other").warning("It is %s.", "late")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["action"], line["message"]) == ("warning", "catchment.other", "It is late.")


def test_events_below_the_level_are_not_logged_but_reach_listeners(capsys: pytest.CaptureFixture[str]) -> None:
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


def _line(capsys: pytest.CaptureFixture[str], verb: str = "delivered", **facts: Any) -> dict[str, Any]:
    """The line that an event becomes."""
    events.configure_logging(level="debug", as_json=True)
    events.emit(verb, **facts)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    line = json.loads(said)
    assert isinstance(line, dict)
    return line


def _heard(verb: str = "delivered", **facts: Any) -> dict[str, Any]:
    heard: list[Event] = []
    with events.listening(heard.append):
        events.emit(verb, **facts)
    return heard[0].facts


def test_the_ids_of_a_block_are_in_every_event_of_it_and_in_none_after_it() -> None:
    with events.context(request="r1", user="ada"):
        with events.context(job="j1"):
            assert _heard(rows=7) == {"request": "r1", "user": "ada", "job": "j1", "rows": 7}
        assert _heard() == {"request": "r1", "user": "ada"}
    assert _heard() == {}


def test_an_events_own_fields_win_over_those_of_the_block() -> None:
    with events.context(user="ada", job="j1"), events.context(job="j2"):
        assert _heard(user="ben") == {"user": "ben", "job": "j2"}


def test_ids_are_gone_when_the_block_fails() -> None:
    with pytest.raises(RuntimeError), events.context(request="r1"):
        raise RuntimeError
    assert _heard() == {}


def test_an_id_that_is_learnt_inside_counts_until_the_end_of_the_innermost_block() -> None:
    with events.context(request="r1"):
        with events.context(job="j1"):
            events.identify(session="s1")
            assert _heard() == {"request": "r1", "job": "j1", "session": "s1"}
        assert _heard() == {"request": "r1"}


def test_an_id_that_is_learnt_outside_of_any_block_is_not_kept() -> None:
    events.identify(session="s1")
    assert _heard() == {}
    assert events.current("session") is None


def test_another_thread_has_only_ids_that_are_carried_there() -> None:
    with ThreadPoolExecutor(1) as pool, events.context(request="r1"):
        assert pool.submit(_heard).result() == {}
        assert pool.submit(events.carried(_heard), rows=7).result() == {"request": "r1", "rows": 7}
        # Nor do they stay there.
        assert pool.submit(_heard).result() == {}


def test_calls_of_several_threads_do_not_mix_their_ids() -> None:
    together = threading.Barrier(8)

    def call(number: int) -> bool:
        with events.context(request=f"r{number}"):
            together.wait()
            events.identify(session=f"s{number}")
            together.wait()
            return _mine(number) == {"request": f"r{number}", "session": f"s{number}"}

    def _mine(number: int) -> dict[str, Any]:
        heard: list[Event] = []
        with events.listening(heard.append):
            events.emit("delivered", number=number)
        (facts,) = [each.facts for each in heard if each.facts["number"] == number]
        return {name: value for name, value in facts.items() if name != "number"}

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))


def test_a_stream_that_is_dropped_in_another_thread_does_no_harm() -> None:
    def stream() -> Iterator[int]:
        with events.context(request="r1"):
            yield 1
            yield 2

    begun = stream()
    assert contextvars.Context().run(next, begun) == 1
    del begun
    gc.collect()
    assert _heard() == {}


def test_a_line_begins_with_when_how_grave_and_what_then_ids_then_facts(capsys: pytest.CaptureFixture[str]) -> None:
    with events.context(user="ada", request="r1"):
        line = _line(capsys, rows=7, unit_ids=["u1"], job="j1")
    assert list(line) == ["at", "level", "action", "request", "user", "job", "unit_ids", "rows"]


def test_a_fact_cannot_take_the_place_of_what_a_line_begins_with(capsys: pytest.CaptureFixture[str]) -> None:
    line = _line(capsys, action="dropped", at="never")
    assert line["action"] == "delivered"
    assert line["at"] != "never"


def test_no_line_is_long_whatever_the_facts_hold(capsys: pytest.CaptureFixture[str]) -> None:
    line = _line(capsys, text="a" * 10_000_000 + "z", many=list(range(1_000_000)), number=10**400)
    assert len(json.dumps(line)) < 5 * VALUE_LETTERS_MAX
    assert (line["text"][0], line["text"][-1]) == ("a", "z")


def test_values_that_are_not_json_become_strings(capsys: pytest.CaptureFixture[str]) -> None:
    line = _line(capsys, nan=float("nan"), bad=[float("inf")], paths=[Path("/a")], keys={(1, 2): 3}, raw=b"\xff")
    assert (line["nan"], line["bad"], line["paths"]) == ("nan", "[inf]", ["/a"])
    assert (line["keys"], line["raw"]) == ("{(1, 2): 3}", "b'\\xff'")


@pytest.mark.parametrize(
    "text",
    [
        "postgres:host=h password=sesame dbname=d",
        "could not connect: password='open sesame' port=1",
        "postgresql://ada:sesame@host/lake",
        "authorization: Basic c2VzYW1lOnNlc2FtZQ==",
        "authorization: Bearer sesame-sesame-sesame",
        "CATCHMENT_SHARD_SECRET=sesame",
        '{"password": "sesame", "user": "ada"}',
        "{'password': 'sesame', 'user': 'ada'}",
        "{'password': 'open \\'sesame'}",
        "AWS_SECRET_ACCESS_KEY=sesame",
        "CREATE SECRET s (TYPE s3, KEY_ID 'k', SECRET 'open sesame')",
        "CREATE ROLE ada LOGIN PASSWORD 'open ''sesame'",
        "https://host/path?token=sesame&page=2",
        "authorization: basic c2VzYW1lOnNlc2FtZQ==",
        "password=a'sesame dbname=d",
        "password='open sesame",
        "postgresql://ada:open@sesame@host/lake",
        "redis://:sesame@host",
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_a_password_is_in_no_line(text: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="info", as_json=as_json)
    events.emit("delivered", reason=text, many=[text], padded="x" * VALUE_LETTERS_MAX + text)
    logging.getLogger("a.library").warning(text)
    said = capsys.readouterr().err
    assert "***" in said
    assert "sesame" not in said
    assert "c2VzYW1l" not in said


@pytest.mark.parametrize(
    "text",
    [
        "Wrong password: try again in 3 s.",
        'column "password" does not exist',
        "http://127.0.0.1:4215/healthz and ada@example.org",
        "a token of 7 letters",
    ],
)
def test_words_about_passwords_are_left_as_they_are(text: str) -> None:
    assert log_lines.scrub(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a.",
            "a",
            "a://",
            "a://b:",
            "password",
            "secret=",
            "token '",
            "token \\'",
            'token: "',
            "'",
            "\\",
            "Basic ",
            "@",
        ),
        *("x:// ", "password = ", "a://b:c", '"secret": "\\'),
    ],
)
def test_long_and_strange_texts_are_scrubbed_quickly(piece: str) -> None:
    text = piece * (400_000 // len(piece))
    started_s = time.process_time()
    for value in (text, [text], {"key": text}, [piece] * 40_000):
        assert len(str(log_lines.plain(value))) <= VALUE_LETTERS_MAX + 3
    assert time.process_time() - started_s < 1.0


def test_a_secret_setting_is_in_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "sesame" not in json.dumps(_line(capsys, given=SecretStr("sesame"), more=[SecretStr("sesame")]))


def test_an_exception_is_part_of_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="info", as_json=True)
    try:
        raise ValueError("no\nsuch")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("It broke.")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    line = json.loads(said)
    assert (line["level"], line["action"], line["message"]) == ("error", "uvicorn.error", "It broke.")
    assert line["exception"].endswith("ValueError: no\nsuch")


@pytest.mark.parametrize("name", ["uvicorn.error", "grpc._server", "asyncio", "anybody"])
def test_warnings_of_libraries_have_the_same_format_and_lower_levels_are_silent(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    events.configure_logging(level="debug", as_json=True)
    logging.getLogger(name).warning("It is %s.", "late")
    logging.getLogger(name).info("It is early.")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["action"], line["message"]) == ("warning", name, "It is late.")


def test_in_prose_no_value_breaks_the_line_or_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="info", as_json=False)
    events.emit("delivered", reason='two words, "quoted"\n\x1b[31mred\x9b', ids=["a", "b"], empty="", rows=None)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()
    assert said.endswith('ids=a,b empty="" rows=null\n')


@pytest.mark.parametrize("colour", [False, True])
def test_the_name_of_a_logger_is_escaped(colour: bool, capsys: pytest.CaptureFixture[str]) -> None:
    events.configure_logging(level="info", as_json=False, colour=colour)
    logging.getLogger("evil\n\x1b[2Jname").warning("late")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b[2J" not in said
    assert "evil\\n" in said


def test_colours_are_used_only_if_requested(capsys: pytest.CaptureFixture[str]) -> None:
    for colour in (False, True):
        events.configure_logging(level="info", as_json=False, colour=colour)
        events.emit("delivered", rows=7)
    plain, painted = capsys.readouterr().err.splitlines()
    assert "\x1b" not in plain
    assert "\x1b[32m" in painted


def test_prose_is_rendered_only_for_the_prose_format(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def prose(verb: str, _facts: dict[str, Any]) -> str:
        made.append(verb)
        return verb

    monkeypatch.setattr(log_lines, "prose", prose)
    for as_json in (True, False):
        events.configure_logging(level="info", as_json=as_json)
        events.emit("delivered", rows=7)
        assert made == ([] if as_json else ["delivered"])


def test_a_program_that_embeds_us_reads_verb_and_facts_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("catchment")
    logger.propagate = True
    # pytest adds its own handler here too if a test before this one ended the propagation.
    logger.handlers.clear()
    with caplog.at_level(logging.INFO, logger="catchment"):
        events.emit("delivered", rows=7)
    assert [record.getMessage() for record in caplog.records] == ["delivered  rows=7"]
