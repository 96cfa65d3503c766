"""`catchment.open`, and the object that it returns.

    import catchment

    with catchment.open("data") as c:
        c.queue.enqueue("events", rows)
        c.queue.flush()

Every process of Catchment imports this module with the package, so it imports the parts only when
they are used.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.api.lake import LakeApi
    from catchment.api.legacy import LegacyApi
    from catchment.api.queue import QueueApi
    from catchment.api.schema import SchemaApi
    from catchment.app import App
    from catchment.doctor import Check
    from catchment.foundation.settings import Settings
    from catchment.lake import AuditReport
    from catchment.server.access.users import Users
    from catchment.server.flight_server import FlightServer
    from catchment.tenants.service import TenantService


def open(home: str | Path | None = None, **settings: Any) -> "Catchment":  # noqa: A001
    """Return the Catchment of a data folder. It creates nothing before its first use.

    `home` defaults to the setting CATCHMENT_HOME, which defaults to `catchment-data`. `settings`
    override the environment and the home's `catchment.toml`; their names are the keys of that file:
    `log_level` for CATCHMENT_LOG_LEVEL, `queue_auto_create_tables` for
    DUCKLING_QUEUE_AUTO_CREATE_TABLES.
    """
    from catchment.foundation.settings import load_settings

    return Catchment(load_settings(None if home is None else Path(home), **settings))


class Catchment:
    """One data folder, opened by this process. Close it, or use it in a `with` statement.

    Its parts are opened on first use and closed together. Several threads may use it at once.
    """

    def __init__(self, settings: "Settings") -> None:
        self.settings = settings
        self._mutex = threading.Lock()
        self._app: App | None = None
        self._is_closed = False

    def __enter__(self) -> "Catchment":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the background flush and close queue, lake and Spark. Buffered rows stay buffered."""
        with self._mutex:
            app, self._app = self._app, None
            self._is_closed = True
        if app is not None:
            app.close()

    @property
    def app(self) -> "App":
        """The components behind this object, for code that needs more than its calls."""
        # Imported here because it imports the pipelines, which some commands do not need.
        from catchment.app import App
        from catchment.errors import StateError
        from catchment.foundation.pandas_probe import skip_pandas_probe

        with self._mutex:
            if self._is_closed:
                raise StateError("This Catchment is closed.", hint="Open the home again with `catchment.open`.")
            if self._app is None:
                skip_pandas_probe()
                self._app = App(self.settings)
            return self._app

    @cached_property
    def queue(self) -> "QueueApi":
        """The queue: durable small writes in front of the lake."""
        from catchment.api.queue import QueueApi

        return QueueApi(lambda: self.app)

    @cached_property
    def lake(self) -> "LakeApi":
        """The lake: file deliveries, queries, audit and maintenance."""
        from catchment.api.lake import LakeApi

        return LakeApi(lambda: self.app)

    @cached_property
    def legacy(self) -> "LegacyApi":
        """Imports of legacy Parquet in hive folders."""
        from catchment.api.legacy import LegacyApi

        return LegacyApi(lambda: self.app)

    @cached_property
    def schema(self) -> "SchemaApi":
        """Schema migrations of SQLite files and of lake tables."""
        from catchment.api.schema import SchemaApi

        return SchemaApi(self.settings)

    @property
    def tenants(self) -> "TenantService":
        """Shards, tenants and their moves."""
        return self.app.tenants

    @cached_property
    def users(self) -> "Users":
        """The users of the server."""
        from catchment.server.access.users import Users

        return Users.from_settings(self.settings)

    @property
    def spark(self) -> "SparkSession":
        """The Spark session that runs the pipelines; started on first use."""
        return self.app.runner.spark

    def status(self, on_remark: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
        """Return the health of every part, as `catchment status --json` prints it.

        Read from the server that runs on this home; without one, from the home's files. If a
        running server does not answer, `on_remark` is called with the reason.
        """
        from catchment.api import health

        return health.status(self.app, self.queue, on_remark)

    def audit(self) -> "AuditReport":
        """Prove from the ledger and the tables that every unit was delivered exactly once.

        The report's `ok` is False if there are `findings`.
        """
        return self.lake.audit()

    def doctor(self, *, prepare: bool = False) -> Iterator["Check"]:
        """Check this machine for Catchment's requirements; yield each result as it is found.

        With `prepare`, also make later starts of Spark faster.
        """
        from catchment.doctor import examine

        return examine(self.settings, prepare=prepare)

    @contextmanager
    def serve(self) -> Iterator["FlightServer"]:
        """Serve the home over Arrow Flight SQL until the block ends, then flush and stop.

        The server has its own connection to lake and queue. While it runs, clients write through
        it: a buffer is open in one place at a time.
        """
        server = self.server()
        server.start()
        try:
            yield server
        finally:
            server.stop()

    def server(self) -> "FlightServer":
        """Return a server of this home, not started."""
        from catchment.foundation.pandas_probe import skip_pandas_probe
        from catchment.foundation.settings import default_variable

        # Read when gRPC is imported: it would report every failed handshake on stderr.
        default_variable("GRPC_VERBOSITY", "NONE")
        from catchment.server.flight_server import FlightServer

        skip_pandas_probe()
        return FlightServer(self.settings)
