"""Folders of an import on disk. The folder is the state, and a rename is the transition.

    data/ ──prepare──▶ migration/migrating/ ──a leaf is delivered──▶ migration/migrated/
                                            ──finalize: the rest, the marker last──▶

The position of the marker (`tailpipe.db`, or the journal for a tree without one) is the state of
the whole import. The journal records facts that the folders cannot show: a move between file
systems in progress, the tables that the import created, and an undo.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from catchment.errors import InputError, InvariantError
from catchment.foundation import files

DATABASE = "tailpipe.db"
# The database last: as long as it has not moved, neither has the tree.
DATABASE_FILES = (f"{DATABASE}.wal", DATABASE)


class ImportPhase(StrEnum):
    """Progress of an import."""

    NOTHING = "nothing"  # neither data nor an import
    READY = "ready"  # the tree is where it was written
    IMPORTING = "importing"  # the tree has moved; leaves are moved one by one
    DONE = "done"  # everything is in the lake and in the backup
    UNDOING = "undoing"  # an undo was started and not finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportJournal:
    """State that an import keeps between two runs.

    `preparing` is set while the tree moves. `tables_made` are the tables that the import created,
    by name and uuid; `making` names a commit that creates tables, from before it until its tables
    are in `tables_made`. `quarantined` are the quarantined files, by leaf. `lake` identifies the
    target lake. An undo records in `dropping` which tables it drops, by name and uuid.
    """

    preparing: bool = False
    undoing: bool = False
    done: bool = False
    tables_made: Mapping[str, str] = field(default_factory=dict)
    making: str = ""
    quarantined: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lake: str = ""
    dropping: Mapping[str, str] = field(default_factory=dict)

    def has_made(self, table: str, uuid: str) -> bool:
        """Return whether the import created this table; old journals have only names."""
        return self.tables_made.get(table) in (uuid, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFolders:
    """The folders of one import. The position of file `marker`, or of the journal, is the state."""

    data: Path
    migration: Path
    workspace: str = ""
    marker: str = DATABASE

    @classmethod
    def tailpipe(cls, home: Path, workspace: str | None = None) -> "ImportFolders":
        """Return the folders of a Tailpipe home; without `workspace`, find the only one."""
        home = home.expanduser().absolute()
        found = workspace if workspace is not None else _only_workspace(home)
        return cls(data=home / "data" / found, migration=home / "migration", workspace=found)

    @classmethod
    def tree(cls, folder: Path) -> "ImportFolders":
        """Return the folders of a tree that no program's database describes."""
        folder = folder.expanduser().absolute()
        return cls(data=folder, migration=folder.with_name(f"{folder.name}.migration"), marker="")

    @property
    def migrating(self) -> Path:
        return self.migration / "migrating" / self.workspace

    @property
    def migrated(self) -> Path:
        return self.migration / "migrated" / self.workspace

    @property
    def lock(self) -> Path:
        return self.migration / "import.lock"

    @property
    def log(self) -> Path:
        return self.migration / "migration.log"

    @property
    def report(self) -> Path:
        return self._named("report")

    @property
    def journal_path(self) -> Path:
        return self._named("import")

    def _named(self, stem: str) -> Path:
        return self.migration / f"{stem}{f'-{self.workspace}' if self.workspace else ''}.json"

    def journal(self) -> ImportJournal:
        """Read the journal of the last run; an empty one if there was none."""
        return _read_journal(self.journal_path)

    def earlier(self) -> Iterator[tuple[Path, ImportJournal]]:
        """Yield the backups of earlier imports, the oldest first, each with its journal."""
        for folder in sorted((self.migration / "earlier").glob("*")):
            if (folder / self.workspace).is_dir():
                note = folder.with_name(f"{folder.name}-{self.journal_path.name}")
                yield folder / self.workspace, _read_journal(note)

    def note(self, **changes: object) -> ImportJournal:
        """Change fields of the journal durably, and return it."""
        journal = replace(self.journal(), **changes)  # type: ignore[arg-type]
        files.make_folder(self.migration)
        files.replace_text(self.journal_path, json.dumps(asdict(journal), indent=1))
        return journal

    def forget(self) -> None:
        """Remove the journal, as if nothing had been imported."""
        files.remove(self.journal_path)

    def phase(self) -> ImportPhase:
        """Return the state, as read from the disk. Raises InputError if it is ambiguous."""
        journal = self.journal()
        if journal.undoing:
            return ImportPhase.UNDOING
        before, during = self._is_marked(self.data), self._is_marked(self.migrating, any_entry=True)
        # Within a file system the move is one rename, so data in both folders means that some
        # arrived later.
        is_copying = journal.preparing and not files.same_device(self.data, self.migrating)
        if before and during and not is_copying:
            raise InputError(
                f"{self._name} is both in {self.data} and in {self.migrating}.",
                hint=f"An import was interrupted, and data was collected since. Move {self.data} away, run "
                "`catchment legacy run` to finish the first, then move it back and run again.",
            )
        if before:
            return ImportPhase.READY
        if during:
            return ImportPhase.IMPORTING
        return (
            ImportPhase.DONE if journal.done or self._is_marked(self.migrated, any_entry=True) else ImportPhase.NOTHING
        )

    @property
    def root(self) -> Path:
        """The folder of leaves that are not imported yet."""
        return self.data if self.phase() is ImportPhase.READY else self.migrating

    @property
    def _name(self) -> str:
        return self.marker or "a tree to import"

    def _is_marked(self, folder: Path, *, any_entry: bool = False) -> bool:
        if self.marker:
            return (folder / self.marker).is_file()
        return any(any_entry or each.is_file() for each in folder.rglob("*" if any_entry else "*.parquet"))


def _read_journal(path: Path) -> ImportJournal:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        made = facts.get("tables_made", {})
        # Earlier versions recorded names only.
        return ImportJournal(**{**facts, "tables_made": made if isinstance(made, dict) else dict.fromkeys(made, "")})
    except FileNotFoundError:
        return ImportJournal()
    except (ValueError, TypeError, AttributeError) as error:
        raise InvariantError(f"{path} cannot be read: {error}") from None


def _only_workspace(home: Path) -> str:
    """Return the only workspace with data; empty if the data folder itself has the database."""
    folders = (home / "data", home / "migration" / "migrating", home / "migration" / "migrated")
    for folder in folders:
        found = sorted(set(_marked_below(folder)))
        if (folder / DATABASE).is_file():
            if found:
                raise InputError(
                    f"{folder} has {DATABASE}, and so do its subfolders {', '.join(found)}.",
                    hint="Name the workspace with --workspace; `--workspace ''` means the folder itself.",
                )
            return ""
        if len(found) > 1:
            raise InputError(
                f"{folder} has several workspaces: {', '.join(found)}.",
                hint="Import them one by one, with --workspace.",
            )
        if found:
            return found[0]
    return ""


def _marked_below(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        yield from (each.name for each in folder.iterdir() if (each / DATABASE).is_file())
