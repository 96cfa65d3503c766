"""How long writers waited at the switch of a move: recorded after it, and shown once it is over."""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from catchment.app import App
from catchment.cli.move_output import move_facts, move_lines
from catchment.foundation.settings import Settings
from catchment.status import readings
from catchment.status.model import StatusPart, Tenants
from catchment.tenants.model import Complete, Finalizing, MoveInfo
from catchment.tenants.reports import MoveStatus
from catchment.web.pages import span
from tests.status.sample_status import NOW
from tests.tenants.two_shards import T7, A, Scene, events, two_shards
from tests.web.text_browser import browser_of, empty_status, web_app


def _moved(scene: Scene) -> tuple[float, MoveInfo]:
    """A whole move: the pause after its switch, and the finished move."""
    scene.gateway().signal_for_tenant(T7, "events", events(1, 2, 3))
    moving = scene.move()
    moving.prepare_target()
    moving.enter_dual_write()
    scene.shards[A]._shippers[T7].catch_up(scene.shards[A].positions(T7), wait_s=20)
    moving.finalize()
    switched = moving.state
    assert isinstance(switched, Finalizing)
    moving.gc_source(0)
    return switched.pause_ms, _last_move(scene)


def _last_move(scene: Scene) -> MoveInfo:
    found = scene.store.last_move(T7)
    assert found is not None
    return found


def _tenants(folder: Path) -> Tenants:
    """The tenants, by the status."""
    with App(Settings(home=folder / "control")) as app:
        return readings.tenants(app)


def _cell(tenants: Tenants) -> str:
    """What the page says of how long writers waited for the one move that is over."""
    status = replace(empty_status(), tenants=StatusPart(NOW, tenants))
    body = browser_of(web_app(lambda: status), "ann").get("/tenants").body
    [cell] = re.findall(r'<td class="n" data-label="Writers waited">(.*?)</td>', body)
    return str(cell)


def test_a_move_that_is_over_still_says_how_long_writers_waited(tmp_path: Path) -> None:
    with two_shards(tmp_path) as scene:
        pause_ms, over = _moved(scene)
        assert pause_ms > 0
        assert over.state == Complete(pause_ms)
        tenants = _tenants(tmp_path)
        assert [each.pause_ms for each in tenants.finished] == [pause_ms]
        assert _cell(tenants) == span(pause_ms / 1000)
        assert move_facts(MoveStatus(move=over))["pause_ms"] == pause_ms
        first, *others = move_lines(MoveStatus(move=over))
        assert first.startswith("The last move, from a to b, is complete since ")
        assert others == [f"Writes waited for {pause_ms:,.1f} ms at the switch."]


def test_a_move_that_was_over_before_pauses_were_kept_is_shown_without_one(tmp_path: Path) -> None:
    with two_shards(tmp_path) as scene:
        _moved(scene)
        with closing(sqlite3.connect(tmp_path / "control" / "control.sqlite")) as older, older:
            older.execute("UPDATE moves SET data = ?", [json.dumps({})])
        over = _last_move(scene)
        assert over.state == Complete(None)
        tenants = _tenants(tmp_path)
        assert [each.pause_ms for each in tenants.finished] == [None]
        assert _cell(tenants) == "\N{EN DASH}"
        assert move_facts(MoveStatus(move=over))["pause_ms"] is None
        assert len([*move_lines(MoveStatus(move=over))]) == 1


def test_an_unrecorded_pause_is_not_shown_as_zero(tmp_path: Path) -> None:
    with two_shards(tmp_path) as scene:
        moving = scene.move()
        moving.prepare_target()
        scene.store.change_move(_last_move(scene), Finalizing(1))
        moving.gc_source(0)
        assert _last_move(scene).state == Complete(None)
