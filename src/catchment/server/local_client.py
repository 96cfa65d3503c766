"""A client for commands on the server's machine, which must not open the server's files."""

import base64
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn
from urllib.parse import urlsplit

import grpc
import pyarrow as pa

from catchment.errors import BufferHeldError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.flight_protocol import message_sizes
from catchment.foundation.server_file import RunningServer
from catchment.server.access.users import LOCAL
from catchment.server.encoding import messages, wire
from catchment.tenants.transport.reported_errors import reported_error

_SERVICE = "/arrow.flight.protocol.FlightService/"
_AUTHORIZATION = "authorization"
_CONNECT_S_MAX = 10.0
_OPTIONS = (("grpc.enable_http_proxy", 0),)


class LocalClient:
    """A session on the server of a home."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._limits = wire.Limits(
            batch_rows=wire.BATCH_ROWS_MAX,
            message_bytes=message_sizes.MESSAGE_BYTES_MAX,
            kept_bytes=wire.RESULT_BYTES_MAX,
        )
        login = base64.b64encode(f"{LOCAL}:{server.token}".encode()).decode()
        self._authorization = f"Basic {login}"
        self._channel = channel = _channel(server)
        self._do_action: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{_SERVICE}DoAction")
        self._get_flight_info: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"{_SERVICE}GetFlightInfo"
        )
        self._do_get: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"{_SERVICE}DoGet")

    def __enter__(self) -> "LocalClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # If this fails, the session expires.
        with self._channel, suppress(grpc.RpcError):
            action = flight.Action(type="CloseSession", body=flight.CloseSessionRequest().SerializeToString())
            self._do_action(action.SerializeToString(), metadata=self._metadata(), timeout=_CONNECT_S_MAX)

    def query(self, statement: str) -> pa.Table:
        """Run a statement and return its rows."""
        command = messages.pack(sql.CommandStatementQuery(query=statement))
        descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=command)
        try:
            found, call = self._get_flight_info.with_call(descriptor.SerializeToString(), metadata=self._metadata())
            self._keep_token(call)
            ticket = flight.FlightInfo.FromString(found).endpoint[0].ticket
            parts = self._do_get(ticket.SerializeToString(), metadata=self._metadata())
            return wire.Upload(wire.parse(next(parts)), parts, self._limits).table()
        except grpc.RpcError as error:
            self._fail(error)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return ((_AUTHORIZATION, self._authorization),)

    def _keep_token(self, call: grpc.Call) -> None:
        """Use the session's token from now on."""
        for key, value in call.initial_metadata():
            if key == _AUTHORIZATION:
                self._authorization = str(value)

    def _fail(self, error: grpc.RpcError) -> NoReturn:
        """Raise the server's error, as far as it is known."""
        text = error.details() or "no reason was given"
        reported = reported_error(error)
        if reported is not None:
            raise reported from None
        raise BufferHeldError(
            f"The server at {self._server.uri} has the buffer open, but cannot be reached: {text}.",
            hint="Try again, or stop the server first.",
        ) from None


def _channel(server: RunningServer) -> grpc.Channel:
    parts = urlsplit(server.uri)
    if server.certificate is None:
        return grpc.insecure_channel(parts.netloc, _OPTIONS)
    chain = Path(server.certificate)
    name = _name_on(chain, parts.hostname or "", parts.port or 0)
    return grpc.secure_channel(
        parts.netloc,
        grpc.ssl_channel_credentials(chain.read_bytes()),
        (*_OPTIONS, ("grpc.ssl_target_name_override", name)),
    )


def _name_on(chain: Path, host: str, port: int) -> str:
    """Return a name from the certificate to verify against; it may not name the local address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Only the server's own certificate is trusted, whatever its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(chain)
        with (
            socket.create_connection((host, port), timeout=_CONNECT_S_MAX) as plain,
            context.wrap_socket(plain) as secure,
        ):
            facts = secure.getpeercert() or {}
    except OSError as error:
        raise BufferHeldError(
            f"The server at {host}:{port} has the buffer open, but cannot be reached: {error}.",
            hint="If its certificate has changed since its start, restart it.",
        ) from None
    alternatives = [str(each[1]) for each in facts.get("subjectAltName", ())]
    common = [str(pair[1]) for part in facts.get("subject", ()) for pair in part if pair[0] == "commonName"]
    return next(iter((*alternatives, *common)), host).replace("*", "any", 1)
