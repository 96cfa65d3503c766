"""Composition root: builds the components that the settings select."""

import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from catchment.errors import LakeMissingError, SettingsError
from catchment.foundation import files
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.ids import ProducerId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.lake import AuditReport, Lake, last_audit, parse_catalog
from catchment.lake.attach import PostgresCatalog
from catchment.lake.maintenance import Ages, MaintenanceReport, maintain
from catchment.lake.sandbox import Sandbox
from catchment.pipeline import Deliverer, SparkRunner
from catchment.pipeline.flush import FILE_BYTES_MIN, FlushPipeline
from catchment.pipeline.legacy import known_imports
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import BYTES_PER_COMMIT_MAX, UNITS_PER_COMMIT_MAX, LegacyImport
from catchment.pipeline.plan import ADOPT_BYTES_MIN
from catchment.queue import Buffer, DqCoordinator, QueueRuntime, buffer_exists, open_buffer

if TYPE_CHECKING:
    from catchment.control import ControlDatabase
    from catchment.tenants.control_store import ControlStore
    from catchment.tenants.service import TenantService


class App:
    """One process of Catchment. Components are created on first use and closed together."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, sandboxed: bool = False) -> None:
        """`sandboxed`: client SQL runs in this process, so the lake's DuckDB instance is sandboxed."""
        self.settings = settings
        self._sandboxed = sandboxed
        self.clock: Clock = clock or SystemClock()
        self.meters = Meters()
        # Guards the fields below: threads that request a component concurrently must get the same
        # one.
        self._mutex = threading.RLock()
        self._lake: Lake | None = None
        self._runner: SparkRunner | None = None
        self._buffer: Buffer | None = None
        self._queue: DqCoordinator | None = None
        self._runtime: QueueRuntime | None = None
        self._control: ControlDatabase | None = None
        self._tenants: TenantService | None = None

    def __enter__(self) -> "App":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the background flush and close every component."""
        try:
            if self._runtime is not None:
                self._runtime.stop()
            if self._buffer is not None:
                self._buffer.close()
        finally:
            self._close_rest()

    def _close_rest(self) -> None:
        try:
            if self._tenants is not None:
                self._tenants.close()
            if self._runner is not None:
                self._runner.close()
        finally:
            if self._lake is not None:
                self._lake.close()

    @property
    def lake(self) -> Lake:
        """The lake, opened, and created if missing."""
        return self._open(create=True)

    @property
    def existing_lake(self) -> Lake:
        """The lake, opened for reading; LakeMissingError if there is none."""
        return self._open(create=False)

    def _open(self, *, create: bool) -> Lake:
        with self._mutex:
            lake = self._lake or self._make_lake()
            lake.open(create=create)
            self._lake = lake
            return lake

    def _make_lake(self) -> Lake:
        sandbox = self.sandbox if self._sandboxed else None
        return Lake.from_settings(
            self.settings, clock=self.clock, sandbox=sandbox, holds_wal=self._sandboxed, meters=self.meters
        )

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of an instance that runs client SQL."""
        return Sandbox(spill_path=self.settings.home.absolute() / "spill", memory_mb=self.settings.server_memory_mb)

    @property
    def control(self) -> "ControlDatabase":
        """The control database; created, or backed up and upgraded, on first use."""
        # Imported here because it imports the migrations, which most commands do not need.
        from catchment.control import ControlDatabase

        with self._mutex:
            if self._control is None:
                self._control = ControlDatabase.open(self.settings, clock=self.clock)
            return self._control

    @property
    def runner(self) -> SparkRunner:
        """Spark; started by its first task."""
        with self._mutex:
            if self._runner is None:
                self._runner = SparkRunner(self.settings)
            return self._runner

    def deliverer(self) -> Deliverer:
        """Return the deliverer into the lake."""
        return Deliverer(self.lake, self.runner, self.settings)

    def planner(self) -> Deliverer:
        """Return a deliverer for plans alone: the lake is neither created nor opened."""
        return Deliverer(self._lake or self._make_lake(), self.runner, self.settings)

    def legacy_import(self, place: ImportFolders, options: ImportOptions) -> LegacyImport:
        """Return an import of legacy Parquet, which creates the lake when it starts to deliver."""
        return LegacyImport(
            place,
            options,
            find_lake=self.find_lake,
            deliverer=lambda: Deliverer(
                self.lake,
                self.runner,
                self.settings,
                units_per_commit_max=UNITS_PER_COMMIT_MAX,
                bytes_per_commit_max=BYTES_PER_COMMIT_MAX,
            ),
            parallelism=self.runner.parallelism,
            adopt_bytes_min=ADOPT_BYTES_MIN,
            data_path=files.local_path(self.settings.data_path),
            clock=self.clock,
            own_files=self._own_files(),
            begun=lambda: known_imports.remember(self.settings.home, place, options),
        )

    def _own_files(self) -> tuple[Path, ...]:
        """Return the home, and the catalog's file if it has one."""
        catalog = parse_catalog(self.settings.catalog_url.get_secret_value())
        return (self.settings.home, *(() if isinstance(catalog, PostgresCatalog) else (catalog.path,)))

    def find_lake(self) -> Lake | None:
        """Return the lake, opened, or None if there is none."""
        try:
            return self.existing_lake
        except LakeMissingError:
            return None

    @property
    def queue(self) -> DqCoordinator:
        """The queue; accepts writes while the lake is unreachable and flushes later."""
        with self._mutex:
            if self._queue is None:
                self._queue = self._make_queue()
            return self._queue

    def _make_queue(self) -> DqCoordinator:
        if not self.settings.queue_enable:
            raise SettingsError("The queue is disabled.", hint="Set DUCKLING_QUEUE_ENABLE=true, or leave it out.")
        lake = self._lake = self._lake or self._make_lake()
        buffer = self._buffer = open_buffer(self.settings, clock=self.clock, meters=self.meters)
        deliverer = Deliverer(lake, self.runner, self.settings, file_bytes_min=FILE_BYTES_MIN)
        return DqCoordinator(
            buffer=buffer,
            lake=lake,
            flusher=FlushPipeline(deliverer, buffer),
            settings=self.settings,
            clock=self.clock,
            meters=self.meters,
        )

    def find_queue(self) -> DqCoordinator | None:
        """Return the queue if it has a buffer, otherwise None; creates nothing."""
        return self.queue if self._queue is not None or buffer_exists(self.settings) else None

    @property
    def has_open_queue(self) -> bool:
        """Whether this process has opened the queue."""
        return self._queue is not None

    @property
    def runtime(self) -> QueueRuntime:
        """The background flush; the caller starts it, and `close` stops it."""
        queue = self.queue
        with self._mutex:
            if self._runtime is None:
                self._runtime = QueueRuntime(queue, self.settings, self.clock)
            return self._runtime

    @property
    def control_store(self) -> "ControlStore":
        """Store of shards, tenants and moves in the control database."""
        from catchment.tenants.control_store import ControlStore

        return ControlStore(self.control, clock=self.clock)

    @property
    def tenants(self) -> "TenantService":
        """Shards, tenants and moves; a move copies history on this process's Spark."""
        # Imported here because most commands need neither moves nor calls to other servers.
        from catchment.pipeline.tenant_history import ShardBackfill
        from catchment.tenants.service import TenantService

        with self._mutex:
            if self._tenants is None:
                self._tenants = TenantService(
                    self.settings,
                    control=lambda: self.control,
                    history=lambda: ShardBackfill(self.runner, clock=self.clock),
                    clock=self.clock,
                )
            return self._tenants

    def audit(self, producer: ProducerId | None = None) -> AuditReport:
        """Audit the lake, or one producer; the result of a whole audit is kept for the status."""
        report = self.existing_lake.audit(producer)
        if producer is None and self.settings.home.is_dir():
            last_audit.note(self.settings.home, report, self.clock.now())
        return report

    def maintain(self, *, dry_run: bool) -> MaintenanceReport:
        """Run maintenance on the lake."""
        lake = self.existing_lake
        if not dry_run:
            lake.open()
        return maintain(lake, Ages.from_settings(self.settings), dry_run=dry_run)
