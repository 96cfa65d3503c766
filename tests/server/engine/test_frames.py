"""What passes between the server and an engine arrives as it was sent, and nothing else does."""

import datetime
import decimal
import pickle
import socket
import threading
import uuid
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from catchment import errors
from catchment.errors import InvariantError, LakeUnavailableError, LimitError
from catchment.server.engine import frames

UTC = datetime.UTC


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = frames.pair()
    with ours, theirs:
        yield ours, theirs


def received(ends: tuple[socket.socket, socket.socket], batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The pieces in which a batch arrives."""
    ours, theirs = ends
    sender = threading.Thread(target=frames.send_batch, args=(theirs, 1, batch))
    sender.start()
    found = []
    while True:
        answer, body = frames.receive(ours)
        found.append(frames.batch_of(answer, body, batch.schema))
        if not answer["more"]:
            sender.join()
            return found


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"a": pa.array([1, None, 3]), "b": ["x", "", None]}),
        pa.record_batch({"a": pa.array([], pa.int64())}),
        pa.record_batch({"a": pa.array(["x", "y", "x"]).dictionary_encode()}),
        pa.record_batch({"a": pa.array([[{"k": "x"}], None]), "u": pa.array([b"0" * 16] * 2, pa.uuid())}),
        pa.record_batch({"a": pa.StructArray.from_arrays([pa.array(["x", "y"]).dictionary_encode()], ["e"])}),
    ],
    ids=["plain", "empty", "dictionary", "nested", "nested dictionary"],
)
def test_a_batch_arrives_as_it_was_sent(ends: tuple[socket.socket, socket.socket], batch: pa.RecordBatch) -> None:
    (found,) = received(ends, batch)
    assert found.equals(batch)


@pytest.mark.parametrize(
    "value",
    [
        "md5_number('a')",
        "TIME '24:00:00'",
        "[TIME '24:00:00', NULL]",
        "{'a': TIME '24:00:00', 'e': 'x'::ENUM('x', 'y')}",
        "map([md5_number('a')], [TIME '24:00:00'])",
        "[md5_number('a')]::HUGEINT[1]",
        "TIME '24:00:00'::UNION(a TIME, b VARCHAR)",
        "[['x'::ENUM('x', 'y')]]",
    ],
)
def test_values_of_duckdb_that_arrow_holds_and_does_not_know_arrive(
    ends: tuple[socket.socket, socket.socket], value: str
) -> None:
    (batch,) = duckdb.execute(f"SELECT {value} AS x").to_arrow_table().to_batches()
    (found,) = received(ends, batch)
    assert found.equals(batch)


def test_a_large_batch_arrives_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    batch = pa.record_batch({"a": ["x" * 1_000_000] * 40})
    found = received(ends, batch)
    assert len(found) > 1
    assert pa.Table.from_batches(found).to_pydict() == batch.to_pydict()


@pytest.mark.parametrize(
    "value",
    [
        [1, "x", None, True, 1.5, b"\0"],
        decimal.Decimal("1.50"),
        datetime.datetime(2024, 5, 1, 12, tzinfo=UTC),
        datetime.date(2024, 5, 1),
        datetime.time(1, 2, 3),
        datetime.timedelta(days=1),
        uuid.UUID("5b1e035a-baf7-4672-8912-1f97ef2414b6"),
        {"a": [1, {"b": [2]}]},
    ],
    ids=str,
)
def test_values_of_rows_arrive_as_they_were_sent(value: object) -> None:
    assert frames.unpacked(pa.py_buffer(frames.packed([(value,)]))) == [[value]]


@pytest.mark.parametrize(
    "body", [pickle.dumps([1]), b"{", b'{"call": "x"}', b'{"uuid": "x"}', b"[" * 100_000], ids=range(5)
)
def test_values_of_any_other_form_are_refused(body: bytes) -> None:
    with pytest.raises(InvariantError, match="cannot be read"):
        frames.unpacked(pa.py_buffer(body))


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"a": ["x", "y", "z"]}),
        pa.record_batch({"a": [[datetime.time(1)], [datetime.time(2)], [None]]}),
        pa.record_batch({"a": pa.array([[("x", 1)], [("y", 2)], [("z", 3)]], pa.map_(pa.string(), pa.time64("us")))}),
    ],
    ids=["text", "list of times", "map to times"],
)
def test_a_batch_with_wrong_offsets_is_refused(
    ends: tuple[socket.socket, socket.socket], batch: pa.RecordBatch
) -> None:
    ours, theirs = ends
    data = bytearray(batch.serialize().to_pybytes())
    at = data.rindex(b"\x01\0\0\0\x02\0\0\0\x03\0\0\0")
    data[at : at + 4] = (60_000).to_bytes(4, "little")
    frames.send(theirs, 1, {"batch": False, "more": False}, bytes(data))
    answer, body = frames.receive(ours)
    with pytest.raises(pa.ArrowInvalid):
        frames.batch_of(answer, body, batch.schema)


def test_a_batch_with_a_wrong_index_of_a_dictionary_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    column = pa.DictionaryArray.from_arrays(pa.array([0, 77], pa.uint8()), ["x"], safe=False)
    nested = pa.StructArray.from_arrays([column, pa.array([datetime.time(1)] * 2)], ["e", "t"])
    batch = pa.record_batch({"a": nested})
    frames.send_batch(theirs, 1, batch)
    answer, body = frames.receive(ours)
    with pytest.raises(pa.ArrowException):
        frames.batch_of(answer, body, batch.schema)


def test_the_text_of_an_error_is_bounded() -> None:
    found = frames.reported(frames.error_answer(duckdb.ConversionException("x" * 70_000_000)))
    assert len(str(found)) == 65_536


@pytest.mark.parametrize("header", [b"[]", b"{", b"\xff"])
def test_an_answer_that_is_none_counts_as_the_end_of_the_engine(
    ends: tuple[socket.socket, socket.socket], header: bytes
) -> None:
    ours, theirs = ends
    theirs.sendall(frames._PREFIX.pack(len(header), 0) + header)
    with pytest.raises(EOFError):
        frames.receive(ours)


def test_an_answer_beyond_every_bound_is_not_received(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(frames._PREFIX.pack(2, 1 << 60) + b"{}")
    with pytest.raises(EOFError):
        frames.receive(ours)


def test_parameters_arrive_as_they_were_sent(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    interval = duckdb.Value("1 months", duckdb.sqltypes.INTERVAL)
    frames.send_request(ours, 7, "execute", ("SELECT ?, ?", [interval, decimal.Decimal("1.5")]))
    number, verb, (text, (found, price)) = frames.receive_request(theirs)
    assert (number, verb, text, price) == (7, "execute", "SELECT ?, ?", decimal.Decimal("1.5"))
    assert duckdb.execute("SELECT ?", [found]).fetchall() == duckdb.execute("SELECT INTERVAL 1 month").fetchall()


@pytest.mark.parametrize(
    "error",
    [
        duckdb.CatalogException("Catalog Error: x"),
        duckdb.InterruptException("INTERRUPT Error: Interrupted!"),
        pa.ArrowInvalid("x"),
        OSError("INTERNAL Error: x"),
        MemoryError("x"),
        LakeUnavailableError("x", hint="y"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_class_and_its_text(error: Exception) -> None:
    found = frames.reported(frames.error_answer(error))
    assert (type(found), str(found)) == (type(error), str(error))
    assert getattr(found, "hint", None) == getattr(error, "hint", None)


def test_an_error_of_an_unknown_class_is_reported_by_name() -> None:
    assert "KeyError: 'x'" in str(frames.reported(frames.error_answer(KeyError("x"))))
    assert isinstance(frames.reported({"error": ["EXIT_NEEDS_YOU", "x", None]}), errors.InvariantError)


def test_values_that_are_too_large_are_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    body = frames.packed(["x" * 100])
    monkeypatch.setattr(frames, "_VALUES_BYTES_MAX", 50)
    with pytest.raises(LimitError, match="more than 50 bytes"):
        frames.packed(["x" * 100])
    with pytest.raises(InvariantError, match=f"{len(body)} bytes"):
        frames.unpacked(pa.py_buffer(body))
