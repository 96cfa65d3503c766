"""`Migrate`: brings a database to what its models say, script by script.

Steps are guarded: they look how things stand, under the lock, and are refused by a `StateError` if `ALLOWED` does not
have them. Only a restore is taken in every state, because it keeps what it replaces as a backup. The state is never
kept; it is derived from scripts, records and models each time (`schema.check`).
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
        """Subjects that the script leaves for a person to decide."""
        return undecided_in(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    folder: Folder
    observed: Observed
    result: CheckResult

    @property
    def number_last(self) -> int:
        """The highest number that a script or a record has."""
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
        """With `edits_scripts` off, `check` leaves the folder alone: for scripts that are shipped in a package."""
        self._database = engine
        self._models = tuple(models)
        self._edits_scripts = edits_scripts
        self._clock = clock or SystemClock()

    @property
    def database(self) -> Database:
        """The database that is migrated."""
        return self._database

    def look(self) -> CheckResult:
        """How things stand, without any effect: deleted scripts are only told of."""
        return self._facts(self._database).result

    def check(self) -> CheckResult:
        """How things stand. The database is only read; in the folder of scripts, what can be put right is.

        A deleted script that was applied is written back as it was recorded. A script that differs from its record
        gets a warning at its top where there is no reference to restore, and loses it when it is as recorded again.
        """
        facts = self._facts(self._database)
        if not self._edits_scripts or not any(edits(facts.folder, facts.observed.history, facts.result)):
            return facts.result
        with self._database.locked():
            return self._mended().result

    def apply(self, filename: str) -> None:
        """Run the next pending script: backup first, then script and record in one transaction."""
        with self._database.locked():
            facts = self._mended()
            self._require("apply", facts.result)
            script = self._next(filename, facts)
            script.refuse_undecided()
            backup = self._database.backup(BackupKind.PRE, script.number)
            faults.reach("schema.after_backup")
            try:
                self._database.apply(script)
            except CatchmentError as error:
                self._mend(error, backup)
                raise
        events.emit(
            "script_applied",
            database=self._database.name,
            version=script.number,
            script=script.filename,
            backup=backup.name,
        )

    def next_scripts(self, filename: str | None = None) -> list[str]:
        """The scripts that are pending; refused where `apply`, of this one if it is named, would be; without effect."""
        facts = self._facts(self._database)
        self._require("apply", facts.result)
        if filename is not None:
            self._next(filename, facts)
        return facts.result.pending

    def generate(self) -> Path | None:
        """Write the next script, from what differs between the models and the database; None if nothing does."""
        with self._database.locked():
            script = self._draft(self._mended())
            if script is None:
                return None
            path = self._write(script.filename, script.text)
        database = self._database.name
        events.emit("script_generated", database=database, version=script.number, script=script.filename)
        return path

    def drops(self) -> tuple[str, ...]:
        """Tables and columns in no model that hold rows, and that a script would drop unasked; without any effect.

        What may have been renamed is not among them: a script asks about that.
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
        """What `generate` would write, None included; refused if that would be, and without any effect."""
        return self._draft(self._facts(self._database))

    def restore(self, backup: str | None = None) -> None:
        """Put the reference back, or any backup by its name, in whatever state; what was there is kept as a backup.

        A `BackupMissingError` if there is no such backup, or no reference.
        """
        with self._database.locked():
            self._database.restore(backup)
        events.emit("database_restored", database=self._database.name, backup=backup or "reference")

    def preview_restore(self, backup: str | None = None) -> Backup | None:
        """What `restore` would put back, None for the reference; refused if that would be, and without effect."""
        if backup is None and self._database.has_reference():
            return None
        # By its whole name, or by what stands before the database's.
        names = (backup, f"{backup}.{Path(self._database.name).name}.bak")
        found = next((each for each in self.backups() if each.name in names), None)
        if found is None:
            known = ", ".join(each.name for each in self.backups()) or "none"
            wanted = "reference to restore" if backup is None else f"backup {backup}"
            raise BackupMissingError(f"There is no {wanted} of {self._database.name}.", hint=f"Backups: {known}.")
        return found

    def backup(self) -> Backup:
        """Make a backup now, whatever the state."""
        with self._database.locked():
            history = self._database.observe().history
            return self._database.backup(BackupKind.MANUAL, history[-1].number if history else 0)

    def backups(self) -> tuple[Backup, ...]:
        """The backups that can be restored, newest first."""
        return self._database.backups()

    def rehearse(self) -> Rehearsal:
        """Try all scripts that are pending on a copy of the reference.

        Of the database, where there is no reference, or where that has all of them already.
        """
        with self._database.rehearsal() as trial:
            facts = self._facts(trial)
            # The state that counts is that of what it is tried on.
            name = self._database.name
            copied = f"what {name} is rehearsed on" if self._database.has_reference() else name
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

    def _mended(self) -> _Facts:
        """How things stand, once the folder is put right; the caller holds the lock."""
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
                hint=f"Allowed now: {' or '.join(allowed) or 'nothing'}. To go on: {result.next_step()}.",
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

    def _mend(self, error: CatchmentError, backup: Backup) -> None:
        """After a failure: put the backup back where the database is damaged, and say there is one otherwise.

        What differs from before in a sound database was committed by others: the script itself was rolled back.
        """
        if isinstance(self._database, Replaceable) and self._database.is_damaged():
            self._database.restore(backup.name)
            error.hint = f"The database was damaged, and is {backup.name} again."
        else:
            error.hint = " ".join([*([error.hint] if error.hint else []), f"The backup before it is {backup.name}."])

    def _write(self, filename: str, text: str) -> Path:
        """Put a script in its place, whole or not at all."""
        folder = self._database.scripts
        files.make_folder(folder)
        part = folder / f".{filename}.part"
        files.write_text(part, text)
        faults.reach("schema.before_script")
        files.move(part, folder / filename)
        files.sync_folder(folder)
        return folder / filename
