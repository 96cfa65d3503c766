"""gRPC channels to the servers of shards, and the login on them."""

import base64
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from catchment.flight_protocol import message_sizes
from catchment.flight_protocol.headers import AUTHORIZATION, SHARD
from catchment.foundation.settings import Settings

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # A server that was down is retried within a second or two, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 10_000),
)


def open_channel(location: str, settings: Settings) -> grpc.Channel:
    """Open a connection to a shard's server; it is established on first use."""
    parts = urlsplit(location)
    options = (*_OPTIONS, ("grpc.max_receive_message_length", message_sizes.MESSAGE_BYTES_MAX))
    if parts.scheme != "grpc+tls":
        return grpc.insecure_channel(parts.netloc, options)
    roots = settings.shard_ca
    return grpc.secure_channel(
        parts.netloc, grpc.ssl_channel_credentials(None if roots is None else Path(roots).read_bytes()), options
    )


def shard_login(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the header that logs in as a shard; none if no shard secret is set."""
    secret = settings.shard_secret
    if secret is None:
        return ()
    login = f"{SHARD}:{secret.get_secret_value()}"
    return ((AUTHORIZATION, f"Basic {base64.b64encode(login.encode()).decode()}"),)


def was_never_sent(error: grpc.RpcError) -> bool:
    """Return whether the call never reached the server: unreachable, or too many calls."""
    text = (error.details() or "").lower()
    is_unheard = error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in text
    return is_unheard or (error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "concurrent rpc limit" in text)
