"""Messages that expand beyond the limit are refused without the memory to decode them."""

import sys
from pathlib import Path

from tests.repo.source_tree import ROOT
from tests.server.flight.expanding_arrays import ENCODINGS, NESTINGS
from tests.shortcuts import warm


def test_small_messages_that_unfold_to_gigabytes_are_refused_by_a_server_with_little_memory(tmp_path: Path) -> None:
    ended = warm.run(
        [sys.executable, "-m", "tests.server.flight.little_memory_child", str(tmp_path)], cwd=ROOT, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    assert int(ended.stdout.split()[0]) > len(ENCODINGS) * len(NESTINGS)
