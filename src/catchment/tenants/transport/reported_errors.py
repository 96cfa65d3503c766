"""Errors that a server reported, restored from the status of a failed call."""

import duckdb
import grpc
import pyarrow as pa

from catchment import errors
from catchment.errors import CatchmentError, InvariantError
from catchment.flight_protocol.headers import ERROR_HEADER


def reported_error(error: grpc.RpcError) -> CatchmentError | None:
    """Return the Catchment error that the server reported; None if it reported none."""
    name = _reported_class(error)
    kind = None if name is None else getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, CatchmentError)):
        return None
    # The hint is in the text, and comes with the class.
    return kind((error.details() or "").removesuffix(f" {kind.default_hint}"))


def reported_failure(error: grpc.RpcError) -> Exception | None:
    """Return the error of any kind that the server reported, with its text; None if none."""
    name = _reported_class(error)
    if name is None:
        return None
    text = error.details() or ""
    for module, base in ((errors, CatchmentError), (duckdb, duckdb.Error), (pa, pa.ArrowException)):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, base):
            return _without_hint(kind(text))
    if name in ("OSError", "MemoryError"):
        return OSError(text) if name == "OSError" else MemoryError(text)
    return _without_hint(InvariantError(text))


def _reported_class(error: grpc.RpcError) -> str | None:
    names = [str(each.value) for each in error.trailing_metadata() or () if each.key == ERROR_HEADER]
    return names[0] if names else None


def _without_hint(error: Exception) -> Exception:
    """Remove the hint, which is already part of the text."""
    if isinstance(error, CatchmentError):
        error.hint = None
    return error
