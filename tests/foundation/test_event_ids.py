"""Ids in events: units, flushes, moves, scripts and dead letters can be followed by them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from catchment.foundation import events
from catchment.foundation.events import NAMED_MAX, Event
from catchment.foundation.settings import Settings
from catchment.queue import dead_letter_actions
from catchment.tenants.run_move import run_move
from tests.queue.queues import FACTS, QueueScene
from tests.sample_events import EVENTS, deliverer, event_files, rows_of, source_of
from tests.schema import projects
from tests.server.shards import test_forward
from tests.server.shards.two_servers import Place
from tests.shortcuts.made_lakes import new_lake
from tests.tenants import two_shards
from tests.tenants.two_shards import T7, A, B

# Two shards, each with its server.
shards = test_forward.place


class Heard:
    """Every event of the test."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def all(self, verb: str) -> list[dict[str, Any]]:
        return [event.facts for event in self.events if event.verb == verb]

    def one(self, verb: str) -> dict[str, Any]:
        (facts,) = self.all(verb)
        return facts


@contextmanager
def hearing() -> Iterator[Heard]:
    heard = Heard()
    with events.listening(heard.events.append):
        yield heard


def test_a_delivery_names_the_first_of_its_units_and_how_many_there_are(settings: Settings, tmp_path: Path) -> None:
    count = NAMED_MAX + 2
    source = source_of(event_files(tmp_path / "in", count))
    with new_lake(settings, events=True) as lake:
        with hearing() as heard:
            deliverer(lake, settings).run(source)
            job, units = heard.one("delivered")["job"], heard.one("delivered")["unit_ids"]
            rows = rows_of(lake, f"SELECT unit_id, job_id FROM {lake.name}._catchment.deliveries")
            known = {row[0]: row[1] for row in rows}
        assert (len(units), heard.one("delivered")["units"]) == (NAMED_MAX, count)
        assert {known[unit] for unit in units} == {job}


def test_a_replay_names_the_units_that_the_ledger_has(settings: Settings, tmp_path: Path) -> None:
    units = source_of(event_files(tmp_path / "in", 2)).units()
    source = source_of(sorted((tmp_path / "in").iterdir()))
    with new_lake(settings, events=True) as lake:
        work = deliverer(lake, settings)
        # Not retired: the same files are there a second time.
        work.deliver(work.plan(source), lambda unit: None)
        with hearing() as heard:
            work.deliver(work.plan(source), lambda unit: None)
    skipped = heard.one("replay_skipped")
    assert (skipped["units"], set(skipped["unit_ids"])) == (2, {unit.id for unit in units})


def test_events_of_a_flush_have_its_id_and_the_ids_of_the_request(queue: QueueScene) -> None:
    queue.write(range(5))
    with hearing() as heard, events.context(request="r1", user="ada"):
        queue.coordinator.force_flush_all()
    flushed, delivered, timed = (heard.one(verb) for verb in ("flushed", "delivered", "flush_timed"))
    assert flushed["flush"] == delivered["flush"] == timed["flush"]
    assert (delivered["request"], delivered["user"]) == ("r1", "ada")
    assert flushed["unit_ids"] == delivered["unit_ids"]
    facts = FACTS[queue.layout]
    if facts.has_watermark:
        assert flushed["seqs"] == "1..5"
    elif facts.segment:
        assert flushed["segments"] == [facts.segment]
    else:
        (sealed,) = heard.all("segment_sealed")
        assert flushed["segments"] == [sealed["segment"]]


def test_two_flushes_have_ids_of_their_own(queue: QueueScene) -> None:
    with hearing() as heard:
        for number in range(2):
            queue.write(range(number, number + 1))
            queue.coordinator.force_flush_all()
    assert len({facts["flush"] for facts in heard.all("flushed")}) == 2


def test_events_of_dead_letters_have_their_ids_and_the_user_who_handled_them(queue: QueueScene) -> None:
    queue.write(range(1))
    queue.coordinator.force_flush_all()
    queue.coordinator.enqueue(EVENTS, pa.table({"id": [1, 2], "kind": ["a", None]}))
    queue.sql("ALTER TABLE events ALTER COLUMN kind SET NOT NULL")
    with hearing() as heard:
        queue.coordinator.force_flush_all()
        (letter,) = queue.lake.dead_letters()
        with events.context(user="ada"):
            dead_letter_actions.retry(queue.lake, [letter.id])
            dead_letter_actions.drop(queue.lake, [letter.id])
    assert heard.one("sifted")["letter_ids"] == [letter.id]
    for verb in ("dead_letters_retried", "dead_letters_dropped"):
        assert (heard.one(verb)["letter_ids"], heard.one(verb)["user"]) == ([letter.id], "ada")


def test_events_of_a_script_have_its_database_and_its_number(tmp_path: Path) -> None:
    here = projects.scene("models_only", tmp_path)
    with hearing() as heard:
        path = here.migrate.generate()
        assert path is not None
        here.migrate.apply(path.name)
    for verb in ("script_generated", "script_applied"):
        assert (heard.one(verb)["database"], heard.one(verb)["version"]) == (here.engine.name, 1)


def test_every_step_of_a_move_has_the_move_and_so_has_what_it_delivers(tmp_path: Path) -> None:
    with two_shards.two_shards(tmp_path) as scene, hearing() as heard:
        scene.gateway().signal_for_tenant(T7, "events", two_shards.events(1, 2, 3))
        scene.queues[A].force_flush_all()
        run_move(scene.move(), clock=scene.clock, gc_window_s=0.0)
    moves = {facts["move"] for facts in heard.all("move_changed")}
    assert len(moves) == 1
    copied = [facts for facts in heard.all("delivered") if facts.get("phase") == "preparing"]
    assert copied
    for facts in (*copied, *heard.all("tenant_compared"), *heard.all("tenant_switched")):
        assert (facts["tenant"], {facts["move"]}) == (str(T7), moves)


def test_a_statement_that_is_forwarded_has_one_request_on_both_servers(
    shards: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = shards.client(B)
    given = ("x-request-id", "across")
    monkeypatch.setattr(client, "_headers", lambda: (("authorization", str(client.authorization)), given))
    with hearing() as heard, pytest.raises(grpc.RpcError):
        client.query("SELECT * FROM nowhere")
    failed = [facts for facts in heard.all("statement_failed") if facts["request"] == "across"]
    # The home's own, which says so first, and that of the server which was asked.
    assert [facts["user"] for facts in failed] == ["shard", "eve"]
