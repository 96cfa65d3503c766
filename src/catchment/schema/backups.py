"""Backups of a SQLite file, such as `mydb.sqlite.bak/pre_003.mydb.sqlite.bak`.

They are made and restored by SQLite's backup API. A backup never replaces another one. If its name
is taken, which happens when a script is applied again after a restore, it becomes
`pre_003.2.mydb.sqlite.bak`; if the newest backup of that number has the same bytes, that one is
used. The newest of each kind are kept, so that automatic backups do not displace requested ones.

A restore writes into the database file itself, in one SQLite transaction: a process that has it
open sees the old content or the new one, the journal of a killed restore rolls back to the old
content, and no old journal can end up next to a new file.
"""

import filecmp
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from catchment.errors import BackupMissingError, CorruptInputError, LockTimeoutError
from catchment.foundation import faults, files
from catchment.schema.migratable import Backup, BackupKind
from catchment.schema.scripts import label
from catchment.schema.sqlite_files import JOURNALS, reading, writing

KEEP = 10
_PART = ".part"
_PAGES = 64
_REFUSED_MAX = 4
_REFUSED_WAIT_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupName:
    """The name of a backup; `turn` counts backups of the same kind and number, from one."""

    kind: BackupKind
    number: int
    turn: int
    database: str

    @classmethod
    def parse(cls, filename: str, database: str) -> "BackupName | None":
        """Parse a file name; return None if it is not the name of a backup of that database."""
        found = re.fullmatch(rf"([a-z]+)_([0-9]{{3,}})(?:\.([0-9]+))?\.{re.escape(database)}\.bak", filename)
        if found is None or found[1] not in list(BackupKind):
            return None
        return cls(kind=BackupKind(found[1]), number=int(found[2]), turn=int(found[3] or 1), database=database)

    @property
    def short(self) -> str:
        return f"{self.kind}_{label(self.number)}" + (f".{self.turn}" if self.turn > 1 else "")

    def __str__(self) -> str:
        return f"{self.short}.{self.database}.bak"


class Backups:
    """The backups of a database file. Callers that make or restore one hold the database's lock."""

    def __init__(self, database: Path, *, keep: int = KEEP) -> None:
        self.folder = database.with_name(f"{database.name}.bak")
        self._database = database
        self._keep = max(keep, 1)

    def all(self) -> tuple[Backup, ...]:
        """Return all backups, newest first."""
        found = sorted(self._found(), key=lambda each: (_age_key(each[0]), each[1].number, each[1].turn), reverse=True)
        return tuple(_backup(path, name) for path, name in found)

    def find(self, name: str) -> Path:
        """Return the file of a backup, by its whole name or by the part before the database's name."""
        for path, parsed in self._found():
            if name in (str(parsed), parsed.short):
                return path
        known = ", ".join(backup.name for backup in self.all()) or "none"
        raise BackupMissingError(
            f"There is no backup {name} of {self._database}.", hint=f"Backups: {known}.", name=name
        )

    def make(self, kind: BackupKind, number: int, *, write: Callable[[Path], None] | None = None) -> Backup:
        """Copy the database as it is at this moment, without blocking its writers.

        `write` writes the content of the backup into a file, if it is not a copy of a SQLite file.
        """
        files.make_folder(self.folder)
        for left in self.folder.glob(f"*{_PART}*"):
            files.remove(left)
        turns = {name.turn: path for path, name in self._found() if (name.kind, name.number) == (kind, number)}
        last = max(turns, default=0)
        name = BackupName(kind=kind, number=number, turn=last + 1, database=self._database.name)
        part = self.folder / f"{name}{_PART}"
        (write or (lambda target: copy(self._database, target)))(part)
        if last and filecmp.cmp(turns[last], part, shallow=False):
            files.remove(part)
            turns[last].touch()
            return _backup(turns[last], BackupName(kind=kind, number=number, turn=last, database=name.database))
        files.sync_file(part)
        faults.reach("schema.before_backup")
        files.move(part, self.folder / str(name))
        files.sync_folder(self.folder)
        return _backup(self.folder / str(name), name)

    def quarantine(self, *, stamp: str) -> Path:
        """Move a damaged database and its journals into the backup folder; never pruned."""
        files.make_folder(self.folder)
        target = self.folder / f"damaged_{stamp}.{self._database.name}"
        # The journals first: one left in place could be mistaken for the journal of the next
        # database.
        for suffix in (*JOURNALS, "-shm", ""):
            path = self._database.with_name(self._database.name + suffix)
            if path.exists():
                files.move(path, target.with_name(target.name + suffix))
        files.sync_folder(self.folder)
        files.sync_folder(self._database.parent)
        return target

    def prune(self) -> None:
        """Remove the oldest backups of each kind beyond the number to keep."""
        for kind in BackupKind:
            for backup in [each for each in self.all() if each.kind is kind][self._keep :]:
                files.remove(self.folder / backup.name)

    def _found(self) -> Iterator[tuple[Path, BackupName]]:
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            name = BackupName.parse(path.name, self._database.name)
            if name is not None:
                yield path, name


def copy(source: Path, target: Path, *, is_frozen: bool = False, on_step: Callable[[], None] = lambda: None) -> None:
    """Make `target` a copy of the database `source`, in one transaction.

    A missing source counts as empty. If `is_frozen`, no process writes to the source. `on_step` is
    called after every few pages.
    """
    refused = 0

    def step(status: int, _remaining: int, _total: int) -> None:
        nonlocal refused
        # Python itself would retry forever.
        refused += status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if refused > _REFUSED_MAX:
            raise LockTimeoutError(f"{target} is in use by another connection.", path=str(target))
        on_step()

    with reading(source, is_frozen=is_frozen) as from_, writing(target) as to:
        _refuse_damaged(source, from_)
        journal = _make_room_for_pages(from_, to)
        from_.backup(to, pages=_PAGES, progress=step, sleep=_REFUSED_WAIT_S)
        if journal is not None:
            to.execute(f"PRAGMA journal_mode = {journal}")


def refuse_damaged(source: Path, *, is_frozen: bool = True) -> None:
    """Raise CorruptInputError if the file is not a sound database."""
    with reading(source, is_frozen=is_frozen) as connection:
        _refuse_damaged(source, connection)


def _refuse_damaged(source: Path, connection: sqlite3.Connection) -> None:
    flaws = [text for (text,) in connection.execute("PRAGMA quick_check(1)") if text != "ok"]
    if flaws:
        raise CorruptInputError(f"{source} is damaged: {flaws[0]}.", path=str(source))


def _make_room_for_pages(source: sqlite3.Connection, target: sqlite3.Connection) -> str | None:
    """Leave WAL mode if the page sizes differ; return the journal mode to return to, or None.

    SQLite cannot write pages of another size to a WAL.
    """
    mode: str = target.execute("PRAGMA journal_mode").fetchone()[0]
    sizes = [each.execute("PRAGMA page_size").fetchone()[0] for each in (source, target)]
    if mode != "wal" or sizes[0] == sizes[1]:
        return None
    target.execute("PRAGMA journal_mode = DELETE")
    return mode


def _age_key(path: Path) -> int:
    return path.stat().st_mtime_ns


def _backup(path: Path, name: BackupName) -> Backup:
    facts = path.stat()
    made_at = datetime.fromtimestamp(facts.st_mtime, UTC)
    return Backup(name=str(name), kind=name.kind, number=name.number, made_at=made_at, bytes=facts.st_size)
