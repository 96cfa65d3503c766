"""`Migrate`: brings a database to the structure of its models, script by script.

Steps are guarded: they determine the state, under the lock, and raise StateError if `ALLOWED` does
not list them for it. Only a restore is allowed in every state, because it keeps the replaced
content as a backup. The state is never stored; it is derived from scripts, records and models each
time (`schema.check`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from catchment.errors import BackupMissingError, CatchmentError, StateError
from catchment.foundation import events, faults, files
from catchment.foundation.clock import Clock, SystemClock
from catchment.schema.check import CheckResult, State, edits, examine
from catchment.schema.diff import diff
from catchment.schema.migratable import Backup, BackupKind, Database, Observed, Replaceable
from catchment.schema.models import TableRow
from catchment.schema.rehearse import Rehearsal, rehearse
from catchment.schema.scripts import Folder, Script, ScriptName, read_folder, undecided_in

ALLOWED: dict[State, tuple[str, ...]] = {
    State.ERROR: ("restore",),
    State.DIVERGED: ("restore",),
    State.PENDING: ("apply", "rehearse", "restore"),
    State.DRIFT: ("generate", "restore"),
    State.CURRENT: ("restore",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A script that `generate` would write."""

    number: int
    filename: str
    text: str

    @property
    def undecided(self) -> list[str]:
        """Open decisions of the script."""
        return undecided_in(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    folder: Folder
    observed: Observed
    result: CheckResult

    @property
    def number_last(self) -> int:
        """The highest number of a script or a record."""
        return max([*self.folder.numbers, *(record.number for record in self.observed.history)], default=0)


class Migrate:
    """The migrations of one database towards one set of models."""

    def __init__(
        self,
        engine: Database,
        models: Sequence[type[TableRow]],
        *,
        edits_scripts: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Without `edits_scripts`, `check` does not change the folder: for scripts in a package."""
        self._database = engine
        self._models = tuple(models)
        self._edits_scripts = edits_scripts
        self._clock = clock or SystemClock()

    @property
    def database(self) -> Database:
        """The database that is migrated."""
        return self._database

    def look(self) -> CheckResult:
        """Return the state without side effects: deleted scripts are only reported."""
        return self._facts(self._database).result

    def check(self) -> CheckResult:
        """Return the state, and repair the folder of scripts; the database is only read.

        A deleted script that was applied is written back from its record. A script that differs
        from its record gets a warning at its top if there is no reference to restore, and loses it
        when it matches the record again.
        """
        facts = self._facts(self._database)
        if not self._edits_scripts or not any(edits(facts.folder, facts.observed.history, facts.result)):
            return facts.result
        with self._database.locked():
            return self._repaired().result

    def apply(self, filename: str) -> None:
        """Run the next pending script: backup first, then script and record in one transaction."""
        with self._database.locked():
            facts = self._repaired()
            self._require("apply", facts.result)
            script = self._next(filename, facts)
            script.refuse_undecided()
            backup = self._database.backup(BackupKind.PRE, script.number)
            faults.reach("schema.after_backup")
            try:
                self._database.apply(script)
            except CatchmentError as error:
                self._recover(error, backup)
                raise
        events.emit(
            "script_applied",
            database=self._database.name,
            version=script.number,
            script=script.filename,
            backup=backup.name,
        )

    def next_scripts(self, filename: str | None = None) -> list[str]:
        """Return the pending scripts, or raise as `apply` would, for `filename` if given."""
        facts = self._facts(self._database)
        self._require("apply", facts.result)
        if filename is not None:
            self._next(filename, facts)
        return facts.result.pending

    def generate(self) -> Path | None:
        """Write the next script from differences between models and database, if there are any."""
        with self._database.locked():
            script = self._draft(self._repaired())
            if script is None:
                return None
            path = self._write(script.filename, script.text)
        database = self._database.name
        events.emit("script_generated", database=database, version=script.number, script=script.filename)
        return path

    def drops(self) -> tuple[str, ...]:
        """Return tables and columns with rows that are in no model, and that a script would drop.

        Candidates for a rename are not included: a script leaves those open.
        """
        difference = self._facts(self._database).result.model_diff
        rows = self._database.row_counts()
        maybe = {candidate.old for candidate in difference.renames}
        found = [(table.name, table.name) for table in difference.extra if table.name not in maybe]
        for table in difference.tables:
            if not table.renames:
                found += [(table.table, f"{table.table}.{column.name}") for column in table.dropped]
        return tuple(name for table, name in found if rows.get(table))

    def preview(self) -> Preview | None:
        """Return the script that `generate` would write, or raise as it would."""
        return self._draft(self._facts(self._database))

    def restore(self, backup: str | None = None) -> None:
        """Restore the reference, or a backup by its name, after a backup of the current content.

        Allowed in any state. Raises BackupMissingError if there is no such backup, or no reference.
        """
        with self._database.locked():
            self._database.restore(backup)
        events.emit("database_restored", database=self._database.name, backup=backup or "reference")

    def preview_restore(self, backup: str | None = None) -> Backup | None:
        """Return the backup that `restore` would use, None for the reference, or raise like it."""
        if backup is None and self._database.has_reference():
            return None
        # By its whole name, or by the part before the database's.
        names = (backup, f"{backup}.{Path(self._database.name).name}.bak")
        found = next((each for each in self.backups() if each.name in names), None)
        if found is None:
            known = ", ".join(each.name for each in self.backups()) or "none"
            wanted = "reference to restore" if backup is None else f"backup {backup}"
            raise BackupMissingError(f"There is no {wanted} of {self._database.name}.", hint=f"Backups: {known}.")
        return found

    def backup(self) -> Backup:
        """Make a backup now, in any state."""
        with self._database.locked():
            history = self._database.observe().history
            return self._database.backup(BackupKind.MANUAL, history[-1].number if history else 0)

    def backups(self) -> tuple[Backup, ...]:
        """Return the backups that can be restored, newest first."""
        return self._database.backups()

    def rehearse(self) -> Rehearsal:
        """Try all pending scripts on a copy of the reference.

        It is a copy of the database if there is no reference, or if that already has all scripts.
        """
        with self._database.rehearsal() as trial:
            facts = self._facts(trial)
            # Require the state of the copy, not that of the database.
            name = self._database.name
            copied = f"the copy on which {name} is rehearsed" if self._database.has_reference() else name
            self._require("rehearse", facts.result, of=copied)
            by_name = {script.filename: script for script in facts.folder.scripts}
            tried = rehearse(trial, [by_name[filename] for filename in facts.result.pending], clock=self._clock)
            return replace(tried, after=self._facts(trial).result)

    def _facts(self, database: Database) -> _Facts:
        folder = read_folder(database.scripts)
        observed = database.observe()
        expected = database.expected(self._models)
        managed = database.managed(observed, expected)
        result = examine(
            folder,
            observed.history,
            diff(expected, managed),
            has_reference=database.has_reference(),
            reference=observed.reference,
            unmanaged=[table.name for table in observed.structure.tables if managed.find(table.name) is None],
        )
        return _Facts(folder=folder, observed=observed, result=result)

    def _repaired(self) -> _Facts:
        """Return the facts after the folder is repaired; the caller holds the lock."""
        facts = self._facts(self._database)
        if not self._edits_scripts:
            return facts
        written_back: list[str] = []
        for edit in edits(facts.folder, facts.observed.history, facts.result):
            self._write(edit.filename, edit.text)
            written_back += [edit.filename] if edit.is_new else []
        facts = self._facts(self._database)
        return replace(facts, result=replace(facts.result, written_back=written_back))

    def _draft(self, facts: _Facts) -> Preview | None:
        if facts.result.state is State.CURRENT:
            return None
        self._require("generate", facts.result)
        draft = self._database.draft(self._database.expected(self._models))
        if draft is None:
            return None
        name = ScriptName(number=facts.number_last + 1, slug=draft.slug)
        return Preview(number=name.number, filename=str(name), text=draft.text)

    def _require(self, step: str, result: CheckResult, *, of: str | None = None) -> None:
        allowed = ALLOWED[result.state]
        if step not in allowed:
            raise StateError(
                f"{step} is not allowed while the state of {of or self._database.name} is {result.state.name}.",
                hint=f"Allowed now: {' or '.join(allowed) or 'nothing'}. Next: {result.next_step()}.",
                state=result.state.value,
                wanted=step,
                allowed=list(allowed),
            )

    def _next(self, filename: str, facts: _Facts) -> Script:
        following = facts.result.pending[0]
        if filename != following:
            raise StateError(
                f"apply {filename} is not allowed: the next script of {self._database.name} is {following}.",
                hint=f"Allowed now: apply {following}.",
                state=facts.result.state.value,
                wanted=f"apply {filename}",
                allowed=[f"apply {following}"],
            )
        return next(script for script in facts.folder.scripts if script.filename == following)

    def _recover(self, error: CatchmentError, backup: Backup) -> None:
        """Restore the backup if the database is damaged, otherwise name it in the error's hint.

        Differences in a sound database were committed by other processes: the script itself was
        rolled back.
        """
        if isinstance(self._database, Replaceable) and self._database.is_damaged():
            self._database.restore(backup.name)
            error.hint = f"The database was damaged, and was restored from {backup.name}."
        else:
            error.hint = " ".join([*([error.hint] if error.hint else []), f"The backup before it is {backup.name}."])

    def _write(self, filename: str, text: str) -> Path:
        """Write a script atomically."""
        folder = self._database.scripts
        files.make_folder(folder)
        part = folder / f".{filename}.part"
        files.write_text(part, text)
        faults.reach("schema.before_script")
        files.move(part, folder / filename)
        files.sync_folder(folder)
        return folder / filename
