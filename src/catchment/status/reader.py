"""`StatusReader`: composes the status from the components of a process.

Queue, sessions and meters are in memory and read each time. Lake, imports, schemas and tenants are
read by background threads and cached: no writer ever waits for them.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from types import TracebackType
from typing import TypeVar

from catchment.app import App
from catchment.errors import BufferHeldError, CatchmentError, DiskFullError, InputError, StateError
from catchment.foundation.lasting_thread import LastingThread
from catchment.foundation.meters import Meters
from catchment.pipeline.legacy.folders import ImportPhase
from catchment.queue.coordinator import QueueStatus
from catchment.status import background, project_schema, readings, schemas
from catchment.status.background import WAIT_S_MAX, BackgroundPart, BackgroundReader
from catchment.status.model import (
    Health,
    Imports,
    LakePart,
    Queue,
    Reading,
    SchemaDatabase,
    Schemas,
    Sessions,
    Status,
    StatusPart,
    Tenants,
)
from catchment.status.recorder import Recorder
from catchment.status.window import SAMPLE_S, Window

T = TypeVar("T")
_WAIT_S_DIRECT = 30.0
# A table is late if its oldest row has waited this many times the age at which it is flushed.
_LATE_TIMES = 3.0
_FULL_SHARE = 0.9
# Models are read by a separate process, and schemas rarely change.
_PROJECT_S_MIN = 60.0


class StatusReader:
    """Reads the status of one process, from `start` to `close`. Safe for concurrent use."""

    def __init__(
        self,
        app: App,
        *,
        sessions: Callable[[], Sessions] | None = None,
        queue: Callable[[], QueueStatus] | None = None,
    ) -> None:
        """`sessions` reads a server's clients; `queue` reads the queue if another process has the
        buffer open.
        """
        self._app = app
        self._clock = app.clock
        self._sessions = sessions
        self._ask_queue = queue or self._own_queue
        self._recorder = Recorder(app.meters, app.clock)
        self._window = Window(app.meters, app.clock)
        self._reader = BackgroundReader("catchment-status")
        self._lake: BackgroundPart[readings.LakeSeen] = self._cached("lake", lambda: readings.lake(app))
        self._legacy: BackgroundPart[Imports] = self._cached("legacy", lambda: readings.imports(app))
        self._control: BackgroundPart[SchemaDatabase | None] = self._cached("control", lambda: schemas.control(app))
        self._project: BackgroundPart[SchemaDatabase | None] = self._cached(
            "project", lambda: project_schema.look(app.settings), seconds_min=_PROJECT_S_MIN
        )
        self._tenants: BackgroundPart[Tenants] = self._cached("tenants", lambda: readings.tenants(app))
        self._opened = ExitStack()
        self._stopping = threading.Event()
        self._sampler = LastingThread(self._sample, name="catchment-samples")

    def __enter__(self) -> "StatusReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start recording events, and sampling the meters every few seconds."""
        self._opened.enter_context(self._recorder.listening())
        self._sampler.start()

    def close(self) -> None:
        """Stop recording; running reads get a moment and are then abandoned."""
        self._stopping.set()
        self._sampler.join(WAIT_S_MAX)
        self._reader.close()
        self._opened.close()

    def status(self) -> Status:
        """Return the current status."""
        for each in (self._lake, self._legacy, self._control, self._project, self._tenants):
            each.ask()
        # All parts share one deadline: a one-off command can wait, a server answers within a
        # moment.
        end_s = self._clock.monotonic_s() + (_WAIT_S_DIRECT if self._sessions is None else WAIT_S_MAX)
        seen = self._lake.read(until_s=end_s)
        lake: StatusPart[LakePart] = StatusPart(seen.at, seen.value.lake if seen.value else None, seen.unavailable)
        own, of_project = self._control.read(until_s=end_s), self._project.read(until_s=end_s)
        legacy = self._legacy.read(until_s=end_s)
        queue, trouble = self._queue(lake.value)
        return Status(
            at=self._clock.now(),
            version=version("catchment"),
            home=str(self._app.settings.home.absolute()),
            shard=self._app.settings.shard_name,
            serving=self._sessions is not None,
            health=self._health(queue, trouble, lake, own, legacy),
            totals=self._window.totals(),
            queue=queue,
            lake=lake,
            legacy=legacy,
            schemas=_schemas(own, of_project, seen.value),
            tenants=self._tenants.read(until_s=end_s),
            sessions=self._now(self._sessions or _no_server),
            meters=meter_readings(self._app.meters),
            trend=self._window.trend(),
        )

    def _cached(self, name: str, ask: Callable[[], T], *, seconds_min: float = 0.0) -> BackgroundPart[T]:
        seconds_max = max(seconds_min, background.AGE_SECONDS_MAX)
        return BackgroundPart(name, ask, seconds_max=seconds_max, reader=self._reader, clock=self._clock)

    def _now(self, ask: Callable[[], T]) -> StatusPart[T]:
        try:
            return StatusPart(self._clock.now(), value=ask())
        except CatchmentError as error:
            return StatusPart(self._clock.now(), unavailable=error.message)

    def _own_queue(self) -> QueueStatus:
        queue = self._app.find_queue() if self._app.settings.queue_enable else None
        if queue is None:
            raise StateError("There is no buffer yet.", hint="The first write creates it.")
        queue.require_writable()
        return queue.status()

    def _queue(self, lake: LakePart | None) -> tuple[StatusPart[Queue], str | None]:
        """Return the queue; if it cannot be read, also the reason that makes the status degraded."""
        now = self._clock.now()
        try:
            return StatusPart(now, readings.queue(self._ask_queue(), lake, self._recorder)), None
        except CatchmentError as error:
            return StatusPart(now, unavailable=error.message), _queue_problem(error)

    def _health(
        self,
        queue: StatusPart[Queue],
        trouble: str | None,
        lake: StatusPart[LakePart],
        control: StatusPart[SchemaDatabase | None],
        legacy: StatusPart[Imports],
    ) -> Health:
        late_s = _LATE_TIMES * self._app.settings.queue_rotate_interval_seconds
        reasons = [*([trouble] if trouble else []), *_queue_reasons(queue, late_s), *_lake_reasons(lake)]
        if control.unavailable is not None:
            reasons.append("The control database is unavailable.")
        reasons += _import_reasons(legacy)
        return Health(ok=not reasons, reasons=tuple(reasons))

    def _sample(self) -> None:
        while not self._stopping.wait(SAMPLE_S):
            queue = self._queue(None)[0].value
            self._window.sample(buffered_rows=None if queue is None else queue.rows)


def _schemas(
    own: StatusPart[SchemaDatabase | None],
    of_project: StatusPart[SchemaDatabase | None],
    lake: readings.LakeSeen | None,
) -> StatusPart[Schemas]:
    if own.unavailable is not None:
        return StatusPart(own.at, unavailable=own.unavailable)
    compared = of_project.value
    if of_project.unavailable is not None:
        compared = schemas.unclear("project", of_project.unavailable)
    found = schemas.merged(own.value, compared, () if lake is None else lake.schemas)
    return StatusPart(own.at, Schemas(databases=found))


def _no_server() -> Sessions:
    raise StateError("No server runs on this home.", hint="`catchment serve` starts one.")


def _queue_problem(error: CatchmentError) -> str | None:
    """Reason why an unreadable queue degrades the status, for every role; None if it does not."""
    match error:
        case InputError() | BufferHeldError():
            # It does not exist yet, or another process has it.
            return None
        case DiskFullError():
            return "The queue cannot accept writes: no space is left on the device."
        case _:
            return "The queue cannot accept writes."


def _queue_reasons(part: StatusPart[Queue], late_s: float) -> Iterator[str]:
    """Problems of the queue; the texts contain nothing that is for admins only."""
    queue = part.value
    if queue is None:
        return
    for table in queue.tables:
        if table.failures:
            yield f"Flushes of {table.table} fail: {table.failures} in a row."
        elif table.oldest_age_s is not None and table.oldest_age_s > late_s:
            yield f"Rows of {table.table} have waited for {table.oldest_age_s:,.0f} s."
    if queue.bytes_max and queue.bytes >= _FULL_SHARE * queue.bytes_max:
        yield f"The buffer is {queue.bytes / queue.bytes_max:.0%} full."
    if queue.set_aside:
        yield f"Files of the buffer were quarantined, because they cannot be opened: {len(queue.set_aside)}."


def _lake_reasons(part: StatusPart[LakePart]) -> Iterator[str]:
    if part.unavailable is not None:
        yield "The lake is unavailable."
    if part.value is not None and part.value.last_audit is not None and not part.value.last_audit.ok:
        yield f"The last audit had findings: {part.value.last_audit.findings}."


def _import_reasons(part: StatusPart[Imports]) -> Iterator[str]:
    """Imports that must be continued or decided about, by id, because folders are for admins only."""
    for each in part.value.imports if part.value is not None else ():
        if each.phase == readings.UNCLEAR:
            yield f"The folders of legacy import {each.id} contradict each other."
        elif each.running:
            continue
        elif each.leaves_failed:
            yield f"Legacy import {each.id} is not finished: {each.leaves_failed} leaves failed."
        elif each.phase in (ImportPhase.IMPORTING, ImportPhase.UNDOING):
            yield f"Legacy import {each.id} was stopped ({each.phase}): run the same command again."
        elif each.files_left_out:
            yield f"Legacy import {each.id} left {each.files_left_out} Parquet files out: they are in its backup only."


def meter_readings(meters: Meters) -> dict[str, Reading]:
    """Return every meter by name."""
    found: dict[str, Reading] = {}
    for name, meter in vars(meters).items():
        found[name] = {step: each.read() for step, each in meter.items()} if isinstance(meter, dict) else meter.read()
    return found
