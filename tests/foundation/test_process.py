"""How much memory a process may use, in cgroups of both versions."""

import os
from pathlib import Path

import pytest

from catchment.foundation import process
from catchment.foundation.settings import MIB

MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
# What version 1 has instead of no limit.
UNLIMITED = "9223372036854771712"


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected_mb"),
    [
        ("0::/a.slice/b.service", {"a.slice/b.service/memory.max": str(300 * MIB)}, 300),
        # An outer limit counts, too.
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": str(200 * MIB)}, 200),
        ("0::/a/b", {"a/b/memory.max": str(300 * MIB), "a/memory.max": str(200 * MIB)}, 200),
        # A container sees its own limits at the top.
        ("0::/", {"memory.max": str(100 * MIB)}, 100),
        ("3:cpu:/a\n2:memory,hugetlb:/a", {"memory/a/memory.limit_in_bytes": str(300 * MIB)}, 300),
        ("2:memory:/of/the/host", {"memory/memory.limit_in_bytes": str(100 * MIB)}, 100),
        ("2:memory:/a\n0::/a", {"memory/a/memory.limit_in_bytes": UNLIMITED, "a/memory.max": "max"}, None),
        # Of another controller, and of another group.
        ("3:cpu:/a\n0::/b", {"memory/a/memory.limit_in_bytes": "1", "c/memory.max": "1"}, None),
        ("0::/a", {}, None),
    ],
)
def test_the_memory_of_a_process_is_limited_by_its_cgroup(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected_mb: int | None
) -> None:
    below = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = made(tmp_path, {"proc/self/cgroup": cgroup, **below})
    expected = MACHINE_BYTES if expected_mb is None else expected_mb * MIB
    assert process.memory_bytes(root) == expected


def test_without_cgroups_a_process_may_use_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert process.memory_bytes(tmp_path) == MACHINE_BYTES
    assert process.memory_bytes() <= MACHINE_BYTES
