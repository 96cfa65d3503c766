"""Every error that Catchment raises, grouped by how a handler reacts.

    CatchmentError
    ├── RetryableError            wait, then do the same again
    │   ├── ConflictError         another transaction committed first: redo the commit, keep the files
    │   │   └── EngineFailedError   the engine ended and was replaced: all its statements failed
    │   ├── LakeUnavailableError  catalog or storage cannot be reached
    │   ├── ControlUnavailableError  the control database cannot be reached: the change may have been made
    │   ├── StorageFailedError    a file or folder cannot be written, moved or removed
    │   │   └── DiskFullError       no space left: none of the write was kept
    │   ├── LockTimeoutError      another process holds the lock
    │   ├── BufferHeldError       another process has the queue's buffer open
    │   ├── BackpressureError     the buffer is full: nothing of this write was kept
    │   ├── LimitError            over a limit of the server: send less, or later
    │   │   └── QuotaExceededError  over a limit of the tenant
    │   ├── NotReadyError         the step has to wait for something: nothing was changed
    │   ├── StaleRouteError       the tenant's primary has changed: look it up, and write there
    │   ├── ShardUnreachableError the shard's server does not answer
    │   ├── SeqGapError           rows do not follow the receiver's last row: send from its position
    │   ├── FlushFailedError      some buffered rows did not reach the lake; they are still buffered
    │   └── SparkFailedError      the cluster failed the job; nothing was committed
    ├── CommitUnknownError        the commit may have been applied: read the ledger, then decide
    ├── CancelledError            the caller cancelled it; nothing of it was kept
    │   └── TimedOutError
    │       └── StalledError        the client neither read nor sent anything for too long
    ├── StoppedError              interrupted by Ctrl-C: commits stay
    ├── FencedError               another process has taken over this producer: stop
    ├── InputError                the caller must change the input; nothing was written
    │   ├── SettingsError
    │   ├── LakeMissingError
    │   ├── TableMissingError
    │   ├── AlreadyExistsError
    │   ├── TypeConflictError
    │   ├── CorruptInputError
    │   ├── StorageUnsupportedError
    │   ├── PreconditionError     a condition of a commit is not met
    │   ├── NotAllowedError       this user may not do it, or no user may
    │   ├── NotLoggedInError      credentials are missing or wrong
    │   ├── NotSupportedError     it is valid, but not implemented
    │   ├── StateError            this step is not allowed now
    │   │   └── InvalidStateError   a step that the move's state does not allow
    │   ├── ScriptError           a migration script cannot be run; the database is unchanged
    │   └── BackupMissingError
    ├── MachineError              the machine lacks something: install it
    │   ├── JavaMissingError
    │   └── ExtensionMissingError
    ├── MismatchError             two shards do not have the same rows: stop the move, keep both
    ├── BufferDamagedError        a file of the queue cannot be opened: it is quarantined, nothing is deleted
    ├── BufferOutdatedError       the queue's buffer is a restored older copy: no row counts as flushed
    └── InvariantError            a bug in Catchment, or a damaged store: stop and report

The first line of a class's docstring is its default message. Every error survives pickling, because
Spark carries errors from its workers to the driver.
"""

from typing import Any, ClassVar, Self

EXIT_FAILED = 1
EXIT_NEEDS_YOU = 2
# Exit code that shells report for a process interrupted by Ctrl-C.
EXIT_STOPPED = 130


class CatchmentError(Exception):
    """Something went wrong."""

    exit_code: ClassVar[int] = EXIT_FAILED
    default_hint: ClassVar[str | None] = None

    def __init__(self, message: str | None = None, *, hint: str | None = None, **facts: Any) -> None:
        """`hint` is the user's next step; `facts` are the message's values, for logs and JSON."""
        self.message = message or (type(self).__doc__ or "").partition("\n")[0]
        self.hint = hint or type(self).default_hint
        self.facts = facts
        super().__init__(self.message)
        if self.hint:
            # Python prints it below the message in a traceback.
            self.add_note(f"hint: {self.hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.facts))

    @classmethod
    def rebuild(cls, message: str, hint: str | None, facts: dict[str, Any]) -> Self:
        return cls(message, hint=hint, **facts)


def _rebuild(
    error_class: type[CatchmentError], message: str, hint: str | None, facts: dict[str, Any]
) -> CatchmentError:
    return error_class.rebuild(message, hint, facts)


class RetryableError(CatchmentError):
    """The call failed; the same call may succeed later."""


class ConflictError(RetryableError):
    """Another transaction changed the lake first; nothing of this one was committed."""


class EngineFailedError(ConflictError):
    """The engine of the session ended and was replaced; this work was rolled back."""

    default_hint = "Run the statement again; if a transaction was open, roll it back and run all of it again."
    # False if the engine had ended before it got the request.
    may_have_run = True


class LakeUnavailableError(RetryableError):
    """The lake's catalog or storage cannot be reached."""

    default_hint = "Run `catchment doctor` to see what cannot be reached."


class ControlUnavailableError(RetryableError):
    """The control database is busy or cannot be reached; a change may or may not have been made."""

    default_hint = "Read it again before the next step. `catchment doctor` checks the control database."


class StorageFailedError(RetryableError):
    """A file or folder cannot be written, moved or removed."""

    default_hint = "Is the disk full or read-only, and may this user write there? Then run the same command again."


class DiskFullError(StorageFailedError):
    """No space is left on the device; nothing of the write was kept."""

    default_hint = "Nothing of this write was kept. Free space on that disk and repeat it; no restart is needed."


class LockTimeoutError(RetryableError):
    """Another process holds the lock."""


class BufferHeldError(RetryableError):
    """Another process has the queue's buffer open."""

    default_hint = "Send the request to that process, usually `catchment serve`, or stop it first."


class BackpressureError(RetryableError):
    """The queue's buffer is full; nothing of this write was kept."""

    default_hint = "Write again later. Is the lake reachable? `catchment doctor` checks it."


class LimitError(RetryableError):
    """A limit of the server is exceeded."""


class QuotaExceededError(LimitError):
    """The tenant exceeds one of its limits; nothing of the write was kept."""


class NotReadyError(RetryableError):
    """The step has to wait; nothing was changed."""


class StaleRouteError(RetryableError):
    """The tenant's primary or epoch has changed; nothing of the write was kept."""

    default_hint = "Look up the tenant's primary in the control database, and write again."


class ShardUnreachableError(RetryableError):
    """The shard's server does not answer."""

    default_hint = "Is it running, and is its location right? `catchment shard list` shows both."


class SeqGapError(RetryableError):
    """The rows do not follow the receiver's last row; none of them was kept."""


class FlushFailedError(RetryableError):
    """Some buffered rows did not reach the lake; they are still buffered."""

    default_hint = "The rows are still buffered; `catchment queue flush` tries again."


class SparkFailedError(RetryableError):
    """Spark failed the job; nothing of it was committed."""

    default_hint = "See spark.log in the home; `catchment doctor` tests Spark by itself."


class CommitUnknownError(CatchmentError):
    """The connection failed during COMMIT: the commit may or may not have been applied."""

    default_hint = "The ledger records it: `catchment lake audit` shows which units were delivered."


class CancelledError(CatchmentError):
    """The call was cancelled; nothing of it was kept."""


class TimedOutError(CancelledError):
    """The statement timed out; nothing of it was kept."""

    default_hint = "CATCHMENT_SERVER_STATEMENT_SECONDS_MAX sets the timeout."


class StalledError(TimedOutError):
    """The client neither read nor sent anything for too long; the call was ended."""

    default_hint = "Read results as they arrive; a call waits at most 60 s for its client."


class StoppedError(CatchmentError):
    """Stopped by Ctrl-C."""

    exit_code = EXIT_STOPPED
    default_hint = "Commits stay, and the same command may be run again."


class FencedError(CatchmentError):
    """Another process has taken over this producer."""

    default_hint = "Stop this process, or start it again to take the producer back."


class InputError(CatchmentError):
    """The input cannot be used."""

    exit_code = EXIT_NEEDS_YOU


class SettingsError(InputError):
    """A setting is wrong."""


class LakeMissingError(InputError):
    """There is no lake."""

    default_hint = "`catchment lake deliver TABLE FILES… --create` creates one. Is it the right --home?"


class TableMissingError(InputError):
    """The table does not exist in the lake."""


class AlreadyExistsError(InputError):
    """It already exists."""


class TypeConflictError(InputError):
    """A column's type does not fit the table."""


class CorruptInputError(InputError):
    """A file cannot be read."""


class StorageUnsupportedError(InputError):
    """This kind of storage is not supported for this operation."""


class PreconditionError(InputError):
    """A condition of the commit is not met."""


class NotAllowedError(InputError):
    """This is not allowed."""


class NotLoggedInError(InputError):
    """Log in first."""


class NotSupportedError(InputError):
    """This is not supported."""


class StateError(InputError):
    """The step is not allowed in this state."""


class InvalidStateError(StateError):
    """The move's state does not allow this step; nothing was changed."""


class ScriptError(InputError):
    """A migration script cannot be run; the database is unchanged."""

    default_hint = "Correct the script; the database is unchanged."


class BackupMissingError(InputError):
    """There is no such backup."""


class MachineError(CatchmentError):
    """This machine lacks something that Catchment needs."""

    exit_code = EXIT_NEEDS_YOU


class JavaMissingError(MachineError):
    """Spark needs Java 17 or newer."""

    default_hint = "Install a Java runtime, e.g. `apt-get install openjdk-17-jre-headless`, or set JAVA_HOME."


class ExtensionMissingError(MachineError):
    """A DuckDB extension cannot be loaded from its wheel."""

    default_hint = "Reinstall Catchment's dependencies; extensions come as Python wheels, never from the network."


class MismatchError(CatchmentError):
    """Source and target do not have the same rows; the move is stopped."""

    default_hint = "The primary continues to serve. `catchment tenant verify` compares again; `abort` undoes the move."


class BufferDamagedError(CatchmentError):
    """A file of the queue cannot be opened."""

    default_hint = "`catchment queue status` lists quarantined files, and how to inspect them."


class BufferOutdatedError(CatchmentError):
    """The lake has rows of the table that this buffer did not deliver: it is a restored older copy."""

    default_hint = "See `An older buffer` in docs/howto/back-up-and-restore.md; no row counts as flushed."


class InvariantError(CatchmentError):
    """A fact that must always hold does not."""

    default_hint = "Please report this; the lake is unchanged."
