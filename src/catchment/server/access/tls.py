"""The server's certificate: read and checked before the server listens."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from catchment.errors import SettingsError
from catchment.foundation.settings import Settings

_HINT = (
    "CATCHMENT_SERVER_TLS_CERTIFICATE and CATCHMENT_SERVER_TLS_KEY must name two PEM files, a certificate and its key."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate chain and its private key, PEM."""

    chain: bytes
    key: bytes = field(repr=False)

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server."""
        return grpc.ssl_server_credentials([(self.key, self.chain)])


def certificate_of(settings: Settings) -> Certificate | None:
    """Return the certificate that the settings name; None if they name none."""
    chain, key = settings.server_tls_certificate, settings.server_tls_key
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        missing = "key" if key is None else "certificate"
        raise SettingsError(f"TLS requires a certificate and its key; the {missing} is not set.", hint=_HINT)
    found = Certificate(chain=_read(chain), key=_read(key))
    try:
        # Without a password, OpenSSL would ask for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "the key is encrypted"
        raise SettingsError(f"{chain} and {key} cannot be used for TLS: {reason}.", hint=_HINT) from None
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", hint=_HINT) from None
