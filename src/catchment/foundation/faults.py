"""Crash points: named places between two effects where tests can kill or fail the process.

`reach` does nothing unless a test has armed the point. Every name is declared here, and every
declared name is both reached by the product and killed by the crash tests.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from catchment.errors import InvariantError


class CrashPoint(NamedTuple):
    """A crash point: the state when it is reached, and the recovery after a kill there."""

    reached: str
    after_kill: str


POINTS: dict[str, CrashPoint] = {
    "deliver.before_write": CrashPoint(
        "the staging folder exists; no task has started",
        "deliver again",
    ),
    "deliver.after_write": CrashPoint(
        "tasks have written their files; none is in its final folder",
        "deliver again; the files are orphans",
    ),
    "deliver.after_place": CrashPoint(
        "the files are in their final folder; the catalog does not list them",
        "deliver again; the files are orphans",
    ),
    "deliver.before_commit": CrashPoint(
        "all changes are in the open transaction; COMMIT was not sent",
        "deliver again; the files are orphans",
    ),
    "deliver.after_commit": CrashPoint(
        "the lake has the rows and the ledger records them; the caller has no answer",
        "the ledger skips the units; they are only retired",
    ),
    "retire.before_unit": CrashPoint(
        "the unit is delivered; its source is untouched",
        "only retire",
    ),
    "retire.between_inputs": CrashPoint(
        "one input of the unit's source is removed",
        "retire the rest",
    ),
    "retire.after_unit": CrashPoint(
        "the unit's source is removed; the next unit's is not",
        "retire the rest",
    ),
    "deliver.before_clean": CrashPoint(
        "every unit is retired; the staging folder still exists",
        "maintenance removes it",
    ),
    "ingest.after_write": CrashPoint(
        "a long stream's rows are in files in the table's folder; the catalog does not list them",
        "send again; the files are orphans",
    ),
    "ingest.after_commit": CrashPoint(
        "the lake has the stream's rows; the client has no answer",
        "nothing; a client that sends again stores them twice",
    ),
    "queue.before_ack": CrashPoint(
        "rows are about to be committed to the buffer or written to its journal",
        "the writer has no ack: write again",
    ),
    "queue.after_ack": CrashPoint(
        "rows are durable in the buffer; the writer has no answer",
        "they are flushed; a client that writes again stores them twice",
    ),
    "queue.after_settle": CrashPoint(
        "rows of the journal are committed to the buffer file; the journal still has them too",
        "their numbers are used already, so the journal's rows are skipped",
    ),
    "queue.after_stage": CrashPoint(
        "slices are staged as files; no task has read them",
        "flush again; maintenance removes the files",
    ),
    "queue.before_retire": CrashPoint(
        "the lake has the rows; their deletion from the buffer is not committed",
        "the ledger's watermark covers them: only delete",
    ),
    "queue.before_discard": CrashPoint(
        "the ledger records the rows as discarded; they are still buffered",
        "discard again: they are only deleted",
    ),
    "queue.after_retire": CrashPoint(
        "the rows are deleted from the buffer; the caller has no answer",
        "nothing",
    ),
    "queue.between_aside": CrashPoint(
        "a damaged buffer file is linked into quarantine; one of its original names is removed",
        "the next start quarantines the rest",
    ),
    "queue.before_seal": CrashPoint(
        "a session's file is closed and complete; it is still in the folder of active files",
        "an orphan: the next sweep seals it",
    ),
    "queue.after_seal": CrashPoint(
        "a session's file is sealed; no flush was requested",
        "it is flushed like any other",
    ),
    "queue.before_flushed": CrashPoint(
        "a session's file is marked as flushed; it is still in the folder of sealed files",
        "the next sweep moves it",
    ),
    "schema.before_backup": CrashPoint(
        "a copy of the database exists under a temporary name; the backup does not exist yet",
        "apply or restore again; the next backup removes the copy",
    ),
    "schema.after_backup": CrashPoint(
        "the backup exists; the script has not run",
        "apply again; the same backup is used",
    ),
    "schema.before_commit": CrashPoint(
        "script and record are in the open transaction; COMMIT was not sent",
        "SQLite rolls back; apply again",
    ),
    "schema.after_commit": CrashPoint(
        "the script is applied and recorded; the caller has no answer",
        "nothing: `check` reports it as applied",
    ),
    "schema.between_restore": CrashPoint(
        "some of the restored pages are in the open transaction",
        "SQLite rolls back; restore again",
    ),
    "schema.before_script": CrashPoint(
        "a script exists under a temporary name; its final name does not exist yet",
        "generate or check again",
    ),
    "legacy.before_prepare": CrashPoint(
        "the import is recorded; the legacy tree is still in its original place",
        "run again: it moves",
    ),
    "legacy.between_moves": CrashPoint(
        "part of the tree has moved, between two file systems or into an existing folder",
        "run again: the rest moves",
    ),
    "legacy.after_move": CrashPoint(
        "the legacy tree is in migrating/; the journal does not record it",
        "run again: the import continues",
    ),
    "legacy.after_tables": CrashPoint(
        "the lake has the import's empty tables; the journal does not record them",
        "run again: the commit's provenance tells which tables the import created",
    ),
    "legacy.before_finalize": CrashPoint(
        "every leaf is in the lake and in the backup; the rest is still in migrating/",
        "run again: it moves",
    ),
    "legacy.after_finalize": CrashPoint(
        "the backup is complete and migrating/ is empty; the journal does not record it",
        "nothing",
    ),
    "legacy.after_drop": CrashPoint(
        "an undo has dropped the tables; the tree is still in the backup",
        "undo again",
    ),
    "tenant.after_home_write": CrashPoint(
        "a tenant's rows are durable at its primary; its replica does not have them",
        "the primary ships them from its log after its restart",
    ),
    "tenant.after_receive": CrashPoint(
        "rows are durable at the replica; the primary has no answer",
        "the primary ships them again; the replica skips them",
    ),
    "tenant.after_hold": CrashPoint(
        "the primary retains its log for a move; the snapshot to start from is not recorded",
        "the mover asks again: a snapshot is recorded",
    ),
    "tenant.after_close": CrashPoint(
        "the primary's write barrier is closed, durably; the mover has no answer",
        "the primary accepts writes again, or learns the decision",
    ),
    "tenant.after_settle": CrashPoint(
        "a shard's record has the decision; its shipper and write barrier do not reflect it",
        "the next start follows the record",
    ),
    "tenant.between_drops": CrashPoint(
        "a tenant's log is deleted from a shard; its tables still exist",
        "the mover asks again: they are dropped",
    ),
    "tenant.before_erase": CrashPoint(
        "a tenant's tables are dropped in a shard; their files still exist",
        "the mover asks again: they are deleted",
    ),
    "move.after_hold": CrashPoint(
        "the source retains its log; none of the history is copied",
        "move again: the same snapshot is copied",
    ),
    "move.after_backfill": CrashPoint(
        "the target has the history; its log has not started",
        "move again: the ledger has every file",
    ),
    "move.after_replicate": CrashPoint(
        "the source ships its log; the move's state does not record it",
        "move again",
    ),
    "move.after_dual_write": CrashPoint(
        "both shards receive every write; the move's state does not record it",
        "move again: the cut-over position is read again",
    ),
    "move.after_close": CrashPoint(
        "the source's write barrier is closed; nothing is decided",
        "the source accepts writes again after its timeout; move again",
    ),
    "move.after_switch": CrashPoint(
        "the target is the primary in the control database; neither shard was notified",
        "the first write of the new epoch makes them look it up; move again",
    ),
    "move.after_collect": CrashPoint(
        "the move is complete in the control database; the source still has all data",
        "move again: the source deletes it",
    ),
    "move.after_abort": CrashPoint(
        "the move is aborted in the control database; neither shard was notified",
        "abort again: the target deletes its data",
    ),
    "move.after_reverse": CrashPoint(
        "the source is the primary again in the control database; neither shard was notified",
        "reverse again: the target deletes its data",
    ),
    "move.before_drop": CrashPoint(
        "both shards know that the move is over; the shard that was left still has all data",
        "run the same command again",
    ),
    "upkeep.after_merge": CrashPoint(
        "small files are merged; the catalog still lists the old ones",
        "run maintenance again",
    ),
    "upkeep.after_expire": CrashPoint(
        "old snapshots are expired; their files still exist",
        "run maintenance again",
    ),
    "upkeep.after_clean": CrashPoint(
        "old files are deleted; orphans still exist",
        "run maintenance again",
    ),
}

Action = Callable[[], None]
_armed: dict[str, Action] = {}


def reach(point: str) -> None:
    """Report that execution has reached this point."""
    action = _armed.get(point)
    if action is not None:
        action()


@contextmanager
def armed(point: str, action: Action) -> Iterator[None]:
    """Run `action` whenever `point` is reached, inside the context."""
    arm(point, action)
    try:
        yield
    finally:
        del _armed[point]


def arm(point: str, action: Action) -> None:
    """Run `action` whenever `point` is reached, until the process ends."""
    if point not in POINTS:
        raise InvariantError(f"There is no crash point {point!r}.")
    _armed[point] = action


def kill() -> None:
    """End this process as a power cut would: no handlers and no clean-up run."""
    os.kill(os.getpid(), signal.SIGKILL)
