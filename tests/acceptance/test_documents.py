"""README and quickstart are run as written: every command, in order, in a clean folder.

    ```sh       is run by bash. `catchment serve` stays up, as in a terminal of its own, and is ended gently at the end.
    ```python   is run by the interpreter.
    ```text     is what the block before it prints, line by line in this order; `…` stands for anything.

Commands start warm, see `tests.shortcuts.warm`; what stays up starts as a reader's would. `make` is
not run: what `make demo` does has a test of its own. A block that is not run has `<!-- not run: the
reason -->` in the line before it. Ports are the test's own.
"""

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from catchment.cli.main import app
from tests.acceptance.shell import COMMAND
from tests.repo.source_tree import ROOT, readme_commands
from tests.shortcuts import warm

DOCUMENTS = ("README.md", "docs/quickstart.md")
KINDS = ("sh", "python", "text")
NOT_RUN_MAX = 1
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S)
PAGE = re.compile(r"<(http://127\.0\.0\.1:[^>]*)>")
SERVE = re.compile(r"^catchment serve\b.*$", re.M)
PORT, WEB_PORT = "4214", "4215"
ACTIVATE = ". .venv/bin/activate"
_PATIENCE_S = 240.0
_NEXT = "\x1e"
# `make` only says what it was asked for. A server is ready when it says so, and stays until the
# end.
_PRELUDE = """
set -eu -o pipefail
exec 2>&1
make() { echo "$*" >>asked; }
serve() {
  coproc SERVER { exec "$COLD/$@"; }
  for _ in ready web; do read -r line <&"${SERVER[0]}"; echo "$line"; done
}
trap '[ -z "${SERVER_PID:-}" ] || kill -9 "$SERVER_PID"' EXIT
"""
_END = """
pid=$SERVER_PID
trap - EXIT
kill -TERM "$pid"
wait "$pid"
"""
_FETCH = """
import sys, urllib.request
for page in sys.argv[1:]:
    print(urllib.request.urlopen(page).status)
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a document, and why it is not run, if so."""

    kind: str
    body: str
    not_run: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """A block that is run, and what the document shows of what it prints."""

    block: Block
    shown: str | None = None


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _blocks(text: str) -> list[Block]:
    return [Block(found["kind"], found["body"], found["reason"]) for found in BLOCK.finditer(text)]


def _steps(blocks: list[Block]) -> list[Step]:
    steps: list[Step] = []
    before: Block | None = None
    for block in blocks:
        if block.kind != "text" and block.not_run is None:
            steps.append(Step(block))
        elif steps and before is steps[-1].block and "make " not in before.body:
            steps[-1] = Step(before, shown=block.body)
        before = block
    return steps


def _script(steps: list[Step], folder: Path, pages: list[str]) -> str:
    lines = [_PRELUDE]
    for number, step in enumerate(steps):
        lines.append(f"printf '{_NEXT}'")
        if step.block.kind == "python":
            (folder / f"block_{number}.py").write_text(step.block.body, encoding="utf-8")
            lines.append(f"python block_{number}.py")
        else:
            lines.append(SERVE.sub(lambda found: f"serve {found[0]}", step.block.body))
    (folder / "fetch.py").write_text(_FETCH, encoding="utf-8")
    return "\n".join([*lines, f"printf '{_NEXT}'", f"python fetch.py {' '.join(pages)}", f"printf '{_NEXT}'", _END])


def _free_ports() -> tuple[str, str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        first, second = (str(each.getsockname()[1]) for each in sockets)
    return first, second


def _checkout(folder: Path) -> None:
    """As much of one as a reader finds after `make demo`: the virtual environment."""
    tools = folder / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "activate").write_text(f'export PATH="{tools}:$PATH"\n', encoding="utf-8")
    for tool in (COMMAND, Path(sys.executable)):
        name = "python" if tool == Path(sys.executable) else tool.name
        (tools / name).write_text(warm.stand_in(tool), encoding="utf-8")
        (tools / name).chmod(0o755)


def _assert_targets(folder: Path) -> None:
    """Targets that the document asks `make` for exist."""
    asked = (folder / "asked").read_text(encoding="utf-8").split()
    assert "demo" in asked
    assert set(asked) <= set(re.findall(r"^([a-z]+):(?!=)", _read("Makefile"), re.M))


def _assert_printed(step: Step, printed: str) -> None:
    at = 0
    for line in (step.shown or "").splitlines():
        wanted = ".*?".join(re.escape(part.strip()) for part in line.split("…"))
        found = re.compile(re.sub(r"(?:\\ )+", r"\\s+", wanted)).search(printed, at)
        assert found, f"after\n{step.block.body}\nthe document shows\n{line}\nand it printed\n{printed}"
        at = found.end()


def _run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {each: os.environ[each] for each in ("JAVA_HOME", "PYTHONPATH") if each in os.environ}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**kept, "PATH": "/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_of_a_document_runs_as_it_stands_and_prints_what_is_shown(name: str, tmp_path: Path) -> None:
    port, web_port = _free_ports()
    text = re.sub(rf"(?<=127\.0\.0\.1:){PORT}\b", port, _read(name))
    text = re.sub(rf"(?<=127\.0\.0\.1:){WEB_PORT}\b", web_port, text)
    pages = PAGE.findall(text)
    steps = _steps(_blocks(text))
    _checkout(tmp_path)
    ended = _run(
        # The quickstart does so itself.
        ("" if ACTIVATE in text else f"{ACTIVATE}\n") + _script(steps, tmp_path, pages),
        tmp_path,
        COLD=str(COMMAND.parent),
        CATCHMENT_SERVER_PORT=port,
        CATCHMENT_SERVER_WEB_PORT=web_port,
        CATCHMENT_SPARK_MASTER="local[1]",
        CATCHMENT_LAKE_THREADS_MAX="1",
    )
    assert ended.returncode == 0, ended.stdout[-4_000:]
    _, *printed, fetched, _last = ended.stdout.split(_NEXT)
    for step, said in zip(steps, printed, strict=True):
        _assert_printed(step, said)
    assert fetched.split() == ["200"] * len(pages)
    assert pages
    _assert_targets(tmp_path)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_block_says_what_it_is_and_hardly_any_is_not_run(name: str) -> None:
    blocks = _blocks(_read(name))
    assert {block.kind for block in blocks} <= set(KINDS)
    assert _read(name).count("```") == 2 * len(blocks)
    assert sum(block.not_run is not None for block in blocks) <= NOT_RUN_MAX


@pytest.mark.parametrize("command", readme_commands())
def test_a_command_that_the_readme_lists_answers_for_help(command: str) -> None:
    answer = CliRunner().invoke(app, [*command.split()[1:], "--help"], prog_name="catchment")
    assert answer.exit_code == 0, answer.output
    assert f"Usage: {command} " in answer.output


def test_the_command_of_make_demo_has_a_test_of_its_own() -> None:
    recipe = re.search(r"^demo:.*\n\t@?(.+)$", _read("Makefile"), re.M)
    assert recipe is not None
    assert recipe[1] == "$(BIN)/catchment demo"
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "acceptance").glob("test_*.py")]
    assert any(re.search(r'\brun(?:_cold)?\(\s*"demo"', text) for text in tests)
