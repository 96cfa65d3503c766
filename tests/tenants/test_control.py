"""The control plane on SQLite and PostgreSQL: shards, tenants, and moves by compare-and-swap."""

import json
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.control import ControlDatabase
from catchment.errors import (
    AlreadyExistsError,
    ConflictError,
    ControlUnavailableError,
    InputError,
    InvariantError,
    StateError,
)
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.tenants.control import ControlPlane
from catchment.tenants.control_store import ControlStore
from catchment.tenants.model import (
    Complete,
    DualWrite,
    Finalizing,
    Idle,
    MigrationState,
    MoveInfo,
    Positions,
    PreparingTarget,
    RegionHealth,
    Route,
    ShardId,
    ShardInfo,
    TenantConfig,
    TenantId,
)
from catchment.tenants.router import Access, TenantRouter
from catchment.testing import EmbeddedPostgres, FakeClock

A, B, C = ShardId("a"), ShardId("b"), ShardId("c")
SEVEN = TenantId(7)
HIGHEST = TenantId(2**64 - 1)
LIMITS = TenantConfig(rows_per_second_max=100, storage_bytes_max=10**15, required_regions=frozenset({"eu", "ch"}))
CUTOVER = Positions({TableId("t7", "events"): 5, TableId("t7", "dotted.name"): 2})


def shard(shard_id: ShardId, region: str = "eu") -> ShardInfo:
    return ShardInfo(id=shard_id, region=region, location=f"grpc://{shard_id}:1", home=f"homes/{shard_id}")


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    if request.param == "sqlite":
        return Settings(home=home)
    postgres: EmbeddedPostgres = request.getfixturevalue("postgres")
    return Settings(home=home, control_db=SecretStr(f"postgres:{postgres.new_database()}"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(settings: Settings, clock: FakeClock) -> ControlStore:
    """A store with the shards a, b and c, of which c is in another region."""
    store = ControlStore(ControlDatabase.open(settings), clock=clock)
    for each in (shard(B), shard(A), shard(C, "us")):
        store.add_shard(each)
    return store


@pytest.fixture
def move(store: ControlStore, clock: FakeClock) -> MoveInfo:
    """The move of tenant 7 from a to b, just begun."""
    store.create_tenant(SEVEN, "acme", TenantConfig(), A)
    return store.open_move(SEVEN, A, B, clock.now())


def test_shards_come_back_as_they_were_given_by_name(store: ControlStore) -> None:
    assert store.shards() == (shard(A), shard(B), shard(C, "us"))
    assert store.shard(C) == shard(C, "us")


def test_a_shard_of_a_name_that_is_taken_is_refused_and_the_first_one_stays(store: ControlStore) -> None:
    with pytest.raises(AlreadyExistsError):
        store.add_shard(shard(A, "us"))
    assert store.shard(A) == shard(A)


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.shard(ShardId("nowhere")),
        lambda store: store.set_draining(ShardId("nowhere")),
        lambda store: store.report(ShardId("nowhere"), {}),
        lambda store: store.change_shard(shard(ShardId("nowhere"))),
        lambda store: store.create_tenant(SEVEN, "", TenantConfig(), ShardId("nowhere")),
        lambda store: store.tenant(SEVEN),
        lambda store: store.set_config(SEVEN, TenantConfig()),
        lambda store: store.open_move(SEVEN, A, B, datetime(2026, 1, 1, tzinfo=UTC)),
        lambda store: ControlPlane(store).shard_stats(ShardId("nowhere")),
        lambda store: ControlPlane(store).region_health("mars"),
    ],
)
def test_unknown_shards_tenants_and_moves_are_reported_as_missing(
    store: ControlStore, ask: Callable[[ControlStore], object]
) -> None:
    with pytest.raises(InputError, match=r"nowhere|t7|mars"):
        ask(store)


def test_a_draining_shard_takes_no_tenant(store: ControlStore, clock: FakeClock) -> None:
    store.create_tenant(SEVEN, "acme", TenantConfig(), A)
    store.set_draining(B)
    assert store.shard(B).is_draining
    with pytest.raises(StateError, match="drained"):
        store.create_tenant(TenantId(8), "other", TenantConfig(), B)
    with pytest.raises(StateError, match="drained"):
        store.open_move(SEVEN, A, B, clock.now())
    store.set_draining(B, False)
    assert store.open_move(SEVEN, A, B, clock.now()).target == B


@pytest.mark.parametrize("number", [0, 7, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_tenant_of_any_number_comes_back_as_it_was_made(store: ControlStore, clock: FakeClock, number: int) -> None:
    made = store.create_tenant(TenantId(number), "acme", LIMITS, A)
    assert (made.id.number, made.config, made.shard, made.epoch, made.created_at) == (number, LIMITS, A, 1, clock.now())
    assert store.tenant(TenantId(number)) == made


def test_tenants_are_listed_by_their_number_and_exist_once(store: ControlStore) -> None:
    for number in (2**64 - 1, 3, 2**63, 0):
        store.create_tenant(TenantId(number), "", TenantConfig(), A)
    assert [each.id.number for each in store.tenants()] == [0, 3, 2**63, 2**64 - 1]
    with pytest.raises(AlreadyExistsError):
        store.create_tenant(HIGHEST, "again", TenantConfig(), B)
    assert store.tenant(HIGHEST).shard == A


def test_residency_is_kept_whatever_changes(store: ControlStore, clock: FakeClock) -> None:
    european = TenantConfig(required_regions=frozenset({"eu"}))
    with pytest.raises(StateError, match="must live in eu; c is in us"):
        store.create_tenant(SEVEN, "acme", european, C)
    store.create_tenant(SEVEN, "acme", european, A)
    with pytest.raises(StateError, match="must live in eu; c is in us"):
        store.open_move(SEVEN, A, C, clock.now())
    with pytest.raises(StateError, match="must live in us; a is in eu"):
        store.set_config(SEVEN, TenantConfig(required_regions=frozenset({"us"})))
    with pytest.raises(StateError, match="must live in eu; a is in us"):
        store.change_shard(shard(A, "us"))
    store.change_shard(replace(shard(A), location="grpc://elsewhere:2"))
    assert store.shard(A).location == "grpc://elsewhere:2"
    store.set_config(SEVEN, LIMITS)
    assert store.tenant(SEVEN).config == LIMITS


def test_a_move_begins_idle_and_the_tenant_stays_on_its_shard(
    store: ControlStore, move: MoveInfo, clock: FakeClock
) -> None:
    assert (move.tenant, move.source, move.target, move.state, move.version) == (SEVEN, A, B, Idle(), 0)
    assert (move.created_at, move.finished_at, move.outcome) == (clock.now(), None, None)
    assert store.move(SEVEN) == store.last_move(SEVEN) == move
    assert store.tenant(SEVEN).shard == A


def test_a_tenant_on_its_way_cannot_set_out_again(store: ControlStore, move: MoveInfo, clock: FakeClock) -> None:
    with pytest.raises(StateError) as refused:
        store.open_move(SEVEN, A, C, clock.now())
    assert refused.value.facts["token"] == move.token
    assert (refused.value.facts["source"], refused.value.facts["target"]) == ("a", "b")
    ended = store.change_move(move, Idle(), outcome="aborted")
    assert (ended.outcome, ended.finished_at) == ("aborted", clock.now())
    assert store.move(SEVEN) is None
    assert store.last_move(SEVEN) == ended
    second = store.open_move(SEVEN, A, C, clock.now())
    assert second.token != move.token
    assert store.moves() == (second, ended)


@pytest.mark.parametrize(("source", "target"), [(B, C), (A, A)])
def test_a_move_must_start_at_the_tenants_shard_and_lead_to_another(
    store: ControlStore, clock: FakeClock, source: ShardId, target: ShardId
) -> None:
    store.create_tenant(SEVEN, "acme", TenantConfig(), A)
    with pytest.raises(StateError, match="lives in a"):
        store.open_move(SEVEN, source, target, clock.now())


@pytest.mark.parametrize(
    "state",
    [
        Idle(),
        PreparingTarget(3),
        DualWrite(CUTOVER, returned=2),
        Finalizing(17, pause_ms=3.25),
        Complete(3.25),
        Complete(None),
    ],
    ids=repr,
)
def test_a_state_comes_back_with_its_own_data(
    store: ControlStore, move: MoveInfo, clock: FakeClock, state: MigrationState
) -> None:
    clock.advance(5)
    changed = store.change_move(move, state)
    assert (changed.state, changed.version, changed.updated_at) == (state, move.version + 1, clock.now())
    assert store.move(SEVEN) == changed


def test_a_change_of_a_move_that_is_another_by_now_changes_nothing(store: ControlStore, move: MoveInfo) -> None:
    first = store.change_move(move, PreparingTarget(3))
    route = Route(tenant=SEVEN, epoch=2, primary=B)
    with pytest.raises(ConflictError, match="in PreparingTarget, version 1, and was read at version 0") as lost:
        store.change_move(move, DualWrite(CUTOVER), route=route)
    assert (lost.value.facts["state"], lost.value.facts["version"]) == ("PreparingTarget", 1)
    assert store.move(SEVEN) == first
    assert (store.tenant(SEVEN).shard, store.tenant(SEVEN).epoch) == (A, 1)


def test_a_move_that_is_over_changes_no_more(store: ControlStore, move: MoveInfo) -> None:
    ended = store.change_move(move, Complete(), outcome="complete")
    with pytest.raises(ConflictError):
        store.change_move(ended, Idle())
    assert store.last_move(SEVEN) == ended


def test_a_move_ends_in_one_of_the_ways_that_there_are(store: ControlStore, move: MoveInfo) -> None:
    with pytest.raises(InvariantError, match="lost"):
        store.change_move(move, Idle(), outcome="lost")
    assert store.move(SEVEN) == move


def test_the_route_changes_with_the_move_or_not_at_all(store: ControlStore, move: MoveInfo) -> None:
    moved = store.change_move(move, Finalizing(1), route=Route(tenant=SEVEN, epoch=2, primary=B))
    assert (store.tenant(SEVEN).shard, store.tenant(SEVEN).epoch) == (B, 2)
    for epoch in (1, 2):
        with pytest.raises(ConflictError, match=f"in epoch 2 and cannot change to {epoch}"):
            store.change_move(moved, Complete(), route=Route(tenant=SEVEN, epoch=epoch, primary=A))
    with pytest.raises(InputError, match="nowhere"):
        store.change_move(moved, Complete(), route=Route(tenant=SEVEN, epoch=9, primary=ShardId("nowhere")))
    assert store.move(SEVEN) == moved
    assert (store.tenant(SEVEN).shard, store.tenant(SEVEN).epoch) == (B, 2)


def test_of_many_concurrent_swaps_one_succeeds(settings: Settings, store: ControlStore, move: MoveInfo) -> None:
    rivals = 4
    together = threading.Barrier(rivals)

    def swap(number: int) -> int | None:
        own = ControlStore(ControlDatabase.open(settings))
        together.wait()
        try:
            own.change_move(move, PreparingTarget(number), route=Route(tenant=SEVEN, epoch=2 + number, primary=B))
        except ConflictError:
            return None
        return number

    with ThreadPoolExecutor(rivals) as pool:
        [winner] = [number for number in pool.map(swap, range(rivals)) if number is not None]
    won = store.move(SEVEN)
    assert won is not None
    assert (won.state, won.version) == (PreparingTarget(winner), 1)
    assert store.tenant(SEVEN).epoch == 2 + winner


def test_of_many_concurrent_starts_of_a_move_one_succeeds(
    settings: Settings, store: ControlStore, clock: FakeClock
) -> None:
    store.create_tenant(SEVEN, "acme", TenantConfig(), A)
    rivals = 4
    together = threading.Barrier(rivals)

    def begin(_: int) -> str | None:
        own = ControlStore(ControlDatabase.open(settings))
        together.wait()
        try:
            return own.open_move(SEVEN, A, B, clock.now()).token
        except StateError:
            return None

    with ThreadPoolExecutor(rivals) as pool:
        [token] = [each for each in pool.map(begin, range(rivals)) if each is not None]
    assert [each.token for each in store.moves()] == [token]


def test_the_control_plane_describes_everything_with_stable_keys(
    store: ControlStore, move: MoveInfo, clock: FakeClock
) -> None:
    plane = ControlPlane(store, clock)
    dual = store.change_move(move, DualWrite(CUTOVER), route=Route(tenant=SEVEN, epoch=2, primary=A))
    plane.report(A, {"replication_lag_s": 5.5, "disk_free_bytes": 10})
    plane.report(B, {})
    clock.advance(1)
    told = plane.to_json()
    at, before = "2026-01-01T00:00:01+00:00", "2026-01-01T00:00:00+00:00"
    idle = {"home": "homes/b", "is_draining": False, "tenants": 0, "stats": {}, "seen_at": before}
    assert told == {
        "at": at,
        "regions": {"eu": "Degraded", "us": "Offline"},
        "shards": {
            "a": {
                "region": "eu",
                "location": "grpc://a:1",
                "home": "homes/a",
                "is_draining": False,
                "tenants": 1,
                "stats": {"replication_lag_s": 5.5, "disk_free_bytes": 10},
                "seen_at": before,
            },
            "b": {"region": "eu", "location": "grpc://b:1", **idle},
            "c": {"region": "us", "location": "grpc://c:1", **idle, "home": "homes/c", "seen_at": None},
        },
        "tenants": {"t7": {"name": "acme", "shard": "a", "epoch": 2, "config": {}}},
        "moves": {
            "t7": {
                "token": dual.token,
                "source": "a",
                "target": "b",
                "state": "DualWrite",
                "data": {"cutover_seqno": 7, "cutover": {"t7.dotted.name": 2, "t7.events": 5}, "returned": 0},
                "version": 1,
                "created_at": before,
                "updated_at": before,
            }
        },
    }
    assert json.loads(json.dumps(told)) == told
    store.change_move(dual, Idle(), outcome="aborted")
    assert plane.to_json()["moves"] == {}


def test_a_region_is_what_its_shards_last_said(store: ControlStore, clock: FakeClock) -> None:
    plane = ControlPlane(store, clock)
    assert plane.region_health("us") is RegionHealth.OFFLINE
    plane.report(C, {"replication_lag_s": 5.0})
    assert plane.region_health("us") is RegionHealth.HEALTHY
    assert plane.shard_stats(C).seen_at == clock.now()
    clock.advance(29.9)
    assert plane.region_health("us") is RegionHealth.HEALTHY
    clock.advance(0.1)
    assert plane.region_health("us") is RegionHealth.OFFLINE
    plane.report(C, {"replication_lag_s": 5.1})
    assert plane.region_health("us") is RegionHealth.DEGRADED


def test_the_topology_takes_a_shard_in_and_changes_it(store: ControlStore, clock: FakeClock) -> None:
    plane = ControlPlane(store, clock)
    new = shard(ShardId("d"), "ch")
    plane.update_topology(new)
    assert store.shard(new.id) == new
    plane.report(new.id, {"rows": 1})
    plane.update_topology(replace(new, region="us", is_draining=True))
    assert store.shard(new.id) == replace(new, region="us", is_draining=True)
    assert plane.shard_stats(new.id).stats == {"rows": 1}


def test_a_tenant_without_a_shard_is_placed_in_its_regions(store: ControlStore, clock: FakeClock) -> None:
    plane = ControlPlane(store, clock)
    american = TenantConfig(required_regions=frozenset({"us"}))
    assert plane.create_tenant(SEVEN, name="acme", config=american).shard == C
    store.set_draining(C)
    with pytest.raises(StateError, match=r"No shard in us, where it must live, can accept t8\."):
        plane.create_tenant(TenantId(8), name="other", config=american)
    placed = {plane.create_tenant(TenantId(number), name="", config=TenantConfig()).shard for number in range(20, 50)}
    assert placed == {A, B}


def test_routers_follow_the_steps_of_a_move(store: ControlStore, move: MoveInfo, clock: FakeClock) -> None:
    router = TenantRouter(store, route_seconds_max=10, routes_max=10, clock=clock)
    a, b = shard(A), shard(B)
    assert (router.route(SEVEN, Access.READ), router.route(SEVEN, Access.WRITE)) == ((a,), (a,))
    dual = store.change_move(move, DualWrite(CUTOVER), route=Route(tenant=SEVEN, epoch=2, primary=A, replica=B))
    assert router.route(SEVEN, Access.WRITE) == (a,)
    assert router.set_dual_write(SEVEN, A, B).epoch == 2
    assert (router.route(SEVEN, Access.READ), router.route(SEVEN, Access.WRITE)) == ((a,), (a, b))
    switched = store.change_move(dual, Finalizing(1), route=Route(tenant=SEVEN, epoch=3, primary=B, replica=A))
    assert router.finalize_migration(SEVEN, B).epoch == 3
    assert (router.route(SEVEN, Access.READ), router.route(SEVEN, Access.WRITE)) == ((b,), (b,))
    store.change_move(switched, Complete(), outcome="complete")
    router.refresh(SEVEN)
    assert (router.route(SEVEN, Access.WRITE), router.epoch(SEVEN)) == ((b,), 3)


def test_a_store_that_is_locked_is_a_retryable_error_for_readers_and_writers(tmp_path: Path) -> None:
    store = ControlStore(ControlDatabase.open(Settings(home=tmp_path)))
    store.add_shard(shard(A))
    with closing(sqlite3.connect(tmp_path / "control.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ControlUnavailableError):
            store.shards()
    assert store.shards() == (shard(A),)
