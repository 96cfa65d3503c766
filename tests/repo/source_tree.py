"""The product's source, parsed once for the tests of this folder."""

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "catchment"


@dataclass(frozen=True)
class Module:
    """One source file: `name` is dotted below `catchment`."""

    path: Path
    name: str
    text: str
    tree: ast.Module


@cache
def modules() -> tuple[Module, ...]:
    return tuple(_read(path) for path in sorted(SOURCE.rglob("*.py")))


def imports(module: Module) -> Iterator[str]:
    """Every module that is imported, wherever the import stands."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def tracked(*patterns: str) -> list[str]:
    """Every file of the project that matches, or every file; an unpacked archive has no other
    files.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        found = (path for pattern in patterns or ("*",) for path in ROOT.rglob(pattern) if path.is_file())
        return [str(path.relative_to(ROOT)) for path in found if not path.relative_to(ROOT).parts[0].startswith(".")]
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def readme_commands() -> list[str]:
    """The commands in README's table: a row of its own each, or in the row of their group."""
    rows = re.findall(r"^\| `(catchment [a-z -]+)` \| (.+) \|$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    return [f"{row} {name}".strip() for row, text in rows for name in re.findall(r"`([a-z-]+)`", text) or [""]]


def _read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return Module(path=path, name=name.removesuffix(".__init__"), text=text, tree=ast.parse(text))
