"""Every example runs as its README says and ends well."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.source_tree import ROOT

EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_runs_as_it_is(folder: Path, tmp_path: Path) -> None:
    (script,) = folder.glob("*.py")
    assert script.name in (folder / "README.md").read_text(encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "audit: clean" in ended.stdout
    assert "rows in the lake: 1000" in ended.stdout
