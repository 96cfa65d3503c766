"""The control database in a SQLite file, for one host. A backup is made before every script."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catchment.control.contract import ControlStatus
from catchment.control.models import MODELS
from catchment.errors import ControlUnavailableError, LockTimeoutError, StateError, StorageFailedError
from catchment.foundation.clock import Clock
from catchment.schema import CheckResult, Migrate, SqliteEngine, State
from catchment.schema.sqlite_files import reading, writing

# Other processes that start at the same time may apply scripts before this one does.
_TURNS_MAX = 100
_BUSY_MS = 5_000


class SqliteControl:
    """A SQLite file, migrated by the same steps as the databases of users."""

    def __init__(self, path: Path, *, scripts: Path, clock: Clock) -> None:
        self.path = path
        # The scripts belong to the package: `check` must not write files there.
        self._migrate = Migrate(
            SqliteEngine(path, scripts=scripts, clock=clock), MODELS, edits_scripts=False, clock=clock
        )

    @property
    def place(self) -> str:
        return str(self.path)

    def upgrade(self) -> tuple[str, ...]:
        applied: list[str] = []
        for _ in range(_TURNS_MAX):
            result = self._look()
            if result.state is State.CURRENT:
                return tuple(applied)
            if self._apply(result.pending[0]):
                applied.append(result.pending[0])
        raise StateError(f"{self.path} is not up to date after {_TURNS_MAX} attempts.", hint="Start it again.")

    def examine(self) -> ControlStatus:
        result = self._look()
        return ControlStatus(
            place=self.place,
            exists=self.path.exists(),
            applied=tuple(result.applied),
            pending=tuple(result.pending),
            is_backed_up=True,
        )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with _translating_errors(), writing(self.path) as connection:
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            # Closing the connection rolls back uncommitted changes.
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with _translating_errors(), reading(self.path) as connection:
            yield connection

    def _apply(self, filename: str) -> bool:
        """Apply the script; return False if another process has applied it in the meantime."""
        try:
            self._migrate.apply(filename)
        except StateError:
            if filename in self._migrate.look().pending:
                raise
            return False
        return True

    def _look(self) -> CheckResult:
        """Verify that the database is Catchment's and not newer than this program."""
        path, result = self.path, self._migrate.look()
        is_empty = len(result.model_diff.missing) == len(MODELS) and not result.model_diff.extra
        if not result.applied and not is_empty:
            raise StateError(
                f"{path} contains tables and is not a control database of Catchment.",
                hint="Set CATCHMENT_CONTROL_DB to another file, or omit it.",
            )
        if result.missing:
            raise StateError(
                f"{path} was written by a newer Catchment: this one does not have {', '.join(result.missing)}.",
                hint=f"Install that version again, or restore a backup from {path}.bak.",
                unknown=result.missing,
            )
        if result.state in (State.ERROR, State.DIVERGED, State.DRIFT):
            raise StateError(
                f"{path} is not what this Catchment expects ({result.state.name}): {'; '.join(_reasons(result))}.",
                hint=f"It was changed by hand, or by an unreleased version. Backups are in {path}.bak.",
                state=result.state.value,
            )
        return result


def _reasons(result: CheckResult) -> list[str]:
    differs = [f"{filename} is not the script that was applied" for filename in result.divergent]
    return [*result.errors, *differs] or list(result.model_diff.describe())


@contextmanager
def _translating_errors() -> Iterator[None]:
    try:
        yield
    except (LockTimeoutError, StorageFailedError) as error:
        raise ControlUnavailableError(f"The control database {error.message}", **error.facts) from error
