"""The documents: generated pages are what the code says, lists are complete, links lead somewhere."""

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from catchment import faults, settings
from catchment.status.keys import KEYS
from catchment.web.catalogue import METRICS
from catchment.web.metrics import Declared
from tests.repo.source_tree import ROOT, SOURCE, modules

REFERENCE = ROOT / "docs" / "reference"
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MAKE = re.compile(r"(?:^|`)make ([a-z]+)", re.MULTILINE)
TARGET = re.compile(r"^([a-z]+):(?!=)", re.MULTILINE)


@cache
def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("catchment_docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _documents() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _commands() -> Iterator[str]:
    return (name for name, _ in _generator().commands())


def _anchors(path: Path) -> set[str]:
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(prose)}


@pytest.mark.parametrize("name", ["cli.md", "crash-points.md", "metrics.md", "settings.md", "status.md"])
def test_a_page_of_the_reference_is_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == _generator().pages()[name], "run `make docs`"


def test_the_reference_holds_the_generated_pages_and_no_other() -> None:
    assert {path.name for path in REFERENCE.iterdir()} == set(_generator().pages())


@pytest.mark.parametrize("setting", settings.declared(), ids=lambda setting: setting.name)
def test_a_setting_is_in_the_reference_with_its_help(setting: settings.Declared) -> None:
    lines = [line for line in _read("docs/reference/settings.md").splitlines() if f"`{setting.variable}`" in line]
    assert any(setting.help and setting.help in line for line in lines)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_in_the_reference_with_how_to_read_it_and_what_to_do(metric: Declared) -> None:
    _, _, section = _read("docs/reference/metrics.md").partition(f"\n## `{metric.name}`\n")
    section = section.partition("\n## ")[0]
    assert metric.help in section
    assert f"**How to read it:** {metric.read}" in section
    assert f"**What to do:** {metric.act}" in section
    assert len(metric.read) > 10
    assert len(metric.act) > 6


@pytest.mark.parametrize("key", list(KEYS))
def test_a_key_of_the_status_is_in_the_reference(key: str) -> None:
    assert f"| `{key}` | {KEYS[key]} |" in _read("docs/reference/status.md")


@pytest.mark.parametrize("point", list(faults.POINTS))
def test_a_crash_point_is_in_the_reference_and_in_the_architecture(point: str) -> None:
    assert f"| `{point}` |" in _read("docs/reference/crash-points.md")
    assert f"| `{point}` |" in _read("ARCHITECTURE.md")


@pytest.mark.parametrize("command", list(_commands()))
def test_a_command_is_in_the_reference_and_in_the_readme(command: str) -> None:
    assert f"## `{command}`\n" in _read("docs/reference/cli.md")
    assert f"| `{command}` |" in _read("README.md")


def test_the_code_map_has_one_line_for_every_module_and_no_other() -> None:
    mapped = re.findall(r"^\| `([\w/]+\.py)` \|", _read("ARCHITECTURE.md"), re.MULTILINE)
    there = [str(module.path.relative_to(SOURCE)) for module in modules() if module.path.name != "__init__.py"]
    assert sorted(mapped) == sorted(there)


@pytest.mark.parametrize("name", _documents())
def test_a_relative_link_leads_to_a_file_and_its_anchor_to_a_heading(name: str) -> None:
    for link in LINK.findall(FENCE.sub("", _read(name))):
        if ELSEWHERE.match(link):
            continue
        target, _, anchor = link.partition("#")
        path = ((ROOT / name).parent / target).resolve() if target else ROOT / name
        assert path.exists(), f"{name} links to {link}"
        assert path.is_relative_to(ROOT), f"{name} links to {link}, outside the project"
        assert not anchor or anchor in _anchors(path), f"{name} links to {link}, and there is no such heading"


@pytest.mark.parametrize("name", _documents())
def test_a_make_target_that_is_mentioned_exists(name: str) -> None:
    assert set(MAKE.findall(_read(name))) <= set(TARGET.findall(_read("Makefile")))


def test_the_readme_names_the_two_commands_that_do_everything() -> None:
    assert {"demo", "test"} <= set(MAKE.findall(_read("README.md")))
