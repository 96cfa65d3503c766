"""The state of migrations, derived from facts."""

import pytest

from catchment.schema.applied_scripts import AppliedScript
from catchment.schema.check import CheckResult, State, edits, examine
from catchment.schema.diff import ModelDiff
from catchment.schema.scripts import Folder, Script, ScriptName, Unreadable
from catchment.schema.structure import DeclaredColumn, DeclaredTable

SAME = ModelDiff()
OTHER = ModelDiff(missing=(DeclaredTable(name="users", columns=(DeclaredColumn(name="id", type="INTEGER"),)),))


def _script(filename: str, text: str = "SELECT 1;\n") -> Script:
    name = ScriptName.parse(filename)
    assert name is not None
    return Script(name=name, raw=text)


def _record(filename: str, text: str = "SELECT 1;\n", number: int | None = None) -> AppliedScript:
    return AppliedScript(
        number=number or int(filename[:3]), filename=filename, script=text, started_at="2026", finished_at="2026"
    )


def _examine(scripts: list[Script], history: list[AppliedScript], diff: ModelDiff = SAME) -> CheckResult:
    return examine(Folder(scripts=tuple(scripts)), history, diff)


@pytest.mark.parametrize(
    ("errors", "divergent", "pending", "diff", "state"),
    [
        (["x"], ["a"], ["b"], OTHER, State.ERROR),
        ([], ["a"], ["b"], OTHER, State.DIVERGED),
        ([], [], ["b"], OTHER, State.PENDING),
        ([], [], [], OTHER, State.DRIFT),
        ([], [], [], SAME, State.CURRENT),
    ],
)
def test_the_first_matching_condition_is_the_state(
    errors: list[str], divergent: list[str], pending: list[str], diff: ModelDiff, state: State
) -> None:
    result = CheckResult(pending=pending, applied=[], divergent=divergent, errors=errors, model_diff=diff)
    assert result.state is state
    assert result.can_apply is (state is State.PENDING)
    assert result.next_step() in result.status()


def test_all_lists_are_filled_whatever_the_state() -> None:
    result = _examine(
        [_script("001.a.sql"), _script("002.b.sql", "edited"), _script("003.c.sql"), _script("003.d.sql")],
        [_record("001.a.sql"), _record("002.b.sql")],
        OTHER,
    )
    assert result.state is State.ERROR
    assert result.pending == ["003.c.sql", "003.d.sql"]
    assert result.applied == ["001.a.sql", "002.b.sql"]
    assert result.divergent == ["002.b.sql"]
    assert result.errors == ["Duplicate number 003"]
    assert result.model_diff is OTHER
    lines = result.status().splitlines()
    assert lines[:3] == ["Error: duplicate migration number 003", "  003.c.sql", "  003.d.sql"]
    assert "1 diverged: 002.b.sql" in lines
    assert "2 pending: 003.c.sql, 003.d.sql" in lines


def test_of_two_files_with_the_number_of_a_record_the_equal_one_has_not_diverged() -> None:
    result = _examine([_script("001.mine.sql"), _script("001.theirs.sql", "other")], [_record("001.mine.sql")])
    assert (result.divergent, result.errors) == ([], ["Duplicate number 001"])


def test_a_gap_in_the_records_makes_what_fills_it_late() -> None:
    result = _examine([_script("002.b.sql", "b")], [_record("001.a.sql"), _record("003.c.sql", "c")])
    assert result.errors == ["Late number 002: 003 is applied already"]


def test_an_unreadable_file_leaves_no_gap_and_is_not_written_back() -> None:
    name = ScriptName(number=2, slug="b")
    folder = Folder(scripts=(_script("001.a.sql"),), unreadable=(Unreadable(name=name, reason="it is not UTF-8"),))
    result = examine(folder, [_record("001.a.sql"), _record("002.b.sql")], SAME)
    assert result.errors == ["Unreadable script 002.b.sql: it is not UTF-8"]
    assert result.missing == []


def test_equal_scripts_without_statements_are_not_taken_for_renumbered() -> None:
    result = _examine([_script("001.a.sql"), _script("003.c.sql", "-- later\n")], [_record("001.a.sql"), *_empty(2)])
    assert (result.state, result.missing) == (State.PENDING, ["002.empty.sql"])


def _empty(number: int) -> list[AppliedScript]:
    return [_record(f"{number:03d}.empty.sql", "-- later\n")]


def test_a_renumbered_script_is_neither_pending_nor_written_back() -> None:
    result = _examine([_script("002.a.sql", "SELECT 7;")], [_record("001.a.sql", "SELECT 7;\n")])
    assert result.errors == ["Missing number 001", "Renumbered script 002.a.sql: it was applied as 001.a.sql"]
    assert result.missing == []


def test_a_divergence_is_a_diff_from_what_was_applied() -> None:
    result = _examine([_script("001.b.sql", "SELECT 2;\r\n")], [_record("001.a.sql")])
    difference = result.differences["001.b.sql"].splitlines()
    assert difference[0].startswith("--- 001.a.sql (applied")
    assert difference[1].startswith("+++ 001.b.sql")
    assert difference[-2:] == ["-SELECT 1;", "+SELECT 2;"]


def test_without_divergence_no_script_is_edited() -> None:
    folder, history = Folder(scripts=(_script("001.a.sql"),)), [_record("001.a.sql")]
    assert list(edits(folder, history, examine(folder, history, SAME))) == []
