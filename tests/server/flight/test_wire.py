"""Arrow on the wire: unchanged both ways, within limits, and never trusted."""

import io
import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from catchment.errors import InputError, LimitError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.server.encoding import wire

LIMITS = wire.Limits(batch_rows=1_000, message_bytes=1 << 20, kept_bytes=1 << 22)
ROWS = pa.table({"id": [1, 2, None], "name": ["a", None, "ä" * 5], "tags": [["x"], [], None]})
ENUM = pa.array(["a", "b", None, "a"]).dictionary_encode()
WITH_DICTIONARIES = pa.table(
    {
        "plain": ENUM,
        "list": pa.ListArray.from_arrays([0, 1, 2, 3, 4], ENUM),
        "large": pa.LargeListArray.from_arrays([0, 1, 2, 3, 4], ENUM),
        "fixed": pa.FixedSizeListArray.from_arrays(ENUM, 1),
        "struct": pa.StructArray.from_arrays([ENUM, ENUM], ["x", "y"]),
        "map": pa.MapArray.from_arrays([0, 1, 2, 3, 4], pa.array(["k", "l", "m", "n"]), ENUM),
        "number": [1, 2, 3, 4],
    }
)


def sent(table: pa.Table) -> list[bytes]:
    return list(wire.stream(table.schema, iter(table.to_batches())))


def upload(messages: list[bytes], limits: wire.Limits = LIMITS) -> wire.Upload:
    following = iter(messages)
    return wire.Upload(wire.parse(next(following, b"")), following, limits)


def as_client(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> list[bytes]:
    """The messages of a client that keeps dictionaries, and that protobuf itself has encoded."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return [
        flight.FlightData(
            data_header=message.metadata.to_pybytes(), data_body=message.body.to_pybytes() if message.body else b""
        ).SerializeToString()
        for message in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]


def read(messages: list[bytes]) -> pa.Table:
    table = upload(messages).table()
    assert table is not None
    return table


def test_rows_come_back_as_they_were_sent() -> None:
    assert read(sent(ROWS)).equals(ROWS)


def test_messages_are_encoded_as_protobuf_does() -> None:
    parsed = flight.FlightData.FromString(sent(ROWS)[1])
    again = wire.parse(sent(ROWS)[1])
    assert parsed.data_header == again.header
    assert parsed.data_body == again.body


def test_dictionaries_of_a_client_are_understood() -> None:
    assert read(as_client(WITH_DICTIONARIES)).equals(WITH_DICTIONARIES)


def test_dictionaries_go_out_as_their_values_at_any_depth() -> None:
    received = read(sent(WITH_DICTIONARIES))
    assert received.to_pylist() == WITH_DICTIONARIES.to_pylist()
    assert "dictionary" not in str(received.schema)
    assert pa.ipc.read_schema(pa.py_buffer(wire.encode_schema(WITH_DICTIONARIES.schema))) == received.schema


def test_a_schema_without_dictionaries_is_left_alone() -> None:
    schema = ROWS.schema
    assert wire.plain_schema(schema) is schema


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_are_understood(compression: str) -> None:
    assert read(as_client(ROWS, pa.ipc.IpcWriteOptions(compression=compression))).equals(ROWS)


def test_a_batch_that_grows_beyond_the_limit_when_it_is_decompressed_is_refused() -> None:
    zeros = pa.table({"x": pa.array([bytes(4_000)] * 500)})
    messages = as_client(zeros, pa.ipc.IpcWriteOptions(compression="zstd"))
    assert sum(map(len, messages)) < 10_000
    with pytest.raises(LimitError, match="bytes"):
        upload(messages).table()


def test_a_batch_of_too_many_rows_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(LimitError, match="1,001 rows"):
        upload(sent(pa.table({"x": pa.nulls(1_001)}))).table()


def test_more_rows_than_may_be_kept_are_refused() -> None:
    batch = pa.table({"x": pa.array([bytes(1_000)] * 900)})
    with pytest.raises(LimitError, match="The rows have more than"):
        upload([*sent(batch), *sent(batch)[1:] * 5]).table()


def test_a_result_is_cut_into_messages_that_clients_take() -> None:
    skewed = pa.table({"x": ["s"] * 30_000 + ["l" * 100_000] * 60})
    messages = sent(skewed)
    assert max(map(len, messages)) < wire.MESSAGE_BYTES + 10_000
    limits = wire.Limits(batch_rows=100_000, message_bytes=1 << 30, kept_bytes=1 << 30)
    received = upload(messages, limits).table()
    assert received is not None
    assert received.equals(skewed)


def test_a_row_that_is_larger_than_a_message_goes_out_alone() -> None:
    assert len(sent(pa.table({"x": ["l" * 3_000_000, "s"]}))) == 3


def test_a_call_without_an_arrow_stream_has_no_rows() -> None:
    descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=b"x")
    only = flight.FlightData(flight_descriptor=descriptor).SerializeToString()
    assert upload([only]).rows() is None
    assert upload([]).table() is None


def test_messages_for_applications_are_skipped() -> None:
    note = flight.FlightData(app_metadata=b"note").SerializeToString()
    schema, *batches = sent(ROWS)
    assert read([note, schema, note, *batches, note]).equals(ROWS)


def test_messages_are_read_on_demand() -> None:
    taken = []

    def arriving() -> Iterator[bytes]:
        for number, message in enumerate([*sent(ROWS)[1:] * 3]):
            taken.append(number)
            yield message

    rows = wire.Upload(wire.parse(sent(ROWS)[0]), arriving(), LIMITS).rows()
    assert rows is not None
    assert taken == []
    rows.read_next_batch()
    assert taken == [0]


def test_an_upload_keeps_its_failure_after_its_rows_were_read() -> None:
    taken = upload([sent(ROWS)[0], sent(pa.table({"x": pa.nulls(2_000)}))[1]])
    rows = taken.rows()
    assert rows is not None
    with pytest.raises(Exception, match="2,000 rows"):
        pa.RecordBatchReader.from_stream(rows).read_all()
    assert isinstance(taken.failure, LimitError)


def test_offsets_that_lead_outside_of_a_text_are_refused() -> None:
    schema, batch = sent(pa.table({"x": ["abc", "def"]}))
    offsets = pa.array([0, 3, 6], pa.int32()).buffers()[1].to_pybytes()[:12]
    assert batch.count(offsets) == 1
    wrong = pa.array([0, 3, 1 << 30], pa.int32()).buffers()[1].to_pybytes()[:12]
    with pytest.raises(InputError, match="damaged"):
        upload([schema, batch.replace(offsets, wrong)]).table()


def test_invalid_utf8_in_a_text_column_is_refused() -> None:
    schema, batch = sent(pa.table({"x": ["abcdef"]}))
    with pytest.raises(InputError, match="damaged"):
        upload([schema, batch.replace(b"abcdef", b"abc\xff\xfe\xfd")]).table()


def test_a_stream_without_its_schema_is_refused() -> None:
    with pytest.raises(InputError):
        upload(sent(ROWS)[1:]).table()


@pytest.mark.parametrize("seed", range(8))
def test_damaged_messages_are_refused_or_harmless(seed: int) -> None:
    chance = random.Random(seed)
    originals = [sent(ROWS), as_client(WITH_DICTIONARIES), as_client(ROWS, pa.ipc.IpcWriteOptions(compression="lz4"))]
    for _ in range(150):
        messages = [bytearray(message) for message in chance.choice(originals)]
        for _ in range(chance.randint(1, 4)):
            message = chance.choice(messages)
            place = chance.randrange(len(message))
            if chance.random() < 0.2:
                del message[place : place + chance.randint(1, 9)]
            else:
                message[place] = chance.choice((0, 127, 128, 255, chance.randrange(256)))
        try:
            table = upload([bytes(message) for message in messages]).table()
        except (InputError, LimitError):
            continue
        if table is not None:
            # Reading every value would crash, were an offset wrong.
            assert str(table.columns)
