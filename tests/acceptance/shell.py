"""A user's shell: the installed command, in a process of its own, with nothing configured."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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

    def run(self, *arguments: str | Path | bytes, home: Path | None = None, **environment: str) -> Ended:
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "PYTHONPATH") if name in os.environ}
        where = () if home is None else ("--home", home)
        ended = subprocess.run(
            [Path(sys.executable).with_name("catchment"), *arguments, *where],
            cwd=self.folder,
            env={**kept, "HOME": str(self.folder), "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)
