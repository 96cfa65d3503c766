"""Computes the size of rows once they are decoded, without decoding them.

In some Arrow encodings a few bytes represent many: dictionaries, runs, views and list views refer
to one value any number of times, and some types take no bytes at all. A message of one megabyte can
represent terabytes. The computation here takes a small multiple of the message's size, whatever it
represents.

    rows ──▶ for each column: the size of all elements before a position ──▶ refuse or decode

An array is queried for the total size of its elements before given positions, not for the size of
each: so an array of runs, which may have any number of elements, is never iterated.
"""

from collections.abc import Callable
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

# Positions are int64 and count elements; sizes are float64, which do not wrap around if they are
# absurdly large.
SizeBefore = Callable[[pa.Array], pa.Array]

_BLOCK_ELEMENTS = 64 * 1024
_OFFSET_BYTES = 4
_VIEW_BYTES = 16
_LIST_VIEW_BYTES = 8
# Types without bytes have some once they are decoded: DuckDB stores them as a small number.
_EMPTY_BYTES = 4
# Most columns have these types, and most writes are small.
_PLAIN = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.date32(), pa.timestamp("us"), pa.time64("us"), pa.decimal128(1)),
    )
)
# The first four of a view's 16 bytes are its length.
_VIEW_WORDS = 4


def expands(kind: pa.DataType, *, nested: bool = False) -> bool:
    """Whether decoded values of the type may be larger than their encoding."""
    if kind.id in _PLAIN:
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return expands(kind.storage_type, nested=nested)
    types = pa.types
    refers = (
        types.is_dictionary(kind)
        or types.is_run_end_encoded(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
        or types.is_union(kind)
    )
    # A list may contain any number of elements that take no bytes.
    is_empty = (
        types.is_null(kind)
        or (types.is_fixed_size_binary(kind) and kind.byte_width == 0)
        or (types.is_struct(kind) and kind.num_fields == 0)
    )
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return refers or (nested and is_empty) or any(expands(each, nested=True) for each in inner)


def size_of(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the decoded size of the rows, in bytes. The rows must be fully validated."""
    if not any(expands(field.type) for field in rows.schema):
        return int(rows.nbytes)
    if isinstance(rows, pa.Table):
        return sum(size_of(batch) for batch in rows.to_batches())
    return sum(_total(column) if expands(column.type) else int(column.nbytes) for column in rows.columns)


def _total(array: pa.Array) -> int:
    # Cap it: no machine has more bytes than this.
    return int(min(size_before(array)(_places([len(array)]))[0].as_py(), 2.0**62))


def size_before(array: pa.Array) -> SizeBefore:
    """Return a function from ascending positions to the total size of the elements before each."""
    kind, types = array.type, pa.types
    if not len(array):
        # An empty array may lack its buffers.
        return _each(0)
    if isinstance(kind, pa.BaseExtensionType):
        return size_before(array.storage)
    for is_kind, make in _MAKERS:
        if is_kind(kind):
            return make(array)
    if types.is_null(kind):
        return _each(_EMPTY_BYTES)
    return _each(kind.bit_width // 8 or (1 if kind.bit_width else _EMPTY_BYTES))


def _each(size: int) -> SizeBefore:
    return lambda places: pc.multiply(_sizes(places), float(size))


def _text(array: pa.Array) -> SizeBefore:
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    count = array.offset + len(array) + 1
    offsets = pa.Array.from_buffers(pa.int64() if wide else pa.int32(), count, [None, array.buffers()[1]])
    return _between(offsets.slice(array.offset), _each(1))


def _between(offsets: pa.Array, inner: SizeBefore) -> SizeBefore:
    """Return `size_before` for elements that each extend from one offset to the next."""

    # Once for all positions: with nested lists, each level would query the next one twice.
    start = inner(offsets.slice(0, 1).cast(pa.int64()))[0]

    def found(places: pa.Array) -> pa.Array:
        ends = inner(offsets.take(places).cast(pa.int64()))
        return pc.add(pc.subtract(ends, start), pc.multiply(_sizes(places), float(_OFFSET_BYTES)))

    return found


def _view(array: pa.Array) -> SizeBefore:
    count = array.offset + len(array)
    words = pa.Array.from_buffers(pa.int32(), count * _VIEW_WORDS, [None, array.buffers()[1]])
    views = pa.Array.from_buffers(
        pa.list_(pa.int32(), _VIEW_WORDS), count, [array.buffers()[0]], offset=0, children=[words]
    ).slice(array.offset)

    def sizes(start: int, stop: int) -> pa.Array:
        lengths = pc.list_element(views.slice(start, stop - start), 0)
        return pc.add(_sizes(pc.fill_null(lengths, 0)), float(_VIEW_BYTES))

    return _by_element(len(array), sizes)


def _dictionary(array: pa.DictionaryArray) -> SizeBefore:
    values, indices = _element_sizes(array.dictionary), array.indices
    return _by_element(
        len(array), lambda start, stop: pc.fill_null(values.take(indices.slice(start, stop - start)), 0.0)
    )


def _runs(array: pa.RunEndEncodedArray) -> SizeBefore:
    values, ends = _element_sizes(array.values), array.run_ends.cast(pa.int64())
    starts = pa.concat_arrays([_places([0]), ends.slice(0, len(ends) - 1)])
    of_runs = pc.multiply(values, _sizes(pc.subtract(ends, starts)))
    at_starts = pc.subtract(pc.cumulative_sum(of_runs), of_runs)

    def sizes(places: pa.Array) -> pa.Array:
        runs = pc.min_element_wise(pc.search_sorted(ends, places, side="left").cast(pa.int64()), len(ends) - 1)
        beyond = _sizes(pc.subtract(places, starts.take(runs)))
        return pc.add(at_starts.take(runs), pc.multiply(beyond, values.take(runs)))

    offset = array.offset
    first = sizes(_places([offset]))[0]
    return lambda places: pc.subtract(sizes(pc.add(places, offset)), first)


def _map(array: pa.MapArray) -> SizeBefore:
    return _between(array.offsets, _sum([size_before(array.keys), size_before(array.items)]))


def _fixed_list(array: pa.FixedSizeListArray) -> SizeBefore:
    count = array.type.list_size
    if not count:
        return _each(_EMPTY_BYTES)
    inner, offset = size_before(array.values), array.offset
    first = inner(_places([offset * count]))[0]
    return lambda places: pc.subtract(inner(pc.multiply(pc.add(places, offset), count)), first)


def _list_view(array: pa.Array) -> SizeBefore:
    inner, valid = size_before(array.values), array.is_valid()

    def sizes(start: int, stop: int) -> pa.Array:
        cut, count = slice(start, stop), stop - start
        # The values at the position of a NULL are undefined.
        starts = pc.if_else(valid[cut], array.offsets[cut].cast(pa.int64()), 0)
        ends = pc.if_else(valid[cut], pc.add(starts, array.sizes[cut].cast(pa.int64())), 0)
        both = _unordered(inner, pa.concat_arrays([starts, ends]))
        return pc.add(pc.subtract(both.slice(count), both.slice(0, count)), float(_LIST_VIEW_BYTES))

    # In one block: each block would iterate over all values of the lists.
    return _by_element(len(array), sizes, block=max(1, len(array)))


def _struct(array: pa.StructArray) -> SizeBefore:
    fields = [size_before(array.field(at)) for at in range(array.type.num_fields)]
    return _sum(fields) if fields else _each(_EMPTY_BYTES)


def _union(array: pa.UnionArray) -> SizeBefore:
    children = [array.field(at) for at in range(array.type.num_fields)]
    if array.type.mode == "sparse":
        return _sum([_each(1), *(size_before(child) for child in children)])
    known = list(zip(array.type.type_codes, (_element_sizes(child) for child in children), strict=True))

    def sizes(start: int, stop: int) -> pa.Array:
        codes, offsets = array.type_codes[start:stop], array.offsets[start:stop]
        found = _sizes(pa.nulls(stop - start, pa.int64()).fill_null(1))
        for code, of_child in known:
            own = pc.if_else(pc.equal(codes, code), offsets, pa.scalar(None, offsets.type))
            found = pc.add(found, pc.fill_null(of_child.take(own), 0.0))
        return found

    return _by_element(len(array), sizes)


def _sum(parts: list[SizeBefore]) -> SizeBefore:
    return lambda places: reduce(pc.add, (part(places) for part in parts))


def _by_element(length: int, sizes: Callable[[int, int], pa.Array], *, block: int = _BLOCK_ELEMENTS) -> SizeBefore:
    """Return `size_before` for elements with sizes `sizes(start, stop)`, computed in blocks."""

    def found(places: pa.Array) -> pa.Array:
        parts: list[pa.Array] = []
        total, done = 0.0, 0
        for start in range(0, length, block):
            stop = min(start + block, length)
            sums = pc.cumulative_sum(pa.concat_arrays([pa.array([total]), sizes(start, stop)]))
            end = pc.search_sorted(places, stop, side="right").as_py()
            parts.append(sums.take(pc.subtract(places.slice(done, end - done), start)))
            total, done = sums[-1].as_py(), end
        return pa.concat_arrays(parts) if parts else pc.multiply(_sizes(places), 0.0)

    return found


def _element_sizes(array: pa.Array) -> pa.Array:
    """Return the size of each element; for arrays that are no longer than their encoding."""
    ends = size_before(array)(pa.arange(0, len(array) + 1))
    return pc.subtract(ends.slice(1), ends.slice(0, len(array)))


def _unordered(inner: SizeBefore, places: pa.Array) -> pa.Array:
    """Apply `inner` to positions in any order."""
    order = pc.sort_indices(places)
    return inner(places.take(order)).take(pc.sort_indices(order))


def _places(places: list[int]) -> pa.Array:
    return pa.array(places, pa.int64())


def _sizes(places: pa.Array) -> pa.Array:
    return places.cast(pa.float64(), safe=False)


_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], SizeBefore]], ...] = (
    (pa.types.is_dictionary, _dictionary),
    (pa.types.is_run_end_encoded, _runs),
    (lambda kind: pa.types.is_string_view(kind) or pa.types.is_binary_view(kind), _view),
    (lambda kind: pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind), _list_view),
    (pa.types.is_map, _map),
    (pa.types.is_fixed_size_list, _fixed_list),
    (
        lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind),
        lambda array: _between(array.offsets, size_before(array.values)),
    ),
    (pa.types.is_struct, _struct),
    (pa.types.is_union, _union),
    (
        lambda kind: (
            pa.types.is_string(kind)
            or pa.types.is_binary(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_large_binary(kind)
        ),
        _text,
    ),
)
