"""The composition root: builds the parts that the settings name and hands them to whoever faces the user."""

from types import TracebackType

from catchment.clock import Clock, SystemClock
from catchment.lake import Lake
from catchment.lake.upkeep import Ages, UpkeepReport, maintain
from catchment.pipeline import Deliverer, SparkRunner
from catchment.pipeline.flush import FILE_BYTES_MIN, FlushPipeline
from catchment.queue import Buffer, DqCoordinator, QueueRuntime, open_buffer
from catchment.settings import Settings


class App:
    """One process of Catchment. Parts are made when first asked for, and closed together."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._lake: Lake | None = None
        self._runner: SparkRunner | None = None
        self._buffer: Buffer | None = None
        self._queue: DqCoordinator | None = None

    def __enter__(self) -> "App":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._buffer is not None:
                self._buffer.close()
        finally:
            self._close_rest()

    def _close_rest(self) -> None:
        try:
            if self._runner is not None:
                self._runner.close()
        finally:
            if self._lake is not None:
                self._lake.close()

    @property
    def lake(self) -> Lake:
        """The lake, opened, and created where there is none."""
        return self._open(create=True)

    @property
    def existing_lake(self) -> Lake:
        """The lake, opened; LakeMissingError where there is none."""
        return self._open(create=False)

    def _open(self, *, create: bool) -> Lake:
        lake = self._lake or Lake.from_settings(self.settings, clock=self.clock)
        lake.open(create=create)
        self._lake = lake
        return lake

    @property
    def runner(self) -> SparkRunner:
        """Spark; it starts with its first task."""
        if self._runner is None:
            self._runner = SparkRunner(self.settings)
        return self._runner

    def deliverer(self) -> Deliverer:
        """What delivers into the lake."""
        return Deliverer(self.lake, self.runner, self.settings)

    @property
    def queue(self) -> DqCoordinator:
        """The queue; works while the lake is away, and flushes once it is back."""
        if self._queue is None:
            lake = self._lake or Lake.from_settings(self.settings, clock=self.clock)
            self._lake = lake
            self._buffer = open_buffer(self.settings, clock=self.clock)
            deliverer = Deliverer(lake, self.runner, self.settings, small_bytes=FILE_BYTES_MIN)
            self._queue = DqCoordinator(
                buffer=self._buffer,
                lake=lake,
                flusher=FlushPipeline(deliverer, self._buffer),
                settings=self.settings,
                clock=self.clock,
            )
        return self._queue

    def runtime(self) -> QueueRuntime:
        """What flushes in the background."""
        return QueueRuntime(self.queue, self.settings, self.clock)

    def maintain(self, *, dry_run: bool) -> UpkeepReport:
        """Run the lake's upkeep."""
        return maintain(self.existing_lake, Ages.from_settings(self.settings), dry_run=dry_run)
