"""Repeatable moves of the tree: into `migrating/`, leaf by leaf into `migrated/`, and back.

Within a file system a move is one rename. Between two it is copy, verify, remove; the marker is
moved last, so that the import stays in its old state until everything else has arrived.
"""

from pathlib import Path

from catchment.errors import InputError
from catchment.foundation import faults, files
from catchment.pipeline.legacy.folders import DATABASE_FILES, ImportFolders


def prepare(folders: ImportFolders) -> None:
    """Move the whole tree into `migrating/`, and leave an empty folder in its place."""
    if not folders.journal().preparing:
        _archive_earlier_backup(folders)
        folders.note(preparing=True, done=False, tables_made={}, making="", quarantined={})
    faults.reach("legacy.before_prepare")
    files.make_folder(folders.migrating.parent)
    data = _real(folders.data)
    if data.exists():
        move_tree(data, folders.migrating)
    faults.reach("legacy.after_move")
    files.make_folder(data)
    files.sync_folder(data.parent)
    files.sync_folders_up([folders.migrating], to=folders.migration)
    folders.note(preparing=False)


def retire(folders: ImportFolders, leaf: str) -> None:
    """Move a delivered leaf into the backup. Not synced: the ledger has it if the move is lost."""
    source, target = folders.migrating / leaf, folders.migrated / leaf
    if source.exists():
        files.make_folder(target.parent)
        move_tree(source, target)


def finalize(folders: ImportFolders) -> None:
    """Move everything that is left into the backup, the marker last, until `migrating/` is empty."""
    faults.reach("legacy.before_finalize")
    if folders.migrating.exists():
        files.make_folder(folders.migrated.parent)
        move_tree(folders.migrating, folders.migrated)
    finish(folders)


def finish(folders: ImportFolders) -> None:
    """Complete the import once the marker is in the backup; may be repeated after a crash."""
    files.remove_empty_folders(folders.migrating)
    _sync_tree(folders.migrated, to=folders.migration)
    faults.reach("legacy.after_finalize")
    folders.note(done=True)


def put_back(folders: ImportFolders) -> None:
    """Move everything back to its original folder, the marker last."""
    data = _real(folders.data)
    for source in (folders.migrated, folders.migrating):
        if source.exists():
            move_tree(source, data)
    _sync_tree(data, to=data.parent)


def move_tree(source: Path, target: Path) -> None:
    """Move a folder with all its contents; merge it with the result of an earlier attempt."""
    if _is_empty_folder(target) and not target.is_mount():
        target.rmdir()
    if not target.exists():
        if files.move_within(source, target):
            return
        files.make_folder(target)
    for entry in sorted(source.iterdir(), key=lambda each: _rank(each.name)):
        if entry.is_dir() and not entry.is_symlink():
            move_tree(entry, target / entry.name)
        else:
            _move_file(entry, target / entry.name)
        faults.reach("legacy.between_moves")
    files.remove_empty_folders(source)


def _rank(name: str) -> tuple[int, str]:
    # The database is moved after its own log, which has the last commits, and both after everything
    # else.
    return (DATABASE_FILES.index(name) + 1 if name in DATABASE_FILES else 0, name)


def _archive_earlier_backup(folders: ImportFolders) -> None:
    """Move the backup of an earlier import into a separate folder, to make room for this one's."""
    # A process that was killed at the very end may have left the folder.
    files.remove_empty_folders(folders.migrating)
    if folders.migrated.exists() and any(folders.migrated.iterdir()) and not folders.migrating.exists():
        earlier = folders.migration / "earlier"
        files.make_folder(earlier)
        number = next(n for n in range(1, 1_000_000) if not (earlier / f"{n:03d}" / folders.workspace).exists())
        files.make_folder((earlier / f"{number:03d}" / folders.workspace).parent)
        # The journal is kept with it: verification needs to know which files were quarantined.
        note = folders.journal_path.read_text(encoding="utf-8")
        files.replace_text(earlier / f"{number:03d}-{folders.journal_path.name}", note)
        files.move(folders.migrated, earlier / f"{number:03d}" / folders.workspace)


def _move_file(source: Path, target: Path) -> None:
    if target.exists() or target.is_symlink():
        if files.content_hash(source) != files.content_hash(target):
            raise InputError(
                f"{target} already exists, and its content differs from {source}.",
                hint="Move one of them away, then run the command again.",
            )
        files.remove(source)
    elif not files.move_within(source, target):
        files.copy_checked(source, target)
        files.sync_folder(target.parent)
        files.remove(source)


def _real(path: Path) -> Path:
    """Return the folder's real path: a link to it stays in place."""
    return Path(files.real_path(str(path)))


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _sync_tree(folder: Path, *, to: Path) -> None:
    """Make the renames of a whole tree durable."""
    below = (each for each in folder.rglob("*") if each.is_dir() and not each.is_symlink())
    files.sync_folders_up([folder, *below], to=to)
