"""What the keys of a status mean, as programs read them. The reference is written from it; a test compares both."""

from catchment.status.model import PARTS

_ANY_PART = {
    "at": "when this part was asked; ISO 8601, UTC",
    "unavailable": "why this part could not be asked; null when it could, and then the keys below are there",
}
_QUEUE = {
    "layout": "`shared` or `sessions`",
    "root": "folder of the buffer; admins only",
    "rows": "rows that are not yet in the lake",
    "bytes": "room that the buffer takes on the disk",
    "bytes_max": "its cap; 0 is none",
    "oldest_age_s": "age of the oldest such row, in seconds; null where there is none",
    "tables_total": "tables that the queue knows",
    "tables[].table": "name of the table",
    "tables[].rows": "its rows that are not yet in the lake",
    "tables[].bytes": "their size",
    "tables[].oldest_age_s": "age of the oldest of them, in seconds",
    "tables[].trigger": "why it is due: `rows`, `bytes`, `age` or `sealed`; null when it is not",
    "tables[].flushing": "whether a flush is at it",
    "tables[].seq_last": "number of its last acknowledged row",
    "tables[].seq_flushed": "number up to which the lake has its rows",
    "tables[].failures": "flushes that failed in a row",
    "tables[].reason": "why the last of them failed; admins only",
    "tables[].retry_at": "when it is tried again",
    "tables[].dead_letters": "its dead letters; null while the lake cannot be asked",
    "tables[].last_flushes[].at": "end of a flush, newest first",
    "tables[].last_flushes[].rows": "rows that it delivered",
    "tables[].last_flushes[].files": "files that it delivered",
    "tables[].last_flushes[].bytes": "their size",
    "tables[].last_flushes[].seconds": "how long it took",
    "set_aside[].path": "a file of the buffer that could not be opened; admins only",
    "set_aside[].reason": "why; admins only",
}
_LAKE = {
    "tables_total": "user tables",
    "files": "data files that they consist of now",
    "bytes": "size of these files",
    "rows": "rows in them",
    "small_files": "files below CATCHMENT_DELIVER_ADOPT_BYTES_MIN that are not alone in their table",
    "small_file_share": "their share of all files, 0 to 1",
    "snapshots": "snapshots that the catalog keeps; 0 where there is no lake yet",
    "snapshot_newest": "number of the newest",
    "snapshot_at": "when it was made",
    "dead_letters": "dead letters of all tables",
    "tables[].table": "name of the table",
    "tables[].files": "its data files",
    "tables[].bytes": "their size",
    "tables[].rows": "its rows in them",
    "tables[].small_files": "small ones among them",
    "tables[].dead_letters": "its dead letters",
    "last_deliveries[].at": "when a unit was delivered, newest first",
    "last_deliveries[].table": "into which table",
    "last_deliveries[].unit": "id of the unit",
    "last_deliveries[].producer": "under whose name the ledger has it",
    "last_deliveries[].rows": "rows of the unit",
    "last_deliveries[].bytes": "size of its source",
    "last_deliveries[].snapshot": "snapshot that brought it",
    "last_audit": "the last whole `catchment lake audit` of this home; null before the first",
    "last_audit.at": "when it ended",
    "last_audit.ok": "whether it had no findings",
    "last_audit.findings": "how many it had",
    "last_audit.notes": "what it could not compare",
}
_LEGACY = {
    "imports[].id": "short name of an import, for metrics",
    "imports[].data": "folder of the tree; admins only",
    "imports[].phase": "`ready`, `importing`, `done`, `undoing`, or `unclear` where its folders contradict each other",
    "imports[].running": "whether a process is at it",
    "imports[].progress": "share of its leaves that are imported, 0 to 1",
    "imports[].leaves_left": "leaves that are not imported",
    "imports[].leaves_imported": "leaves that are",
    "imports[].leaves_failed": "leaves that failed in the last run, among those left",
    "imports[].files_quarantined": "files that were set aside",
    "imports[].files_left_out": "Parquet files of a finished import that are in no table, and in its backup only",
    "imports[].bytes_left": "size of the leaves that are left",
    "imports[].problems[].leaf": "a leaf that failed; at most 20 are listed",
    "imports[].problems[].reason": "why; admins only",
}
_SCHEMAS = {
    "databases[].name": "`control`, `lake:SCHEMA`, or the file that the project of `status_schema_project` migrates; "
    "its folder for admins only",
    "databases[].state": "`CURRENT`, `PENDING`, `DRIFT`, `DIVERGED` or `ERROR`, as `catchment schema status` says; "
    "`APPLIED` where scripts and models are elsewhere, `UNCLEAR` where they cannot be read",
    "databases[].applied": "scripts that were applied",
    "databases[].pending": "scripts that were not; null where the scripts are elsewhere",
    "databases[].last": "the last that was applied",
    "databases[].differences": "what differs between the database and its models, a line each; null where nobody "
    "here knows the models",
    "databases[].scripts[].script": "a script that needs somebody",
    "databases[].scripts[].kind": "`pending`, or `diverged` where it is not what was applied",
    "databases[].scripts[].summary": "what it says of itself in its first comment; may be empty",
    "databases[].scripts[].statements": "how many statements it has",
    "databases[].scripts[].text": "its SQL, or from what was applied to what it is, as a unified diff; admins only",
    "databases[].errors": "what is wrong with the scripts or the models, a sentence each; admins only",
    "databases[].next": "what to do, in half a sentence; null where there is nothing to do",
}
_TENANTS = {
    "tenants_total": "tenants",
    "shards[].shard": "name of a shard",
    "shards[].region": "its region",
    "shards[].draining": "whether it takes no more tenants",
    "shards[].tenants": "tenants that live in it",
    "shards[].seen_age_s": "seconds since it last said how it is; null where it never has",
    "shards[].lag_s": "how far copies of its tenants are behind, in seconds",
    "tenants[].tenant": "a tenant",
    "tenants[].name": "its name",
    "tenants[].shard": "where it lives",
    "tenants[].epoch": "how often its route changed",
    "moves[].tenant": "a tenant that is moving",
    "moves[].move": "the move's own name",
    "moves[].source": "from where",
    "moves[].target": "to where",
    "moves[].phase": "`Idle`, `PreparingTarget`, `DualWrite` or `Finalizing`",
    "moves[].phase_age_s": "seconds since the move last changed",
    "moves[].lag_s": "how far copies of the source are behind, in seconds",
    "moves[].pause_ms": "how long its writers waited for the switch; null before it",
    "finished[].tenant": "a tenant that has moved, or was to; the newest 20 moves that are over",
    "finished[].move": "the move's own name",
    "finished[].source": "from where",
    "finished[].target": "to where",
    "finished[].outcome": "`complete`, `aborted` or `reversed`",
    "finished[].at": "when it ended",
    "finished[].seconds": "how long it took",
    "finished[].pause_ms": "how long its writers waited for the switch; null where that is not known",
}
_SESSIONS = {
    "sessions_total": "sessions that are open",
    "sessions_max": "how many may be",
    "statements_running": "statements that run",
    "slow_seconds": "from when on a statement counts as slow",
    "sessions[].session": "first letters of a session's id; the list is for admins only",
    "sessions[].user": "who it is",
    "sessions[].role": "`reader`, `writer` or `admin`",
    "sessions[].tenant": "the tenant whose user it is; null for others",
    "sessions[].idle_s": "seconds since the last call",
    "sessions[].busy": "whether a call is at it",
    **{
        f"{name}[].{key}": said
        for name, what in (("running", "runs"), ("slow", "was slow, newest first"))
        for key, said in {
            "at": f"start of a statement that {what}; the list is for admins only",
            "session": "first letters of its session's id",
            "user": "who sent it",
            "seconds": "how long it has taken until its result could be read",
            "text": "its SQL, cut at 2,000 letters",
        }.items()
    },
}
_TOTALS = {
    "acked_rows": "rows that this process has acknowledged since its start",
    "acked_bytes": "their size",
    "window_s": "length of the last minute, or of the time since the start",
    "acked_rows_per_s": "rows acknowledged a second in that time",
    "ack_p50_s": "median time to an acknowledgement in that time, in seconds; null where there was none",
    "ack_p99_s": "its 99th percentile",
    "group_writes_mean": "writes that shared one sync of the disk, on average",
}
_TREND = {
    "span_s": "length of the time that the trend is of: a quarter of an hour, or the time since the start",
    "acked_rows_per_s": "rows acknowledged a second, in equal steps of that time, oldest first",
    "ack_p99_s": "99th percentile of the time to an acknowledgement in each step, in seconds; null without one",
    "delivered_rows_per_s": "rows delivered into the lake a second, in each step",
    "buffered_rows": "rows that were not yet in the lake at the end of each step; null where nobody could say",
}
KEYS: dict[str, str] = {
    "at": "when the status was put together; ISO 8601, UTC",
    "version": "version of the program",
    "home": "the home; admins only",
    "shard": "name under which the server is a shard; null where it is none",
    "serving": "whether a server answers; false where a command looked by itself",
    "health.state": "`ok`, or `degraded` where something needs somebody; writes are taken in both, unless a reason "
    "says that they are not",
    "health.reasons[]": "what it is, in a sentence each",
    **{f"totals.{key}": said for key, said in _TOTALS.items()},
    **{f"trend.{key}": said for key, said in _TREND.items()},
    **{
        f"{part}.{key}": said
        for part, keys in zip(PARTS, (_QUEUE, _LAKE, _LEGACY, _SCHEMAS, _TENANTS, _SESSIONS), strict=True)
        for key, said in {**_ANY_PART, **keys}.items()
    },
    "meters": "everything that the process counts, by name: the numbers behind the metrics",
}
