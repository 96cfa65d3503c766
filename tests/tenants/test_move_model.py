"""Moves in every order of writers, movers, shards and messages; and seeded mistakes, all found."""

from collections.abc import Callable, Iterator

import pytest

from catchment.tenants.shard_api import ShardRole
from tests.tenants import move_model
from tests.tenants.move_exploration import dead_ends, explore
from tests.tenants.move_model import (
    NAMES,
    Bounds,
    Model,
    Node,
    Rec,
    Row,
    Steps,
    World,
    put,
    shown,
)

ONE_MOVE = Bounds(writes=2, returns=1, moves=1)
TWO_MOVES = Bounds(writes=1, returns=0, moves=2)
SWAPS = {
    "swap: prepared",
    "swap: dual-write",
    "swap: switch",
    "swap: collect",
    "swap: abort",
    "swap: reverse",
}
RETURNS = {"swap: s takes its writers back", "swap: t takes its writers back"}


def _check(model: Model, reached: set[str], record: Callable[[str, object], None]) -> None:
    explored = explore(model)
    record("states", explored.states)
    record("depth", explored.depth)
    assert explored.wrong is None, str(explored)
    assert reached <= explored.reached, str(explored)


def test_a_move_loses_nothing_and_leaves_one_primary_in_every_order_of_events(
    record_property: Callable[[str, object], None],
) -> None:
    _check(Model(ONE_MOVE), SWAPS | RETURNS, record_property)


def test_late_messages_of_an_earlier_move_do_not_disturb_the_next(
    record_property: Callable[[str, object], None],
) -> None:
    _check(Model(TWO_MOVES), SWAPS | {"swap: a move is opened"}, record_property)


@pytest.mark.soak
@pytest.mark.parametrize(
    "bounds", [Bounds(writes=3, returns=2, moves=1), Bounds(writes=1, returns=1, moves=2)], ids=["one", "two"]
)
def test_longer_moves_lose_nothing_and_leave_one_primary(
    bounds: Bounds, record_property: Callable[[str, object], None]
) -> None:
    _check(Model(bounds), SWAPS | RETURNS, record_property)


def _is_settled(world: World) -> bool:
    home, other = world.nodes[world.row.primary], world.nodes[1 - world.row.primary]
    is_told = home.rec == Rec(ShardRole.PRIMARY, world.row.epoch) and home.hold is None
    return world.row.is_over and is_told and (other.rec is None or other == Node(Rec(ShardRole.GONE, world.row.epoch)))


def test_a_move_can_be_finished_from_every_state() -> None:
    assert not dead_ends(Model(ONE_MOVE), _is_settled)


def test_a_move_that_was_not_aborted_can_reach_the_switch_from_every_state() -> None:
    assert not dead_ends(Model(ONE_MOVE), lambda world: world.row.is_over or world.row.state == "Finalizing")


# The order of reads: everything else is better than it can be.


class BothAtOnce(Model):
    """A move without a barrier: both shards take writes until all routers know the switch."""

    reads_cutover_first = False

    def writers(self, world: World) -> Steps:
        if world.acked > self.bounds.writes:
            return
        row = world.acked + 1
        for at, node in enumerate(world.nodes):
            if not self.admits(node.rec, world.row.epoch):
                continue
            kept = put(world, at, node._replace(log=(*node.log, row)))._replace(acked=row)
            if node.rec is not None and node.rec.sync:
                other = self.received(world.nodes[1 - at], node.position + 1, row)
                if other is not None:
                    yield f"row {row} is kept by both", put(kept, 1 - at, other)
            else:
                yield f"row {row} is kept by {NAMES[at]}", kept

    def replicating(self, world: World, row: Row, *, sync: bool) -> Steps:
        answer = ("cutover", row.move, world.nodes[row.source].position)
        if sync and self.reads_cutover_first and not any(known[0] == "cutover" for known in world.told):
            yield f"the cut-over is read: {answer[2]}", world._replace(told=world.told | {answer})
            return
        for step, then in super().replicating(world, row, sync=sync):
            yield step, then._replace(told=world.told) if sync and self.reads_cutover_first else then

    def observed(self, world: World, row: Row) -> Iterator[tuple[str, int, int]]:
        rec = world.nodes[row.source].rec
        for kind, one, other in super().observed(world, row):
            if kind != "dual-write" or (rec is not None and rec.sync):
                yield kind, one, other

    def closing(self, world: World, row: Row) -> Steps:
        if row.state == "DualWrite":
            answer = ("closed", row.move, row.version, 0, world.nodes[1 - row.source].position)
            if answer not in world.told:
                yield f"the target is at {answer[4]}", world._replace(told=world.told | {answer})

    def swaps(self, world: World) -> Steps:
        for step, then in super().swaps(world):
            first, second = (self.heard(node, at, then.row) for at, node in enumerate(then.nodes))
            yield step, then._replace(nodes=(first, second))

    def wrong(self, world: World) -> str | None:
        return self.lost(world)


class CutoverReadBefore(BothAtOnce):
    """The cut-over is read, and then the writes begin to go to both."""

    reads_cutover_first = True


class Gaps(Model):
    """A replica takes rows after a gap; its position is its highest number."""

    def received(self, node: Node, number: int, row: int) -> Node | None:
        return node._replace(log=(*node.log, *[0] * (number - node.position - 1), row))


class CutoverReadBeforeWithGaps(Gaps, CutoverReadBefore):
    """The order as first drawn, with the highest number as the target's position."""


class CutoverReadAfterWithGaps(Gaps, BothAtOnce):
    """The right order, in which rows written to both hide those that the target does not have yet."""


ORDER = Bounds(writes=2, returns=0, moves=1)


def test_a_cutover_that_is_read_after_the_switch_to_both_loses_nothing() -> None:
    explored = explore(BothAtOnce(ORDER))
    assert explored.wrong is None, str(explored)
    assert {"swap: switch", "swap: collect"} <= explored.reached


def test_a_cutover_that_is_read_before_the_switch_to_both_loses_a_write_between_them() -> None:
    explored = explore(CutoverReadBefore(ORDER))
    assert explored.wrong == "2 rows were acked, and the home t has (1,)", str(explored)
    assert str(explored).splitlines()[1:] == [
        "   1. t is welcomed, move 1",
        "   2. s holds its log behind 1, move 1",
        "   3. the history up to 1 is brought",
        "   4. t begins behind 1",
        "   5. s ships its log, and is at 1",
        "   6. swap: prepared, move 1 version 2: PreparingTarget, home s in epoch 1",
        "   7. the cut-over is read: 1",
        "   8. row 2 is kept by s",
        "   9. s ships every write, and is at 2",
        "  10. swap: dual-write, move 1 version 3: DualWrite, home s in epoch 1",
        "  11. the target is at 1",
        "  12. swap: switch, move 1 version 4: Finalizing, home t in epoch 2",
    ]


@pytest.mark.parametrize("model", [CutoverReadBeforeWithGaps, CutoverReadAfterWithGaps], ids=lambda each: each.__name__)
def test_comparing_only_the_highest_number_misses_a_gap_before_rows_written_to_both(model: type[Model]) -> None:
    explored = explore(model(ORDER))
    assert explored.wrong == "2 rows were acked, and the home t has (2,)", str(explored)
    assert "row 2 is kept by both" in explored.trace


# Mistakes. Each is one plausible line of code.


class AnyEpochSettles(Model):
    """A shard applies every decision, however old it is."""

    def settles(self, rec: Rec | None, decided: Rec) -> Rec:
        return decided


class SameEpochSettles(Model):
    """A decision of a shard's own epoch replaces its record, and so opens its barrier."""

    def settles(self, rec: Rec | None, decided: Rec) -> Rec:
        return rec if rec is not None and rec.epoch > decided.epoch else decided


class AnyEpochIsReceived(Model):
    """A copy takes rows of any epoch."""

    def accepts(self, rec: Rec | None, epoch: int) -> bool:
        return rec is not None and rec.role is ShardRole.REPLICA


class CopyTakesWrites(Model):
    """A shard takes writes under any epoch, as primary or replica, unless its barrier is closed."""

    def admits(self, rec: Rec | None, epoch: int) -> bool:
        return rec is not None and rec.role is not ShardRole.GONE and rec.closed_for is None


class NobodyAsks(Model):
    """A shard with a closed barrier accepts only decisions of a newer epoch."""

    def reopens(self, rec: Rec, version: int) -> Rec:
        return rec


class GateInMemory(Model):
    """A closed barrier is forgotten in a crash."""

    def crashed(self, node: Node) -> Node:
        return node._replace(inside=0, rec=node.rec and node.rec._replace(closed_for=None))


class GateThatDoesNotDrain(Model):
    """The barrier closes while a write is running."""

    def may_close(self, node: Node, copy: int) -> bool:
        return copy >= node.position


class RestIsNotShipped(Model):
    """The barrier does not wait for the rest of the log after the cut-over."""

    def may_close(self, node: Node, copy: int) -> bool:
        return not node.inside

    def observed(self, world: World, row: Row) -> Iterator[tuple[str, int, int]]:
        for kind, one, other in super().observed(world, row):
            yield kind, min(one, other) if kind == "switch" else one, other


class ReturnWithoutSwap(Model):
    """A primary whose deadline has passed opens its barrier without a swap."""

    def give_back(self, world: World, at: int) -> Steps:
        node = world.nodes[at]
        assert node.rec is not None
        yield f"{NAMES[at]} opens its gate", put(world, at, node._replace(rec=node.rec._replace(closed_for=None)))


class OlderVersionCloses(Model):
    """A late call closes the barrier for an older version than it is closed for."""

    def closes(self, rec: Rec | None, row: Row) -> Rec | None:
        return super().closes(rec and rec._replace(closed_for=None), row)


class SnapshotTakenAgain(Model):
    """A move that is resumed copies from another snapshot than before."""

    def holds_anew(self, node: Node, row: Row) -> bool:
        return node.hold is None or node.hold[1] < node.position


class EpochBeforeDecision(Model):
    """The home writes the next epoch down before the control database has it."""

    def replicating(self, world: World, row: Row, *, sync: bool) -> Steps:
        for step, then in super().replicating(world, row, sync=sync):
            node = then.nodes[row.source]
            assert node.rec is not None
            ahead = node._replace(rec=node.rec._replace(epoch=row.epoch + 1)) if sync else node
            yield step, put(then, row.source, ahead)


class EpochReadLater(Model):
    """A mover reads the move, and later the epoch, which may be that of the next move."""

    def calls(self, world: World, row: Row) -> Steps:
        yield from super().calls(world, row)
        yield from super().calls(world, row._replace(epoch=world.row.epoch))


class AbortInSameEpoch(Model):
    """A move that is aborted leaves the epoch as it was: what it sent is taken for the next one's."""

    def swaps(self, world: World) -> Steps:
        for step, then in super().swaps(world):
            is_abort = step.startswith("swap: abort")
            yield (
                step,
                then._replace(past=(*world.past, then.row._replace(epoch=world.row.epoch))) if is_abort else then,
            )


class DropBeforeDecision(Model):
    """The source is dropped, and then the move is swapped to Complete; it is reversed in between."""

    def closing(self, world: World, row: Row) -> Steps:
        yield from super().closing(world, row)
        node = world.nodes[row.source]
        if (
            row.state == "Finalizing"
            and node.rec
            and node.rec.role is ShardRole.REPLICA
            and node.rec.epoch <= row.epoch
        ):
            yield f"s is dropped by {shown(row)}", put(world, row.source, Node(Rec(ShardRole.GONE, row.epoch)))


class ClearedByName(Model):
    """Before it begins, a mover drops what the target has; another mover is further by then."""

    def preparing(self, world: World, row: Row) -> Steps:
        yield from super().preparing(world, row)
        node = world.nodes[1 - row.source]
        if node.rec and node.rec.role is ShardRole.REPLICA and node.rec.epoch <= row.epoch:
            yield f"t is dropped by {shown(row)}", put(world, 1 - row.source, Node(node.rec))


class WelcomeStartsOver(Model):
    """A welcome that comes again empties the copy."""

    def welcomed(self, node: Node, row: Row) -> Node:
        rec = move_model.welcomes(node.rec, Rec(ShardRole.REPLICA, row.epoch, move=row.move))
        return node if rec is None else Node(rec)


MISTAKES: list[tuple[type[Model], Bounds]] = [
    (AnyEpochSettles, ONE_MOVE),
    (SameEpochSettles, ONE_MOVE),
    (AnyEpochIsReceived, TWO_MOVES),
    (CopyTakesWrites, ONE_MOVE),
    (NobodyAsks, ONE_MOVE),
    (GateInMemory, ONE_MOVE),
    (GateThatDoesNotDrain, ONE_MOVE),
    (RestIsNotShipped, ONE_MOVE),
    (ReturnWithoutSwap, ONE_MOVE),
    (OlderVersionCloses, ONE_MOVE),
    (Gaps, ONE_MOVE),
    (SnapshotTakenAgain, ONE_MOVE),
    (EpochBeforeDecision, ONE_MOVE),
    (EpochReadLater, TWO_MOVES),
    (AbortInSameEpoch, TWO_MOVES),
    (DropBeforeDecision, ONE_MOVE),
    (ClearedByName, ONE_MOVE),
    (WelcomeStartsOver, ONE_MOVE),
]


@pytest.mark.parametrize(("model", "bounds"), MISTAKES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_mistake_is_found(model: type[Model], bounds: Bounds, record_property: Callable[[str, object], None]) -> None:
    explored = explore(model(bounds))
    record_property("counterexample", str(explored))
    assert explored.wrong is not None, str(explored)
    assert len(explored.trace) == explored.depth
