"""The lake as calls: deliver files, query, audit, maintain."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from catchment.api.choices import one_of
from catchment.app import App
from catchment.errors import InputError, TableMissingError
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import AuditReport, MaintenanceReport, Table
from catchment.lake.commit import CreateTable, refuse_ledger
from catchment.lake.snapshot_schema import SnapshotTable, schema_at
from catchment.pipeline import DeliveryReport, Mode, ParquetFiles, Plan, Retirement, target_table
from catchment.pipeline.parquet_source import find_files, hive_keys


class LakeApi:
    """Deliveries into the lake's tables, and reads of them.

    A table is given as `table`, which is in the schema `main`, as `schema.table`, or as a TableId.
    """

    def __init__(self, find_app: Callable[[], App]) -> None:
        self._find_app = find_app

    @property
    def _app(self) -> App:
        return self._find_app()

    def deliver(
        self,
        table: str | TableId,
        paths: str | Path | Iterable[str | Path],
        *,
        mode: Mode | str = Mode.AUTO,
        retire: Retirement | str = Retirement.KEEP,
        create: bool = False,
        partition_by: Sequence[str] = (),
        digests: bool = False,
    ) -> DeliveryReport:
        """Deliver Parquet files into a table, each exactly once, however often this is called.

        `paths` is a file, a folder or a glob, or a list of them. `mode` is `auto`, which chooses
        for each file, `adopt`, `rewrite` or `insert`. With `retire="remove"`, files are deleted
        once the lake has their rows; otherwise they stay. With `create`, a missing table is created
        from the files' columns, partitioned by `partition_by`. With `digests`, adopted files are
        read to the end and their digests recorded.

        A file that cannot be delivered raises no error: it is in the report's `failures`, with the
        reason, and the report's `ok` is False. The other files are delivered.
        """
        delivery = self.delivery(table, paths, mode=mode, retire=retire, create=create, partition_by=partition_by)
        return delivery.run(digests=digests)

    def delivery(
        self,
        table: str | TableId,
        paths: str | Path | Iterable[str | Path],
        *,
        mode: Mode | str = Mode.AUTO,
        retire: Retirement | str = Retirement.KEEP,
        create: bool = False,
        partition_by: Sequence[str] = (),
    ) -> "FileDelivery":
        """Return a delivery that can be previewed before it is run; arguments as for `deliver`."""
        return FileDelivery(
            self._app,
            TableId.of(table),
            find_files([str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]),
            mode=one_of(Mode, mode),
            retire=one_of(Retirement, retire),
            create=create,
            partition_by=tuple(partition_by),
        )

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Run a SELECT on the lake and return its rows. Buffered rows are not included.

        `?` in the statement stands for one of the `parameters`. To change something, use `write`.
        """
        with self._app.existing_lake.cursor() as cursor:
            try:
                kinds = {each.type for each in cursor.extract_statements(statement)}
                if kinds != {duckdb.StatementType.SELECT}:
                    raise InputError("`query` runs SELECT statements only.", hint="Change the lake with `write`.")
                return cursor.execute(statement, list(parameters)).to_arrow_table()
            except (duckdb.CatalogException, duckdb.BinderException, duckdb.ParserException) as error:
                raise InputError(f"The query cannot be run: {error}") from None

    def write(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """Open a write transaction: committed if the block ends without an error, else rolled back.

        The block gets a DuckDB connection, which runs the lake's SQL: for example
        `connection.execute("CREATE TABLE events (id BIGINT)")`.
        """
        return self._app.lake.write()

    def tables(self) -> tuple[TableId, ...]:
        """Return every table of the lake."""
        return self._app.existing_lake.tables()

    def snapshot(self, table: str | TableId) -> SnapshotTable:
        """Return a table's columns and data files at the newest snapshot."""
        lake, wanted = self._app.existing_lake, TableId.of(table)
        for found in schema_at(lake, wanted.schema, lake.newest_snapshot()):
            if found.table.id == wanted:
                return found
        raise TableMissingError(f"The lake has no table {wanted}.", hint="`tables` lists the lake's tables.")

    def audit(self, producer: str | ProducerId | None = None) -> AuditReport:
        """Prove from ledger and tables that every unit was delivered exactly once.

        With `producer`, such as `parquet:1:main.events`, only its units. The report's `ok` is False
        if there are `findings`.
        """
        return self._app.audit(ProducerId.parse(producer) if isinstance(producer, str) else producer)

    def maintain(self, *, dry_run: bool = False) -> MaintenanceReport:
        """Merge small files, expire old snapshots, delete unreferenced files.

        With `dry_run`, return what would be done and change nothing.
        """
        return self._app.maintain(dry_run=dry_run)


class FileDelivery:
    """A delivery of Parquet files into one table, which it creates if allowed to."""

    def __init__(
        self,
        app: App,
        table: TableId,
        files: Sequence[Path],
        *,
        mode: Mode,
        retire: Retirement,
        create: bool,
        partition_by: tuple[str, ...],
    ) -> None:
        refuse_ledger(table)
        self.table = table
        self.files = tuple(files)
        self._app = app
        self._mode = mode
        self._retire = retire
        self._create = create
        self._partition_by = partition_by

    @property
    def hive_keys(self) -> tuple[str, ...]:
        """Keys of the files' hive folders, which are not read as columns."""
        return tuple(hive_keys(self.files))

    def preview(self) -> tuple[Plan, CreateTable | None]:
        """Return the plan, and the table that would be created first; changes nothing."""
        found = self._find_table()
        if found is None:
            change = self._draft()
            return self._plan_new(change), change
        # Not opened for writing: preparing a lake that another program created would be a change.
        return self._app.planner().plan(self._source(found), self._mode), None

    def run(self, *, digests: bool = False, on_plan: Callable[[Plan], None] = lambda _: None) -> DeliveryReport:
        """Create the table if needed, and deliver; `on_plan` is called before rows are written."""
        found = self._find_table()
        if found is None:
            change = self._draft()
            # Planned before it is created: a refused plan leaves no table.
            self._plan_new(change)
            found = target_table.make_table(self._app.lake, change)
        source, deliverer = self._source(found), self._app.deliverer()
        plan = deliverer.plan(source, self._mode)
        on_plan(plan)
        return deliverer.deliver(plan, source.retire, digests=digests)

    def _find_table(self) -> Table | None:
        lake = self._app.find_lake()
        found = None if lake is None else target_table.find_table(lake, self.table)
        if found is not None:
            target_table.require_partitioning(found, self._partition_by)
        return found

    def _source(self, table: Table) -> ParquetFiles:
        return ParquetFiles(self.files, table.id, retirement=self._retire)

    def _plan_new(self, change: CreateTable) -> Plan:
        lake = self._app.find_lake()
        drafted = target_table.table_of_draft(change, encrypted=lake is not None and lake.is_encrypted())
        return self._app.planner().plan_new(ParquetFiles(self.files, self.table), drafted, self._mode)

    def _draft(self) -> CreateTable:
        if not self._create:
            raise InputError(
                f"The lake has no table {self.table}.", hint="Create it from the files: --create, or `create=True`."
            )
        if not self.files:
            raise InputError(
                f"The lake has no table {self.table}, and there is no Parquet file to create it from.",
                hint="Name files, or folders that contain some.",
            )
        return target_table.draft(ParquetFiles(self.files, self.table), self._partition_by)
