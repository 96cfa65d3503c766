"""Random loss, repetition and delay between two buffers: the replica has a prefix of the rows."""

import shutil
import tempfile
from itertools import count
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from catchment.errors import InvariantError, SeqGapError
from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.queue.replication import LogRows
from catchment.queue.shared.shared_buffer import SharedBuffer
from catchment.testing import FakeClock

TABLE = TableId("t7", "events")
NARROW = (Column(name="id", type="BIGINT"),)
WIDE = (Column(name="id", type="BIGINT"), Column(name="kind", type="VARCHAR"))
SIDES = st.sampled_from(["home", "copy"])
CHUNK_ROWS = 4


class ShippingMachine(RuleBasedStateMachine):
    """A home that takes rows, a copy that gets shipments, and the lake of each as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="catchment-shipping-"))
        self.crashes = count()
        self.folders = {"home": self.root / "home", "copy": self.root / "copy"}
        self.buffers: dict[str, SharedBuffer] = {}
        self.opened: list[SharedBuffer] = []
        self.acked: list[int] = []
        self.lakes: dict[str, list[int]] = {"home": [], "copy": []}
        self.shipped: list[LogRows] = []

    @initialize(begun=st.sampled_from([0, 5]))
    def start(self, begun: int) -> None:
        for side in self.folders:
            self._open(side)
        self.buffers["home"].replication.retain_log("t7")
        self._append(begun, wide=False)
        if begun:
            self.buffers["copy"].replication.start_after(TABLE, NARROW, begun)
            self.lakes["copy"] += self.acked

    @rule(rows=st.integers(0, 5), wide=st.booleans())
    def write(self, rows: int, wide: bool) -> None:
        self._append(rows, wide=wide)

    @rule(back=st.integers(0, 8), rows_max=st.integers(1, 6))
    def ship(self, back: int, rows_max: int) -> None:
        """Read the log somewhere near where the copy is; what becomes of that is another step."""
        after = max(0, self._last("copy") - back)
        try:
            shipment = self.buffers["home"].replication.read_log(TABLE, after, rows_max=rows_max)
        except InvariantError:
            # Released, because the replica has it.
            return
        if shipment is not None:
            self.shipped.append(shipment)

    @rule(data=st.data(), number=st.integers(1, 3))
    def arrive(self, data: st.DataObject, number: int) -> None:
        """Some that were ever shipped arrive, in any order, again or for the first time."""
        if not self.shipped:
            return
        some = data.draw(st.lists(st.sampled_from(range(len(self.shipped))), min_size=1, max_size=number))
        before = self._last("copy")
        try:
            self.buffers["copy"].replication.append_replicated([self.shipped[at] for at in some])
        except SeqGapError:
            assert self._last("copy") == before

    @rule(side=SIDES, number=st.integers(1, 3))
    def flush(self, side: str, number: int) -> None:
        buffer = self.buffers[side]
        for payload in buffer.payloads()[:number]:
            self.lakes[side] += buffer.read(payload)["id"].to_pylist()
            buffer.retire(payload)

    @rule()
    def truncate_log(self) -> None:
        self.buffers["home"].replication.truncate_log(TABLE, self._last("copy"))

    @rule(side=SIDES)
    def reopen(self, side: str) -> None:
        self.opened.remove(self.buffers[side])
        self.buffers[side].close()
        self._open(side)

    @rule(side=SIDES)
    def crash(self, side: str) -> None:
        folder = self.root / f"{side}-{next(self.crashes)}"
        shutil.copytree(self.folders[side], folder)
        self.folders[side] = folder
        self._open(side)

    @invariant()
    def the_copy_has_the_first_rows_of_its_home(self) -> None:
        if self.buffers:
            assert self._rows("home") == self.acked
            assert self._rows("copy") == self.acked[: self._last("copy")]

    @invariant()
    def the_log_goes_on_where_the_copy_is(self) -> None:
        if self.buffers:
            last = self._last("copy")
            shipment = self.buffers["home"].replication.read_log(TABLE, last, rows_max=100)
            rows = [] if shipment is None else shipment.rows["id"].to_pylist()
            assert rows == self.acked[last : last + len(rows)]
            assert bool(rows) == (last < len(self.acked))

    def teardown(self) -> None:
        for buffer in self.opened:
            buffer.close()
        shutil.rmtree(self.root)

    def _open(self, side: str) -> None:
        buffer = SharedBuffer(self.folders[side], chunk_rows=CHUNK_ROWS, clock=FakeClock())
        assert buffer.quarantined() == ()
        self.buffers[side] = buffer
        self.opened.append(buffer)

    def _append(self, rows: int, *, wide: bool) -> None:
        first = len(self.acked) + 1
        ids = list(range(first, first + rows))
        columns = {"id": pa.array(ids, pa.int64())}
        if wide:
            columns["kind"] = pa.array([f"k{number}" for number in ids], pa.string())
        ack = self.buffers["home"].append(TABLE, WIDE if wide else NARROW, pa.table(columns), session="")
        assert (ack.seq_first, ack.seq_last) == (first, first + rows - 1)
        self.acked += ids

    def _last(self, side: str) -> int:
        return self.buffers[side].replication.positions("t7").get(TABLE, 0)

    def _rows(self, side: str) -> list[int]:
        """What the lake has, and then what is buffered."""
        held = [number for each in self.buffers[side].buffered_rows(TABLE) for number in each.rows["id"].to_pylist()]
        return self.lakes[side] + held


def test_a_replica_always_has_the_first_rows_of_its_primary() -> None:
    run_state_machine_as_test(
        ShippingMachine,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
