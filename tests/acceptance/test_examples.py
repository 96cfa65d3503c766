"""Every example runs as its README says, and succeeds."""

import sys
from pathlib import Path

import pytest

from tests.repo.source_tree import ROOT
from tests.shortcuts import warm

# What an example says at its end; most are about a lake.
SAID = {
    "change-a-schema": ("state: CURRENT", "rows in the database: 1000"),
    "move-a-tenant": ("t7's primary is b", "every row is there, once: True", "audit: clean"),
    "read-with-polars": ("the lake says the same: True", "rows in the lake: 1000", "audit: clean"),
    "read-with-pyspark": ("the same as DuckDB reads: True", "rows in the lake: 1000", "audit: clean"),
    "read-your-writes": ("none missed a row, none saw one twice", "rows in the lake: 1000", "audit: clean"),
    "write-over-flight-sql": ("rows seen before any flush: [(200, 200, 'new')]", "rows in the lake: 200"),
}
SAID_OF_A_LAKE = ("audit: clean", "rows in the lake: 1000")
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_runs_as_its_readme_says(folder: Path, tmp_path: Path) -> None:
    (script,) = folder.glob("*.py")
    assert script.name in (folder / "README.md").read_text(encoding="utf-8")
    ended = warm.run([sys.executable, script, tmp_path], cwd=ROOT, timeout=120)
    assert ended.returncode == 0, ended.stderr
    for line in SAID.get(folder.name, SAID_OF_A_LAKE):
        assert line in ended.stdout
