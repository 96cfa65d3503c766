"""Two processes deliver the same units at once: each lands once, with and without the lock."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.conftest import MakeSettings
from tests.repo.source_tree import ROOT
from tests.sample_events import assert_exactly_once, event_files
from tests.shortcuts import warm
from tests.shortcuts.made_lakes import new_lake


def _say(pipe: IO[str] | None, text: str) -> None:
    assert pipe is not None
    pipe.write(text)
    pipe.flush()


def _hear(pipe: IO[str] | None) -> int:
    assert pipe is not None
    line = pipe.readline()
    assert line, "a racer died"
    return int(line)


@contextmanager
def _racer(command: list[str]) -> Iterator[warm.Process]:
    with warm.Process(command, cwd=ROOT, stdin=warm.PIPE, stdout=warm.PIPE) as racer:
        try:
            yield racer
            racer.communicate(timeout=60)
        finally:
            racer.kill()


@pytest.mark.parametrize(("lock", "rounds"), [("locked", 100), ("unlocked", 25)])
@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_a_unit_that_two_processes_deliver_at_once_lands_exactly_once(
    catalog: str, lock: str, rounds: int, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(catalog)
    files = event_files(tmp_path / "in", rounds)
    with new_lake(settings, events=True) as lake:
        url = settings.catalog_url.get_secret_value()
        command = [sys.executable, "-m", "tests.crash.racer", str(settings.home), url, lock, *map(str, files)]
        with ExitStack() as stack:
            racers = [stack.enter_context(_racer(command)) for _ in range(2)]
            won = [0, 0]
            for _ in range(rounds):
                for racer in racers:
                    _say(racer.stdin, "go\n")
                delivered = [_hear(racer.stdout) for racer in racers]
                assert sum(delivered) == 1
                won = [before + now for before, now in zip(won, delivered, strict=True)]
        assert [racer.returncode for racer in racers] == [0, 0]
        # A race in which one process always wins is none.
        assert min(won) > 0
        assert_exactly_once(lake, rounds)
