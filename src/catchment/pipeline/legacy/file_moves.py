"""Moving the tree: into `migrating/`, leaf by leaf into `migrated/`, and back. Every move can be begun again.

Within a file system a move is one rename. Between two it is copy, verify, remove; the marker goes last, so that the
place stays in its old state until everything else has arrived.
"""

from pathlib import Path

from catchment.errors import InputError
from catchment.foundation import faults, files
from catchment.pipeline.legacy.folders import DATABASE_FILES, ImportFolders


def prepare(place: ImportFolders) -> None:
    """Move the whole tree into `migrating/`; an empty folder stays behind where it was."""
    if not place.journal().preparing:
        _set_earlier_aside(place)
        place.note(preparing=True, done=False, tables_made={}, making="", quarantined={})
    faults.reach("legacy.before_prepare")
    files.make_folder(place.migrating.parent)
    data = _real(place.data)
    if data.exists():
        carry(data, place.migrating)
    faults.reach("legacy.after_move")
    files.make_folder(data)
    files.sync_folder(data.parent)
    files.sync_folders_up([place.migrating], to=place.migration)
    place.note(preparing=False)


def retire(place: ImportFolders, leaf: str) -> None:
    """Move a delivered leaf into the backup. Not synced: should the move be lost, the ledger still has the leaf."""
    source, target = place.migrating / leaf, place.migrated / leaf
    if source.exists():
        files.make_folder(target.parent)
        carry(source, target)


def finalize(place: ImportFolders) -> None:
    """Move all that is left into the backup, the marker last, until `migrating/` is empty."""
    faults.reach("legacy.before_finalize")
    if place.migrating.exists():
        files.make_folder(place.migrated.parent)
        carry(place.migrating, place.migrated)
    finish(place)


def finish(place: ImportFolders) -> None:
    """What is left to do once the marker is in the backup, also for a process that was killed there."""
    files.remove_empty_folders(place.migrating)
    _sync_tree(place.migrated, to=place.migration)
    faults.reach("legacy.after_finalize")
    place.note(done=True)


def put_back(place: ImportFolders) -> None:
    """Move everything back to where it came from, the marker last."""
    data = _real(place.data)
    for source in (place.migrated, place.migrating):
        if source.exists():
            carry(source, data)
    _sync_tree(data, to=data.parent)


def carry(source: Path, target: Path) -> None:
    """Move a folder with everything in it; what an earlier attempt moved is merged with."""
    if _is_empty_folder(target) and not target.is_mount():
        target.rmdir()
    if not target.exists():
        if files.move_within(source, target):
            return
        files.make_folder(target)
    for entry in sorted(source.iterdir(), key=lambda each: _rank(each.name)):
        if entry.is_dir() and not entry.is_symlink():
            carry(entry, target / entry.name)
        else:
            _carry_file(entry, target / entry.name)
        faults.reach("legacy.between_moves")
    files.remove_empty_folders(source)


def _rank(name: str) -> tuple[int, str]:
    # The database comes after its own log, which holds what was committed last, and both after everything else.
    return (DATABASE_FILES.index(name) + 1 if name in DATABASE_FILES else 0, name)


def _set_earlier_aside(place: ImportFolders) -> None:
    """Make room for this import's backup: the one of an earlier import stays whole, in a folder of its own."""
    # A process that was killed at the very end may have left it.
    files.remove_empty_folders(place.migrating)
    if place.migrated.exists() and any(place.migrated.iterdir()) and not place.migrating.exists():
        earlier = place.migration / "earlier"
        files.make_folder(earlier)
        number = next(n for n in range(1, 1_000_000) if not (earlier / f"{n:03d}" / place.workspace).exists())
        files.make_folder((earlier / f"{number:03d}" / place.workspace).parent)
        # What the folders cannot tell goes along: the proof needs to know which files were set aside.
        note = place.journal_path.read_text(encoding="utf-8")
        files.replace_text(earlier / f"{number:03d}-{place.journal_path.name}", note)
        files.move(place.migrated, earlier / f"{number:03d}" / place.workspace)


def _carry_file(source: Path, target: Path) -> None:
    if target.exists() or target.is_symlink():
        if files.content_hash(source) != files.content_hash(target):
            raise InputError(
                f"{target} exists already, with another content than {source}.",
                hint="Move one of them away, then run the command again.",
            )
        files.remove(source)
    elif not files.move_within(source, target):
        files.copy_checked(source, target)
        files.sync_folder(target.parent)
        files.remove(source)


def _real(path: Path) -> Path:
    """Where the folder really is: a link to it stays where it was put."""
    return Path(files.real_path(str(path)))


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _sync_tree(folder: Path, *, to: Path) -> None:
    """Make the renames of a whole tree durable."""
    below = (each for each in folder.rglob("*") if each.is_dir() and not each.is_symlink())
    files.sync_folders_up([folder, *below], to=to)
