"""Every verb that the log can hold, with what it means and what to do; and the ids by which lines are found.

A verb is stable: it is never given another meaning. Those of DEBUG and INFO tell a story, and nothing is to be done.
"""

from dataclasses import dataclass

DEBUG, INFO, WARNING, ERROR = "debug", "info", "warning", "error"
# The client's own mistakes are INFO, what may be the server's trouble is WARNING.
INFO_OR_WARNING = "info or warning"

# In the order in which they stand in a line.
IDS: dict[str, str] = {
    "request": "one call of a client: the `x-request-id` that it sent, or one that was made; errors carry it as well",
    "session": "a client's session, as `catchment status` shows it; nobody can call with it",
    "user": "who asked; for a command, its user on the machine",
    "tenant": "a tenant",
    "move": "one move of a tenant",
    "phase": "what a move, or an import, is busy with",
    "shard": "the shard that has the copy",
    "flush": "one flush of the queue, of several tables",
    "job": "one delivery into the lake; the folder of its files has the same name",
    "table": "a table, with its schema",
    "unit": "one unit of delivery, as the ledger knows it",
    "unit_ids": "the first few units; `units` is how many there are",
    "seqs": "numbers of the table's rows in the queue, the first and the last",
    "segment": "one session's file of the queue",
    "segments": "the first few of them",
    "letter_ids": "the first few dead letters",
    "leaf": "a leaf of a legacy tree",
    "database": "the database that a script is for",
    "version": "the number of a script",
}
# Put around whatever is done for a call, a flush, a delivery or a move: any line may have them.
AROUND = ("request", "session", "user", "tenant", "move", "phase", "flush", "job")


@dataclass(frozen=True, slots=True)
class Verb:
    """What a verb stands for; `act` is what to do, empty where that is nothing."""

    level: str
    means: str
    act: str = ""
    ids: tuple[str, ...] = ()


VERBS: dict[str, Verb] = {
    # The server and its clients.
    "serving": Verb(INFO, "The server listens."),
    "stopping": Verb(INFO, "The server takes no new calls, and ends."),
    "stopped": Verb(INFO, "The server has ended, and everything is closed."),
    "last_flush_left": Verb(
        WARNING,
        "The last flush did not end in time; its rows are on the disk.",
        "Nothing: the next start goes on with them. If it is often so, raise CATCHMENT_SERVER_SHUTDOWN_SECONDS.",
    ),
    "session_opened": Verb(INFO, "A client has a session.", ids=("session", "user")),
    "session_closed": Verb(INFO, "A session is over.", ids=("session", "user")),
    "session_expired": Verb(INFO, "Nothing was heard of a session for too long.", ids=("session", "user")),
    "session_sweep_failed": Verb(ERROR, "Idle sessions could not be ended.", "Read the reason; it is tried again."),
    "statement_finished": Verb(DEBUG, "A statement ran.", ids=("request", "session", "user")),
    "statement_failed": Verb(
        INFO_OR_WARNING,
        "A client's statement ended with an error, which the client has with the same `request`.",
        "At WARNING, look at `code` and `reason`: the server was busy, or something that it needs is away.",
        ids=("request", "session", "user"),
    ),
    "call_failed": Verb(
        INFO_OR_WARNING,
        "A call that is no statement ended with an error: logging in, a session's options, a call of another shard.",
        "The same.",
        ids=("request", "user"),
    ),
    "call_crashed": Verb(
        ERROR,
        "A call failed by an error that nobody foresaw; `traceback` says where.",
        "Report it, with this line and the lines of the same request.",
        ids=("request", "session", "user"),
    ),
    "login_failed": Verb(
        WARNING, "User or password were wrong.", "If there are many of one host, somebody guesses.", ids=("user",)
    ),
    "hash_kept": Verb(
        WARNING,
        "A password's hash could not be renewed; the old one serves.",
        "Can the server write the users' file?",
        ids=("user",),
    ),
    "users_unreadable": Verb(
        ERROR, "The users' file cannot be read: nobody gets in.", "Mend the file, or put back a copy of it."
    ),
    "thread_died": Verb(
        ERROR, "A thread of the server ended by an error that nobody foresaw.", "Report it, and restart the server."
    ),
    # The lake.
    "lake_created": Verb(INFO, "A new lake has its ledger."),
    "lake_away": Verb(
        WARNING, "The lake's catalog cannot be reached; the queue takes writes all the same.", "Bring the catalog back."
    ),
    "engine_replaced": Verb(
        ERROR,
        "DuckDB failed inside, by an error of its own; its instance was replaced, and what ran in it was rolled back.",
        "Find the statement by the lines of the same request, and keep it from being run; it is a bug of DuckDB.",
        ids=("request", "session", "user"),
    ),
    "wal_not_held": Verb(
        WARNING,
        "The catalog's WAL comes and goes with every transaction: under load, some of them wait for a second.",
        "See to the permissions of the catalog's folder.",
    ),
    "schema_erased": Verb(INFO, "The files of a schema's dropped tables were deleted."),
    "upkeep_step_done": Verb(INFO, "A step of upkeep is done, or would be."),
    "upkeep_step_failed": Verb(
        WARNING,
        "A table's files could not be merged; the other tables were seen to.",
        "Look at the file that `reason` names; `catchment lake audit` tells of every one.",
    ),
    "staging_left": Verb(WARNING, "A job's folder could not be removed.", "Nothing: upkeep removes it.", ids=("job",)),
    "spark_starting": Verb(INFO, "Spark starts; `log` is its own log."),
    "spark_started": Verb(INFO, "Spark is up."),
    "spark_archive_unfit": Verb(
        WARNING,
        "Java did not start with the archive of Spark's classes, and is started without it.",
        "Make it anew: `catchment doctor --prepare`.",
    ),
    # Deliveries.
    "delivered": Verb(INFO, "Units are in the lake and in the ledger.", ids=("job", "table", "unit_ids")),
    "replay_skipped": Verb(
        INFO, "The lake had these units, or these rows of the queue; they were not delivered again.", ids=("table",)
    ),
    "commit_redone": Verb(INFO, "A commit met another writer's, and is tried again.", ids=("job", "unit_ids")),
    # The queue.
    "buffer_opened": Verb(INFO, "The queue's buffer is open; `rows` were left by the last run."),
    "buffer_set_aside": Verb(
        ERROR, "A file of the buffer cannot be opened, and was set aside whole.", "See `catchment queue status`."
    ),
    "writes_refused": Verb(
        ERROR,
        "The buffer's disk failed a write, and so it does for those after it until `writes_accepted`.",
        "Read the reason: mostly the disk is full. Make room; nothing needs to be restarted.",
    ),
    "writes_accepted": Verb(INFO, "The buffer's disk takes writes again."),
    "table_created": Verb(INFO, "The queue made a table in the lake.", ids=("table",)),
    "table_remembered": Verb(
        WARNING,
        "The lake is away; rows are taken with the columns that the table had last.",
        "Bring the catalog back.",
        ids=("table",),
    ),
    "bypassed": Verb(
        WARNING,
        "The buffer is full; rows went to the lake directly.",
        "Look why flushes do not keep up, or raise DUCKLING_QUEUE_MAX_DB_BYTES.",
        ids=("table",),
    ),
    "flushed": Verb(
        INFO, "Rows of a table left the queue for the lake.", ids=("flush", "table", "unit_ids", "seqs", "segments")
    ),
    "flush_timed": Verb(INFO, "How long the parts of a flush took.", ids=("flush",)),
    "flush_failed": Verb(
        WARNING,
        "A table could not be flushed; its rows stay buffered, and it is tried again at `retry_at`.",
        "Read the reason: mostly the lake is away, or the table has changed.",
        ids=("flush", "table"),
    ),
    "rows_stranded": Verb(
        WARNING,
        "The table of these buffered rows was dropped after they were acknowledged; they stay buffered.",
        "`catchment queue export`, `redirect` or `discard` takes them out.",
        ids=("flush", "table"),
    ),
    "rows_exported": Verb(
        INFO, "Stranded rows were written to Parquet files at `path`; they stay buffered.", ids=("table",)
    ),
    "rows_redirected": Verb(INFO, "Stranded rows were delivered to the table `into`.", ids=("table",)),
    "rows_discarded": Verb(INFO, "Stranded rows were given up for good.", ids=("table",)),
    "left_buffered": Verb(
        WARNING, "The last flush failed; the rows are on the disk.", "Nothing: the next start goes on."
    ),
    "sweep_failed": Verb(
        ERROR, "A round of flushes ended by an error.", "Read the reason; the next round comes anyway."
    ),
    "sifted": Verb(
        INFO,
        "Rows that can never be delivered were told from the others, and become dead letters.",
        ids=("flush", "table", "unit", "letter_ids"),
    ),
    "segment_sealed": Verb(INFO, "A session's file is whole, and on its way.", ids=("segment",)),
    "segment_adopted": Verb(INFO, "A file whose owner died was sealed by another process.", ids=("segment",)),
    "segment_flushed": Verb(INFO, "The lake has everything of a file.", ids=("segment",)),
    "segment_unleased": Verb(
        WARNING,
        "No lease was to be had for a file; writes are taken all the same.",
        "Bring the catalog back.",
        ids=("segment",),
    ),
    "segment_not_sealed": Verb(
        WARNING,
        "A file could not be sealed; it is tried again, and its session, if it has one, goes on writing it.",
        "Read the reason: is the disk full?",
        ids=("segment",),
    ),
    "segment_given_up": Verb(
        ERROR,
        "A file whose disk failed cannot be opened again; the session goes on in another one, and a sweep takes this.",
        "Read the reason, and look for it in `catchment queue status`.",
        ids=("segment",),
    ),
    "dead_letters_retried": Verb(INFO, "Somebody tried dead letters again.", ids=("user", "letter_ids")),
    "dead_letters_dropped": Verb(INFO, "Somebody gave rows up for good.", ids=("user", "letter_ids")),
    # Schemas and the control database.
    "script_applied": Verb(INFO, "A script was run and recorded.", ids=("database", "version")),
    "script_generated": Verb(INFO, "A script was written.", ids=("database", "version")),
    "database_restored": Verb(INFO, "A database is what it was at a backup.", ids=("database",)),
    "rehearsal_cut": Verb(INFO, "A rehearsal copied only the first rows of a large table.", ids=("database", "table")),
    "deliveries_parted": Verb(
        WARNING,
        "A restore took back rows of which the ledger says that they are delivered, or the other way round.",
        "Read the reason: it says what a replay would do.",
        ids=("database", "table"),
    ),
    "control_backed_up": Verb(INFO, "The control database was backed up before its upgrade.", ids=("database",)),
    "control_upgraded": Verb(INFO, "The control database was brought up to date.", ids=("database",)),
    # Imports of legacy trees.
    "legacy_started": Verb(INFO, "An import begins."),
    "legacy_moved": Verb(INFO, "The whole tree has moved."),
    "legacy_leaf_imported": Verb(INFO, "A leaf is in the lake, and in the backup.", ids=("leaf", "unit", "job")),
    "legacy_finished": Verb(INFO, "A run of an import is over; `failures` leaves are left.", ids=("phase",)),
    "legacy_undone": Verb(INFO, "An import was undone."),
    # Tenants.
    "move_changed": Verb(INFO, "A move has another state.", ids=("tenant", "move")),
    "tenant_compared": Verb(INFO, "Source and target have the same rows.", ids=("tenant", "move")),
    "tenant_switched": Verb(INFO, "The tenant lives in the target; writers waited `pause_ms`.", ids=("tenant", "move")),
    "copy_behind": Verb(
        WARNING,
        "The copy of a tenant did not keep up; writers do not wait for it any more.",
        "Does the other shard run? The copy catches up by itself.",
        ids=("tenant", "move", "shard"),
    ),
    "copy_caught_up": Verb(INFO, "The copy has everything again.", ids=("tenant", "move", "shard")),
    "gate_returned": Verb(
        WARNING,
        "Nobody came back to decide a move; the home takes writes again.",
        "Run the move again.",
        ids=("tenant", "move"),
    ),
    "gate_waiting": Verb(
        WARNING,
        "A gate stays closed until the control database says who the home is.",
        "Bring the control database back.",
        ids=("tenant", "move"),
    ),
    "gate_stuck": Verb(
        ERROR, "A closed gate cannot be opened.", "Read the reason; writers wait.", ids=("tenant", "move")
    ),
    "report_failed": Verb(
        WARNING, "The shard could not tell the control database how it is.", "Bring the control database back."
    ),
    # The status.
    "status_failed": Verb(ERROR, "A part of the status could not be asked.", "Read the reason; it is asked again."),
}
