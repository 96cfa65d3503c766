"""Benchmark of moving a tenant under load: the pause at the cut-over, and the loss of throughput.

    python -m benchmarks.moves --scale 1

Two servers share one control database; four writers write single rows at full speed in a separate
process. The tenant moves back and forth, thirty times at scale 1. A pause is the longest time that
any writer waited for an answer while the primary changed. The rate of acks during a move, from its
first step to its switch, is compared with the rate right before it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
from pydantic import SecretStr

from benchmarks.serving import catchment_server
from catchment.control import ControlDatabase
from catchment.errors import CatchmentError, NotReadyError
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.pipeline import SparkRunner
from catchment.pipeline.tenant_history import ShardBackfill
from catchment.tenants.control_store import ControlStore
from catchment.tenants.gateway import TenantGateway
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import ShardId, ShardInfo, TenantConfig, TenantId
from catchment.tenants.router import TenantRouter
from catchment.tenants.transport.remote_shard import Remotes

MOVES = 30
WRITERS = 4
TENANT = TenantId(7)
A, B = ShardId("a"), ShardId("b")
BEFORE_S = 1.5
PAUSE_BAR_MS = 100.0
RATE_BAR = 0.4


@dataclass(frozen=True)
class Moved:
    """One move: the longest wait at the change of primary, and ack rates before and during it."""

    pause_ms: float
    gate_ms: float
    before: float
    during: float
    seconds: float


@dataclass(frozen=True)
class Acks:
    """Times at which writes were acknowledged, and how long each had waited."""

    at_s: list[float]
    waited_s: list[float]

    def rate(self, first_s: float, last_s: float) -> float:
        return sum(first_s <= at < last_s for at in self.at_s) / (last_s - first_s)

    def longest_ms(self, first_s: float, last_s: float) -> float:
        """Return the longest wait of the writes that were waiting at any time in between."""
        waits = (
            waited
            for at, waited in zip(self.at_s, self.waited_s, strict=True)
            if at >= first_s and at - waited <= last_s
        )
        return max(waits, default=0.0) * 1000


def _store(control: str) -> ControlStore:
    settings = Settings(control_db=SecretStr(control))
    return ControlStore(ControlDatabase.open(settings))


def write(control: str) -> None:
    """Write rows from several threads until stdin ends; then print when each was acknowledged."""
    settings = Settings()
    remotes = Remotes(settings)
    acks: list[tuple[float, float]] = []
    errors: list[str] = []
    stopping = threading.Event()

    def run(number: int) -> None:
        router = TenantRouter(_store(control), route_seconds_max=3600, routes_max=10)
        gateway = TenantGateway(router, remotes.connect, clock=SystemClock())
        each = number * 10_000_000
        while not stopping.is_set():
            each += 1
            rows = pa.table({"id": pa.array([each], pa.int64()), "kind": ["click"]})
            started_s = time.monotonic()
            try:
                gateway.signal_for_tenant(TENANT, "events", rows)
            except CatchmentError as error:
                errors.append(error.message)
                continue
            ended_s = time.monotonic()
            acks.append((ended_s, ended_s - started_s))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopping.set()
    for thread in threads:
        thread.join()
    json.dump({"acks": acks, "errors": errors}, sys.stdout)


class Writers:
    """The process that writes."""

    def __init__(self, control: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.moves", "--write", control],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> tuple[Acks, list[str]]:
        said, _ = self._process.communicate(timeout=60)
        found = json.loads(said)
        return Acks([at for at, _ in found["acks"]], [waited for _, waited in found["acks"]]), found["errors"]


def _patiently(step: Callable[[], object], *, patience_s: float = 60.0) -> None:
    end_s = time.monotonic() + patience_s
    while True:
        try:
            step()
        except NotReadyError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.02)
        else:
            return


def move_to_and_fro(work: Path, moves: int) -> tuple[list[tuple[float, ...]], Acks, list[str]]:
    """Move the tenant back and forth while it is written to; the moments of each move."""
    control = f"sqlite:{work / 'control.sqlite'}"
    store = _store(control)
    clock = SystemClock()
    spans: list[tuple[float, ...]] = []
    with ExitStack() as stack:
        runner = stack.enter_context(SparkRunner(Settings(home=work / "spark")))
        remotes = Remotes(Settings())
        stack.callback(remotes.close)
        for shard in (A, B):
            home = work / shard.name
            environment = {
                "CATCHMENT_SHARD_NAME": shard.name,
                "CATCHMENT_CONTROL_DB": control,
                "DUCKLING_QUEUE_AUTO_CREATE_TABLES": "true",
            }
            server = stack.enter_context(catchment_server(home, flushes=False, **environment))
            store.add_shard(ShardInfo(id=shard, region="here", location=server.address, home=str(home)))
        store.create_tenant(TENANT, "bench", TenantConfig(), A)
        writers = Writers(control)
        stack.callback(writers.kill)
        for number in range(moves):
            source, target = (A, B) if number % 2 == 0 else (B, A)
            migration = TenantMigration(
                TENANT,
                source,
                target,
                control=store,
                connect=remotes.connect,
                backfill=ShardBackfill(runner, clock=clock),
                clock=clock,
            )
            time.sleep(BEFORE_S)
            started_s = time.monotonic()
            migration.prepare_target()
            migration.enter_dual_write()
            closing_s = time.monotonic()
            _patiently(migration.finalize)
            switched_s = time.monotonic()
            gate_ms = getattr(migration.state, "pause_ms", 0.0)
            spans.append((started_s, closing_s, switched_s, gate_ms))
            _patiently(partial(migration.gc_source, 0))
        acks, errors = writers.stop()
    return spans, acks, errors


def _p99(values: list[float]) -> float:
    return sorted(values)[round(0.99 * (len(values) - 1))]


def _line(name: str, values: list[float], unit: str) -> str:
    return f"  {name:44}p50 {median(values):8.2f} {unit}   p99 {_p99(values):8.2f} {unit}"


def measure(work: Path, scale: float) -> list[dict[str, object]]:
    """Run the moves, print the results and return them."""
    moves = max(2, round(MOVES * scale))
    spans, acks, errors = move_to_and_fro(work, moves)
    found = [
        Moved(
            pause_ms=acks.longest_ms(switched - gate_ms / 1000 - 0.05, switched),
            gate_ms=gate_ms,
            before=acks.rate(started - BEFORE_S, started),
            during=acks.rate(started, switched),
            seconds=switched - started,
        )
        for started, _, switched, gate_ms in spans
    ]
    print(f"\nA tenant moved {moves} times while {WRITERS} writers wrote {len(acks.at_s):,} rows")
    pauses = [each.pause_ms for each in found]
    verdict = f"{'ok' if _p99(pauses) < PAUSE_BAR_MS else 'ABOVE'} {PAUSE_BAR_MS:g} ms"
    print(f"{_line('pause at the cut-over, as seen by writers', pauses, 'ms')}   {verdict}")
    print(_line("write barrier closed until both shards know", [each.gate_ms for each in found], "ms"))
    print(_line("a move, first step to switch", [each.seconds for each in found], "s"))
    ratio = median(each.during / each.before for each in found if each.before)
    verdict = f"{'ok' if ratio >= RATE_BAR else 'BELOW'} {RATE_BAR:g}x"
    print(f"  {'rows/s during a move, against right before':44}{ratio:8.2f}x   {verdict}")
    print(f"  {'errors that writers saw':44}{len(errors):8}    {'ok' if not errors else errors[:3]}")
    return [vars(each) | {"errors": len(errors)} for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 moves the tenant thirty times")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON here")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        with suppress(KeyboardInterrupt):
            write(given.write)
        sys.stdout.flush()
        os._exit(0)
    with tempfile.TemporaryDirectory(prefix="catchment-bench-") as folder:
        rows = measure(Path(folder), given.scale)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
