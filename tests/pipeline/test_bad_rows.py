"""Halving finds exactly the bad rows, with few attempts, and never more than allowed."""

from collections.abc import Callable
from math import ceil, log2

from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.pipeline.bad_rows import halve

UNHURRIED = settings(deadline=None)
CASES = st.integers(0, 200).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1)) if count else st.just(set()))
)
UNBOUNDED = 10**9


def _asking(bad: set[int], asked: list[tuple[int, int]]) -> Callable[[int, int], str | None]:
    """Answers as writing the rows would: with the reason of the first bad one."""

    def fails(first: int, end: int) -> str | None:
        asked.append((first, end))
        return next((f"bad {place}" for place in sorted(bad) if first <= place < end), None)

    return fails


@UNHURRIED
@given(case=CASES)
def test_halving_finds_what_asking_for_each_place_finds(case: tuple[int, set[int]]) -> None:
    count, bad = case
    asked: list[tuple[int, int]] = []
    found = halve(count, _asking(bad, asked), probes_max=UNBOUNDED)
    assert found == {place: f"bad {place}" for place in range(count) if place in bad}
    assert all(0 <= first < end <= count for first, end in asked)
    assert len(set(asked)) == len(asked)


@UNHURRIED
@given(case=CASES)
def test_a_few_bad_rows_take_few_attempts(case: tuple[int, set[int]]) -> None:
    count, bad = case
    asked: list[tuple[int, int]] = []
    halve(count, _asking(bad, asked), probes_max=UNBOUNDED)
    assert len(asked) <= 1 + 2 * len(bad) * ceil(log2(max(2, count)))


@UNHURRIED
@given(case=CASES, probes_max=st.integers(1, 60))
def test_the_questions_are_bounded_and_no_bad_place_is_called_good(case: tuple[int, set[int]], probes_max: int) -> None:
    count, bad = case
    asked: list[tuple[int, int]] = []
    found = halve(count, _asking(bad, asked), probes_max=probes_max)
    assert bad <= set(found) <= set(range(count))
    # At the bound, what lies in line is asked for once each and split no more: at most one stretch
    # per halving.
    assert len(asked) <= probes_max + ceil(log2(max(2, count))) + 1
    assert all(reason.startswith(("bad ", "among these rows: bad ")) for reason in found.values())
    assert all(place in bad or found[place].startswith("among") for place in found)


def test_an_empty_unit_takes_no_attempt() -> None:
    asked: list[tuple[int, int]] = []
    assert halve(0, _asking(set(), asked), probes_max=10) == {}
    assert asked == []
