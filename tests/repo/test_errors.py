"""The error tree: drawn as it is, grouped as promised, and unchanged by pickling."""

import pickle
import re
from collections.abc import Iterator

import pytest

from catchment import errors
from catchment.errors import CatchmentError


def _all(root: type[CatchmentError] = CatchmentError) -> Iterator[type[CatchmentError]]:
    yield root
    for each in root.__subclasses__():
        yield from _all(each)


def _depth(kind: type[CatchmentError]) -> int:
    return len([each for each in kind.__mro__ if issubclass(each, CatchmentError)]) - 1


@pytest.mark.parametrize("kind", list(_all()), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_whole(kind: type[CatchmentError]) -> None:
    before = kind("It broke.", hint="Mend it.", path="a/b", rows=7)
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is kind
    assert (after.message, after.hint, after.facts, str(after)) == ("It broke.", "Mend it.", before.facts, "It broke.")


@pytest.mark.parametrize("kind", list(_all()), ids=lambda kind: kind.__name__)
def test_an_error_without_a_message_says_the_first_line_of_its_docstring(kind: type[CatchmentError]) -> None:
    assert str(kind()) == (kind.__doc__ or "").splitlines()[0]
    assert str(kind()).endswith(".")


def test_every_error_lives_in_one_file_and_stands_in_the_drawing() -> None:
    drawn = re.findall(r"(\w+Error)\b", (errors.__doc__ or "").partition("The first line")[0])
    assert sorted(drawn) == sorted(kind.__name__ for kind in _all())
    assert {kind.__module__ for kind in _all()} == {"catchment.errors"}


def test_the_drawing_shows_the_real_tree() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if re.search(r"\w+Error\b", line)]
    for line in lines:
        name = re.search(r"\w+Error\b", line)
        assert name is not None
        indent = (name.start() - 4) // 4
        assert _depth(getattr(errors, name[0])) == indent, line


def test_errors_that_the_user_must_fix_exit_with_two() -> None:
    assert errors.StoppedError.exit_code == errors.EXIT_STOPPED
    for kind in set(_all()) - {errors.StoppedError}:
        theirs = issubclass(kind, errors.InputError | errors.MachineError)
        assert kind.exit_code == (errors.EXIT_NEEDS_YOU if theirs else errors.EXIT_FAILED)
