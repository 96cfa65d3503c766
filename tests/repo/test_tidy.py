"""Taste as a test: sizes, names, words."""

import ast
import re
from functools import cache
from pathlib import PurePath

from catchment.foundation import faults
from tests.repo.source_tree import ROOT, SOURCE, modules, tracked

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "core"}
MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


@cache
def _python() -> dict[str, str]:
    """Every file of Python that is tracked, product, tests and the rest, with its text."""
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in tracked("*.py")}


def test_modules_are_short_and_named_after_what_they_are() -> None:
    assert [name for name, text in _python().items() if text.count("\n") > MODULE_LINES_MAX] == []
    assert [name for name in _python() if PurePath(name).stem in VAGUE_NAMES] == []
    assert [name for name, text in _python().items() if MARKS.search(text)] == ["tests/repo/test_tidy.py"]


def test_functions_are_short() -> None:
    long = [
        f"{name}: {node.name} has {length} lines"
        for name, text in _python().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_a_module_starts_with_a_sentence_that_says_what_it_is_for() -> None:
    assert [module.path for module in modules() if not ast.get_docstring(module.tree)] == []


def test_public_classes_and_functions_are_described() -> None:
    mute = [
        f"{module.name}.{node.name}"
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert mute == []


def test_no_two_public_classes_have_the_same_name() -> None:
    found: dict[str, list[str]] = {}
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module.name)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_an_init_file_only_lists_what_is_public() -> None:
    allowed = (ast.Expr, ast.ImportFrom, ast.Assign)
    # Every process imports the package itself, which therefore imports its values on demand.
    inits = [module for module in modules() if module.path.name == "__init__.py" and module.path.parent != SOURCE]
    assert [each.path for each in inits if not all(isinstance(node, allowed) for node in each.tree.body)] == []


def test_no_handler_is_blind() -> None:
    blind = [
        f"{module.path}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and ("" if node.type is None else ast.unparse(node.type)) in ("", "Exception", "BaseException")
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    ]
    assert blind == []


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


def test_no_module_asks_duckdb_for_the_tables_of_a_lake() -> None:
    """DuckLake counts the rows of every table for that list: a millisecond for each."""
    texts = {
        path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.*") if path.suffix != ".pyc"
    }
    # The queue asks its own buffer.
    assert [name for name, text in texts.items() if "duckdb_tables()" in text] == ["queue/store/file_tables.py"]


def test_nothing_in_the_project_names_a_machine_or_a_package_index() -> None:
    forbidden = re.compile("|".join(["index" + "-url", "files" + r"\.pythonhosted", "/" + "work/", "/" + "root/"]))
    for name in tracked():
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
