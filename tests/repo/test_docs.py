"""The documents: generated pages match the code, lists are complete, links have targets."""

import importlib.util
import re
import subprocess
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from catchment.foundation import faults, settings
from catchment.status.keys import KEYS
from catchment.web.metric_catalogue import METRICS
from tests.repo.source_tree import ROOT, SOURCE, readme_commands
from tests.repo.test_layers import LAYERS

REFERENCE = ROOT / "docs" / "reference"
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MAKE = re.compile(r"(?:^|`)make ([a-z]+)", re.MULTILINE)
TARGET = re.compile(r"^([a-z]+):(?!=)", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
MARK = re.compile(r"\*\*([a-z ]+)\*\*", re.I)
MEASURED = re.compile(r"\b\d[\d,.]*\d\b(?= (?:rows/s|inserts/s|in process))")
METRIC = re.compile(r"`(catchment_[a-z_]+?)(?:\{[^`]*)?`")
ALERT = re.compile(r"`(Catchment[A-Z]\w+)`")
TYPED = re.compile(r"(?:^(?:\$ )?(?:[A-Z_]+=\S+ )*|`|\| )(catchment [a-z][^`#|&;…\n]*)", re.MULTILINE)
VARIABLE = re.compile(r"\b(?:CATCHMENT|DUCKLING_QUEUE)_[A-Z_]*[A-Z]\b")
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A schema that is called as metrics are.
NO_METRICS = {"catchment_fresh"}


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


def _anchors(path: Path) -> set[str]:
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(prose)}


@pytest.mark.parametrize("name", sorted(path.name for path in REFERENCE.iterdir()))
def test_a_page_of_the_reference_is_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == _generator().pages()[name], "run `make docs`"


def test_the_reference_holds_the_generated_pages_and_no_other() -> None:
    assert {path.name for path in REFERENCE.iterdir()} == set(_generator().pages())


def test_a_setting_is_in_the_reference_with_its_help() -> None:
    lines = _read("docs/reference/settings.md").splitlines()
    for setting in settings.declared():
        named = [line for line in lines if f"`{setting.variable}`" in line]
        assert any(setting.help and setting.help in line for line in named), setting.name


def test_a_metric_is_in_the_reference_with_how_to_read_it_and_what_to_do() -> None:
    for metric in METRICS:
        _, _, section = _read("docs/reference/metrics.md").partition(f"\n## `{metric.name}`\n")
        section = section.partition("\n## ")[0]
        assert metric.help in section, metric.name
        assert f"**How to read it:** {metric.read}" in section
        assert f"**What to do:** {metric.act}" in section
        assert len(metric.read) > 10, metric.name
        assert len(metric.act) > 6, metric.name


def test_a_key_of_the_status_is_in_the_reference() -> None:
    text = _read("docs/reference/status.md")
    assert [key for key, meaning in KEYS.items() if f"| `{key}` | {meaning} |" not in text] == []


def test_a_crash_point_is_in_the_reference() -> None:
    text = _read("docs/reference/crash-points.md")
    assert [point for point in faults.POINTS if f"| `{point}` |" not in text] == []


def test_a_command_is_in_the_reference_and_in_the_readme() -> None:
    commands = [name for name, _ in _generator().commands()]
    assert len(commands) > 40
    assert [name for name in commands if f"## `{name}`\n" not in _read("docs/reference/cli.md")] == []
    assert sorted(readme_commands()) == sorted(commands)


def test_the_architecture_draws_every_layer_and_names_only_modules_that_exist() -> None:
    text = _read("ARCHITECTURE.md")
    _, _, layers = text.partition("\n## Layers\n")
    drawn = [frozenset(line.split()) for line in layers.split("```")[1].strip().splitlines()]
    assert drawn == list(LAYERS)
    named = re.findall(r"`([\w/]+\.py)`", text)
    assert [name for name in named if not (SOURCE / name).is_file() and not (ROOT / name).is_file()] == []


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


@pytest.mark.parametrize("name", _documents())
def test_a_test_that_is_named_exists(name: str) -> None:
    for path, test in TEST.findall(_read(name)):
        assert (ROOT / path).is_file(), f"{name} names {path}"
        assert not test or f"\ndef {test}(" in _read(path), f"{name} names {path}::{test}"


def test_every_promise_has_tests_that_prove_it_in_every_run() -> None:
    promises, _, _ = _read("docs/guarantees.md").partition("\n## Failures\n")
    paragraphs = promises.split("\n\n")
    for promise, proof in pairwise(paragraphs):
        if promise.startswith("**"):
            assert proof.startswith("Proof: "), promise
            assert TEST.findall(proof), promise
            for path, test in TEST.findall(proof):
                assert test, f"{path}: which test of it?"
                assert not re.search(rf"@pytest\.mark\.soak\n(?:@.*\n)*def {test}\(", _read(path)), f"{test} is a soak"


def test_every_clause_of_a_design_document_has_a_mark_and_tests_that_show_it_unless_it_is_open() -> None:
    _, *documents = _read("docs/seeds.md").split("\n## ")
    assert len(documents) == 5
    for document in documents:
        title, _, text = document.partition("\n")
        _, _, *clauses = [line for line in text.splitlines() if line.startswith("|")]
        assert len(clauses) > 10, title
        for line in clauses:
            _, clause, here, shown, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
            marks = {mark.lower() for mark in MARK.findall(here)}
            assert here.startswith("**"), f"{title}: {clause}"
            assert marks <= {"as written", "stronger", "differs", "open"}, f"{title}: {clause}"
            assert bool(TEST.findall(shown)) != ("open" in marks), f"{title}: {clause}"
            for path, test in TEST.findall(shown):
                assert test, f"{path}: which test of it?"
                assert not re.search(rf"@pytest\.mark\.soak\n(?:@.*\n)*def {test}\(", _read(path)), f"{test} is a soak"


def test_the_readme_measures_nothing_that_the_benchmarks_do_not() -> None:
    _, _, why = _read("README.md").partition("\n## Why\n")
    measured = MEASURED.findall(why.partition("\n## ")[0])
    assert len(measured) > 5
    assert [number for number in measured if number not in _read("docs/benchmarks.md")] == []


@pytest.mark.parametrize("name", [name for name in _documents() if name.startswith("docs/howto/")])
def test_a_metric_or_an_alert_that_a_how_to_names_exists(name: str) -> None:
    metrics = {metric.name for metric in METRICS} | NO_METRICS
    assert set(METRIC.findall(_read(name))) <= metrics
    assert all(f"alert: {alert}\n" in _read("deploy/alerts.yml") for alert in ALERT.findall(_read(name)))


@pytest.mark.parametrize("name", _documents())
def test_a_command_that_a_document_types_exists_with_its_options(name: str) -> None:
    known = dict(_generator().commands())
    for line in TYPED.findall(_read(name)):
        words = [word for word in line.split() if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
        named = [" ".join(words[:length]) for length in range(len(words), 1, -1)]
        command = next((each for each in named if each in known), None)
        options = {word.partition("=")[0] for word in line.split() if re.match(r"--[a-z]", word)}
        if command is None:
            # A group, which is explained rather than typed.
            assert not options, f"{name}: {line}"
            assert any(each.startswith(f"{' '.join(words)} ") for each in known), f"{name}: {line}"
        else:
            taken = {option for each in known[command].params for option in (*each.opts, *each.secondary_opts)}
            assert options <= taken | {"--help"}, f"{name}: {line}"


@pytest.mark.parametrize("name", _documents())
def test_a_setting_that_a_document_names_exists(name: str) -> None:
    declared = settings.declared()
    assert set(VARIABLE.findall(_read(name))) <= {setting.variable for setting in declared}
    for block in TOML.findall(_read(name)):
        assert set(tomllib.loads(block)) <= {setting.name for setting in declared} | {"tool"}, f"{name}: {block}"


def test_a_picture_fetches_nothing_and_knows_the_dark() -> None:
    picture = _read("docs/pictures/system.svg")
    assert "prefers-color-scheme: dark" in picture
    assert set(re.findall(r"https?://[^\s\"]+", picture)) == {"http://www.w3.org/2000/svg"}
