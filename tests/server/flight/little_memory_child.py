"""A server with little memory that receives arrays which expand; started by its test.

    python -m tests.server.flight.little_memory_child HOME

It ends well if all of it is refused, and what is not large is taken. In a process of its own, for
the limit.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
from google.protobuf.message import Message

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import MIB, Settings
from tests.server.flight.expanding_arrays import ENCODINGS, NESTINGS, bombs
from tests.server.raw_client import Client, descriptor, ingest, server

# What a message may unfold to, and what the process may take beyond what it has when it serves.
_WRITE_BYTES_MAX = 256 * MIB
_MEMORY_BYTES_MAX = 1_024 * MIB
_OPTIONS = pa.ipc.IpcWriteOptions(allow_64bit=True)


def main(home: str) -> None:
    settings = Settings(
        home=Path(home),
        lake_threads_max=1,
        server_port=0,
        server_write_bytes_max=_WRITE_BYTES_MAX,
        server_memory_mb=256,
        server_statement_seconds_max=3_600,
        queue_auto_create_tables=True,
    )
    with server(settings) as running:
        client = Client(running.uri)
        client.authorization = f"Bearer {client.handshake()}"
        client.update("CREATE TABLE t (a VARCHAR)")
        client.update("INSERT INTO duckling_queue.t VALUES ('warm')")
        prepared = client.prepare("INSERT INTO duckling_queue.t VALUES (?)").prepared_statement_handle
        _bound_memory()
        made = dict(bombs())
        targets: dict[str, Message] = {
            "queue": ingest("t", schema="duckling_queue", create=False),
            "lake": ingest("t", create=False),
            "temporary": ingest("x", temporary=True),
            "parameters": sql.CommandPreparedStatementUpdate(prepared_statement_handle=prepared),
        }
        for name, array in made.items():
            for target, command in targets.items():
                said = _answer(client, command, array)
                assert said.startswith("RESOURCE_EXHAUSTED A batch has"), (name, target, said)
        for encoding in ENCODINGS:
            if encoding != "dense_union":
                small = NESTINGS["alone"](ENCODINGS[encoding](4))  # type: ignore[call-arg]
                said = _answer(client, ingest(f"small_{encoding}"), small)
                assert said == "4 rows", (encoding, said)
        assert client.query("SELECT count(*) AS n FROM t") == [{"n": 0}]
    sys.stdout.write(f"{len(made)} were refused\n")


def _bound_memory() -> None:
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES_MAX, hard))


def _answer(client: Client, command: Message, array: pa.Array) -> str:
    call = client.upload(_sent(command, array))
    try:
        answer = call.result(timeout=60)
    except grpc.RpcError as error:
        failure: Any = error
        return f"{failure.code().name} {failure.details()}"
    count = sql.DoPutUpdateResult.FromString(flight.PutResult.FromString(answer).app_metadata).record_count
    return f"{count} rows"


def _sent(command: Message, array: pa.Array) -> Iterator[bytes]:
    """The messages of an upload, in the encoding that the array has."""
    batch = pa.record_batch([array], names=["a"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write(batch)
    first = True
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        data = flight.FlightData(data_header=message.metadata.to_pybytes())
        if message.body is not None:
            data.data_body = message.body.to_pybytes()
        if first:
            data.flight_descriptor.CopyFrom(descriptor(command))
        first = False
        yield data.SerializeToString()


if __name__ == "__main__":
    main(*sys.argv[1:])
