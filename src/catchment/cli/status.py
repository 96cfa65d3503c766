"""`catchment status`: the health of every part, from the running server or without one."""

import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rich.console import Console

from catchment.cli.context import AsJson, Home, command
from catchment.cli.listing import Listing
from catchment.foundation.text import plural

_LAST_MAX = 5
_PROBLEM = "  ! "
_INDENT = " " * 10
# States of schemas that have no separate line: no script is pending, or the models are unknown.
_HEALTHY = ("CURRENT", "APPLIED")
_UNITS = ("B", "kB", "MB", "GB", "TB")

Facts = dict[str, Any]


def status(home: Home = None, as_json: AsJson = False) -> None:
    """Show the health of queue, lake, imports, schemas, tenants and sessions, and open problems."""
    with command(home, as_json) as run:
        facts = run.catchment.status(lambda reason: run.out.say(f"{reason} Read without it:"))
        width = Console().width
        run.out.value(facts, (part for line in _lines(facts) for part in _wrapped(line, width)))
        for listing in _listings(facts):
            if listing.rows:
                shown = listing.fitted(width)
                run.out.say("")
                run.out.table(shown.title, shown.columns, shown.rows)


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap a line; a longer word stays whole, so that a path can be copied."""
    indent = " " * len(_PROBLEM) if line.startswith(_PROBLEM) else _INDENT
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _lines(facts: Facts) -> Iterator[str]:
    health = facts["health"]
    where = f"A server runs on {facts['home']}" if facts["serving"] else f"Read without a server: {facts['home']}"
    yield f"{health['state'].upper()}  {where}" + (f", shard {facts['shard']}" if facts["shard"] else "")
    for reason in health["reasons"]:
        yield f"{_PROBLEM}{reason}"
    if facts["serving"]:
        yield f"writes    {_writes(facts['totals'])}"
    for name, describe in _PARTS.items():
        part = facts[name]
        if part["unavailable"] is not None:
            yield f"{name:9} unavailable: {part['unavailable']}"
        else:
            found = describe(part)
            if found:
                yield f"{name:9} {found}"
    yield from _degraded_schemas(facts["schemas"])


def _writes(totals: Facts) -> str:
    rows, rate = plural(totals["acked_rows"], "row"), f"{totals['acked_rows_per_s']:,.1f} rows a second"
    line = f"{rows} acknowledged since the start; {rate}"
    if totals["ack_p50_s"] is None:
        return f"{line} in the last {totals['window_s']:.0f} s"
    return (
        f"{line}, {totals['ack_p50_s'] * 1e3:.1f} ms (p50) and {totals['ack_p99_s'] * 1e3:.1f} ms (p99) "
        f"to the ack, {totals['group_writes_mean'] or 1:.1f} writes a sync, in the last {totals['window_s']:.0f} s"
    )


def _describe_queue(queue: Facts) -> str:
    cap = f" of {_size(queue['bytes_max'])}" if queue["bytes_max"] else ""
    oldest = f", the oldest {_age(queue['oldest_age_s'])} old" if queue["oldest_age_s"] is not None else ""
    rows, tables = plural(queue["rows"], "row"), plural(queue["tables_total"], "table")
    return f"{rows} buffered for {tables}, {_size(queue['bytes'])}{cap}{oldest}"


def _describe_lake(lake: Facts) -> str:
    if not lake["snapshots"]:
        return "there is none yet"
    audit = lake["last_audit"]
    proof = (
        "never audited" if audit is None else f"audited {audit['at'][:16]}: " + ("ok" if audit["ok"] else "FINDINGS")
    )
    letters = f", {plural(lake['dead_letters'], 'dead letter')}" if lake["dead_letters"] else ""
    tables, rows = plural(lake["tables_total"], "table"), plural(lake["rows"], "row")
    return (
        f"{tables}, {rows}, {plural(lake['files'], 'file')} ({_size(lake['bytes'])}, "
        f"{lake['small_file_share']:.0%} small), {plural(lake['snapshots'], 'snapshot')}{letters}; {proof}"
    )


def _describe_imports(legacy: Facts) -> str:
    return "; ".join(f"{each['data']}: {each['phase']}, {each['progress']:.0%}" for each in legacy["imports"])


def _describe_schemas(schemas: Facts) -> str:
    return ", ".join(f"{each['name']} {each['state']} ({each['applied']})" for each in schemas["databases"])


def _degraded_schemas(schemas: Facts) -> Iterator[str]:
    for each in schemas.get("databases", ()):
        if each["state"] not in _HEALTHY:
            found = (
                plural(len(each["pending"]), "script") + " pending" if each["pending"] else "",
                plural(len(each["differences"]), "difference") if each["differences"] else "",
                *each["errors"],
                each["next"] or "",
            )
            yield f"{_PROBLEM}{each['name']} is {each['state']}: {'; '.join(part for part in found if part)}"


def _describe_tenants(tenants: Facts) -> str:
    if not tenants["shards"]:
        return ""
    moving = f", {len(tenants['moves'])} moving" if tenants["moves"] else ""
    return f"{tenants['tenants_total']:,} in {plural(len(tenants['shards']), 'shard')}{moving}"


def _describe_sessions(sessions: Facts) -> str:
    return (
        f"{sessions['sessions_total']} of {sessions['sessions_max']}, "
        f"{plural(sessions['statements_running'], 'statement')} running, "
        f"{plural(len(sessions['slow']), 'slow statement')} recorded"
        + "".join(f"; {_describe_engine(each)}" for each in sessions["engines"])
    )


def _describe_engine(engine: Facts) -> str:
    replaced = f", replaced {plural(engine['replaced'], 'time')}, the last time because of {engine['last_end']}"
    return f"{engine['name']} occupies {_size(engine['bytes'])}{replaced if engine['replaced'] else ''}"


_PARTS = {
    "queue": _describe_queue,
    "lake": _describe_lake,
    "legacy": _describe_imports,
    "schemas": _describe_schemas,
    "tenants": _describe_tenants,
    "sessions": _describe_sessions,
}


def _listings(facts: Facts) -> Iterator[Listing]:
    """Return the tables to print; empty ones are skipped."""
    now = facts["at"]
    yield Listing(
        title="Queue",
        columns=("table", "rows", "state", "oldest", "dead", "bytes", "flushed", "last flush"),
        rows=[_queue_row(each, now) for each in facts["queue"].get("tables", ())],
    )
    yield Listing(
        title="Last deliveries",
        columns=("table", "rows", "delivered", "bytes", "snapshot"),
        rows=[
            (each["table"], f"{each['rows']:,}", _ago(each["at"], now), _size(each["bytes"]), str(each["snapshot"]))
            for each in facts["lake"].get("last_deliveries", ())
        ],
        rows_max=_LAST_MAX,
    )
    yield Listing(
        title="Moves",
        columns=("tenant", "from", "to", "phase", "for", "lag", "pause"),
        rows=[
            (
                *(each["tenant"], each["source"], each["target"], each["phase"], _age(each["phase_age_s"])),
                *(f"{each['lag_s']:.1f} s", _pause(each)),
            )
            for each in facts["tenants"].get("moves", ())
        ],
    )
    yield Listing(
        title="Finished moves",
        columns=("tenant", "from", "to", "outcome", "pause", "took", "ended"),
        rows=[
            (
                *(each["tenant"], each["source"], each["target"], each["outcome"]),
                *(_pause(each), _age(each["seconds"]), _ago(each["at"], now)),
            )
            for each in facts["tenants"].get("finished", ())
        ],
        rows_max=_LAST_MAX,
    )
    for title, name in (("Running statements", "running"), ("Slow statements", "slow")):
        yield Listing(
            title=title,
            columns=("session", "user", "began", "seconds", "statement"),
            rows=[
                (
                    *(each["session"], each["user"], _ago(each["at"], now), f"{each['seconds']:.1f}"),
                    " ".join(each["text"].split()),
                )
                for each in facts["sessions"].get(name, ())
            ],
            is_last_cut=True,
        )


def _queue_row(each: Facts, now: str) -> tuple[str, ...]:
    last = each["last_flushes"][0] if each["last_flushes"] else None
    return (
        each["table"],
        f"{each['rows']:,}",
        _queue_state(each),
        "" if each["oldest_age_s"] is None else _age(each["oldest_age_s"]),
        str(each["dead_letters"] or ""),
        _size(each["bytes"]),
        "" if last is None else _ago(last["at"], now),
        "" if last is None else f"{plural(last['rows'], 'row')} in {last['seconds']:.1f} s",
    )


def _queue_state(each: Facts) -> str:
    if each["failures"]:
        return f"failing ({each['failures']})"
    if each["flushing"]:
        return "flushing"
    return f"due ({each['trigger']})" if each["trigger"] else ""


def _pause(move: Facts) -> str:
    return "" if move["pause_ms"] is None else f"{move['pause_ms']:,.0f} ms"


def _ago(then: str, now: str) -> str:
    return f"{_age((datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds())} ago"


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
