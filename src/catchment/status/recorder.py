"""Recorder: counts the events of this process and remembers the last flushes of each table."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from catchment.foundation import events
from catchment.foundation.clock import Clock
from catchment.foundation.events import Event
from catchment.foundation.meters import FLUSH_STEPS, Meters
from catchment.status.model import Flush

FLUSHES_MAX = 5
_TABLES_MAX = 1_000
_RETRIES = {"ConflictError": "conflict", "CommitUnknownError": "unknown"}


class Recorder:
    """Counts events into meters. Safe for concurrent use."""

    def __init__(self, meters: Meters, clock: Clock) -> None:
        self._meters = meters
        self._clock = clock
        self._mutex = Lock()
        self._flushes: OrderedDict[str, deque[Flush]] = OrderedDict()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record events inside the context."""
        with events.listening(self.record):
            yield

    def record(self, event: Event) -> None:
        """Record one event."""
        meters, facts = self._meters, event.facts
        match event.verb:
            case "flushed":
                meters.flushes.add("done")
                self._note(facts["table"], facts)
            case "flush_failed":
                meters.flushes.add("failed")
            case "flush_timed":
                for step in FLUSH_STEPS:
                    meters.flush_seconds[step].observe(facts[f"{step}_s"])
            case "delivered":
                meters.delivered_units.add(facts["units"])
                meters.delivered_rows.add(facts["rows"])
                meters.delivered_files.add(facts["files"])
            case "commit_redone":
                meters.commit_retries.add(_RETRIES.get(facts["error"], facts["error"]))
            case "replay_skipped":
                meters.replays_skipped.add("rows" if "rows" in facts else "units", facts.get("rows") or facts["units"])
            case "sifted":
                meters.rows_buried.add(facts["bad"])
            case "bypassed":
                meters.rows_bypassed.add(facts["rows"])
            case "login_failed":
                meters.logins_failed.add()

    def flushes(self, table: str) -> tuple[Flush, ...]:
        """Return the table's last flushes, newest first."""
        with self._mutex:
            return tuple(reversed(self._flushes.get(table, ())))

    def _note(self, table: str, facts: dict[str, object]) -> None:
        kept = {name: facts[name] for name in ("rows", "files", "bytes", "seconds")}
        flush = Flush(at=self._clock.now(), **kept)  # type: ignore[arg-type]
        with self._mutex:
            self._flushes.setdefault(table, deque(maxlen=FLUSHES_MAX)).append(flush)
            self._flushes.move_to_end(table)
            if len(self._flushes) > _TABLES_MAX:
                self._flushes.popitem(last=False)
