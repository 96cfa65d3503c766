"""A missing pandas is looked for once, and an installed one is found."""

import importlib
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import duckdb
import pytest

from catchment.foundation.pandas_probe import skip_pandas_probe


class Counting:
    """A finder that finds nothing, and counts how often it is asked for pandas."""

    def __init__(self) -> None:
        self.asked = 0

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        self.asked += fullname == "pandas"
        return None


@pytest.fixture
def finders(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """The finders of a process that remembers nothing yet, and one that counts what comes to them."""
    counting = Counting()
    plain = [each for each in sys.meta_path if type(each).__module__ != "catchment.foundation.pandas_probe"]
    monkeypatch.setattr(sys, "meta_path", [counting, *plain])
    return counting


def _bind() -> list[tuple[object, ...]]:
    with duckdb.connect(config={"threads": 1}) as connection:
        return connection.execute("SELECT ?, ?", [1, "a"]).fetchall()


def test_duckdb_looks_for_pandas_with_every_value_until_its_absence_is_cached(finders: Counting) -> None:
    _bind()
    _bind()
    assert finders.asked > 2, "DuckDB no longer does that: this module can go"
    skip_pandas_probe()
    before = finders.asked
    assert _bind() == [(1, "a")]
    assert finders.asked == before


def test_a_missing_pandas_raises_the_usual_error(finders: Counting) -> None:
    skip_pandas_probe()
    skip_pandas_probe()
    assert [type(each).__module__ for each in sys.meta_path].count("catchment.foundation.pandas_probe") == 1
    with pytest.raises(ModuleNotFoundError, match="No module named 'pandas'") as missing:
        importlib.import_module("pandas")
    assert missing.value.name == "pandas"
    assert importlib.import_module("json").__name__ == "json"


def test_an_installed_pandas_is_found(finders: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pandas.py").write_text("HERE = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    skip_pandas_probe()
    try:
        assert importlib.import_module("pandas").HERE
    finally:
        sys.modules.pop("pandas", None)
