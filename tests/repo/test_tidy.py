"""Taste as a test: sizes, names, words."""

import ast
import re
import subprocess

import pytest

from catchment import faults
from tests.repo.source_tree import ROOT, SOURCE, Module, modules

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "core"}
MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def _tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        # Not a checkout: an unpacked archive holds nothing but the project.
        found = (path for pattern in patterns or ("*",) for path in ROOT.rglob(pattern) if path.is_file())
        return [str(path.relative_to(ROOT)) for path in found if not path.relative_to(ROOT).parts[0].startswith(".")]
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize("name", _tracked("*.py"))
def test_modules_are_short_and_named_after_what_they_are(name: str) -> None:
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MODULE_LINES_MAX
    assert path.stem not in VAGUE_NAMES
    assert name == "tests/repo/test_tidy.py" or not MARKS.search(text)


@pytest.mark.parametrize("name", _tracked("*.py"))
def test_functions_are_short(name: str) -> None:
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{name}: {node.name} has {length} lines"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_a_module_starts_with_a_sentence_that_says_what_it_is_for(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"{module.path} has no docstring"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_public_classes_and_functions_are_described(module: Module) -> None:
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module.name}.{node.name} has no docstring"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_an_init_file_only_lists_what_is_public(module: Module) -> None:
    if module.path.name == "__init__.py":
        allowed = (ast.Expr, ast.ImportFrom, ast.Assign)
        assert all(isinstance(node, allowed) for node in module.tree.body), f"{module.path} holds logic"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_no_handler_is_blind(module: Module) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = "" if node.type is None else ast.unparse(node.type)
            reraises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            assert caught not in ("", "Exception", "BaseException") or reraises, f"{module.path}:{node.lineno}"


def test_every_crash_point_is_declared_and_reached() -> None:
    reached = {
        node.args[0].value
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("faults.reach", "reach")
        and isinstance(node.args[0], ast.Constant)
    }
    assert reached == set(faults.POINTS)


def test_statements_kept_in_sql_files_are_all_used() -> None:
    text = "".join(module.text for module in modules())
    # Those in other folders are migration scripts, which are run by number.
    unused = [path.stem for path in SOURCE.rglob("sql/*.sql") if not re.search(rf"['\"]{path.stem}['\"]", text)]
    assert not unused


def test_nothing_in_the_project_names_a_machine_or_a_package_index() -> None:
    forbidden = re.compile("|".join(["index" + "-url", "files" + r"\.pythonhosted", "/" + "work/", "/" + "root/"]))
    for name in _tracked():
        text = (ROOT / name).read_text(encoding="utf-8", errors="ignore")
        assert not forbidden.search(text), f"{name} names {forbidden.search(text)}"


def test_pinned_versions_lie_within_the_bounds_that_are_declared() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    normal = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    declared = re.findall(
        r'^  "([A-Za-z0-9-]+)(?:\[\w+\])?(==|>=)([\d.]+)', (ROOT / "pyproject.toml").read_text(), re.M
    )
    assert declared
    for name, _, least in declared:
        have = [int(part) for part in normal[name.lower()].split(".")]
        assert have >= [int(part) for part in least.split(".")], f"{name} is pinned below its bound"
