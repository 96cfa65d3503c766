"""The story itself: seven acts on two shards, each with numbers that were measured in this very run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from catchment.app import App
from catchment.cli.demo import scene as acts
from catchment.cli.demo.adbc_client import Client
from catchment.cli.demo.demo_folder import A, B, DemoPlace
from catchment.cli.demo.display import DemoView
from catchment.cli.demo.scene import DemoCheck, Scene
from catchment.cli.demo.servers import Servers
from catchment.cli.demo.writers import DEFAULT_UNIT, TABLE, Writers
from catchment.errors import InvariantError, NotReadyError, RetryableError
from catchment.foundation import files, sql
from catchment.foundation.ids import TableId
from catchment.foundation.text import plural
from catchment.lake import Lake, extensions
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.folders import ImportPhase as LegacyPhase
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.schema import LakeEngine, Migrate, TableRow
from catchment.server.users import Users
from catchment.tenants.control import ControlPlane
from catchment.tenants.model import Finalizing, MoveInfo, ShardId, ShardInfo, TenantConfig, TenantId
from catchment.tenants.run_move import MovePhase, MoveReport
from catchment.tenants.shard_api import Lag

_SALES = TableId("legacy", "sales")
_KEYS = (Column(name="region", type="VARCHAR"), Column(name="day", type="DATE"))
_SALES_ROWS, _SALES_FILES = 12_000, 24
_WRITES_FIRST = 150
_PATIENCE_S = 60.0
_LOOK_S = 0.05
_REGION = "default"


class Reading(TableRow):
    """A tenant's table, as it is at first."""

    __tablename__ = TABLE

    sensor: str
    celsius: float


class ReadingWithUnit(TableRow):
    """The same, after somebody has changed the model."""

    __tablename__ = TABLE

    sensor: str
    celsius: float
    unit: str | None = DEFAULT_UNIT


@dataclass(slots=True)
class Story:
    """One run: `app` is on the first shard's home, `facts` are what the acts came to."""

    place: DemoPlace
    app: App
    servers: Servers
    client: Client
    scene: Scene
    view: DemoView
    facts: dict[str, Any] = field(default_factory=dict)
    checks: list[DemoCheck] = field(default_factory=list)
    _tenant: TenantId = field(default_factory=lambda: TenantId(0))
    _writers: Writers = field(default_factory=lambda: Writers(()))

    def tell(self) -> None:
        """Play all acts; the checks say whether every promise was kept."""
        for play in (self._serve, self._write, self._read, self._import, self._change, self._move, self._prove):
            play()

    def end_writers(self) -> None:
        """Have nobody write any more."""
        self._writers.stop()

    def _serve(self) -> None:
        self.view.begin(acts.SERVERS)
        store = self.app.control_store
        plane = ControlPlane(store, self.app.clock)
        under_way = [move for move in store.moves() if move.finished_at is None]
        before = {shard.id: shard.location for shard in store.shards()}
        # A move that was stopped goes on between the addresses that it began with.
        self.servers.start(before if under_way else {})
        for server in self.servers.all():
            plane.update_topology(
                ShardInfo(id=server.shard, region=_REGION, location=server.uri, home=str(server.home))
            )
        self.scene.dashboard = self.servers[A].web
        earlier = store.tenants()
        self._finish(under_way, before)
        self._tenant = TenantId(max((each.id.number for each in earlier), default=0) + 1)
        plane.create_tenant(self._tenant, name=f"demo {self._tenant.number}", config=TenantConfig(), shard=A)
        self.scene.tenant, self.scene.lives_in = str(self._tenant), A.name
        self.facts["run"] = {"tenant": str(self._tenant), "earlier": [str(each.id) for each in earlier]}
        self.facts["servers"] = [
            {"shard": each.shard.name, "uri": each.uri, "web": each.web, "pid": each.process.pid}
            for each in self.servers.all()
        ]
        results = [f"{each.shard} at {each.uri}, dashboard {each.web}" for each in self.servers.all()]
        there = f"; there already: {', '.join(str(each.id) for each in earlier)}" if earlier else ""
        self.view.done([*results, f"Tenant {self._tenant} is new, and lives in {A}{there}"])

    def _write(self) -> None:
        self.view.begin(acts.WRITERS)
        self._migrate(Reading)
        uris = [server.uri for server in self.servers.all()]
        users = Users.from_settings(self.app.settings, clock=self.app.clock)
        self._writers = self.scene.writers = Writers.of(self._tenant, users, uris, self.app.clock)
        started_s = self.app.clock.monotonic_s()
        self._writers.start()
        self._wait_for(_WRITES_FIRST)
        acked, spent_s = self._writers.acked, self.app.clock.monotonic_s() - started_s
        self.view.done(
            [
                f"{acked:,} rows acknowledged in {spent_s:.1f} s, one at a time, and the writers go on",
                f"kitchen is connected to {A}, cellar to {B}: either leads to {self._tenant}'s home",
            ]
        )

    def _read(self) -> None:
        self.view.begin(acts.FRESH)
        promised = {writer.login.name: writer.acked for writer in self._writers.each}
        acked, is_promised = (
            sum(promised.values()),
            " OR ".join(f"sensor = '{n}' AND id <= {last}" for n, last in promised.items()),
        )
        ((seen, kept),) = self._fresh(f"count(*) AS seen, count(*) FILTER ({is_promised}) AS kept")
        in_lake = self._rows_in(A)
        self.checks.append(DemoCheck(what="rows acknowledged, and seen by a fresh read", promised=acked, found=kept))
        self.view.note("Spark starts in the server, for its first flush")
        flushed = self._flush(A)
        self.facts["fresh"] = {"acked": acked, "seen": seen, "in_lake": in_lake}
        self.facts["flush"] = flushed
        self.view.done(
            [
                f"{acked:,} rows acknowledged, {seen:,} seen, {in_lake:,} of them in the lake",
                f"One flush: {flushed['rows']:,} rows are {plural(flushed['files'], 'Parquet file')} now",
            ]
        )

    def _import(self) -> None:
        self.view.begin(acts.LEGACY)
        number, place = self.place.tree()
        if place.phase() is LegacyPhase.NOTHING:
            _make_tree(place, number)
        self.view.note(f"{_SALES_FILES} files in hive folders; Spark starts in this process")
        job = self.app.legacy_import(place, ImportOptions(keys=_KEYS, schema=_SALES.schema, table=_SALES.name))
        first, again = job.run(), job.run()
        for failure in first.failures[:1]:
            self.view.say(f"{failure.leaf}: {failure.reason}")
        proof = job.verify()
        self.facts["legacy"] = {
            "leaves": first.leaves,
            "rows": first.rows,
            "leaves_again": again.leaves,
            "failures": len(first.failures),
        }
        self.checks += [
            DemoCheck(
                what=f"rows of the legacy tree in {_SALES}", promised=_SALES_ROWS, found=proof.rows if proof.ok else 0
            ),
            DemoCheck(what="files that the second import delivered", promised=0, found=again.leaves),
        ]
        self.view.done(
            [
                f"{plural(first.leaves, 'file')}, {first.rows:,} rows: in {_SALES}, compared row by row",
                f"The same again: {plural(again.leaves, 'file')} delivered, for all are known",
            ]
        )

    def _change(self) -> None:
        self.view.begin(acts.SCHEMA)
        buffered = self.scene.rows_buffered
        script, rehearsed_s = self._migrate(ReadingWithUnit)
        self._writers.each[0].use_unit()
        self._wait_for(_WRITES_FIRST // 5)
        units = dict(self._fresh("unit, count(*)", "GROUP BY ALL"))
        self.facts["schema"] = {"script": script, "buffered": buffered, "units": units}
        self.view.done(
            [
                f"{script}",
                f"rehearsed on a copy in {rehearsed_s:.1f} s, then applied, with {buffered:,} rows in the buffer",
                f"{units.get(DEFAULT_UNIT, 0):,} rows of the old shape read '{DEFAULT_UNIT}'",
            ]
        )

    def _move(self) -> None:
        self.view.begin(acts.MOVE)
        for writer in self._writers.each:
            writer.measure_anew()
        before, errors = self._writers.acked, len(self._writers.errors)
        report = self._drive(self._tenant, B)
        self.scene.lives_in = B.name
        during, failed = self._writers.acked - before, len(self._writers.errors) - errors
        pause_ms, waited_ms = report.pause_ms or 0.0, self._writers.waited_ms_max
        self.facts["move"] = {
            "from": A.name,
            "to": B.name,
            "state": report.state,
            "pause_ms": round(pause_ms, 1),
            "waited_ms_max": round(waited_ms, 1),
            "acked_meanwhile": during,
            "errors": failed,
            "rows_compared": report.rows,
        }
        self.view.done(
            [
                f"{self._tenant} lives in {B}; {report.rows or 0:,} rows were compared before {A} let go",
                f"The switch took {pause_ms:.0f} ms; no writer waited longer than {waited_ms:.0f} ms for an ack",
                f"{during:,} rows acknowledged meanwhile, {plural(failed, 'error')}",
            ]
        )

    def _prove(self) -> None:
        self.view.begin(acts.PROOF)
        self._writers.stop()
        acked, errors = self._writers.acked, self._writers.errors
        self.view.note("the last flush: Spark starts in the other server")
        self._flush(B)
        with self._lake(B) as lake, lake.cursor() as cursor:
            table = sql.qualified(lake.name, self._tenant.schema, TABLE)
            query = "count(*), count(DISTINCT (sensor, id)), count(*) FILTER (unit = 'kelvin')"
            ((rows, distinct, kelvin),) = cursor.execute(f"SELECT {query} FROM {table}").fetchall()
            ((plain,),) = cursor.execute(f"SELECT count(*) FROM {table} WHERE unit = '{DEFAULT_UNIT}'").fetchall()
        with_unit = sum(writer.acked_with_unit for writer in self._writers.each)
        self.view.note("the ledgers are audited")
        self.checks += [
            DemoCheck(what="rows acknowledged, and rows in the lake", promised=acked, found=rows),
            DemoCheck(what="the same without doubles", promised=acked, found=distinct),
            DemoCheck(
                what=f"rows of the old shape, with the default '{DEFAULT_UNIT}'",
                promised=acked - with_unit,
                found=plain,
            ),
            DemoCheck(what="rows with the new column", promised=with_unit, found=kelvin),
            DemoCheck(what="writes that failed", promised=0, found=len(errors)),
            DemoCheck(what=f"rows of {self._tenant} left in {A}", promised=0, found=self._rows_in(A)),
            DemoCheck(what="findings of the ledgers' audit, both lakes", promised=0, found=self._audit()),
            *self._earlier(),
        ]
        self.facts.update(
            acked=acked,
            in_lake=rows,
            distinct=distinct,
            errors=errors,
            writers={writer.login.name: writer.acked for writer in self._writers.each},
        )
        self.view.done([f"{acked:,} rows were acknowledged, {distinct:,} are in the lake, each once"])
        self.view.prove(self.checks)

    def _finish(self, under_way: Sequence[MoveInfo], before: Mapping[ShardId, str]) -> None:
        """A demo that was stopped in the middle of a move left it in a state that any mover can go on from."""
        is_as_before = all(before.get(server.shard) == server.uri for server in self.servers.all())
        for move in under_way:
            if is_as_before:
                self.view.note(f"{move.tenant} was on its way to {move.target} when a demo was stopped: it goes on")
                self._drive(move.tenant, move.target)
            elif not isinstance(move.state, Finalizing):
                self.view.note(f"{move.tenant} was on its way to {move.target}, which is elsewhere now: it stays")
                self.app.tenants.abort(move.tenant)

    def _drive(self, tenant: TenantId, target: ShardId) -> MoveReport:
        return self.app.tenants.move(tenant, target, watcher=_Watch(self.view), gc_window_s=0)

    def _migrate(self, model: type[TableRow]) -> tuple[str, float]:
        """Bring the table to the model: generate, rehearse, apply; the statement, and how long the rehearsal took."""
        engine = LakeEngine(
            self.app.lake, schema=self._tenant.schema, folder=self.place.schemas, name=self._tenant.schema
        )
        migrate = Migrate(engine, [model])
        script = migrate.generate()
        if script is None:
            raise InvariantError(f"The table of {self._tenant} has its columns already.")
        started_s = self.app.clock.monotonic_s()
        rehearsal = migrate.rehearse()
        rehearsed_s = self.app.clock.monotonic_s() - started_s
        if not rehearsal.ok:
            raise InvariantError(rehearsal.report())
        migrate.apply(script.name)
        lines = [line for line in script.read_text(encoding="utf-8").splitlines() if line and not line.startswith("--")]
        return " ".join(lines).rstrip(";"), rehearsed_s

    def _wait_for(self, more: int) -> None:
        """Wait until each writer has so many acks more."""
        goals = {writer.login.name: writer.acked + more for writer in self._writers.each}
        until_s = self.app.clock.monotonic_s() + _PATIENCE_S
        while any(writer.acked < goals[writer.login.name] for writer in self._writers.each):
            errors = self._writers.errors
            if errors or self.app.clock.monotonic_s() > until_s:
                raise NotReadyError(f"The writers get no further: {errors[0] if errors else 'nobody answers'}")
            self.app.clock.sleep(_LOOK_S)

    def _fresh(self, what: str, more: str = "") -> list[tuple[Any, ...]]:
        table = sql.qualified("catchment_fresh", self._tenant.schema, TABLE)
        rows = self.client.ask(self.servers[A].uri, f"SELECT {what} FROM {table} {more}")
        return [tuple(row.values()) for row in rows]

    def _flush(self, shard: ShardId) -> dict[str, int]:
        """Have the shard's server flush; what became of the tenant's rows."""
        tables = self.client.ask(self.servers[shard].uri, "CALL duckling_queue_flush()")
        done = [each for each in tables if each["table_schema"] == self._tenant.schema]
        found = {name: sum(row[name] for row in done) for name in ("rows", "files", "bytes")}
        self.scene.rows_flushed += found["rows"]
        return found

    def _rows_in(self, shard: ShardId, tenant: TenantId | None = None) -> int:
        """Rows of a tenant in a shard's lake; none where it has no table."""
        table = TableId((tenant or self._tenant).schema, TABLE)
        with self._lake(shard) as lake:
            if lake.find_table(table) is None:
                return 0
            with lake.cursor() as cursor:
                return int(cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])

    def _audit(self) -> int:
        """Findings in both lakes; each home keeps the result for its dashboard."""
        found = len(self.app.audit().findings)
        with App(self.place.settings(B), clock=self.app.clock) as other:
            return found + len(other.audit().findings)

    def _earlier(self) -> Iterator[DemoCheck]:
        """What earlier runs wrote is still there: a sensor's rows are numbered from 1 on, without a gap."""
        for tenant in self.app.control_store.tenants():
            table = TableId(tenant.id.schema, TABLE)
            with self._lake(tenant.shard) as lake, lake.cursor() as cursor:
                if tenant.id == self._tenant or lake.find_table(table) is None:
                    continue
                query = f"SELECT sensor, count(DISTINCT id) AS n, max(id) AS last FROM {table} GROUP BY ALL"
                sums = f"SELECT coalesce(sum(last), 0)::BIGINT, coalesce(sum(n), 0)::BIGINT FROM ({query})"
                ((promised, found),) = cursor.execute(sums).fetchall()
            yield DemoCheck(
                what=f"rows of {tenant.id}, from an earlier run, in {tenant.shard}", promised=promised, found=found
            )

    @contextmanager
    def _lake(self, shard: ShardId) -> Iterator[Lake]:
        if shard == A:
            yield self.app.lake
            return
        with Lake.from_settings(self.place.settings(shard), clock=self.app.clock) as lake:
            yield lake


class _Watch:
    """Tells the view which phase a move is in."""

    def __init__(self, view: DemoView) -> None:
        self._view = view

    def phase(self, phase: MovePhase) -> None:
        self._view.note(phase.value.replace("-", " "))

    def history(self, done: int, total: int) -> None: ...

    def lag(self, lag: Lag, left_s: float | None) -> None: ...

    def window(self, left_s: float) -> None: ...

    def again(self, error: RetryableError, wait_s: float) -> None:
        self._view.note(f"{error.message} Again in {wait_s:.1f} s")


def _make_tree(place: ImportFolders, number: int) -> None:
    """Sales of two regions, a file for each region and day of the year; it appears once it is whole."""
    making = place.data.with_name(f"{place.data.name}.making")
    files.make_folder(making.parent)
    files.remove_tree(making)
    days = _SALES_FILES // 2
    rows = (
        "SELECT ['eu', 'us'][1 + i % 2] AS region, "
        f"DATE '{2000 + number}-01-01' + (i // 2 % {days})::INT AS day, i AS sale, "
        f"(i % 997) / 10 AS amount FROM range({_SALES_ROWS}) r(i)"
    )
    with extensions.connect() as connection:
        into = sql.literal(str(making))
        connection.execute(f"COPY ({rows}) TO {into} (FORMAT parquet, PARTITION_BY (region, day))")
    files.move(making, place.data)
