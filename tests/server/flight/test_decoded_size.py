"""The size of decoded rows is computed from their encoding, without decoding, in little memory."""

import random
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa
import pytest

from catchment.server.encoding import decoded_size
from tests.server.flight import expanding_arrays as scenes
from tests.server.flight.expanding_arrays import MESSAGE_BYTES_MAX, UNFOLDED_BYTES_MIN, bombs

BOMBS = dict(bombs())
# What each kind of value costs beside its own bytes, wherever it stands.
OFFSET_BYTES, VIEW_BYTES, LIST_VIEW_BYTES, NOTHING_BYTES = 4, 16, 8, 4


def wire_bytes(array: pa.Array) -> int:
    batch = pa.record_batch([array], names=["a"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(allow_64bit=True)) as writer:
        writer.write(batch)
    return int(sink.getvalue().size)


@pytest.mark.parametrize("name", BOMBS)
def test_a_large_decoded_size_is_computed_in_little_memory(name: str) -> None:
    array = BOMBS[name]
    pool = pa.default_memory_pool()
    assert decoded_size.expands(array.type)
    peak, held = pool.max_memory(), pool.bytes_allocated()
    assert decoded_size.size_of(pa.record_batch([array], names=["a"])) >= UNFOLDED_BYTES_MIN
    assert pool.max_memory() <= max(peak, held + 32 * MESSAGE_BYTES_MAX)


@pytest.mark.parametrize("name", BOMBS)
def test_expanding_arrays_are_small_on_the_wire(name: str) -> None:
    assert wire_bytes(BOMBS[name]) <= MESSAGE_BYTES_MAX


@pytest.mark.parametrize("depth", [8, 40])
def test_lists_in_lists_take_no_time_that_doubles_with_each(depth: int) -> None:
    array = pa.array([1, 2])
    for at in range(depth):
        array = scenes.list_views(array, 2) if at % 2 else scenes.in_list(array)
    assert decoded_size.size_of(pa.record_batch([array], names=["a"])) >= 2 ** (depth // 2)


def test_plain_types_do_not_expand() -> None:
    kinds = (pa.int64(), pa.string(), pa.list_(pa.struct([("a", pa.binary())])), pa.map_(pa.string(), pa.date64()))
    assert not any(decoded_size.expands(kind) for kind in (*kinds, pa.null(), pa.struct([]), pa.uuid()))


# Any array against a model that goes through its values one by one.

T = TypeVar("T")


class Maker:
    """Makes arrays of random encodings, each with a model of its elements' sizes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def array(self, length: int, depth: int) -> tuple[pa.Array, list[int]]:
        """An array, and the size of each of its elements."""
        leaves = [self._numbers, self._texts, self._views, self._nulls]
        nests = [self._dictionary, self._runs, self._list, self._list_view, self._fixed, self._struct, self._map]
        return self._random.choice(leaves if depth == 0 else nests)(length, depth)

    def _numbers(self, length: int, _depth: int) -> tuple[pa.Array, list[int]]:
        return pa.array([self._maybe(each) for each in range(length)], pa.int16()), [2] * length

    def _nulls(self, length: int, _depth: int) -> tuple[pa.Array, list[int]]:
        return pa.nulls(length), [NOTHING_BYTES] * length

    def _texts(self, length: int, _depth: int) -> tuple[pa.Array, list[int]]:
        values = [self._maybe("x" * self._random.randrange(30)) for _ in range(length)]
        kind = self._random.choice([pa.string(), pa.large_binary()])
        return pa.array(values, kind), [OFFSET_BYTES + len(value or "") for value in values]

    def _views(self, length: int, _depth: int) -> tuple[pa.Array, list[int]]:
        values = [self._maybe(b"x" * self._random.randrange(30)) for _ in range(3)]
        of = [self._random.randrange(3) for _ in range(length)]
        return scenes.views(values, of, pa.string_view()), [VIEW_BYTES + len(values[at] or b"") for at in of]

    def _dictionary(self, length: int, depth: int) -> tuple[pa.Array, list[int]]:
        values, sizes = self.array(3, depth - 1)
        of = [self._maybe(self._random.randrange(3)) for _ in range(length)]
        array = pa.DictionaryArray.from_arrays(pa.array(of, pa.int8()), values)
        return array, [0 if at is None else sizes[at] for at in of]

    def _runs(self, length: int, depth: int) -> tuple[pa.Array, list[int]]:
        if not length:
            return self._numbers(0, 0)
        ends = sorted({self._random.randrange(1, length + 1) for _ in range(3)} | {length})
        values, sizes = self.array(len(ends), depth - 1)
        array = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)
        starts = [0, *ends[:-1]]
        return array, [size for start, end, size in zip(starts, ends, sizes, strict=True) for _ in range(end - start)]

    def _list(self, length: int, depth: int) -> tuple[pa.Array, list[int]]:
        offsets = sorted(self._random.randrange(8) for _ in range(length + 1))
        values, sizes = self.array(offsets[-1], depth - 1)
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        pairs = pairwise(offsets)
        return array, [OFFSET_BYTES + sum(sizes[start:end]) for start, end in pairs]

    def _list_view(self, length: int, depth: int) -> tuple[pa.Array, list[int]]:
        values, sizes = self.array(8, depth - 1)
        starts = [self._random.randrange(8) for _ in range(length)]
        counts = [self._random.randrange(9 - start) for start in starts]
        array = pa.ListViewArray.from_arrays(pa.array(starts, pa.int32()), pa.array(counts, pa.int32()), values)
        pairs = zip(starts, counts, strict=True)
        return array, [LIST_VIEW_BYTES + sum(sizes[start : start + count]) for start, count in pairs]

    def _fixed(self, length: int, depth: int) -> tuple[pa.Array, list[int]]:
        values, sizes = self.array(length * 3, depth - 1)
        return pa.FixedSizeListArray.from_arrays(values, 3), [sum(sizes[at : at + 3]) for at in range(0, length * 3, 3)]

    def _struct(self, length: int, depth: int) -> tuple[pa.Array, list[int]]:
        one, other = self.array(length, depth - 1), self.array(length, 0)
        array = pa.StructArray.from_arrays([one[0], other[0]], ["a", "b"])
        return array, [a + b for a, b in zip(one[1], other[1], strict=True)]

    def _map(self, length: int, depth: int) -> tuple[pa.Array, list[int]]:
        offsets = sorted(self._random.randrange(8) for _ in range(length + 1))
        items, sizes = self.array(offsets[-1], depth - 1)
        keys = pa.array(range(offsets[-1]), pa.int32())
        array = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items)
        pairs = pairwise(offsets)
        return array, [OFFSET_BYTES + sum(4 + size for size in sizes[start:end]) for start, end in pairs]

    def _maybe(self, value: T) -> T | None:
        return None if self._random.random() < 0.2 else value


@pytest.mark.parametrize("seed", range(40))
def test_sizes_are_those_of_the_values_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_size._by_element, "__kwdefaults__", {"block": 3})
    maker = Maker(seed)
    for depth in range(5):
        for length in (0, 1, 7):
            array, sizes = maker.array(length, depth)
            array.validate(full=True)
            sums = [sum(sizes[:at]) for at in range(length + 1)]
            found = decoded_size.size_before(array)(pa.arange(0, length + 1)).to_pylist()
            assert found == sums, (seed, array.type)
            if length > 2:
                # As slices have it.
                cut = decoded_size.size_before(array.slice(1, length - 2))(pa.array([0, length - 2])).to_pylist()
                assert cut == [0.0, sums[length - 1] - sums[1]], (seed, array.type)
