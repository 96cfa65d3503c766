"""Crash points: named places between two effects, where a test may kill the process or fail the step.

`reach` does nothing unless a test has armed the point. Every name is declared here, and every declared name is both
reached by the product and killed by the crash tests.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from catchment.errors import InvariantError

POINTS: dict[str, str] = {
    "deliver.before_write": "the staging folder exists; no task has started",
    "deliver.after_write": "tasks have written their files; none is in its final place",
    "deliver.after_place": "the files are in their final folder; the catalog does not know them",
    "deliver.before_commit": "everything is in the open transaction; COMMIT was not sent",
    "deliver.after_commit": "the lake has the rows and the ledger says so; the caller does not know",
    "retire.before_unit": "the unit is delivered; its source is untouched",
    "retire.between_inputs": "one input of the unit's source is gone",
    "retire.after_unit": "the unit's source is gone; the next unit's is not",
    "deliver.before_clean": "everything is retired; the staging folder lies there",
    "ingest.after_write": "a long stream's rows are in files in the table's folder; the catalog does not know them",
    "ingest.after_commit": "the lake has the stream's rows; the client does not know",
    "queue.before_ack": "rows are about to be committed to the buffer, or written to its journal",
    "queue.after_ack": "rows are durable in the buffer; the writer does not know",
    "queue.after_settle": "rows of the journal are committed to the buffer's file; the journal still has them too",
    "queue.after_stage": "slices lie staged as files; no task has read them",
    "queue.before_retire": "the lake has the rows; deleting them from the buffer is not committed",
    "queue.before_discard": "the ledger knows the rows as given up; they are still buffered",
    "queue.after_retire": "the rows are gone from the buffer; the caller does not know",
    "queue.between_aside": "a damaged buffer file has a second name; one of its first ones is gone",
    "queue.before_seal": "a session's file is closed and whole; it still lies among the active ones",
    "queue.after_seal": "a session's file is sealed; nobody has been told",
    "queue.before_flushed": "a session's file is marked as flushed; it still lies among the sealed ones",
    "schema.before_backup": "a copy of the database lies under a temporary name; the backup is not there yet",
    "schema.after_backup": "the backup is there; the script has not been run",
    "schema.before_commit": "script and record are in the open transaction; COMMIT was not sent",
    "schema.after_commit": "the database has the script's effect and its record; the caller does not know",
    "schema.between_restore": "a part of the restored pages is in the database's open transaction",
    "schema.before_script": "a script is written under a temporary name; its own name is not there yet",
    "legacy.before_prepare": "the import is noted; the legacy tree lies where it was written",
    "legacy.between_moves": "a part of a tree has moved, between two file systems or into a folder that exists",
    "legacy.after_move": "the legacy tree has moved into migrating/; the journal does not say so",
    "legacy.after_tables": "the lake has the import's empty tables; the journal does not say so",
    "legacy.before_finalize": "every leaf is in the lake and in the backup; the rest is still in migrating/",
    "legacy.after_finalize": "the backup is whole and migrating/ is empty; the journal does not say so",
    "legacy.after_drop": "an undo has dropped the tables; the tree is still in the backup",
    "tenant.after_home_write": "a tenant's rows are durable at its home; its copy does not have them",
    "tenant.after_receive": "rows are durable at the copy; the home does not know",
    "tenant.after_hold": "the home keeps its log for a move; from which snapshot is not settled",
    "tenant.after_close": "the home's gate is closed, durably; whoever closed it does not know",
    "tenant.after_settle": "a shard's record says what was decided; its shipper and its gate do not",
    "tenant.between_drops": "a tenant's log is gone from a shard; its tables are still there",
    "tenant.before_erase": "a tenant's tables are dropped in a shard; their files are still there",
    "move.after_hold": "the source keeps its log; nothing of the history is copied",
    "move.after_backfill": "the target has the history; its log has not begun",
    "move.after_replicate": "the source ships its log; the move's state does not say so",
    "move.after_dual_write": "both shards get every write; the move's state does not say so",
    "move.after_close": "the source's gate is closed; nothing is decided",
    "move.after_switch": "the target is the home by the control database; neither shard was told",
    "move.after_collect": "the move is complete by the control database; the source has everything still",
    "move.after_abort": "the move is aborted by the control database; neither shard was told",
    "move.after_reverse": "the source is the home again by the control database; neither shard was told",
    "move.before_drop": "both shards know that the move is over; the one that was left has everything still",
    "upkeep.after_merge": "small files are merged; the old ones are still known",
    "upkeep.after_expire": "old snapshots are gone; their files still lie there",
    "upkeep.after_clean": "old files are deleted; orphans still lie there",
}

Action = Callable[[], None]
_armed: dict[str, Action] = {}


def reach(point: str) -> None:
    """Say that execution has come to this point."""
    action = _armed.get(point)
    if action is not None:
        action()


@contextmanager
def armed(point: str, action: Action) -> Iterator[None]:
    """Run `action` whenever `point` is reached, for a while."""
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
    """End this process as a power cut would: no handlers, no clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)
