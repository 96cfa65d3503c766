"""Descriptions of a status's JSON keys, for the reference page; a test compares them with a status."""

from catchment.status.model import PARTS

_ANY_PART = {
    "at": "when this part was read; ISO 8601, UTC",
    "unavailable": "why this part could not be read; null if it could, and then the keys below are present",
}
_QUEUE = {
    "layout": "layout of the buffer, as the setting `queue_layout` names it",
    "root": "folder of the buffer; admins only",
    "rows": "rows that are not yet in the lake",
    "bytes": "size of the buffer on disk",
    "bytes_max": "maximum of `bytes`; 0: no limit",
    "oldest_age_s": "age of the oldest such row, in seconds; null if there is none",
    "tables_total": "tables that the queue knows",
    "tables[].table": "name of the table",
    "tables[].rows": "its rows that are not yet in the lake",
    "tables[].bytes": "their size",
    "tables[].oldest_age_s": "age of the oldest of them, in seconds",
    "tables[].trigger": "why a flush is due: `rows`, `bytes`, `age` or `sealed`; null if it is not",
    "tables[].flushing": "whether a flush is running",
    "tables[].seq_last": "number of its last acknowledged row",
    "tables[].seq_flushed": "number of its last row in the lake",
    "tables[].failures": "consecutive failed flushes",
    "tables[].reason": "why the last of them failed; admins only",
    "tables[].retry_at": "when the flush is retried",
    "tables[].dead_letters": "its dead letters; null while the lake is unavailable",
    "tables[].last_flushes[].at": "end of a flush, newest first",
    "tables[].last_flushes[].rows": "rows that it delivered",
    "tables[].last_flushes[].files": "files that it delivered",
    "tables[].last_flushes[].bytes": "their size",
    "tables[].last_flushes[].seconds": "its duration",
    "set_aside[].path": "a file of the buffer that could not be opened; admins only",
    "set_aside[].reason": "the reason; admins only",
}
_LAKE = {
    "tables_total": "user tables",
    "files": "their current data files",
    "bytes": "size of these files",
    "rows": "rows in them",
    "small_files": "files below 16 MiB that are not alone in their table",
    "small_file_share": "their share of all files, 0 to 1",
    "snapshots": "number of snapshots; 0 if there is no lake yet",
    "snapshot_newest": "number of the newest one",
    "snapshot_at": "when it was created",
    "dead_letters": "dead letters of all tables",
    "tables[].table": "name of the table",
    "tables[].files": "its data files",
    "tables[].bytes": "their size",
    "tables[].rows": "its rows in them",
    "tables[].small_files": "the number of small files",
    "tables[].dead_letters": "its dead letters",
    "last_deliveries[].at": "when a unit was delivered, newest first",
    "last_deliveries[].table": "its table",
    "last_deliveries[].unit": "id of the unit",
    "last_deliveries[].producer": "its producer in the ledger",
    "last_deliveries[].rows": "rows of the unit",
    "last_deliveries[].bytes": "size of its source",
    "last_deliveries[].snapshot": "snapshot that contains it",
    "last_audit": "the last complete `catchment lake audit` of this home; null before the first",
    "last_audit.at": "when it ended",
    "last_audit.ok": "whether it had no findings",
    "last_audit.findings": "number of findings",
    "last_audit.notes": "number of comparisons that were not possible",
}
_LEGACY = {
    "imports[].id": "short name of an import, for metrics",
    "imports[].data": "folder of the tree; admins only",
    "imports[].phase": "`ready`, `importing`, `done`, `undoing`, or `unclear` if its folders contradict each other",
    "imports[].running": "whether a process works on it",
    "imports[].progress": "share of imported leaves, 0 to 1",
    "imports[].leaves_left": "leaves that are not imported yet",
    "imports[].leaves_imported": "imported leaves",
    "imports[].leaves_failed": "leaves that failed in the last run, included in those left",
    "imports[].files_quarantined": "quarantined files",
    "imports[].files_left_out": "Parquet files of a finished import that are only in its backup, in no table",
    "imports[].bytes_left": "size of the leaves that are not imported yet",
    "imports[].problems[].leaf": "a leaf that failed; at most 20 are listed",
    "imports[].problems[].reason": "the reason; admins only",
}
_SCHEMAS = {
    "databases[].name": "`control`, `lake:SCHEMA`, or the file that the project of `status_schema_project` migrates; "
    "its folder: admins only",
    "databases[].state": "`CURRENT`, `PENDING`, `DRIFT`, `DIVERGED` or `ERROR`, as in `catchment schema status`; "
    "`APPLIED` if scripts and models are elsewhere, `UNCLEAR` if they cannot be read",
    "databases[].applied": "applied scripts",
    "databases[].pending": "scripts that are not applied; null if the scripts are elsewhere",
    "databases[].last": "the last applied script",
    "databases[].differences": "differences between the database and its models, a line each; null if the models "
    "are unknown",
    "databases[].scripts[].script": "a script that needs attention",
    "databases[].scripts[].kind": "`pending`, or `diverged` if it differs from the applied one",
    "databases[].scripts[].summary": "its first comment; may be empty",
    "databases[].scripts[].statements": "number of its statements",
    "databases[].scripts[].text": "its SQL, or a unified diff from the applied one; admins only",
    "databases[].errors": "errors in the scripts or the models, a sentence each; admins only",
    "databases[].next": "what to do next; null if nothing",
}
_TENANTS = {
    "tenants_total": "number of tenants",
    "shards[].shard": "name of a shard",
    "shards[].region": "its region",
    "shards[].draining": "whether it accepts no more tenants",
    "shards[].tenants": "tenants with their primary on it",
    "shards[].seen_age_s": "seconds since its last report; null if it never reported",
    "shards[].lag_s": "lag of its tenants' replicas, in seconds",
    "tenants[].tenant": "a tenant",
    "tenants[].name": "its name",
    "tenants[].shard": "the shard of its primary",
    "tenants[].epoch": "how often its route changed",
    "moves[].tenant": "a tenant that is moving",
    "moves[].move": "the move's id",
    "moves[].source": "the shard that it moves from",
    "moves[].target": "the shard that it moves to",
    "moves[].phase": "`Idle`, `PreparingTarget`, `DualWrite` or `Finalizing`",
    "moves[].phase_age_s": "seconds since the move's last change",
    "moves[].lag_s": "lag of the source's replicas, in seconds",
    "moves[].pause_ms": "how long its writers waited for the switch; null before the switch",
    "finished[].tenant": "the tenant of a finished move; the newest 20",
    "finished[].move": "the move's id",
    "finished[].source": "the shard that it moved from",
    "finished[].target": "the shard that it moved to",
    "finished[].outcome": "`complete`, `aborted` or `reversed`",
    "finished[].at": "when it ended",
    "finished[].seconds": "its duration",
    "finished[].pause_ms": "how long its writers waited for the switch; null if unknown",
}
_SESSIONS = {
    "sessions_total": "open sessions",
    "sessions_max": "maximum number of sessions",
    "statements_running": "running statements",
    "slow_seconds": "duration from which on a statement is slow",
    "sessions[].session": "first characters of a session's id; the list is for admins only",
    "sessions[].user": "its user",
    "sessions[].role": "`reader`, `writer` or `admin`",
    "sessions[].tenant": "the user's tenant; null if it has none",
    "sessions[].idle_s": "seconds since the last call",
    "sessions[].busy": "whether a call is running",
    **{
        f"{name}[].{key}": said
        for name, what in (("running", "runs"), ("slow", "was slow, newest first"))
        for key, said in {
            "at": f"start of a statement that {what}; the list is for admins only",
            "session": "first characters of its session's id",
            "user": "its user",
            "seconds": "time until its result could be read",
            "text": "its SQL, truncated to 2,000 characters",
        }.items()
    },
}
_TOTALS = {
    "acked_rows": "rows that this process acknowledged since its start",
    "acked_bytes": "their size",
    "window_s": "length of the last minute, or of the time since the start",
    "acked_rows_per_s": "rows acknowledged per second in that time",
    "ack_p50_s": "median time to an acknowledgement in that time, in seconds; null if there was none",
    "ack_p99_s": "its 99th percentile",
    "group_writes_mean": "mean number of writes per disk sync",
}
_TREND = {
    "span_s": "length of the trend: a quarter of an hour, or the time since the start",
    "acked_rows_per_s": "rows acknowledged per second, in equal steps of that time, oldest first",
    "ack_p99_s": "99th percentile of the time to an acknowledgement in each step, in seconds; null without one",
    "delivered_rows_per_s": "rows delivered to the lake per second, in each step",
    "buffered_rows": "rows that were not yet in the lake at the end of each step; null if unknown",
}
KEYS: dict[str, str] = {
    "at": "when the status was computed; ISO 8601, UTC",
    "version": "version of the program",
    "home": "the home; admins only",
    "shard": "the server's name as a shard; null if it is not a shard",
    "serving": "whether a server answered; false if a command read the files itself",
    "health.state": "`ok`, or `degraded` if action is needed; writes are accepted in both, unless a reason "
    "says otherwise",
    "health.reasons[]": "the reasons, a sentence each",
    **{f"totals.{key}": said for key, said in _TOTALS.items()},
    **{f"trend.{key}": said for key, said in _TREND.items()},
    **{
        f"{part}.{key}": said
        for part, keys in zip(PARTS, (_QUEUE, _LAKE, _LEGACY, _SCHEMAS, _TENANTS, _SESSIONS), strict=True)
        for key, said in {**_ANY_PART, **keys}.items()
    },
    "meters": "all counters of the process, by name, from which the metrics are made",
}
