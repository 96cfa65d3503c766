"""The installed command in its own process, with nothing configured but threads and workers.

The process starts warm, see `tests.shortcuts.warm`, unless a test needs a cold start.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.shortcuts import warm

COMMAND = Path(sys.executable).with_name("catchment")
_PATIENCE_S = 300.0
KEPT = ("PATH", "JAVA_HOME", "PYTHONPATH", "CATCHMENT_LAKE_THREADS_MAX", "CATCHMENT_SPARK_MASTER")


def command_with(constants: Mapping[str, float] | None = None) -> list[str | Path]:
    """How to start the command, with these values for constants; see `patched_command`."""
    if constants is None:
        return [COMMAND]
    return [sys.executable, "-m", "tests.acceptance.patched_command", json.dumps(constants)]


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on stdout; anything before or after it is an error."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Shell:
    """A user's shell: a folder to be in, and an environment that says nothing about Catchment."""

    folder: Path
    # Values for constants, see `patched_command`; a cold start has none.
    constants: Mapping[str, float] | None = None

    def run(self, *arguments: str | Path | bytes, home: Path | None = None, **environment: str) -> Ended:
        where = () if home is None else ("--home", home)
        ended = warm.run(
            [*command_with(self.constants), *arguments, *where],
            cwd=self.folder,
            env=self._environment(environment),
            timeout=_PATIENCE_S,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def run_cold(self, *arguments: str | Path) -> Ended:
        """As `run`, in a process that shares nothing with any other."""
        ended = subprocess.run(
            [COMMAND, *arguments],
            cwd=self.folder,
            env=self._environment({"CATCHMENT_LAKE_THREADS_MAX": "0", "CATCHMENT_SPARK_MASTER": "local[*]"}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def start(self, *arguments: str | Path, terminal: int = warm.PIPE, **environment: str) -> warm.Process:
        """A running command in its own process group, with `terminal` as its stdin and stdout."""
        return warm.Process(
            [*command_with(self.constants), *arguments],
            cwd=self.folder,
            env=self._environment(environment),
            stdin=terminal,
            stdout=warm.PIPE,
            stderr=terminal,
            start_new_session=True,
        )

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, "HOME": str(self.folder), "COLUMNS": "200", **more}
