"""A model of a tenant's moves between two shards, small enough to explore every order of events.

Decisions are those of `catchment.tenants.protocol`; what is modelled is the world around it. It is
as bad as it can be:

- A message that was sent may arrive never, late, and again at any time: a call may arrive from the
  moment at which some process knows enough to make it.
- Any number of movers run, and each may die or wake up anywhere: a mover is nothing but a row of
  the control database that it once read, and answers that it once got.
- The writer is answered as soon as the row is durable on the primary, as if the replica were always
  late.
- Routers are as old as they like: writes come to both shards, under every epoch that ever was.
- Shards crash at any time, and lose what is in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from catchment.errors import CatchmentError
from catchment.foundation.ids import TableId
from catchment.tenants import protocol
from catchment.tenants.model import (
    Complete,
    DualWrite,
    Finalizing,
    Idle,
    MigrationState,
    MoveInfo,
    Positions,
    PreparingTarget,
    ShardId,
    ShardInfo,
    TenantConfig,
    TenantId,
    TenantInfo,
)
from catchment.tenants.shard_api import Replica, ShardRole, TenantRecord

TENANT = TenantId(7)
TABLE = TableId("t7", "events")
NAMES = ("s", "t")
SHARDS = tuple(ShardInfo(id=ShardId(name), region="r", location=name, home=name) for name in NAMES)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


class Rec(NamedTuple):
    """A record, as small as it can be."""

    role: ShardRole
    epoch: int
    sync: bool | None = None
    move: int | None = None
    closed_for: int | None = None


class Row(NamedTuple):
    """The control database: the newest move and the route. Shards are 0 and 1."""

    move: int
    version: int
    state: str
    cutover: int
    source: int
    primary: int
    epoch: int
    is_over: bool
    returned: int = 0


class Node(NamedTuple):
    """A shard: its record, backfilled rows, the log after them, its retention, running writes."""

    rec: Rec | None
    history: tuple[int, ...] = ()
    begin: int | None = None
    log: tuple[int, ...] = ()
    hold: tuple[int, int] | None = None
    inside: int = 0

    @property
    def rows(self) -> tuple[int, ...]:
        return self.history + tuple(row for row in self.log if row)

    @property
    def position(self) -> int:
        return (self.begin or 0) + len(self.log)


class World(NamedTuple):
    """Everything, with whatever was ever read (`past`), answered (`told`) or shipped."""

    past: tuple[Row, ...]
    nodes: tuple[Node, Node]
    acked: int
    told: frozenset[tuple[Any, ...]] = frozenset()
    ships: frozenset[tuple[int, int, int, int]] = frozenset()

    @property
    def row(self) -> Row:
        return self.past[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen: rows written beside the first one, gates given back, moves."""

    writes: int = 2
    returns: int = 1
    moves: int = 1


Steps = Iterator[tuple[str, World]]


class Model:
    """The steps of the world; each possible mistake overrides one method."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    def start(self) -> World:
        """A tenant on the first shard, with one row, to be moved to the second."""
        primary = Node(Rec(ShardRole.PRIMARY, 1), begin=0, log=(1,))
        return World((Row(1, 1, "Idle", 0, 0, 0, 1, False),), (primary, Node(None)), acked=1)

    def steps(self, world: World) -> Steps:
        """All that may happen next."""
        yield from self.writers(world)
        yield from self.shipping(world)
        yield from self.crashes(world)
        yield from self.hearing(world)
        yield from self.swaps(world)
        for row in world.past:
            yield from self.calls(world, row)

    # Writers, old and new, and the shipper.

    def writers(self, world: World) -> Steps:
        """Past the barrier, then durable, then answered. In between, anything can happen."""
        epochs = {row.epoch for row in world.past}
        busy = sum(node.inside for node in world.nodes)
        for at, node in enumerate(world.nodes):
            if world.acked + busy <= self.bounds.writes:
                epoch = next((each for each in epochs if self.admits(node.rec, each)), None)
                if epoch is not None:
                    entered = node._replace(inside=node.inside + 1)
                    yield f"a write of epoch {epoch} enters {NAMES[at]}", put(world, at, entered)
            if node.inside:
                row = world.acked + 1
                kept = node._replace(inside=node.inside - 1, log=(*node.log, row))
                yield f"{NAMES[at]} keeps row {row}, its writer gets the ack", put(world, at, kept)._replace(acked=row)

    def shipping(self, world: World) -> Steps:
        """Rows that a home has ever shipped, under the epoch that it had then."""
        for sender, epoch, number, row in world.ships:
            node = world.nodes[1 - sender]
            if number > node.position and self.accepts(node.rec, epoch):
                received = self.received(node, number, row)
                if received is not None:
                    name = f"{NAMES[1 - sender]} receives row {row} as number {number} of epoch {epoch}"
                    answer = ("reached", 1 - sender, epoch, received.position)
                    yield name, put(world, 1 - sender, received, answer)

    def received(self, node: Node, number: int, row: int) -> Node | None:
        """The copy with the row; None where it refuses one that does not follow."""
        return node._replace(log=(*node.log, row)) if number == node.position + 1 else None

    def crashes(self, world: World) -> Steps:
        for at, node in enumerate(world.nodes):
            crashed = self.crashed(node)
            if crashed != node:
                yield f"{NAMES[at]} crashes, and starts again", put(world, at, crashed)

    def crashed(self, node: Node) -> Node:
        return node._replace(inside=0)

    # Shards that hear of a decision, because a mover tells them or because they ask.

    def hearing(self, world: World) -> Steps:
        for at, node in enumerate(world.nodes):
            for row in world.past:
                heard = self.heard(node, at, row)
                if heard != node:
                    yield f"{NAMES[at]} hears of {shown(row)}", put(world, at, heard)
            if node != Node(node.rec) and any(drops(node.rec, row.epoch) for row in world.past):
                yield f"{NAMES[at]} drops what it has", put(world, at, Node(node.rec))
            if is_closed_for(node.rec, world.row) and world.row.returned < self.bounds.returns:
                yield from self.give_back(world, at)

    def heard(self, node: Node, at: int, row: Row) -> Node:
        """The shard once it knows this row of the control database, which may be an old one by now."""
        rec = self.settles(node.rec, duty(at, row))
        if rec == node.rec:
            return node._replace(rec=self.reopens(rec, row.version)) if rec.move == row.move else node
        is_shipping = rec.role is ShardRole.PRIMARY and rec.sync is not None
        return node._replace(rec=rec, hold=(row.move, node.position) if is_shipping else None)

    def give_back(self, world: World, at: int) -> Steps:
        """The barrier's deadline has passed: the primary swaps, and opens once it reads the swap."""
        returned = swapped(world.row, "returned")
        if returned is not None:
            yield f"swap: {NAMES[at]} takes its writers back, {shown(returned)}", decide(world, returned)

    # The control database: one swap at a time, of the current row, by any process that knows it.

    def swaps(self, world: World) -> Steps:
        row = world.row
        if row.is_over:
            if row.move < self.bounds.moves:
                opened = Row(row.move + 1, 1, "Idle", 0, row.primary, row.primary, row.epoch, False)
                yield f"swap: a move is opened, {shown(opened)}", decide(world, opened)
            return
        for observed in self.observed(world, row):
            changed = swapped(row, *observed)
            if changed is not None:
                yield f"swap: {observed[0]}, {shown(changed)}", decide(world, changed)

    def observed(self, world: World, row: Row) -> Iterator[tuple[str, int, int]]:
        """What any mover may have observed: a kind, and the two numbers that it needs."""
        yield "abort", 0, 0
        yield "collect", 0, 0
        for what, move, one, *more in world.told:
            if move == row.move:
                if what == "shipping":
                    yield "prepared", 0, 0
                elif what == "cutover":
                    yield "dual-write", one, 0
                elif what == "closed" and one == row.version:
                    yield ("switch" if row.state == "DualWrite" else "reverse"), more[0], more[1]

    # Calls of a mover who has read this row, now or long ago.

    def calls(self, world: World, row: Row) -> Steps:
        if row.is_over:
            return
        if row.state == "Idle":
            yield from self.preparing(world, row)
        elif row.state == "PreparingTarget":
            yield from self.replicating(world, row, sync=True)
        else:
            yield from self.closing(world, row)

    def preparing(self, world: World, row: Row) -> Steps:
        at = 1 - row.source
        target = world.nodes[at]
        welcomed = self.welcomed(target, row)
        if welcomed != target:
            yield f"{NAMES[at]} is welcomed, move {row.move}", put(world, at, welcomed, ("welcome", row.move, 0))
        yield from self.holding(world, row)
        if ("welcome", row.move, 0) in world.told and target.rec is not None and target.rec.move == row.move:
            for known in world.told:
                if known[:2] == ("held", row.move):
                    yield from self.bringing(world, row, known[2])
        if ("begun", row.move, 0) in world.told:
            yield from self.replicating(world, row, sync=False)

    def welcomed(self, node: Node, row: Row) -> Node:
        """The shard as a copy; what it has of an earlier move goes."""
        rec = welcomes(node.rec, Rec(ShardRole.REPLICA, row.epoch, move=row.move))
        return node if rec is None or rec == node.rec else Node(rec)

    def holding(self, world: World, row: Row) -> Steps:
        """The primary retains its log after a snapshot that has any number of its rows."""
        node = world.nodes[row.source]
        rec = holds(node.rec, row.epoch, row.move)
        if rec is not None and self.holds_anew(node, row):
            for mark in range(node.begin or 0, node.position + 1):
                name = f"{NAMES[row.source]} holds its log behind {mark}, move {row.move}"
                held = node._replace(rec=rec, hold=(row.move, mark))
                yield name, put(world, row.source, held, ("held", row.move, mark))

    def holds_anew(self, node: Node, row: Row) -> bool:
        """However often a move asks, it gets the same snapshot."""
        return node.hold is None or node.hold[0] != row.move

    def bringing(self, world: World, row: Row, mark: int) -> Steps:
        """Copy the history once, as the ledger allows; then the log starts after it."""
        at = 1 - row.source
        target = world.nodes[at]
        if ("brought", row.move, mark) not in world.told:
            brought = target._replace(history=target.history + world.nodes[row.source].rows[:mark])
            yield f"the history up to {mark} is brought", put(world, at, brought, ("brought", row.move, mark))
        elif target.begin is None:
            begun = put(world, at, target._replace(begin=mark), ("begun", row.move, 0))
            yield f"{NAMES[at]} begins behind {mark}", begun

    def replicating(self, world: World, row: Row, *, sync: bool) -> Steps:
        node = world.nodes[row.source]
        rec = replicates(node.rec, row.epoch, sync)
        answer = ("cutover", row.move, node.position) if sync else ("shipping", row.move, 0)
        if rec is not None and (rec != node.rec or answer not in world.told):
            name = f"{NAMES[row.source]} ships {'every write' if sync else 'its log'}, and is at {node.position}"
            yield name, put(world, row.source, node._replace(rec=rec), answer)

    def closing(self, world: World, row: Row) -> Steps:
        """Writes have ended and the replica is complete: the primary durably stops and answers."""
        node, replica = world.nodes[row.primary], world.nodes[1 - row.primary].position
        rec = self.closes(node.rec, row)
        for what, at, epoch, *reached in world.told:
            if (what, at, epoch) == ("reached", 1 - row.primary, row.epoch):
                replica = max(replica, reached[0])
        if rec is None or not self.may_close(node, replica):
            return
        answer = ("closed", row.move, row.version, node.position, replica)
        if rec != node.rec or answer not in world.told:
            name = f"{NAMES[row.primary]} closes its gate for version {row.version}, at {node.position}"
            yield name, put(world, row.primary, node._replace(rec=rec), answer)

    def may_close(self, node: Node, replica: int) -> bool:
        return not node.inside and replica >= node.position

    # What a shard decides by its record.

    def admits(self, rec: Rec | None, epoch: int) -> bool:
        return admits(rec, epoch)

    def accepts(self, rec: Rec | None, epoch: int) -> bool:
        return accepts(rec, epoch)

    def settles(self, rec: Rec | None, decided: Rec) -> Rec:
        return settles(rec, decided)

    def reopens(self, rec: Rec, version: int) -> Rec:
        return reopens(rec, version)

    def closes(self, rec: Rec | None, row: Row) -> Rec | None:
        return closes(rec, row.move, row.version)

    # What must be so, always.

    def wrong(self, world: World) -> str | None:
        """What is wrong with a world; None where nothing is."""
        return self.lost(world) or self.divided(world) or self.forlorn(world)

    def lost(self, world: World) -> str | None:
        """The decided primary has every acknowledged row, once and in order, and no other."""
        rows = world.nodes[world.row.primary].rows
        if rows == tuple(range(1, world.acked + 1)):
            return None
        return f"{world.acked} rows were acked, and the home {NAMES[world.row.primary]} has {rows}"

    def divided(self, world: World) -> str | None:
        """Only the home takes writes, and what the other has is how the home begins."""
        at = 1 - world.row.primary
        node, primary = world.nodes[at], world.nodes[world.row.primary]
        if node.rec and node.rec.role is ShardRole.PRIMARY and node.rec.closed_for is None:
            return f"{NAMES[at]} takes writes, and {NAMES[world.row.primary]} is the home"
        if len(set(node.rows)) < len(node.rows):
            return f"{NAMES[at]} has a row twice: {node.rows}"
        if node.begin is not None and node.rows != primary.rows[: node.position]:
            return f"{NAMES[at]} has {node.rows}, which is not how the home begins: {primary.rows}"
        return None

    def forlorn(self, world: World) -> str | None:
        """The home takes writes, or comes to it without any mover."""
        if self.admits(world.nodes[world.row.primary].rec, world.row.epoch) or self.recovers(world):
            return None
        return f"no shard takes writes in epoch {world.row.epoch}, and without a mover no shard ever will"

    def recovers(self, world: World) -> bool:
        """Whether both shards, left alone with the control database, come to one that takes writes."""
        nodes, row = list(world.nodes), world.row
        for _ in range(2):
            nodes = [self.heard(node, at, row) for at, node in enumerate(nodes)]
            if any(is_closed_for(node.rec, row) for node in nodes):
                row = swapped(row, "returned") or row
        return self.admits(nodes[row.primary].rec, row.epoch)


def put(world: World, at: int, node: Node, answer: tuple[Any, ...] | None = None) -> World:
    """The world with this shard in it; what it ships from now on may arrive at any time."""
    rec, ships = node.rec, world.ships
    if rec is not None and rec.role is ShardRole.PRIMARY and rec.sync is not None and node.hold is not None:
        first = node.begin or 0
        ships |= {
            (at, rec.epoch, first + number, row)
            for number, row in enumerate(node.log, start=1)
            if first + number > node.hold[1]
        }
    return world._replace(
        nodes=(node, world.nodes[1]) if at == 0 else (world.nodes[0], node),
        told=world.told if answer is None else world.told | {answer},
        ships=ships,
    )


def decide(world: World, row: Row) -> World:
    return world._replace(past=(*world.past, row))


def is_closed_for(rec: Rec | None, row: Row) -> bool:
    return rec is not None and (rec.move, rec.closed_for) == (row.move, row.version) and not row.is_over


def shown(row: Row) -> str:
    over = ", over" if row.is_over else ""
    return f"move {row.move} version {row.version}: {row.state}{over}, home {NAMES[row.primary]} in epoch {row.epoch}"


# Between the model's small values and those of the protocol.


@cache
def record(rec: Rec | None, at: int = 0) -> TenantRecord | None:
    if rec is None:
        return None
    replica = None if rec.sync is None else Replica(shard=SHARDS[1 - at].id, location="", sync=rec.sync)
    move = None if rec.move is None else str(rec.move)
    return TenantRecord(
        tenant=TENANT, role=rec.role, epoch=rec.epoch, replica=replica, move=move, closed_for=rec.closed_for
    )


def needed(rec: Rec) -> TenantRecord:
    found = record(rec)
    assert found is not None
    return found


def small(record: TenantRecord) -> Rec:
    sync = None if record.replica is None else record.replica.sync
    return Rec(record.role, record.epoch, sync, None if record.move is None else int(record.move), record.closed_for)


def tried(decide: Callable[[], TenantRecord]) -> Rec | None:
    """What the protocol answers; None where it refuses."""
    try:
        return small(decide())
    except CatchmentError:
        return None


@cache
def admits(rec: Rec | None, epoch: int) -> bool:
    return tried(lambda: protocol.admits(record(rec), epoch)) is not None


@cache
def accepts(rec: Rec | None, epoch: int) -> bool:
    return tried(lambda: protocol.accepts(record(rec), epoch)) is not None


@cache
def settles(rec: Rec | None, decided: Rec) -> Rec:
    return small(protocol.settles(record(rec), needed(decided)))


@cache
def reopens(rec: Rec, version: int) -> Rec:
    return small(protocol.reopens(needed(rec), version))


@cache
def closes(rec: Rec | None, move: int, version: int) -> Rec | None:
    return tried(lambda: protocol.closes(record(rec), move=str(move), version=version))


@cache
def holds(rec: Rec | None, epoch: int, move: int) -> Rec | None:
    return tried(lambda: protocol.retains_log(record(rec), epoch=epoch, move=str(move)))


@cache
def replicates(rec: Rec | None, epoch: int, sync: bool) -> Rec | None:
    replica = Replica(shard=SHARDS[1].id, location="", sync=sync)
    return tried(lambda: protocol.replicates(record(rec), replica, epoch=epoch))


@cache
def welcomes(rec: Rec | None, fresh: Rec) -> Rec | None:
    return tried(lambda: protocol.welcomes(record(rec), needed(fresh)))


@cache
def drops(rec: Rec | None, epoch: int) -> bool:
    return tried(lambda: protocol.drops(record(rec), epoch=epoch)) is not None


@cache
def duty(at: int, row: Row) -> Rec:
    """What the control database says that the shard is."""
    tenant = TenantInfo(
        id=TENANT, name="", config=TenantConfig(), shard=SHARDS[row.primary].id, epoch=row.epoch, created_at=LONG_AGO
    )
    return small(protocol.duty(SHARDS[at].id, tenant, None if row.is_over else _move(row), SHARDS[1 - at]))


@cache
def swapped(row: Row, kind: str, one: int = 0, other: int = 0) -> Row | None:
    """The next row by the protocol, or None if it refuses or changes nothing."""
    try:
        step = protocol.advance(_state(row), _observation(kind, one, other))
    except CatchmentError:
        return None
    if step.is_repeat:
        return None
    target = 1 - row.source
    return Row(
        move=row.move,
        version=row.version + 1,
        state=step.state.name,
        cutover=step.state.cutover_seqno if isinstance(step.state, DualWrite) else 0,
        source=row.source,
        primary=target if step.primary is protocol.Side.TARGET else row.source,
        epoch=row.epoch + step.is_new_route,
        is_over=step.outcome is not None,
        returned=row.returned + (kind == "returned"),
    )


def _observation(kind: str, one: int, other: int) -> protocol.Observation:
    match kind:
        case "prepared":
            return protocol.TargetPrepared(target=_positions(one))
        case "dual-write":
            return protocol.DualWriting(cutover=_positions(one))
        case "switch":
            return protocol.Closed(closed_at=_positions(one), target=_positions(other), now_ns=0)
        case "reverse":
            return protocol.Reversing(closed_at=_positions(one), source=_positions(other))
        case "collect":
            return protocol.Collecting(now_ns=0, gc_window_ns=0, readers=0, is_same=True)
        case "returned":
            return protocol.Returned()
    return protocol.Aborting()


def _positions(number: int) -> Positions:
    return Positions({TABLE: number})


def _state(row: Row) -> MigrationState:
    states: dict[str, MigrationState] = {
        "Idle": Idle(),
        "PreparingTarget": PreparingTarget(0),
        "DualWrite": DualWrite(_positions(row.cutover)),
        "Finalizing": Finalizing(0),
        "Complete": Complete(),
    }
    return states[row.state]


def _move(row: Row) -> MoveInfo:
    source, target = SHARDS[row.source].id, SHARDS[1 - row.source].id
    return MoveInfo(
        id=row.move, token=str(row.move), tenant=TENANT, source=source, target=target, state=_state(row),
        version=row.version, created_at=LONG_AGO, updated_at=LONG_AGO,
    )  # fmt: skip
