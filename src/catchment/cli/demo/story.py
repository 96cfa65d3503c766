"""The demo's acts: seven steps on two shards, each with numbers measured in this run."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from catchment import Catchment, TableId, TableRow
from catchment.cli.demo.demo_folder import A, B, DemoFolder
from catchment.cli.demo.display import Act, DemoCheck, DemoView
from catchment.cli.demo.servers import Servers
from catchment.cli.demo.writers import TABLE, Writers
from catchment.cli.output import Output
from catchment.errors import InvariantError, NotReadyError
from catchment.foundation import events, files
from catchment.foundation.clock import Clock
from catchment.foundation.events import Event
from catchment.foundation.text import plural
from catchment.pipeline.legacy.folders import ImportPhase
from catchment.tenants.model import Finalizing, MoveInfo, TenantId
from catchment.tenants.run_move import MoveReport

if TYPE_CHECKING:
    from catchment.pipeline.legacy.job import LegacyImport

Results = tuple[str, ...]

ACTS = (
    Act(
        "Two servers start",
        "Each has a lake and a queue; they share a control database.",
        "There is nothing else to install: a shard is a folder and a process.",
    ),
    Act(
        "Two writers begin, over ADBC",
        "Each row is one INSERT into duckling_queue; its ack means that it is on disk.",
        "Lakes are bad at small writes. The queue accepts them, and loses none.",
    ),
    Act(
        "Read your writes, then flush them",
        "A fresh read sees buffered rows; a flush on Spark turns them into Parquet.",
        "Readers do not wait, and the lake gets one file instead of hundreds.",
    ),
    Act(
        "Legacy Parquet is imported on Spark",
        "Hive folders become a table; then the import runs again.",
        "A ledger records each file: it arrives exactly once, even after a crash.",
    ),
    Act(
        "The schema changes under the writers",
        "The model gets a column: a script is generated, rehearsed, and applied.",
        "Writers do not stop for it: rows without the column get its default.",
    ),
    Act(
        "The tenant moves while it is written to",
        "Spark copies the history, then both shards get every write, then one swap.",
        "Writers keep their connections, and wait for milliseconds.",
    ),
    Act(
        "The proof",
        "The writers stop, the rest is flushed, and every promise is counted.",
        "An acknowledged row is there, once. If not, this command exits with 1.",
    ),
)
_DEFAULT_UNIT = "celsius"
_SALES = TableId("legacy", "sales")
_SALES_ROWS, _SALES_DAYS, _REGIONS = 12_000, 12, ("eu", "us")
_WRITES_FIRST = 150
_PATIENCE_S = 60.0
_LOOK_S = 0.05


class Reading(TableRow):
    """The tenant's table at first."""

    __tablename__ = TABLE

    sensor: str
    celsius: float


class ReadingWithUnit(TableRow):
    """The same table after a change of the model."""

    __tablename__ = TABLE

    sensor: str
    celsius: float
    unit: str | None = _DEFAULT_UNIT


class Story:
    """One run of the demo. `facts` are results of the acts, `checks` whether promises were kept."""

    def __init__(
        self, folder: DemoFolder, shards: Mapping[str, Catchment], servers: Servers, out: Output, clock: Clock
    ) -> None:
        """`shards` are the two homes, opened by this process beside their servers."""
        self.facts: dict[str, Any] = {}
        self.checks: list[DemoCheck] = []
        self.view = DemoView(out, ACTS, self._status, clock)
        self._folder = folder
        self._shards = shards
        self._tenants = shards[A].tenants
        self._servers = servers
        self._clock = clock
        self._tenant = TenantId(0)
        self._primary = A
        self._writers = Writers()
        self._rows_flushed = 0

    def run(self) -> None:
        """Run all acts."""
        plays = (self._serve, self._write, self._read, self._import, self._change, self._move, self._prove)
        for act, play in zip(ACTS, plays, strict=True):
            self.view.begin(act)
            self.view.done(play())
        self.view.report(self.checks)

    def stop_writers(self) -> None:
        """Stop all writes, for a limited time."""
        self._writers.stop()

    def _serve(self) -> Results:
        self._servers.start(self._shards, self.view.note)
        servers = self._servers.by_shard
        for shard, opened in self._shards.items():
            opened.tenants.add_shard(shard, location=servers[shard].uri)
        earlier = self._tenants.tenants()
        for entry in earlier:
            if entry.move is not None:
                self._end_move(entry.move)
        number = max((each.tenant.id.number for each in earlier), default=0) + 1
        self._tenant = self._tenants.create(f"t{number}", name=f"demo {number}", shard=A).id
        names = [str(each.tenant.id) for each in earlier]
        self.facts["run"] = {"tenant": str(self._tenant), "earlier": names}
        self.facts["servers"] = [
            {"shard": each.shard, "uri": each.uri, "web": each.web, "pid": each.process.pid}
            for each in servers.values()
        ]
        there = f"; from earlier runs: {', '.join(names)}" if names else ""
        return (
            *(f"{each.shard} at {each.uri}, dashboard {each.web}" for each in servers.values()),
            f"Tenant {self._tenant} is new, with shard {A} as its primary{there}",
        )

    def _write(self) -> Results:
        self._migrate(Reading)
        uris = [server.uri for server in self._servers.by_shard.values()]
        self._writers = Writers.of(self._tenant, self._shards[A], uris, self._clock)
        started_s = self._clock.monotonic_s()
        self._writers.start()
        self._wait_for(_WRITES_FIRST)
        acked, spent_s = self._writers.acked, self._clock.monotonic_s() - started_s
        return (
            f"{acked:,} rows acknowledged in {spent_s:.1f} s, one at a time, and the writers continue",
            f"kitchen is connected to {A}, cellar to {B}: either server forwards to {self._tenant}'s primary",
        )

    def _read(self) -> Results:
        promised = {writer.name: writer.acked for writer in self._writers}
        acked, rows = sum(promised.values()), self._fresh().to_pylist()
        kept = sum(row["id"] <= promised[row["sensor"]] for row in rows)
        in_lake = self._totals(A, self._tenant)["found"]
        self.checks.append(DemoCheck("rows acknowledged, and seen by a fresh read", acked, kept))
        self.view.note("Spark starts in the server, for its first flush")
        flushed = self._flush(A)
        self.facts["fresh"] = {"acked": acked, "seen": len(rows), "in_lake": in_lake}
        self.facts["flush"] = flushed
        return (
            f"{acked:,} rows acknowledged, {len(rows):,} seen, {in_lake:,} of them in the lake",
            f"One flush: {flushed['rows']:,} rows are now in {plural(flushed['files'], 'Parquet file')}",
        )

    def _import(self) -> Results:
        job = self._import_job()
        self.view.note(f"{_SALES_DAYS * len(_REGIONS)} files in hive folders; Spark starts in this process")
        first, again = job.run(), job.run()
        for failure in first.failures[:1]:
            self.view.note(f"{failure.leaf}: {failure.reason}")
        proof = job.verify()
        self.facts["legacy"] = {
            "leaves": first.leaves,
            "rows": first.rows,
            "leaves_again": again.leaves,
            "failures": len(first.failures),
        }
        self.checks += [
            DemoCheck(f"rows of the hive folders in {_SALES}", _SALES_ROWS, proof.rows if proof.ok else 0),
            DemoCheck("files delivered by the second import", 0, again.leaves),
        ]
        return (
            f"{plural(first.leaves, 'file')}, {first.rows:,} rows: in {_SALES}, compared row by row",
            f"The same import again: {plural(again.leaves, 'file')} delivered, all are known",
        )

    def _change(self) -> Results:
        buffered = self._writers.acked - self._rows_flushed
        script, rehearsed_s = self._migrate(ReadingWithUnit)
        self._writers[0].with_unit = True
        self._wait_for(_WRITES_FIRST // 5)
        units = dict(Counter(self._fresh()["unit"].to_pylist()))
        self.facts["schema"] = {"script": script, "buffered": buffered, "units": units}
        return (
            script,
            f"rehearsed on a copy in {rehearsed_s:.1f} s, then applied, with {buffered:,} rows in the buffer",
            f"{units.get(_DEFAULT_UNIT, 0):,} rows without the column read '{_DEFAULT_UNIT}'",
        )

    def _move(self) -> Results:
        for writer in self._writers:
            writer.waited_s_max = 0.0
        before, errors = self._writers.acked, len(self._writers.errors)
        report = self._drive(self._tenant, B)
        self._primary = B
        during, failed = self._writers.acked - before, len(self._writers.errors) - errors
        pause_ms, waited_ms = report.pause_ms or 0.0, max(each.waited_s_max for each in self._writers) * 1000
        self.facts["move"] = {
            "from": A,
            "to": B,
            "state": report.state,
            "pause_ms": round(pause_ms, 1),
            "waited_ms_max": round(waited_ms, 1),
            "acked_meanwhile": during,
            "errors": failed,
            "rows_compared": report.rows,
        }
        return (
            f"{self._tenant}'s primary is {B}; {report.rows or 0:,} rows were compared before {A} deleted its own",
            f"The switch took {pause_ms:.0f} ms; no writer waited longer than {waited_ms:.0f} ms for an ack",
            f"{during:,} rows acknowledged during the move, {plural(failed, 'error')}",
        )

    def _prove(self) -> Results:
        self._writers.stop()
        acked, errors = self._writers.acked, self._writers.errors
        self.view.note("the last flush: Spark starts in the other server")
        self._flush(B)
        found = self._totals(B, self._tenant)
        units = Counter(self._shards[B].lake.query(f"SELECT unit FROM {self._tenant}.{TABLE}")["unit"].to_pylist())
        with_unit = sum(writer.acked_with_unit for writer in self._writers)
        self.view.note("both ledgers are audited")
        findings = sum(len(opened.audit().findings) for opened in self._shards.values())
        self.checks += [
            DemoCheck("rows acknowledged, and rows in the lake", acked, found["found"]),
            DemoCheck("distinct rows among them", acked, found["ids"]),
            DemoCheck(f"rows without the new column, as '{_DEFAULT_UNIT}'", acked - with_unit, units[_DEFAULT_UNIT]),
            DemoCheck("rows with the new column", with_unit, units["kelvin"]),
            DemoCheck("failed writes", 0, len(errors)),
            DemoCheck(f"rows of {self._tenant} left in {A}", 0, self._totals(A, self._tenant)["found"]),
            DemoCheck("audit findings, in both lakes", 0, findings),
            *self._earlier(),
        ]
        self.facts.update(
            acked=acked,
            in_lake=found["found"],
            distinct=found["ids"],
            errors=errors,
            writers={writer.name: writer.acked for writer in self._writers},
        )
        return (f"{acked:,} rows were acknowledged, {found['ids']:,} are in the lake, each once",)

    def _end_move(self, move: MoveInfo) -> None:
        """End the move of a demo that was stopped: abort it, or complete it if it has switched."""
        self.view.note(f"{move.tenant} was being moved to {move.target} when a demo was stopped")
        if isinstance(move.state, Finalizing):
            self._drive(move.tenant, str(move.target))
        else:
            self._tenants.abort(move.tenant)

    def _drive(self, tenant: TenantId, target: str) -> MoveReport:
        def note(event: Event) -> None:
            if event.verb == "move_changed":
                self.view.note(f"{tenant}: {event.facts['state']}")

        with events.listening(note):
            return self._tenants.move(tenant, target, gc_window_s=0)

    def _migrate(self, model: type[TableRow]) -> tuple[str, float]:
        """Generate, rehearse and apply a script; return its statement and the rehearsal's seconds."""
        schema, folder = self._tenant.schema, self._folder.path / "schemas"
        with self._shards[A].schema.open(f"lake:{schema}", [model], folder=folder) as migrate:
            script = migrate.generate()
            if script is None:
                raise InvariantError(f"The table of {self._tenant} already has its columns.")
            started_s = self._clock.monotonic_s()
            rehearsal = migrate.rehearse()
            rehearsed_s = self._clock.monotonic_s() - started_s
            if not rehearsal.ok:
                raise InvariantError(rehearsal.report())
            migrate.apply(script.name)
        lines = script.read_text(encoding="utf-8").splitlines()
        return " ".join(line for line in lines if line and not line.startswith("--")).rstrip(";"), rehearsed_s

    def _import_job(self) -> "LegacyImport":
        """Return the import that an earlier run did not finish, or one of new hive folders."""
        number = 0
        while True:
            number += 1
            tree = self._folder.path / "legacy" / f"sales-{number}"
            if not tree.exists() and not tree.with_name(f"{tree.name}.migration").exists():
                _write_tree(tree, year=2000 + number)
            job = self._shards[A].legacy.job(tree=tree, keys="region,day:DATE", schema=_SALES.schema, table=_SALES.name)
            if job.detect() is not ImportPhase.DONE:
                return job

    def _wait_for(self, more: int) -> None:
        """Wait until each writer has that many more acks."""
        goals = [(writer, writer.acked + more) for writer in self._writers]
        until_s = self._clock.monotonic_s() + _PATIENCE_S
        while any(writer.acked < goal for writer, goal in goals):
            errors = self._writers.errors
            if errors or self._clock.monotonic_s() > until_s:
                raise NotReadyError(f"The writers do not advance: {errors[0] if errors else 'there is no answer'}")
            self._clock.sleep(_LOOK_S)

    def _fresh(self) -> pa.Table:
        """Return all rows of the tenant, from the server of its first primary."""
        return self._shards[A].queue.read(TableId(self._tenant.schema, TABLE))

    def _flush(self, shard: str) -> dict[str, int]:
        """Flush in the shard's server; return totals of the tenant's tables."""
        report = self._shards[shard].queue.flush()
        done = [each for each in report.tables if each.table.schema == self._tenant.schema]
        found = {name: sum(getattr(each, name) for each in done) for name in ("rows", "files", "bytes")}
        self._rows_flushed += found["rows"]
        return found

    def _totals(self, shard: str, tenant: TenantId) -> Counter[str]:
        """Return how many rows of a tenant a shard's lake has, how many distinct ones, and how many
        its writers numbered.
        """
        table, lake, totals = TableId(tenant.schema, TABLE), self._shards[shard].lake, Counter[str]()
        if table in lake.tables():
            sums = "count(*) AS found, count(DISTINCT id) AS ids, max(id) AS last"
            for sensor in lake.query(f"SELECT {sums} FROM {table} GROUP BY sensor").to_pylist():
                totals.update(sensor)
        return totals

    def _earlier(self) -> Iterator[DemoCheck]:
        """Check rows of earlier runs: each sensor's are numbered from 1, without a gap."""
        for entry in self._tenants.tenants():
            tenant, shard = entry.tenant.id, entry.tenant.shard.name
            totals = self._totals(shard, tenant)
            if tenant != self._tenant and totals["last"]:
                yield DemoCheck(f"rows of {tenant}, from an earlier run, in {shard}", totals["last"], totals["ids"])

    def _status(self) -> str:
        """Return the lines of the live panel."""
        if not self._writers:
            return "The writers have not started."
        flushed, acked = self._rows_flushed, self._writers.acked
        return "\n".join(
            (
                " · ".join(f"{writer.name} {writer.acked:,} acks" for writer in self._writers),
                f"{self._tenant}'s primary is {self._primary} · {acked - flushed:,} rows buffered · "
                f"{flushed:,} in Parquet · {plural(len(self._writers.errors), 'error')}",
                f"dashboard {self._servers[A].web}",
            )
        )


def _write_tree(folder: Path, year: int) -> None:
    """Write sales of two regions, one file for each region and day; the folder appears complete."""
    making = folder.with_name(f"{folder.name}.making")
    files.remove_tree(making)
    numbers = iter(range(_SALES_ROWS))
    rows = _SALES_ROWS // (_SALES_DAYS * len(_REGIONS))
    for region in _REGIONS:
        for day in range(_SALES_DAYS):
            leaf = making / f"region={region}" / f"day={date(year, 1, 1) + timedelta(days=day)}"
            leaf.mkdir(parents=True)
            sales = [next(numbers) for _ in range(rows)]
            pq.write_table(pa.table({"sale": sales, "amount": [n % 997 / 10 for n in sales]}), leaf / "sales.parquet")
    files.move(making, folder)
