"""Two processes on one queue root: they share the work or keep out, and every row lands once."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from pydantic import SecretStr

from catchment.errors import BufferHeldError
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.queue import open_buffer
from tests.conftest import MakeSettings
from tests.crash.queue_child import command
from tests.queue.queues import (
    advisory_locks,
    assert_drained,
    coordinator,
    event_rows,
    ids_in,
    open_queue,
    segments_in,
    wait_for_locks,
)
from tests.repo.source_tree import ROOT
from tests.sample_events import EVENTS
from tests.shortcuts import warm
from tests.shortcuts.made_lakes import put_lake

SESSIONS = 4
ROWS = 5
ROUNDS = 4
LEASES = ("files", "postgres")


class Child:
    """A process of the crash tests, with a word at a time."""

    def __init__(self, process: warm.Process) -> None:
        self.process = process
        self.said: list[str] = []

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hear(self, word: str) -> str:
        """Wait for a line that starts with the word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(f"the child ended before it said {word!r}: {self.said[-5:]}")

    def kill(self) -> set[int]:
        """Kill it; return the ids that it knows to be durable."""
        self.process.kill()
        assert self.process.stdout is not None
        self.said += [line.strip() for line in self.process.stdout]
        assert self.process.wait(timeout=30) == -signal.SIGKILL
        acks = [line.split() for line in self.said if line.startswith("ack")]
        return {n for _, _, first, last in acks for n in range(int(first), int(last) + 1)}


@contextmanager
def _child(arguments: list[str]) -> Iterator[Child]:
    with warm.Process(arguments, cwd=ROOT, stdin=warm.PIPE, stdout=warm.PIPE) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


def _settings(make_settings: MakeSettings, layout: str, leases: str = "files") -> Settings:
    """A queue with its table; leases in PostgreSQL do not need the lake to be there too."""
    settings = make_settings("sqlite", queue_layout=layout)
    if leases == "postgres":
        url = make_settings("postgres").catalog_url
        settings = settings.model_copy(update={"queue_lease_postgres": SecretStr(url.get_secret_value())})
    put_lake(settings, events=True)
    return settings


def _seal_some(settings: Settings, lake: Lake, round_number: int) -> set[int]:
    """Files that wait to be flushed; returns the ids in them."""
    buffer = open_buffer(settings, clock=SystemClock())
    queue = coordinator(settings, lake, buffer)
    first = round_number * SESSIONS * ROWS
    for session in range(SESSIONS):
        some = range(first + session * ROWS, first + (session + 1) * ROWS)
        queue.enqueue(EVENTS, event_rows(some), session=f"session {session}")
    buffer.close()
    assert len(segments_in(settings.queue_path, "sealed")) >= SESSIONS
    return set(range(first, first + SESSIONS * ROWS))


def _assert_all_landed(settings: Settings, ids: set[int]) -> None:
    with open_queue(settings) as queue:
        queue.force_flush_all()
        assert ids_in(queue.lake) == sorted(ids)
        assert_drained(queue)
    assert segments_in(settings.queue_path, "active", "sealed") == []


@pytest.mark.parametrize("leases", LEASES)
def test_two_processes_share_sealed_files_by_their_leases(leases: str, make_settings: MakeSettings) -> None:
    settings = _settings(make_settings, "sessions", leases)
    ids: set[int] = set()
    with ExitStack() as stack:
        lake = stack.enter_context(Lake.from_settings(settings))
        racers = [stack.enter_context(_child(command("flush", settings))) for _ in range(2)]
        for racer in racers:
            racer.hear("ready")
        for number in range(ROUNDS):
            some = _seal_some(settings, lake, number)
            for racer in racers:
                racer.say()
            answers = [racer.hear("flushed") for racer in racers]
            rows = [int(answer.split()[0]) for answer in answers]
            assert sum(rows) == len(some), answers
            # A forced flush says what it had to leave to the other process; nothing else may go
            # wrong.
            errors = [answer.partition(" ")[2] for answer in answers]
            assert all(not error or "another process has" in error for error in errors), answers
            ids |= some
    _assert_all_landed(settings, ids)


def test_two_processes_that_both_hold_the_lease_of_a_file_deliver_it_once(make_settings: MakeSettings) -> None:
    settings = _settings(make_settings, "sessions")
    ids: set[int] = set()
    rows = [0, 0]
    with ExitStack() as stack:
        lake = stack.enter_context(Lake.from_settings(settings))
        racers = [stack.enter_context(_child(command("granted", settings, "queue.after_stage"))) for _ in range(2)]
        for racer in racers:
            racer.hear("ready")
        for number in range(ROUNDS):
            ids |= _seal_some(settings, lake, number)
            for racer in racers:
                racer.say()
            # Both are about to deliver the same files, and neither has begun.
            for racer in racers:
                racer.hear("staged")
            for racer in racers:
                racer.say()
            # One finds that the files have moved while it reads them: it may say so, what it may
            # not is deliver them.
            answers = [int(racer.hear("flushed").split()[0]) for racer in racers]
            rows = [before + now for before, now in zip(rows, answers, strict=True)]
    assert sum(rows) <= len(ids)
    _assert_all_landed(settings, ids)


@pytest.mark.parametrize("leases", LEASES)
def test_a_lease_dies_with_its_holder_and_a_forced_flush_brings_in_what_it_wrote(
    leases: str, make_settings: MakeSettings
) -> None:
    settings = _settings(make_settings, "sessions", leases)
    secret = settings.queue_lease_postgres
    with ExitStack() as stack:
        child = stack.enter_context(_child(command("paused", settings, "deliver.after_place")))
        child.hear("at deliver.after_place")
        queue = stack.enter_context(open_queue(settings))
        # It lives, so its sealed files and those that it writes are left to it, however often we
        # look.
        queue.buffer.sweep()
        assert queue.buffer.payloads() == []
        active, sealed = (segments_in(settings.queue_path, folder) for folder in ("active", "sealed"))
        assert active
        assert len(sealed) == 2
        if secret is not None:
            assert len(advisory_locks(secret.get_secret_value().removeprefix("postgres:"))) >= len(sealed)
        acked = child.kill()
        if secret is not None:
            wait_for_locks(secret.get_secret_value().removeprefix("postgres:"))
        assert segments_in(settings.queue_path, "active") == active
        queue.force_flush_all()
        assert segments_in(settings.queue_path, "active") == []
        found = ids_in(queue.lake)
        assert len(found) == len(set(found))
        assert acked <= set(found)
        assert_drained(queue)


def test_a_shared_buffer_is_one_process_s_until_it_is_killed(make_settings: MakeSettings) -> None:
    settings = _settings(make_settings, "shared")
    with _child(command("paused", settings, "deliver.after_place")) as child:
        child.hear("at deliver.after_place")
        for _ in range(2):
            with pytest.raises(BufferHeldError):
                open_buffer(settings, clock=SystemClock())
        acked = child.kill()
    with open_queue(settings) as queue:
        queue.force_flush_all()
        found = ids_in(queue.lake)
        assert len(found) == len(set(found))
        assert acked <= set(found)
        assert_drained(queue)
