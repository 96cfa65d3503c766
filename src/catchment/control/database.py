"""`ControlDatabase`: opened by whoever starts, and by that created or upgraded, with a backup before every script.

A program takes a database that is older than itself, and brings it up to date. It refuses one that a newer program has
written, one whose scripts are not those that this program ships, and one that is not Catchment's.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from catchment import events
from catchment.clock import Clock, SystemClock
from catchment.control.models import MODELS
from catchment.errors import SettingsError, StateError, StorageUnsupportedError
from catchment.schema import CheckResult, Engine, Migrate, State
from catchment.schema.sqlite import writing
from catchment.settings import Settings

SCRIPTS = Path(__file__).with_name("scripts")
# Every process that starts at the same time may apply any of the scripts before us.
_TURNS_MAX = 100
_BUSY_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStatus:
    """How a control database stands, before anybody has opened it."""

    path: Path
    exists: bool
    applied: tuple[str, ...]
    pending: tuple[str, ...]

    def __str__(self) -> str:
        if not self.exists:
            return f"none yet; it will be made at {self.path}"
        if self.pending:
            return f"{self.path}: {', '.join(self.pending)} pending; the next start backs it up and upgrades it"
        return f"{self.path}: current, {len(self.applied)} scripts applied"


class ControlDatabase:
    """The control database, up to date. Every transaction has a connection of its own, so any thread may use it."""

    def __init__(self, path: Path) -> None:
        """Use `open`, which sees that the file is what this program needs."""
        self.path = path

    @classmethod
    def open(cls, settings: Settings, *, clock: Clock | None = None) -> "ControlDatabase":
        """The database that the settings name; made where there is none, upgraded where it is older."""
        path = path_of(settings)
        migrate = _migrate(path, clock or SystemClock())
        applied: list[str] = []
        for _ in range(_TURNS_MAX):
            result = _sound(migrate.look(), path)
            if result.state is State.CURRENT:
                break
            if _apply(migrate, result.pending[0]):
                applied.append(result.pending[0])
        else:
            raise StateError(f"{path} is not up to date after {_TURNS_MAX} tries.", hint="Start once more.")
        if applied:
            events.emit("control_upgraded", database=str(path), scripts=applied)
        return cls(path)

    @staticmethod
    def examine(settings: Settings) -> ControlStatus:
        """How it stands, without any effect; refused where `open` would refuse it."""
        path = path_of(settings)
        result = _sound(_migrate(path, SystemClock()).look(), path)
        return ControlStatus(
            path=path, exists=path.exists(), applied=tuple(result.applied), pending=tuple(result.pending)
        )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction that may write, with foreign keys enforced: committed at the end, rolled back by an error."""
        with writing(self.path) as connection:
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            # Closing rolls back what is not committed.
            yield connection
            connection.execute("COMMIT")


def path_of(settings: Settings) -> Path:
    """The file that the settings name."""
    kind, _, rest = settings.control_url.get_secret_value().partition(":")
    if kind in ("postgres", "postgresql"):
        raise StorageUnsupportedError(
            "A control database in PostgreSQL comes with tenants, and is not supported yet.",
            hint="Set CATCHMENT_CONTROL_DB=sqlite:PATH, or leave it out.",
        )
    if kind != "sqlite" or not rest:
        raise SettingsError("CATCHMENT_CONTROL_DB is not of the form `sqlite:PATH`.")
    return Path(rest)


def _migrate(path: Path, clock: Clock) -> Migrate:
    # The scripts are the package's: nothing is written back among them.
    return Migrate(Engine(path, scripts=SCRIPTS, clock=clock), MODELS, edits_scripts=False, clock=clock)


def _apply(migrate: Migrate, filename: str) -> bool:
    """Apply the script; False where another process has done so meanwhile."""
    try:
        migrate.apply(filename)
    except StateError:
        if filename in migrate.look().pending:
            raise
        return False
    return True


def _sound(result: CheckResult, path: Path) -> CheckResult:
    """See that what is there is ours, and not newer than we are."""
    is_empty = len(result.model_diff.missing) == len(MODELS) and not result.model_diff.extra
    if not result.applied and not is_empty:
        raise StateError(
            f"{path} holds tables and is no control database of Catchment.",
            hint="Set CATCHMENT_CONTROL_DB to another file, or leave it out.",
        )
    if result.missing:
        raise StateError(
            f"{path} was written by a newer Catchment: this one does not know {', '.join(result.missing)}.",
            hint=f"Install that version again, or restore a backup from {path}.bak.",
            unknown=result.missing,
        )
    if result.state in (State.ERROR, State.DIVERGED, State.DRIFT):
        raise StateError(
            f"{path} is not what this Catchment expects ({result.state.name}): {'; '.join(_reasons(result))}.",
            hint=f"Was it changed by hand, or by a version that was never released? Backups are in {path}.bak.",
            state=result.state.value,
        )
    return result


def _reasons(result: CheckResult) -> list[str]:
    differs = [f"{filename} is not the script that was applied" for filename in result.divergent]
    return [*result.errors, *differs] or list(result.model_diff.describe())
