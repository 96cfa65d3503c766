"""Catalogue of log events: every verb with its meaning and remedy, and the ids in log lines.

A verb is stable: its meaning never changes. Verbs of level DEBUG and INFO report progress and need
no action.
"""

from dataclasses import dataclass

DEBUG, INFO, WARNING, ERROR = "debug", "info", "warning", "error"
# Client mistakes are INFO; errors that may have a cause in the server are WARNING.
INFO_OR_WARNING = "info or warning"

# In the order in which they appear in a line.
IDS: dict[str, str] = {
    "request": "one call of a client: the `x-request-id` that it sent, or a generated one; errors contain it too",
    "session": "a client's session, as `catchment status` shows it; it cannot be used to call the server",
    "user": "the user; for a command, the user on the machine",
    "tenant": "a tenant",
    "move": "one move of a tenant",
    "phase": "the current phase of a move or an import",
    "shard": "the shard that has the replica",
    "flush": "one flush of the queue, of several tables",
    "job": "one delivery into the lake; the folder of its files has the same name",
    "table": "a table, with its schema",
    "unit": "one unit of delivery, by its id in the ledger",
    "unit_ids": "the first few units; `units` is their number",
    "seqs": "sequence numbers of the table's rows in the queue, first and last",
    "segment": "one session's file of the queue",
    "segments": "the first few segments",
    "letter_ids": "the first few dead letters",
    "leaf": "a leaf of a legacy tree",
    "database": "the database that a script is for",
    "version": "the number of a script",
}
# Added to every event inside a call, a flush, a delivery or a move: any line may have them.
AROUND = ("request", "session", "user", "tenant", "move", "phase", "flush", "job")


@dataclass(frozen=True, slots=True)
class Verb:
    """Meaning of a verb; `act` is the operator's next step, empty if there is none."""

    level: str
    means: str
    act: str = ""
    ids: tuple[str, ...] = ()


VERBS: dict[str, Verb] = {
    # The server and its clients.
    "serving": Verb(INFO, "The server is listening."),
    "stopping": Verb(INFO, "The server accepts no new calls and is shutting down."),
    "stopped": Verb(INFO, "The server has shut down; everything is closed."),
    "last_flush_left": Verb(
        WARNING,
        "The last flush did not finish in time; its rows are on the disk.",
        "Nothing: the next start flushes them. If this happens often, raise CATCHMENT_SERVER_SHUTDOWN_SECONDS.",
    ),
    "session_opened": Verb(INFO, "A client opened a session.", ids=("session", "user")),
    "session_closed": Verb(INFO, "A session was closed.", ids=("session", "user")),
    "session_expired": Verb(INFO, "A session was idle for too long and was closed.", ids=("session", "user")),
    "transaction_expired": Verb(
        INFO,
        "A client's transaction was rolled back: it was idle or open for too long, or DuckDB failed (`reason`).",
        ids=("session", "user"),
    ),
    "session_sweep_failed": Verb(ERROR, "Idle sessions could not be closed.", "Read the reason; it is tried again."),
    "statement_finished": Verb(DEBUG, "A statement ran.", ids=("request", "session", "user")),
    "statement_failed": Verb(
        INFO_OR_WARNING,
        "A client's statement failed; the client received the error with the same `request`.",
        "At WARNING, check `code` and `reason`: the server was busy, or a resource that it needs is unreachable.",
        ids=("request", "session", "user"),
    ),
    "call_failed": Verb(
        INFO_OR_WARNING,
        "A call other than a statement failed: a login, a session option, a call of another shard.",
        "The same.",
        ids=("request", "user"),
    ),
    "call_crashed": Verb(
        ERROR,
        "A call failed with an unexpected error; `traceback` shows where.",
        "Report it, with this line and the lines of the same request.",
        ids=("request", "session", "user"),
    ),
    "login_failed": Verb(
        WARNING, "Wrong user or password.", "Many from one host indicate an attempt to guess passwords.", ids=("user",)
    ),
    "hash_kept": Verb(
        WARNING,
        "A password hash could not be renewed; the old one stays in use.",
        "Check that the server can write the users' file.",
        ids=("user",),
    ),
    "users_unreadable": Verb(
        ERROR, "The users' file cannot be read; all logins are refused.", "Repair the file, or restore a copy of it."
    ),
    "thread_died": Verb(ERROR, "A thread ended with an unexpected error; the server's own start again.", "Report it."),
    # The lake.
    "lake_created": Verb(INFO, "The ledger was created in a new lake."),
    "lake_away": Verb(
        WARNING,
        "The lake's catalog cannot be reached; the queue still accepts writes.",
        "Restore access to the catalog.",
    ),
    "engine_replaced": Verb(
        ERROR,
        "An engine process ended, or DuckDB failed internally; it was replaced, and its running statements failed.",
        "Find the statement by the lines of the requests, and avoid it: it triggers a bug in DuckDB.",
        ids=("request", "session", "user"),
    ),
    "wal_not_held": Verb(
        WARNING,
        "The catalog's WAL is created and removed with every transaction: some wait for a second.",
        "Check the permissions of the catalog's folder.",
    ),
    "schema_erased": Verb(INFO, "The files of a schema's dropped tables were deleted."),
    "upkeep_step_done": Verb(INFO, "A step of maintenance is complete, or was planned in a dry run."),
    "upkeep_step_failed": Verb(
        WARNING,
        "A table's files could not be merged; the other tables were processed.",
        "Check the file that `reason` names; `catchment lake audit` reports every such file.",
    ),
    "staging_left": Verb(
        WARNING, "A job's folder could not be removed.", "Nothing: maintenance removes it.", ids=("job",)
    ),
    "spark_starting": Verb(INFO, "Spark is starting; `log` is its own log."),
    "spark_started": Verb(INFO, "Spark is running."),
    "spark_archive_unfit": Verb(
        WARNING,
        "Java did not start with the archive of Spark's classes and is started without it.",
        "Create it again: `catchment doctor --prepare`.",
    ),
    # Deliveries.
    "delivered": Verb(INFO, "Units were committed to the lake and the ledger.", ids=("job", "table", "unit_ids")),
    "replay_skipped": Verb(
        INFO,
        "The lake already had these units, or these rows of the queue; they were not delivered again.",
        ids=("table",),
    ),
    "commit_redone": Verb(INFO, "A commit conflicted with another writer and is tried again.", ids=("job", "unit_ids")),
    # The queue.
    "buffer_opened": Verb(INFO, "The queue's buffer is open; `rows` remain from the last run."),
    "buffer_set_aside": Verb(
        ERROR, "A buffer file cannot be opened and was quarantined whole.", "See `catchment queue status`."
    ),
    "writes_refused": Verb(
        ERROR,
        "The buffer's disk failed a write; writes fail until `writes_accepted`.",
        "Read the reason: usually the disk is full. Free space; no restart is needed.",
    ),
    "writes_accepted": Verb(INFO, "The buffer's disk accepts writes again."),
    "table_created": Verb(INFO, "The queue created a table in the lake.", ids=("table",)),
    "table_remembered": Verb(
        WARNING,
        "The lake is unreachable; rows are accepted with the table's last known columns.",
        "Restore access to the catalog.",
        ids=("table",),
    ),
    "bypassed": Verb(
        WARNING,
        "The buffer is full; rows were written to the lake directly.",
        "Check why flushes do not keep up, or raise DUCKLING_QUEUE_MAX_DB_BYTES.",
        ids=("table",),
    ),
    "flushed": Verb(
        INFO, "Rows of a table were flushed to the lake.", ids=("flush", "table", "unit_ids", "seqs", "segments")
    ),
    "flush_timed": Verb(INFO, "Durations of the parts of a flush.", ids=("flush",)),
    "flush_failed": Verb(
        WARNING,
        "A table could not be flushed; its rows stay buffered, and the next attempt is at `retry_at`.",
        "Read the reason: usually the lake is unreachable, or the table has changed.",
        ids=("flush", "table"),
    ),
    "rows_stranded": Verb(
        WARNING,
        "The table of these buffered rows was dropped after they were acknowledged; they stay buffered.",
        "Use `catchment queue export`, `redirect` or `discard`.",
        ids=("flush", "table"),
    ),
    "rows_exported": Verb(
        INFO, "Stranded rows were written to Parquet files at `path`; they stay buffered.", ids=("table",)
    ),
    "rows_redirected": Verb(INFO, "Stranded rows were delivered to the table `into`.", ids=("table",)),
    "rows_discarded": Verb(INFO, "Stranded rows were discarded.", ids=("table",)),
    "left_buffered": Verb(
        WARNING, "The last flush failed; the rows are on the disk.", "Nothing: the next start flushes them."
    ),
    "sweep_failed": Verb(
        ERROR, "A round of background flushes failed.", "Read the reason; the next round runs anyway."
    ),
    "sifted": Verb(
        INFO,
        "Rows that can never be delivered were separated from the others and become dead letters.",
        ids=("flush", "table", "unit", "letter_ids"),
    ),
    "segment_sealed": Verb(INFO, "A session's file is complete and ready to be flushed.", ids=("segment",)),
    "segment_adopted": Verb(INFO, "A file whose owner died was sealed by another process.", ids=("segment",)),
    "segment_flushed": Verb(INFO, "All rows of a file are in the lake.", ids=("segment",)),
    "segment_unleased": Verb(
        WARNING,
        "No lease could be obtained for a file; writes are still accepted.",
        "Restore access to the catalog.",
        ids=("segment",),
    ),
    "segment_not_sealed": Verb(
        WARNING,
        "A file could not be sealed; it is tried again, and its session, if any, continues to write it.",
        "Read the reason; check whether the disk is full.",
        ids=("segment",),
    ),
    "segment_given_up": Verb(
        ERROR,
        "A file whose disk failed cannot be opened; its session continues in a new file, and a sweep recovers this.",
        "Read the reason, and look for the file in `catchment queue status`.",
        ids=("segment",),
    ),
    "dead_letters_retried": Verb(INFO, "Dead letters were retried by a user.", ids=("user", "letter_ids")),
    "dead_letters_dropped": Verb(INFO, "Dead letters were dropped by a user.", ids=("user", "letter_ids")),
    # Schemas and the control database.
    "script_applied": Verb(INFO, "A script was applied and recorded.", ids=("database", "version")),
    "script_generated": Verb(INFO, "A script was written.", ids=("database", "version")),
    "database_restored": Verb(INFO, "A database was restored to a backup.", ids=("database",)),
    "rehearsal_cut": Verb(INFO, "A rehearsal copied only the first rows of a large table.", ids=("database", "table")),
    "deliveries_parted": Verb(
        WARNING,
        "A restore removed rows that the ledger records as delivered, or brought back rows that it does not record.",
        "Read the reason: it states the effect of delivering again.",
        ids=("database", "table"),
    ),
    "control_backed_up": Verb(INFO, "The control database was backed up before its upgrade.", ids=("database",)),
    "control_upgraded": Verb(INFO, "The control database was upgraded.", ids=("database",)),
    # Imports of legacy trees.
    "legacy_started": Verb(INFO, "An import starts."),
    "legacy_moved": Verb(INFO, "The whole tree has moved."),
    "legacy_leaf_imported": Verb(INFO, "A leaf is in the lake and in the backup.", ids=("leaf", "unit", "job")),
    "legacy_finished": Verb(INFO, "A run of an import is finished; `failures` leaves are left.", ids=("phase",)),
    "legacy_undone": Verb(INFO, "An import was undone."),
    # Tenants.
    "move_changed": Verb(INFO, "The state of a move has changed.", ids=("tenant", "move")),
    "tenant_compared": Verb(INFO, "Source and target have the same rows.", ids=("tenant", "move")),
    "tenant_switched": Verb(
        INFO, "The target is the tenant's primary; writers waited `pause_ms`.", ids=("tenant", "move")
    ),
    "copy_behind": Verb(
        WARNING,
        "A tenant's replica did not keep up; writers no longer wait for it.",
        "Check that the other shard is running. The replica catches up by itself.",
        ids=("tenant", "move", "shard"),
    ),
    "copy_caught_up": Verb(INFO, "The replica has caught up.", ids=("tenant", "move", "shard")),
    "gate_returned": Verb(
        WARNING,
        "A move was not decided in time; the primary accepts writes again.",
        "Run the move again.",
        ids=("tenant", "move"),
    ),
    "gate_waiting": Verb(
        WARNING,
        "A write barrier stays closed until the control database can be read to find the primary.",
        "Restore access to the control database.",
        ids=("tenant", "move"),
    ),
    "gate_stuck": Verb(
        ERROR,
        "A closed write barrier cannot be opened.",
        "Read the reason; writers are waiting.",
        ids=("tenant", "move"),
    ),
    "report_failed": Verb(
        WARNING,
        "The shard could not report its state to the control database.",
        "Restore access to the control database.",
    ),
    # The status.
    "status_failed": Verb(ERROR, "A part of the status could not be read.", "Read the reason; it is read again later."),
}
