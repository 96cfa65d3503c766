"""A process that forks a child for every request; the child migrates a database and may be killed.

It forks and not the test, because the test's process may have threads. A child starts within
milliseconds.

python -m tests.schema.migration_killer < requests
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from catchment.errors import CatchmentError
from catchment.foundation import faults
from catchment.schema.migrate import Migrate
from catchment.schema.sqlite_engine import SqliteEngine
from tests.repo.source_tree import ROOT
from tests.schema.migration_model import Field, Models, classes

BACKUPS_KEPT = 3


class Killer:
    """A process that forks a child for every request; the child migrates and may be killed."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.schema.migration_killer"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def is_killed(self, path: Path, models: Models, step: str, argument: str | None, point: str) -> bool:
        """Whether the step was killed at the point, and did not end before."""
        plain = {table: {name: vars(each) for name, each in fields.items()} for table, fields in models.items()}
        request = {"path": str(path), "models": plain, "step": step, "argument": argument, "point": point}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        ended = int(self._process.stdout.readline())
        assert ended in (0, 1, -signal.SIGKILL), ended
        return ended == -signal.SIGKILL


def do(migrate: Migrate, step: str, argument: str | None) -> None:
    """One step of a `Migrate`."""
    match step:
        case "apply":
            migrate.apply(argument or "")
        case "restore":
            migrate.restore(argument)
        case _:
            getattr(migrate, step)()


def serve() -> None:
    """Fork a child for every line of the input, and say how it ended."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _migrate_and_die(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _migrate_and_die(request: dict[str, Any]) -> None:
    code = 2
    try:
        models = {
            table: {name: Field(**each) for name, each in fields.items()} for table, fields in request["models"].items()
        }
        faults.arm(request["point"], faults.kill)
        engine = SqliteEngine(request["path"], backups_keep=BACKUPS_KEPT)
        do(Migrate(engine, classes(models)), request["step"], request["argument"])
        code = 0
    except CatchmentError:
        code = 1
    finally:
        # Without what the parent would do at its end.
        os._exit(code)


if __name__ == "__main__":
    serve()
