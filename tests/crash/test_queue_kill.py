"""SIGKILL at every crash point of the queue: acknowledged rows are in the lake exactly once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.foundation import faults
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.queue import DqCoordinator, open_buffer
from tests.crash.queue_child import BATCH, BATCHES_BEFORE, CLIENT_IDS, CLIENTS, command
from tests.queue.queues import (
    FACTS,
    LAYOUTS_ON_DISK,
    OWN_POINTS,
    Delivered,
    assert_drained,
    coordinator,
    event_rows,
    ids_in,
    wait_for_locks,
)
from tests.repo.source_tree import ROOT
from tests.sample_events import create_table
from tests.shortcuts import warm

LATER = frozenset(range(CLIENTS * CLIENT_IDS, CLIENTS * CLIENT_IDS + BATCH))
ASIDE = "queue.between_aside"
DISCARD = "queue.before_discard"
# A unit of the queue has one input, so a flush does not come between two.
FLUSHING = [
    point
    for point in faults.POINTS
    if point.startswith(("deliver.", "retire.", "queue.")) and point not in ("retire.between_inputs", ASIDE, DISCARD)
]
POINTS = {
    layout: [point for point in FLUSHING if point not in OWN_POINTS or FACTS[layout].own_point(point)]
    for layout in LAYOUTS_ON_DISK
}
KILLED = frozenset((*(point for points in POINTS.values() for point in points), ASIDE, DISCARD))
# Where the rows of a flush are at each point that every layout has.
ROWS = {
    "deliver.before_write": Delivered.NOT_YET,
    "deliver.after_write": Delivered.NOT_YET,
    "deliver.after_place": Delivered.NOT_YET,
    "deliver.before_commit": Delivered.NOT_YET,
    "deliver.after_commit": Delivered.IN_BOTH,
    "deliver.before_clean": Delivered.COMMITTED,
    "retire.before_unit": Delivered.IN_BOTH,
    "retire.after_unit": Delivered.COMMITTED,
    "queue.before_ack": Delivered.NOT_YET,
    "queue.after_ack": Delivered.NOT_YET,
    "queue.after_stage": Delivered.NOT_YET,
    "queue.after_retire": Delivered.RELEASED,
}
EVERYWHERE = [
    *(("sqlite", layout, point) for layout in LAYOUTS_ON_DISK for point in POINTS[layout]),
    *(
        ("postgres", layout, point)
        for layout in LAYOUTS_ON_DISK
        for point in (FACTS[layout].postgres_point, "deliver.before_commit", "deliver.after_commit")
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A queue of the test's own, for a table of its own, in a lake that the tests share."""

    settings: Settings
    lake: Lake
    table: TableId

    @property
    def root(self) -> Path:
        return self.settings.queue_path

    @contextmanager
    def queue(self) -> Iterator[DqCoordinator]:
        buffer = open_buffer(self.settings, clock=SystemClock())
        try:
            yield coordinator(self.settings, self.lake, buffer)
        finally:
            buffer.close()

    def ids(self) -> list[int]:
        return ids_in(self.lake, self.table)

    def fresh_ids(self, queue: DqCoordinator) -> list[int]:
        with queue.fresh(self.table) as fresh:
            return sorted(fresh.rows()["id"].to_pylist())

    def held_ids(self, queue: DqCoordinator) -> set[int]:
        return {n for held in queue.buffer.buffered_rows(self.table) for n in held.rows["id"].to_pylist()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """Return the child's acknowledged ids, and the batches that were in progress."""

    acked: frozenset[int]
    under_way: tuple[frozenset[int], ...]


MakeScene = Callable[[str, str], Scene]


@pytest.fixture(scope="module")
def lakes(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, tuple[Settings, Lake]]]:
    """A lake for each kind of catalog: making one takes as long as a kill."""
    home = tmp_path_factory.mktemp("lakes")
    urls = {
        "sqlite": f"sqlite:{home / 'catalog.sqlite'}",
        "postgres": f"postgres:{request.getfixturevalue('postgres').new_database()}",
    }
    all_settings = {kind: Settings(home=home / kind, lake_catalog=SecretStr(url)) for kind, url in urls.items()}
    with ExitStack() as stack:
        yield {kind: (each, stack.enter_context(Lake.from_settings(each))) for kind, each in all_settings.items()}


@pytest.fixture
def make_scene(lakes: dict[str, tuple[Settings, Lake]], tmp_path: Path) -> MakeScene:
    def make(catalog: str, layout: str) -> Scene:
        settings, lake = lakes[catalog]
        table = TableId("main", f"events_{len(lake.tables())}")
        create_table(lake, table)
        here = settings.model_copy(update={"queue_layout": layout, "queue_root": tmp_path / "queue"})
        return Scene(settings=here, lake=lake, table=table)

    return make


def _kill(scene: Scene, point: str, nth: int = 1) -> Killed:
    """Run the child until it is killed at the point; anything else it does is a failure."""
    # Several units, and a commit for each, so that there is a middle to be killed in. The
    # next process cuts its slices at other positions.
    many = scene.settings.model_copy(update={"queue_flush_chunk_rows": 20})
    child = command("write", many, point, table=scene.table, nth=nth)
    ended = warm.run(child, cwd=ROOT, timeout=60)
    lines = ended.stdout.splitlines()
    assert ended.returncode == -signal.SIGKILL, ended.stderr + ended.stdout[-1_000:]
    assert f"at {point}" in lines
    assert not any(line.startswith("failed") for line in lines), ended.stdout[-1_000:]
    acks = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("ack")]
    ends = [max((last for client, _, last in acks if client == n), default=n * CLIENT_IDS - 1) for n in range(CLIENTS)]
    return Killed(
        acked=frozenset(n for _, first, last in acks for n in range(first, last + 1)),
        under_way=tuple(frozenset(range(end + 1, end + 1 + BATCH)) for end in ends),
    )


def _assert_once(ids: list[int], killed: Killed, *, more: frozenset[int] = frozenset()) -> None:
    """No id is there twice, every acknowledged one is, and others only as whole batches."""
    found = frozenset(ids)
    assert len(ids) == len(found), sorted(n for n in found if ids.count(n) > 1)
    assert killed.acked | more <= found, sorted((killed.acked | more) - found)
    rest = found - killed.acked - more
    assert rest == frozenset().union(*(batch for batch in killed.under_way if batch & rest))


def _assert_mid_flight(scene: Scene, queue: DqCoordinator, point: str) -> None:
    delivered, held = set(scene.ids()), scene.held_ids(queue)
    own = FACTS[scene.settings.queue_layout].own_point(point)
    rows = own.rows if own else ROWS[point]
    assert bool(delivered) == (rows is not Delivered.NOT_YET)
    assert delivered & held or rows is not Delivered.IN_BOTH
    assert delivered - held or rows is not Delivered.RELEASED
    # Clients wrote while the flush was at the point, so there is always something left to flush.
    assert held - delivered


def _assert_folders(scene: Scene, point: str) -> None:
    """The folder is the state: where the point says that a file is, there it is."""
    own = FACTS[scene.settings.queue_layout].own_point(point)
    if own:
        assert {folder: len(list((scene.root / folder).iterdir())) for folder in own.files} == own.files


@pytest.mark.parametrize(("catalog", "layout", "point"), EVERYWHERE)
def test_a_queue_killed_anywhere_has_every_acknowledged_row_exactly_once(
    catalog: str, layout: str, point: str, make_scene: MakeScene
) -> None:
    scene = make_scene(catalog, layout)
    killed = _kill(scene, point)
    assert len(killed.acked) >= CLIENTS * BATCHES_BEFORE * BATCH
    _assert_folders(scene, point)
    if catalog == "postgres":
        wait_for_locks(scene.settings.catalog_url.get_secret_value().removeprefix("postgres:"))
    with scene.queue() as queue:
        _assert_mid_flight(scene, queue, point)
        _assert_once(scene.fresh_ids(queue), killed)
        queue.enqueue(scene.table, event_rows(LATER))
        queue.force_flush_all()
        _assert_once(scene.ids(), killed, more=LATER)
        _assert_once(scene.fresh_ids(queue), killed, more=LATER)
        assert_drained(queue)
    assert [path for folder in FACTS[layout].drained_folders for path in (scene.root / folder).iterdir()] == []


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_a_damaged_file_is_kept_whole_if_the_process_is_killed_while_quarantining_it(
    layout: str, nth: int, make_scene: MakeScene
) -> None:
    scene = make_scene("sqlite", layout)
    path = scene.root / FACTS[layout].data_file
    content = {path.name: b"not a database" * 1_000, f"{path.name}.wal": b"nor a log of one"}
    path.parent.mkdir(parents=True)
    for name, text in content.items():
        (path.parent / name).write_bytes(text)
    killed = _kill(scene, ASIDE, nth)
    # Truly between: every file has its second name, and the first names go one by one.
    assert [(path.parent / name).exists() for name in content] == [nth == 1, True]
    assert dict(_set_aside(scene.root)) == content
    with scene.queue() as queue:
        queue.enqueue(scene.table, event_rows(LATER))
        queue.force_flush_all()
        _assert_once(scene.ids(), killed, more=LATER)
        assert queue.buffer.quarantined()
        assert sum(state.rows for state in queue.buffer.tables()) == 0
    assert {*content.items()} <= {*_set_aside(scene.root)}
    assert {text for _, text in _set_aside(scene.root)} == {*content.values()}


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_a_discard_that_is_killed_is_finished_by_the_next_one(layout: str, make_scene: MakeScene) -> None:
    scene = make_scene("sqlite", layout)
    with scene.queue() as queue:
        queue.enqueue(scene.table, event_rows(range(5)))
    with scene.lake.write() as connection:
        connection.execute(f"DROP TABLE {scene.table}")
    ended = warm.run(command("discard", scene.settings, DISCARD, table=scene.table), cwd=ROOT, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with scene.queue() as queue:
        assert sum(state.rows for state in queue.buffer.tables()) == 5
        with queue.stranded(scene.table) as rows:
            rows.discard()
        assert sum(state.rows for state in queue.buffer.tables()) == 0
        queue.force_flush_all()
        (noted,) = scene.lake.audit(queue.buffer.producer(scene.table)).producers
        assert (noted.units, noted.rows) == (1, 0)


def _set_aside(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in (root / "set_aside").glob("*/*"):
        if path.name != "reason.json":
            yield path.name, path.read_bytes()
