"""Exploration of every state that a model of moves can reach: violations, and the trace to each."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.tenants.move_model import Model, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What was found: `wrong` is the first thing that is, and `trace` the shortest way to it."""

    states: int
    depth: int
    wrong: str | None = None
    trace: tuple[str, ...] = ()
    reached: frozenset[str] = frozenset()

    def __str__(self) -> str:
        steps = "".join(f"\n  {number:2}. {step}" for number, step in enumerate(self.trace, start=1))
        return f"{self.states:,} states, {self.depth} deep: {self.wrong or 'nothing is wrong'}{steps}"


def explore(model: Model) -> Explored:
    """Every world that can be reached, nearest first, up to the first that is wrong."""
    start = model.start()
    numbers = {start: 0}
    origins: list[tuple[int, str]] = [(0, "")]
    reached: set[str] = set()
    layer, depth = [start], 0
    while layer:
        following: list[World] = []
        for world in layer:
            origin = numbers[world]
            for step, then in model.steps(world):
                if then in numbers:
                    continue
                numbers[then] = len(origins)
                origins.append((origin, step))
                following.append(then)
                if then.row is not world.row:
                    reached.add(step.partition(",")[0])
                wrong = model.wrong(then)
                if wrong is not None:
                    trace = _trace(origins, numbers[then])
                    return Explored(states=len(origins), depth=len(trace), wrong=wrong, trace=trace)
        layer, depth = following, depth + bool(following)
    return Explored(states=len(origins), depth=depth, reached=frozenset(reached))


def _trace(origins: list[tuple[int, str]], number: int) -> tuple[str, ...]:
    steps: list[str] = []
    while number:
        number, step = origins[number]
        steps.append(step)
    return tuple(reversed(steps))


def dead_ends(model: Model, goal: Callable[[World], bool]) -> list[World]:
    """Worlds from which no way leads to the goal."""
    worlds = [model.start()]
    numbers = {worlds[0]: 0}
    before: list[list[int]] = [[]]
    for number, world in enumerate(worlds):
        for _, then in model.steps(world):
            if then not in numbers:
                numbers[then] = len(worlds)
                worlds.append(then)
                before.append([])
            before[numbers[then]].append(number)
    waiting = [number for number, world in enumerate(worlds) if goal(world)]
    leads = set(waiting)
    while waiting:
        found = [each for each in before[waiting.pop()] if each not in leads]
        leads.update(found)
        waiting.extend(found)
    return [world for number, world in enumerate(worlds) if number not in leads]
