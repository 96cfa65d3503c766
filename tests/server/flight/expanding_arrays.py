"""Arrow arrays that are small when sent and huge when decoded, in every encoding and nesting."""

import struct
from collections.abc import Callable, Iterator

import pyarrow as pa

MESSAGE_BYTES_MAX = 2 * 1024 * 1024
_VALUE_BYTES = 128 * 1024
_ROWS = 64 * 1024
UNFOLDED_BYTES_MIN = 2 * 1024**3


def views(values: list[bytes | None], of: list[int], kind: pa.DataType) -> pa.Array:
    """An array of views: the element at `i` is `values[of[i]]`, which is there once."""
    places, body = [], b""
    for value in values:
        places.append(len(body))
        body += value or b""
    encoded = b"".join(_view(values[at], places[at]) for at in of)
    valid = [values[at] is not None for at in of]
    mask = pa.array(valid, pa.bool_()).buffers()[1] if not all(valid) else None
    return pa.Array.from_buffers(kind, len(of), [mask, pa.py_buffer(encoded), pa.py_buffer(body)])


def _view(value: bytes | None, place: int) -> bytes:
    if value is None:
        return b"\x00" * 16
    if len(value) <= 12:
        return struct.pack("<i12s", len(value), value)
    return struct.pack("<i4sii", len(value), value[:4], 0, place)


def list_views(child: pa.Array, rows: int, *, large: bool = False) -> pa.Array:
    """Lists that are each all of the child."""
    make, kind = (pa.LargeListViewArray, pa.int64()) if large else (pa.ListViewArray, pa.int32())
    return make.from_arrays(pa.array([0] * rows, kind), pa.array([len(child)] * rows, kind), child)


def dictionary(rows: int = _ROWS) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array(["x" * _VALUE_BYTES]))


def runs(rows: int = _ROWS) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array(["x" * _VALUE_BYTES]))


def string_view(rows: int = _ROWS) -> pa.Array:
    return views([b"x" * _VALUE_BYTES], [0] * rows, pa.string_view())


def binary_view(rows: int = _ROWS) -> pa.Array:
    return views([b"x" * _VALUE_BYTES], [0] * rows, pa.binary_view())


def list_view(rows: int = _ROWS) -> pa.Array:
    return list_views(pa.array(range(16 * 1024), pa.int32()), rows)


def large_list_view(rows: int = _ROWS) -> pa.Array:
    return list_views(pa.array(range(16 * 1024), pa.int32()), rows, large=True)


def dense_union(rows: int = _ROWS) -> pa.Array:
    codes, offsets = pa.array([0] * rows, pa.int8()), pa.array([0] * rows, pa.int32())
    return pa.UnionArray.from_dense(codes, offsets, [pa.array(["x" * _VALUE_BYTES])])


ENCODINGS: dict[str, Callable[[], pa.Array]] = {
    each.__name__: each
    for each in (dictionary, runs, string_view, binary_view, list_view, large_list_view, dense_union)
}


def in_struct(inner: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([inner], ["a"])


def in_list(inner: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(inner)], pa.int32()), inner)


def in_large_list(inner: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array([0, 1, len(inner)], pa.int64()), inner)


def in_fixed_list(inner: pa.Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(inner, 2)


def in_map(inner: pa.Array) -> pa.Array:
    keys = pa.array(range(len(inner)), pa.int32())
    return pa.MapArray.from_arrays(pa.array([0, len(inner)], pa.int32()), keys, inner)


def in_dictionary(inner: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), in_list(inner))


def in_list_view(inner: pa.Array) -> pa.Array:
    return list_views(inner, 2)


NESTINGS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "alone": lambda inner: inner,
    **{
        each.__name__: each
        for each in (in_struct, in_list, in_large_list, in_fixed_list, in_map, in_dictionary, in_list_view)
    },
    "deep": lambda inner: in_struct(in_list(in_map(in_struct(in_list(inner))))),
}


def of_nothing() -> Iterator[tuple[str, pa.Array]]:
    """Lists of what takes no bytes at all."""
    many = 2**31 - 1
    nulls = pa.nulls(many)
    yield "list_of_null", pa.ListArray.from_arrays(pa.array([0, many], pa.int32()), nulls)
    yield "fixed_list_of_null", pa.FixedSizeListArray.from_arrays(nulls, many)
    yield "list_view_of_null", list_views(pa.nulls(2**20), 2**12)
    empty = pa.Array.from_buffers(pa.struct([]), many, [None])
    yield "list_of_empty_struct", pa.ListArray.from_arrays(pa.array([0, many], pa.int32()), empty)
    long = pa.RunEndEncodedArray.from_arrays(pa.array([2**62], pa.int64()), pa.array([1]))
    yield "list_of_one_run", pa.LargeListArray.from_arrays(pa.array([0, 2**62], pa.int64()), long)
    # Sizes that would wrap around 64 bits, to something small.
    wrapped = long
    for _ in range(4):
        wrapped = list_views(in_large_list(wrapped), 4, large=True)
    yield "beyond_64_bits", wrapped


def bombs() -> Iterator[tuple[str, pa.Array]]:
    """All of them, by name."""
    for encoding, make in ENCODINGS.items():
        for nesting, wrap in NESTINGS.items():
            yield f"{encoding}-{nesting}", wrap(make())
    yield from of_nothing()
