"""`catchment status`: how everything stands, from the server that runs on the home, or without one."""

from collections.abc import Iterator
from typing import Any

from catchment.app import App
from catchment.cli.context import AsJson, Home, command
from catchment.cli.output import Output
from catchment.errors import BufferHeldError, StateError
from catchment.pipeline.plan import counted
from catchment.queue import QueueStatus
from catchment.server import running
from catchment.status import StatusReader

_ROWS_MAX = 15
_TEXT_LETTERS_MAX = 60
_UNITS = ("B", "kB", "MB", "GB", "TB")

Facts = dict[str, Any]


def status(home: Home = None, as_json: AsJson = False) -> None:
    """Show how everything stands: queue, lake, imports, schemas, tenants, sessions, and what needs somebody."""
    with command(home, as_json) as run:
        facts = _status(run.app, run.out)
        run.out.value(facts, _lines(facts))
        for title, columns, rows in _tables(facts):
            if rows:
                more = f" (the first {_ROWS_MAX} of {len(rows)})" if len(rows) > _ROWS_MAX else ""
                run.out.say("")
                run.out.table(f"{title}{more}", columns, rows[:_ROWS_MAX])


def _status(app: App, out: Output) -> Facts:
    server = running.find(app.settings)
    if server is not None:
        # Imported here, because it brings gRPC along.
        from catchment.server.webclient import fetch_status

        try:
            return fetch_status(server)
        except StateError as error:
            out.say(f"{error.message} What can be found without it:")
    with StatusReader(app, queue=lambda: _queue(app)) as reader:
        return reader.status().to_json()


def _queue(app: App) -> QueueStatus:
    try:
        found = app.find_queue() if app.settings.queue_enable else None
    except BufferHeldError as error:
        from catchment.cli import beside

        return beside.status(app, error)
    if found is None:
        raise StateError("There is no buffer yet.")
    return found.status()


def _lines(facts: Facts) -> Iterator[str]:
    health = facts["health"]
    where = f"A server runs on {facts['home']}" if facts["serving"] else f"No server was asked; {facts['home']}"
    yield f"{health['state'].upper()}  {where}" + (f", shard {facts['shard']}" if facts["shard"] else "")
    for reason in health["reasons"]:
        yield f"  ! {reason}"
    if facts["serving"]:
        yield f"writes    {_writes(facts['totals'])}"
    for name, said in _PARTS.items():
        part = facts[name]
        if part["unavailable"] is not None:
            yield f"{name:9} unavailable: {part['unavailable']}"
        else:
            found = said(part)
            if found:
                yield f"{name:9} {found}"


def _writes(totals: Facts) -> str:
    rows, rate = counted(totals["acked_rows"], "row"), f"{totals['acked_rows_per_s']:,.1f} rows a second"
    told = f"{rows} acknowledged since the start; {rate}"
    if totals["ack_p50_s"] is None:
        return f"{told} in the last {totals['window_s']:.0f} s"
    return (
        f"{told}, {totals['ack_p50_s'] * 1e3:.1f} ms (p50) and {totals['ack_p99_s'] * 1e3:.1f} ms (p99) "
        f"to the ack, {totals['group_writes_mean'] or 1:.1f} writes a sync, in the last {totals['window_s']:.0f} s"
    )


def _said_of_queue(queue: Facts) -> str:
    cap = f" of {_size(queue['bytes_max'])}" if queue["bytes_max"] else ""
    oldest = f", the oldest {_age(queue['oldest_age_s'])} old" if queue["oldest_age_s"] is not None else ""
    rows, tables = counted(queue["rows"], "row"), counted(queue["tables_total"], "table")
    return f"{rows} buffered for {tables}, {_size(queue['bytes'])}{cap}{oldest}"


def _said_of_lake(lake: Facts) -> str:
    if not lake["snapshots"]:
        return "there is none yet"
    audit = lake["last_audit"]
    proof = (
        "never audited" if audit is None else f"audited {audit['at'][:16]}: " + ("ok" if audit["ok"] else "FINDINGS")
    )
    letters = f", {counted(lake['dead_letters'], 'dead letter')}" if lake["dead_letters"] else ""
    tables, rows = counted(lake["tables_total"], "table"), counted(lake["rows"], "row")
    return (
        f"{tables}, {rows}, {counted(lake['files'], 'file')} ({_size(lake['bytes'])}, "
        f"{lake['small_file_share']:.0%} small), {counted(lake['snapshots'], 'snapshot')}{letters}; {proof}"
    )


def _said_of_imports(legacy: Facts) -> str:
    return "; ".join(f"{each['data']}: {each['phase']}, {each['progress']:.0%}" for each in legacy["imports"])


def _said_of_schemas(schemas: Facts) -> str:
    return ", ".join(f"{each['name']} {each['state']} ({each['applied']})" for each in schemas["databases"])


def _said_of_tenants(tenants: Facts) -> str:
    if not tenants["shards"]:
        return ""
    moving = f", {len(tenants['moves'])} moving" if tenants["moves"] else ""
    return f"{tenants['tenants_total']:,} in {counted(len(tenants['shards']), 'shard')}{moving}"


def _said_of_sessions(sessions: Facts) -> str:
    return (
        f"{sessions['sessions_total']} of {sessions['sessions_max']}, "
        f"{counted(sessions['statements_running'], 'statement')} running, {len(sessions['slow'])} slow ones remembered"
    )


_PARTS = {
    "queue": _said_of_queue,
    "lake": _said_of_lake,
    "legacy": _said_of_imports,
    "schemas": _said_of_schemas,
    "tenants": _said_of_tenants,
    "sessions": _said_of_sessions,
}


def _tables(facts: Facts) -> Iterator[tuple[str, tuple[str, ...], list[tuple[object, ...]]]]:
    """What is worth a table: its title, its columns, its rows."""
    yield (
        "Queue",
        ("table", "rows", "bytes", "oldest", "due by", "failures", "dead letters", "last flush"),
        [_queue_row(each) for each in facts["queue"].get("tables", ())],
    )
    yield (
        "Last deliveries",
        ("at", "table", "rows", "bytes", "snapshot"),
        [
            (each["at"][:19], each["table"], f"{each['rows']:,}", _size(each["bytes"]), each["snapshot"])
            for each in facts["lake"].get("last_deliveries", ())[:5]
        ],
    )
    yield (
        "Moves",
        ("tenant", "from", "to", "phase", "for", "lag", "pause"),
        [
            (
                *(each["tenant"], each["source"], each["target"], each["phase"], _age(each["phase_age_s"])),
                *(f"{each['lag_s']:.1f} s", "" if each["pause_ms"] is None else f"{each['pause_ms']:.0f} ms"),
            )
            for each in facts["tenants"].get("moves", ())
        ],
    )
    for title, name in (("Running statements", "running"), ("Slow statements", "slow")):
        yield (
            title,
            ("since", "user", "session", "seconds", "statement"),
            [
                (each["at"][:19], each["user"], each["session"], f"{each['seconds']:.1f}", _cut(each["text"]))
                for each in facts["sessions"].get(name, ())
            ],
        )


def _queue_row(each: Facts) -> tuple[object, ...]:
    last = each["last_flushes"][0] if each["last_flushes"] else None
    return (
        each["table"],
        f"{each['rows']:,}",
        _size(each["bytes"]),
        "" if each["oldest_age_s"] is None else _age(each["oldest_age_s"]),
        each["trigger"] or "",
        each["failures"] or "",
        each["dead_letters"] or "",
        "" if last is None else f"{last['at'][11:19]}: {last['rows']:,} rows in {last['seconds']:.1f} s",
    )


def _cut(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _TEXT_LETTERS_MAX else f"{plain[: _TEXT_LETTERS_MAX - 1]}…"


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} {_UNITS[-1]}"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
