"""Every error that Catchment raises, grouped by what the one who catches it does.

    CatchmentError
    ├── RetryableError            wait, then do the same again
    │   ├── ConflictError         another transaction got in between: redo the commit, keep the files
    │   │   └── EngineFailedError   DuckDB failed inside and was replaced: so did whatever ran in it
    │   ├── LakeUnavailableError  catalog or storage cannot be reached
    │   ├── ControlUnavailableError  the control database cannot be reached: what was to change may have changed
    │   ├── StorageFailedError    a file or folder cannot be written, moved or removed
    │   │   └── DiskFullError       for want of room: nothing of what was being written was kept
    │   ├── LockTimeoutError      somebody else holds the lock
    │   ├── BufferHeldError       another process has the queue's buffer open
    │   ├── BackpressureError     the buffer is full: nothing of this write was kept
    │   ├── LimitError            over a limit of the server: send less, or later
    │   │   └── QuotaExceededError  over a limit of the tenant
    │   ├── NotReadyError         the step has to wait for something: nothing was changed
    │   ├── StaleRouteError       the tenant's home is another one by now: ask where, and write there
    │   ├── ShardUnreachableError the shard's server does not answer
    │   ├── SeqGapError           rows that do not follow the last one: ship from where the receiver is
    │   ├── FlushFailedError      some buffered rows did not reach the lake; they are still buffered
    │   └── SparkFailedError      the cluster failed the job; nothing was committed
    ├── CommitUnknownError        the commit may have landed: look in the ledger, then decide
    ├── CancelledError            the one who asked wants it no more; nothing of it was kept
    │   └── TimedOutError
    │       └── StalledError        the client neither took nor sent anything for too long
    ├── StoppedError              somebody pressed Ctrl-C: what was committed stays
    ├── FencedError               another process has taken over this producer: stop
    ├── InputError                the caller must change what was given; nothing was written
    │   ├── SettingsError
    │   ├── LakeMissingError
    │   ├── TableMissingError
    │   ├── AlreadyExistsError
    │   ├── TypeConflictError
    │   ├── CorruptInputError
    │   ├── StorageUnsupportedError
    │   ├── PreconditionError     what a commit requires is not so
    │   ├── NotAllowedError       this user may not do it, and nobody may reach the host
    │   ├── NotLoggedInError      say who you are
    │   ├── NotSupportedError     it is understood, and not offered
    │   ├── StateError            this step is not allowed now: do one that is
    │   │   └── InvalidStateError   a step of a move that is not of its state
    │   ├── ScriptError           a migration script cannot be run; the database is as it was
    │   └── BackupMissingError
    ├── MachineError              the machine lacks something: install it
    │   ├── JavaMissingError
    │   └── ExtensionMissingError
    ├── MismatchError             two shards do not hold the same rows: stop the move, keep both
    ├── BufferDamagedError        a file of the queue cannot be opened: it is set aside, nothing is deleted
    ├── BufferOutdatedError       the queue's buffer is an older copy, put back: nothing is taken for flushed
    └── InvariantError            a bug of ours, or a damaged store: stop and report

The first line of a class's docstring is its default message. Every error survives pickling, because Spark carries
errors from its workers to the driver.
"""

from typing import Any, ClassVar, Self

EXIT_FAILED = 1
EXIT_NEEDS_YOU = 2
# What a shell reports of a process that Ctrl-C ended.
EXIT_STOPPED = 130


class CatchmentError(Exception):
    """Something went wrong."""

    exit_code: ClassVar[int] = EXIT_FAILED
    default_hint: ClassVar[str | None] = None

    def __init__(self, message: str | None = None, *, hint: str | None = None, **facts: Any) -> None:
        """`hint` says what to do next; `facts` are the values behind the message, for logs and `--json`."""
        self.message = message or (type(self).__doc__ or "").partition("\n")[0]
        self.hint = hint or type(self).default_hint
        self.facts = facts
        super().__init__(self.message)

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
    """It failed for now; the same call may succeed later."""


class ConflictError(RetryableError):
    """Another transaction changed the lake in between; nothing of this one was committed."""


class EngineFailedError(ConflictError):
    """DuckDB failed inside on a statement of another session and was replaced; what ran in it was rolled back."""

    default_hint = "Run it again, a transaction from its beginning."


class LakeUnavailableError(RetryableError):
    """The lake's catalog or storage cannot be reached."""

    default_hint = "Run `catchment doctor` to see what cannot be reached."


class ControlUnavailableError(RetryableError):
    """The control database is busy or cannot be reached; whether a change of it was made is not known."""

    default_hint = "Read it again before the next step. `catchment doctor` tells how it stands."


class StorageFailedError(RetryableError):
    """A file or folder cannot be written, moved or removed."""

    default_hint = "Is the disk full or read-only, and may this user write there? Then run the same again."


class DiskFullError(StorageFailedError):
    """No space is left on the device; nothing of what was being written was kept."""

    default_hint = "Nothing of this was kept. Make room on that disk, then do the same again; no restart is needed."


class LockTimeoutError(RetryableError):
    """Somebody else holds the lock."""


class BufferHeldError(RetryableError):
    """Another process has the queue's buffer open."""

    default_hint = "Ask that process, usually `catchment serve`, or stop it first."


class BackpressureError(RetryableError):
    """The queue's buffer is full; nothing of this write was kept."""

    default_hint = "Write again later. Is the lake reachable? `catchment doctor` tells."


class LimitError(RetryableError):
    """Over a limit of the server."""


class QuotaExceededError(LimitError):
    """The tenant is over one of its limits; nothing of the write was kept."""


class NotReadyError(RetryableError):
    """The step has to wait; nothing was changed."""


class StaleRouteError(RetryableError):
    """The tenant's home or epoch is another one by now; nothing of the write was kept."""

    default_hint = "Ask the control plane where the tenant lives, and write again."


class ShardUnreachableError(RetryableError):
    """The shard's server does not answer."""

    default_hint = "Is it running, and is its location right? `catchment shard list` shows both."


class SeqGapError(RetryableError):
    """The rows do not follow the last one that is here; nothing of them was kept."""


class FlushFailedError(RetryableError):
    """Some buffered rows did not reach the lake; they are still buffered."""

    default_hint = "The rows are still buffered; `catchment queue flush` tries again."


class SparkFailedError(RetryableError):
    """Spark gave up on the job; nothing of it was committed."""

    default_hint = "spark.log in the home tells more; `catchment doctor` tries Spark by itself."


class CommitUnknownError(CatchmentError):
    """The connection failed during COMMIT: the commit may or may not have landed."""

    default_hint = "The ledger knows: `catchment lake audit` shows which units were delivered."


class CancelledError(CatchmentError):
    """The call was cancelled; nothing of it was kept."""


class TimedOutError(CancelledError):
    """The statement took longer than it may; nothing of it was kept."""

    default_hint = "CATCHMENT_SERVER_STATEMENT_SECONDS_MAX is how long a statement may take."


class StalledError(TimedOutError):
    """The client neither took nor sent anything for too long, so the call was ended."""

    default_hint = "Read results as they come; a call waits for CATCHMENT_SERVER_STALL_SECONDS_MAX."


class StoppedError(CatchmentError):
    """Stopped by Ctrl-C."""

    exit_code = EXIT_STOPPED
    default_hint = "What was committed stays, and the same command may be run again."


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

    default_hint = "`catchment lake deliver TABLE FILES… --create` makes one. Is it the right --home?"


class TableMissingError(InputError):
    """The table does not exist in the lake."""


class AlreadyExistsError(InputError):
    """It exists already."""


class TypeConflictError(InputError):
    """A column's type does not fit the table."""


class CorruptInputError(InputError):
    """A file cannot be read."""


class StorageUnsupportedError(InputError):
    """This kind of storage is not supported for this operation."""


class PreconditionError(InputError):
    """What the commit requires is not so."""


class NotAllowedError(InputError):
    """This is not allowed."""


class NotLoggedInError(InputError):
    """Log in first."""


class NotSupportedError(InputError):
    """This is not supported."""


class StateError(InputError):
    """The step is not allowed in this state."""


class InvalidStateError(StateError):
    """The step is not of this state of the move; nothing was changed."""


class ScriptError(InputError):
    """A migration script cannot be run; the database is as it was."""

    default_hint = "Mend the script; the database is as it was before."


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
    """Source and target do not hold the same rows; the move stops where it is."""

    default_hint = "The home goes on serving. `catchment tenant verify` compares again; `abort` undoes the move."


class BufferDamagedError(CatchmentError):
    """A file of the queue cannot be opened."""

    default_hint = "`catchment queue status` shows what was set aside, and how to inspect it."


class BufferOutdatedError(CatchmentError):
    """The lake has rows of the queue's table that this buffer has not given: it is an older copy, put back."""

    default_hint = "See `An older buffer` in docs/howto/back-up-and-restore.md; nothing of it was taken for flushed."


class InvariantError(CatchmentError):
    """A fact that must always hold does not."""

    default_hint = "Please report this; the lake was left as it was."
