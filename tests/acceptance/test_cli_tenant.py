"""`catchment tenant` and `catchment shard` on real servers, with movers that are killed."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_manager import OperationalError
from pydantic import SecretStr

from catchment.control import ControlDatabase
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.tenants.control_store import ControlStore
from catchment.tenants.gateway import TenantGateway
from catchment.tenants.model import ShardId, TenantId
from catchment.tenants.router import TenantRouter
from catchment.tenants.transport.remote_shard import Remotes
from tests.acceptance.shell import COMMAND, Ended, Shell
from tests.server.server_process import ServerProcess, serving
from tests.shortcuts import warm
from tests.waiting import wait_until

TENANT_COMMANDS = ("create", "list", "show", "move", "status", "abort", "reverse", "verify", "gc")
PATIENCE_S = 120
# The command line in a process that kills itself when it comes to a point.
ARMED = """
import sys
from catchment.foundation import faults
from catchment.cli.main import main
faults.arm(sys.argv[1], faults.kill)
sys.argv = ["catchment", *sys.argv[2:]]
main()
"""
_NUMBERS = count(100)


@dataclass
class Fleet:
    """Shards `a` and `b` on one control database, each in its own server, and a shell."""

    shell: Shell
    control: Path
    servers: dict[str, ServerProcess]
    remotes: Remotes
    store: ControlStore
    gateway: TenantGateway

    @property
    def environment(self) -> dict[str, str]:
        return {"CATCHMENT_CONTROL_DB": f"sqlite:{self.control}", "CATCHMENT_HOME": str(self.shell.folder / "mover")}

    def run(self, *arguments: str | Path) -> Ended:
        return self.shell.run(*arguments, home=None, **self.environment)

    def ok(self, *arguments: str | Path) -> Any:
        """What a command says in JSON, where it succeeds."""
        ended = self.run(*arguments, "--json")
        assert ended.code == 0, ended.err
        return ended.json

    def kill_at(self, point: str, *arguments: str) -> None:
        """Run a command that is killed at a point."""
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
        ended = warm.run(
            [sys.executable, "-c", ARMED, point, *arguments],
            cwd=self.shell.folder,
            env={**kept, "HOME": str(self.shell.folder), **self.environment},
            timeout=PATIENCE_S,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr

    def tenant(self, shard: str = "a", *options: str) -> str:
        """A tenant that no other test has, with five rows."""
        name = f"t{next(_NUMBERS)}"
        self.ok("tenant", "create", name, "--shard", shard, *options)
        self.write(name, *range(5))
        return name

    def write(self, tenant: str, *ids: int) -> None:
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        self.gateway.signal_for_tenant(TenantId.parse(tenant), "events", rows)

    def rows(self, shard: str, tenant: str) -> int:
        """How many rows of the tenant a shard has taken, flushed or not."""
        found = self.store.shard(ShardId(shard))
        node = self.remotes.connect(found.id, found.location)
        return node.positions(TenantId.parse(tenant)).by_table.get(TableId(tenant, "events"), 0)

    def ids_in(self, shard: str, tenant: str) -> list[int]:
        """What a fresh read of the shard's server gives."""
        return [
            each for (each,) in self.servers[shard].rows(f"SELECT id FROM catchment_fresh.{tenant}.events ORDER BY id")
        ]

    def status(self, tenant: str) -> Any:
        return self.ok("tenant", "status", tenant)["move"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    control = folder / "control.sqlite"
    with ExitStack() as opened:
        servers = {
            name: opened.enter_context(
                serving(
                    folder / name,
                    CATCHMENT_CONTROL_DB=f"sqlite:{control}",
                    CATCHMENT_SHARD_NAME=name,
                    DUCKLING_QUEUE_AUTO_CREATE_TABLES="true",
                    DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS="86400",
                )
            )
            for name in ("a", "b")
        }
        settings = Settings(home=folder / "mover", control_db=SecretStr(f"sqlite:{control}"))
        remotes = Remotes(settings)
        opened.callback(remotes.close)
        store = ControlStore(ControlDatabase.open(settings))
        router = TenantRouter(store)
        gateway = TenantGateway(router, remotes.connect, clock=SystemClock())
        fleet = Fleet(Shell(folder), control, servers, remotes, store, gateway)
        assert fleet.ok("shard", "add", "a", "--home", servers["a"].home)["location"] == servers["a"].uri
        fleet.ok("shard", "add", "b", "--home", servers["b"].home, "--region", "eu")
        yield fleet


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("shell"))


# Without any server.


@pytest.mark.parametrize(("part", "commands"), [("tenant", TENANT_COMMANDS), ("shard", ("add", "list", "drain"))])
def test_help_lists_every_command(shell: Shell, part: str, commands: tuple[str, ...]) -> None:
    ended = shell.run(part, "--help")
    assert ended.code == 0
    assert all(f" {command} " in ended.out for command in commands)


@pytest.mark.parametrize("command", ["tenant list", "tenant create t1", "tenant move t1 --to a", "shard list"])
def test_without_a_control_database_a_command_says_so_and_makes_none(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    ended = shell.run(*command.split(), "--json", home=tmp_path / "home")
    assert (ended.code, ended.json["error"]) == (2, "StateError")
    assert "shard add" in ended.json["hint"]
    assert not (tmp_path / "home").exists()


def test_a_folder_that_is_not_a_home_is_refused_as_a_shard(shell: Shell, tmp_path: Path) -> None:
    ended = shell.run("shard", "add", "a", "--location", "grpc://host:1", "--json", home=tmp_path)
    assert ended.code == 2
    assert "not a home of Catchment" in ended.json["message"]
    assert list(tmp_path.iterdir()) == []


def test_a_home_without_a_server_needs_a_location(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "catchment.toml").write_text("")
    ended = shell.run("shard", "add", "a", "--json", home=tmp_path)
    assert ended.code == 2
    assert "--location" in ended.json["hint"]
    assert shell.run("shard", "add", "a", "--location", "host:1", home=tmp_path).code == 2
    assert not (tmp_path / "control.sqlite").exists()
    added = shell.run("shard", "add", "a", "--location", "grpc://127.0.0.1:1", home=tmp_path)
    assert added.code == 0, added.err
    assert "cannot be reached" in added.err
    listed = shell.run("shard", "list", "--json", home=tmp_path).json["shards"]
    assert [(each["shard"], each["health"], each["seen_at"]) for each in listed] == [("a", "Offline", None)]


def test_a_lake_that_only_the_environment_knows_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "catchment.toml").write_text("")
    elsewhere = {"CATCHMENT_LAKE_DATA_PATH": str(tmp_path / "elsewhere")}
    ended = shell.run("shard", "add", "a", "--location", "grpc://h:1", "--json", home=tmp_path, **elsewhere)
    assert ended.code == 2
    assert "catchment.toml" in ended.json["hint"]


@pytest.mark.parametrize("name", ["A", "a b", "-a", "a" * 64])
def test_a_bad_name_of_a_shard_is_refused(shell: Shell, tmp_path: Path, name: str) -> None:
    (tmp_path / "catchment.toml").write_text("")
    assert shell.run("shard", "add", "--location", "grpc://h:1", "--home", tmp_path, "--", name).code == 2
    assert shell.run("serve", f"--shard={name}", home=tmp_path).code == 2
    assert not (tmp_path / "control.sqlite").exists()


# Shards and tenants.


def test_shards_are_listed_with_their_health(fleet: Fleet) -> None:
    def shards() -> dict[str, Any]:
        return {each["shard"]: each for each in fleet.ok("shard", "list")["shards"]}

    wait_until(lambda: all(shards()[name]["health"] == "Healthy" for name in "ab"), "both have reported")
    found = shards()
    assert (found["a"]["region"], found["b"]["region"]) == ("default", "eu")
    assert found["b"]["home"] == str(fleet.servers["b"].home)
    keys = {"shard", "region", "location", "home", "is_draining", "tenants", "health", "seen_at", "replication_lag_s"}
    assert set(found["a"]) == keys
    shown = fleet.run("shard", "list")
    assert fleet.servers["a"].uri in shown.out
    assert "Healthy" in shown.out


def test_a_shard_is_added_again_to_change_its_location_and_never_another_ones_home(fleet: Fleet) -> None:
    again = fleet.ok("shard", "add", "b", "--home", fleet.servers["b"].home)
    assert (again["is_new"], again["region"], again["control"]) == (False, "eu", str(fleet.control))
    other = fleet.run("shard", "add", "a", "--home", fleet.servers["b"].home, "--json")
    assert (other.code, other.json["error"]) == (2, "AlreadyExistsError")
    wrong = fleet.run("shard", "add", "c", "--home", fleet.servers["b"].home, "--json")
    assert wrong.code == 2
    assert "is shard b" in wrong.json["message"]


def test_a_tenant_is_created_listed_and_shown(fleet: Fleet) -> None:
    limits = ("--rows-per-second", "1000", "--tables", "3", "--storage-bytes", "1000000", "--region", "eu")
    made = fleet.ok("tenant", "create", "20", "--name", "twenty", *limits)
    config = {
        "rows_per_second_max": 1000,
        "tables_max": 3,
        "storage_bytes_max": 1_000_000,
        "required_regions": ["eu"],
    }
    assert (made["tenant"], made["shard"], made["epoch"], made["config"]) == ("t20", "b", 1, config)
    assert "t20" in {each["tenant"] for each in fleet.ok("tenant", "list")["tenants"]}
    fleet.write("t20", 1, 2)
    shown = fleet.ok("tenant", "show", "t20")
    assert (shown["seqno"], shown["positions"], shown["move"]) == (2, {"t20.events": 2}, None)
    text = fleet.run("tenant", "show", "t20").out
    assert "t20 (twenty) lives in b, schema t20, epoch 1." in text
    assert "t20.events: 2" in text
    assert "twenty" in fleet.run("tenant", "list").out
    assert fleet.status("t20") is None


def test_without_a_shard_option_the_hash_decides_the_tenants_shard(fleet: Fleet) -> None:
    homes = {fleet.ok("tenant", "create", str(number))["shard"] for number in range(30, 36)}
    assert homes == {"a", "b"}


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("create t20x", "InputError"),
        ("create 21 --shard nowhere", "InputError"),
        ("create 21 --tables 0", "InputError"),
        ("create 21 --region mars", "StateError"),
        ("create 21 --shard a --region eu", "StateError"),
        ("show 999", "InputError"),
        ("move 999 --to a --yes", "InputError"),
        ("status 999", "InputError"),
        ("abort 999", "InputError"),
        ("gc 999", "InputError"),
    ],
)
def test_impossible_requests_are_refused_with_a_reason(fleet: Fleet, command: str, error: str) -> None:
    ended = fleet.run("tenant", *command.split(), "--json")
    assert (ended.code, ended.json["error"]) == (2, error)
    assert ended.json["message"]


# Moves.


def test_a_tenant_that_never_moved_has_nothing_to_abort_reverse_compare_or_collect(fleet: Fleet) -> None:
    name = fleet.tenant()
    for command in ("abort", "reverse", "verify", "gc"):
        ended = fleet.run("tenant", command, name, "--json")
        assert (ended.code, ended.json["error"]) == (2, "InvalidStateError")
    there = fleet.ok("tenant", "move", name, "--to", "a")
    assert (there["ok"], there["state"]) == (True, "Idle")


def test_without_a_terminal_a_move_needs_a_yes(fleet: Fleet) -> None:
    name = fleet.tenant()
    ended = fleet.run("tenant", "move", name, "--to", "b", "--json")
    assert ended.code == 2
    assert "--yes" in ended.json["hint"]
    assert fleet.status(name) is None


def test_a_dry_run_shows_what_stands_in_the_way_and_changes_nothing(fleet: Fleet) -> None:
    name = fleet.tenant()
    found = fleet.ok("tenant", "move", name, "--to", "b", "--dry-run")
    assert (found["ok"], found["problems"], found["bytes"]) == (True, [], 0)
    assert found["phases"] == ["preparing", "catching-up", "dual-write", "comparing", "switching"]
    bound = fleet.tenant("a", "--region", "default")
    refused = fleet.run("tenant", "move", bound, "--to", "b", "--dry-run", "--json")
    assert (refused.code, refused.json["ok"]) == (2, False)
    assert "must stay in default" in refused.json["problems"][0]
    assert fleet.run("tenant", "move", bound, "--to", "b", "--yes").code == 2
    for each in (name, bound):
        assert fleet.status(each) is None
        assert fleet.rows("b", each) == 0


def test_a_move_with_history_survives_the_death_of_its_mover_and_ends_with_every_row_once(fleet: Fleet) -> None:
    name = fleet.tenant()
    a, b = fleet.servers["a"], fleet.servers["b"]
    a.rows(
        f"CREATE TABLE IF NOT EXISTS {name}.old (id BIGINT)", f"INSERT INTO {name}.old SELECT range FROM range(3000)"
    )
    planned = fleet.ok("tenant", "move", name, "--to", "b", "--dry-run")
    assert planned["bytes"] > 0
    fleet.kill_at("move.after_backfill", "tenant", "move", name, "--to", "b", "--yes")
    assert fleet.status(name)["state"] == "Idle"
    fleet.write(name, 5)
    moved = fleet.run("tenant", "move", name, "--to", "b", "--yes", "--json")
    assert moved.code == 0, moved.err
    assert moved.json["states"] == ["Idle", "PreparingTarget", "DualWrite", "Finalizing"]
    assert (moved.json["rows"], moved.json["pause_ms"] > 0) == (3006, True)
    assert {"preparing", "catching-up", "dual-write", "comparing", "switching"} == set(moved.json["seconds"])
    assert "comparing" in moved.err
    fleet.write(name, 6)
    status = fleet.status(name)
    assert (status["state"], status["pause_ms"]) == ("Finalizing", moved.json["pause_ms"])
    assert (status["lag"]["rows"], status["lag"]["is_sync"]) == (0, True)
    assert fleet.ok("tenant", "verify", name)["rows"] == 3007

    b.rows(f"DELETE FROM {name}.old WHERE id = 1")
    differs = fleet.run("tenant", "verify", name, "--json")
    assert (differs.code, differs.json["ok"]) == (1, False)
    assert f"{name}.old" in differs.json["differences"][0]
    assert fleet.run("tenant", "gc", name, "--window", "0", "--json").json["error"] == "MismatchError"
    b.rows(f"INSERT INTO {name}.old VALUES (1)")

    # The replica is not readable: a client learns where the tenant lives.
    with pytest.raises(OperationalError, match=f"{name} has its primary on shard b, at {b.uri}"):
        a.rows(f"SELECT count(*) FROM {name}.old")
    held = list(Path(a.settings.data_path, name).rglob("*.parquet"))
    assert held
    early = fleet.run("tenant", "gc", name, "--json")
    assert (early.code, early.json["error"]) == (1, "NotReadyError")
    assert 0 < early.json["left_ns"] <= 300e9
    gone = fleet.ok("tenant", "gc", name, "--window", "1", "--wait")
    assert (gone["collected"], gone["state"]) == ("a", "Complete")
    assert (gone["erased"]["files"], gone["erased"]["bytes"] > 0) == (len(held), True)
    assert gone["erased"]["snapshots"] > 0
    assert list(Path(a.settings.data_path, name).rglob("*")) == []
    said = fleet.run("tenant", "gc", name).out
    assert f"{name} lives in b." in said
    assert "no rows of the tenant are left there" in said
    assert "CATCHMENT_LAKE_SNAPSHOT_KEEP_HOURS" in said
    fleet.write(name, 7)
    assert fleet.ids_in("b", name) == list(range(8))
    assert b.rows(f"SELECT count(*), count(DISTINCT id) FROM {name}.old") == [(3000, 3000)]
    assert a.rows(f"SELECT count(*) FROM duckdb_tables() WHERE schema_name = '{name}'") == [(0,)]
    assert fleet.rows("a", name) == 0


# Every point of a move is killed in `tests/crash/test_tenant_kill.py`; here, one before its
# decision and one after it.
@pytest.mark.parametrize(
    "point",
    [
        "move.after_dual_write",
        "move.after_switch",
        *(pytest.param(f"move.after_{what}", marks=pytest.mark.soak) for what in ("replicate", "close", "collect")),
    ],
)
def test_a_move_whose_mover_was_killed_is_finished_by_running_it_again(fleet: Fleet, point: str) -> None:
    name = fleet.tenant()
    command = ("tenant", "move", name, "--to", "b", "--yes", "--gc-after", "0", "--gate-seconds", "0.5")
    fleet.kill_at(point, *command)
    fleet.write(name, 5)
    assert fleet.ok(*command)["state"] == "Complete"
    fleet.write(name, 6)
    assert fleet.rows("b", name) == 7
    assert fleet.rows("a", name) == 0
    assert fleet.status(name)["outcome"] == "complete"
    assert fleet.ok(*command)["state"] == "Complete"


def test_a_move_is_aborted_and_can_be_begun_again(fleet: Fleet) -> None:
    name = fleet.tenant()
    move = ("tenant", "move", name, "--to", "b", "--yes")
    fleet.kill_at("move.after_dual_write", *move)
    begun = fleet.ok(*move, "--dry-run")
    assert (begun["state"], begun["phases"][0]) == ("PreparingTarget", "catching-up")
    fleet.kill_at("move.after_abort", "tenant", "abort", name)
    aborted = fleet.ok("tenant", "abort", name)
    assert (aborted["shard"], aborted["outcome"]) == ("a", "aborted")
    assert fleet.rows("b", name) == 0
    assert fleet.ok(*move)["state"] == "Finalizing"
    refused = fleet.run("tenant", "abort", name, "--json")
    assert (refused.code, refused.json["error"]) == (2, "InvalidStateError")
    assert "reverse" in refused.json["allowed"]


def test_a_move_is_reversed_with_what_was_written_since(fleet: Fleet) -> None:
    name = fleet.tenant()
    assert fleet.ok("tenant", "move", name, "--to", "b", "--yes")["next"][1] == f"catchment tenant reverse {name}"
    back = fleet.run("tenant", "move", name, "--to", "a", "--yes", "--json")
    assert back.code == 2
    assert "reverse" in back.json["hint"]
    fleet.write(name, 5)
    fleet.kill_at("move.after_reverse", "tenant", "reverse", name)
    reversed_ = fleet.ok("tenant", "reverse", name)
    assert (reversed_["shard"], reversed_["outcome"]) == ("a", "reversed")
    fleet.write(name, 6)
    assert fleet.rows("a", name) == 7
    assert fleet.rows("b", name) == 0
    assert fleet.ok("tenant", "show", name)["positions"] == {f"{name}.events": 7}


def test_at_a_terminal_a_move_asks_shows_its_phases_and_stops_waiting_on_ctrl_c(fleet: Fleet) -> None:
    name = fleet.tenant()
    master, terminal = pty.openpty()
    arguments = ("tenant", "move", name, "--to", "b", "--gc-after", "3600")
    process = fleet.shell.start(*arguments, terminal=terminal, **fleet.environment, TERM="xterm")
    os.close(terminal)
    seen = ""

    def read_until(text: str) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(master, 65536).decode(errors="replace")

    read_until("[y/N]")
    os.write(master, b"y\n")
    read_until("the source is deleted in")
    process.send_signal(signal.SIGINT)
    read_until("Stopping once")
    out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(master)
    assert process.returncode == 130
    for phase in ("preparing", "dual-write", "comparing", "switching", "waiting for GC"):
        assert phase in seen
    assert "Stopped in Finalizing" in out
    assert fleet.ok("tenant", "gc", name, "--window", "0")["state"] == "Complete"
    assert fleet.rows("b", name) == 5


def test_a_shard_is_drained_but_for_those_that_cannot_leave(fleet: Fleet) -> None:
    home = fleet.shell.folder / "c"
    process = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", "--shard", "c", "--json", "--home", home],
        env={"PATH": os.environ["PATH"], **fleet.environment, "DUCKLING_QUEUE_AUTO_CREATE_TABLES": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        ready = json.loads("".join([*iter(lines.__next__, "}\n"), "}"]))
        assert ready["shard"] == "c"
        fleet.ok("shard", "add", "c", "--home", home, "--region", "moon")
        _drain(fleet)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _drain(fleet: Fleet) -> None:
    free, begun, bound = fleet.tenant("c"), fleet.tenant("c"), fleet.tenant("c", "--region", "moon")
    fleet.kill_at("move.after_dual_write", "tenant", "move", begun, "--to", "b", "--yes")
    planned = fleet.ok("shard", "drain", "c", "--dry-run")
    assert {each["tenant"]: each["target"] for each in planned["moves"]}.keys() == {free, begun}
    assert [each["tenant"] for each in planned["left"]] == [bound]
    assert planned["is_draining"] is False
    assert fleet.run("shard", "drain", "c").code == 2
    drained = fleet.run("shard", "drain", "c", "--yes", "--json")
    assert (drained.code, drained.json["ok"]) == (1, False)
    moved = {each["tenant"]: each for each in drained.json["moved"]}
    assert {name: each["state"] for name, each in moved.items()} == {free: "Finalizing", begun: "Finalizing"}
    assert moved[begun]["target"] == "b"
    refused = fleet.run("tenant", "create", "t90", "--shard", "c", "--json")
    assert "being drained" in refused.json["message"]
    shard = next(each for each in fleet.ok("shard", "list")["shards"] if each["shard"] == "c")
    assert (shard["is_draining"], shard["tenants"]) == (True, [bound])
    again = fleet.run("shard", "drain", "c", "--yes", "--gc-after", "0", "--json").json
    assert {each["tenant"]: each["state"] for each in again["moved"]} == {free: "Complete", begun: "Complete"}
    for name in (free, begun):
        fleet.write(name, 5)
        assert (fleet.rows(moved[name]["target"], name), fleet.rows("c", name)) == (6, 0)
    assert fleet.ok("shard", "drain", "c", "--undo")["is_draining"] is False
    assert fleet.ok("tenant", "create", "t90", "--shard", "c")["shard"] == "c"
