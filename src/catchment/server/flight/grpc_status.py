"""Maps errors to gRPC status codes and to a text that states what happened and what to do next.

A text never contains a traceback, nor folders of this machine. An unexpected error is logged in
full, and reported to the client in one sentence.
"""

import logging
import re
import traceback
from urllib.parse import quote

import duckdb
import grpc
import pyarrow as pa

from catchment import errors
from catchment.errors import CatchmentError
from catchment.foundation import events

Code = grpc.StatusCode

# The first match counts, so special cases precede general ones.
_OURS: tuple[tuple[type[CatchmentError], grpc.StatusCode], ...] = (
    (errors.LimitError, Code.RESOURCE_EXHAUSTED),
    (errors.BackpressureError, Code.RESOURCE_EXHAUSTED),
    (errors.ConflictError, Code.ABORTED),
    # Not UNAVAILABLE: a client must look up the tenant's primary before it tries again.
    (errors.StaleRouteError, Code.ABORTED),
    (errors.SeqGapError, Code.FAILED_PRECONDITION),
    (errors.MismatchError, Code.FAILED_PRECONDITION),
    (errors.BufferOutdatedError, Code.FAILED_PRECONDITION),
    (errors.RetryableError, Code.UNAVAILABLE),
    (errors.TimedOutError, Code.DEADLINE_EXCEEDED),
    (errors.CancelledError, Code.CANCELLED),
    # Not UNAVAILABLE: clients retry that automatically, and the commit may have succeeded.
    (errors.CommitUnknownError, Code.UNKNOWN),
    (errors.FencedError, Code.FAILED_PRECONDITION),
    (errors.NotLoggedInError, Code.UNAUTHENTICATED),
    (errors.NotAllowedError, Code.PERMISSION_DENIED),
    (errors.NotSupportedError, Code.UNIMPLEMENTED),
    (errors.StorageUnsupportedError, Code.UNIMPLEMENTED),
    (errors.TableMissingError, Code.NOT_FOUND),
    (errors.LakeMissingError, Code.NOT_FOUND),
    (errors.AlreadyExistsError, Code.ALREADY_EXISTS),
    (errors.StateError, Code.FAILED_PRECONDITION),
    (errors.PreconditionError, Code.FAILED_PRECONDITION),
    (errors.InputError, Code.INVALID_ARGUMENT),
    (errors.MachineError, Code.FAILED_PRECONDITION),
)
_DUCKDB: tuple[tuple[type[duckdb.Error], grpc.StatusCode], ...] = (
    (duckdb.InterruptException, Code.CANCELLED),
    (duckdb.OutOfMemoryException, Code.RESOURCE_EXHAUSTED),
    (duckdb.PermissionException, Code.PERMISSION_DENIED),
    (duckdb.NotImplementedException, Code.UNIMPLEMENTED),
    (duckdb.TransactionException, Code.FAILED_PRECONDITION),
    (duckdb.DependencyException, Code.FAILED_PRECONDITION),
    (duckdb.ConnectionException, Code.UNAVAILABLE),
    (duckdb.IOException, Code.UNAVAILABLE),
    (duckdb.InternalException, Code.INTERNAL),
    (duckdb.FatalException, Code.INTERNAL),
    (duckdb.ProgrammingError, Code.INVALID_ARGUMENT),
    (duckdb.DataError, Code.INVALID_ARGUMENT),
    (duckdb.IntegrityError, Code.INVALID_ARGUMENT),
)
# Cases that DuckDB's classes do not distinguish, but its messages do.
_PHRASES: tuple[tuple[type[duckdb.Error], str, grpc.StatusCode], ...] = (
    (duckdb.CatalogException, "already exists", Code.ALREADY_EXISTS),
    (duckdb.CatalogException, "does not exist", Code.NOT_FOUND),
    (duckdb.TransactionException, "conflict", Code.ABORTED),
)
# An error that DuckDB raises while its rows are read comes through Arrow, which keeps only the
# text.
_STREAMED_TEXT = re.compile(r"([A-Za-z][A-Za-z ]*) Error: ")
_STREAMED: dict[str, type[duckdb.Error]] = {
    "Binder": duckdb.BinderException,
    "Catalog": duckdb.CatalogException,
    "Constraint": duckdb.ConstraintException,
    "Conversion": duckdb.ConversionException,
    "FATAL": duckdb.FatalException,
    "HTTP": duckdb.HTTPException,
    "INTERNAL": duckdb.InternalException,
    "INTERRUPT": duckdb.InterruptException,
    "IO": duckdb.IOException,
    "Invalid Input": duckdb.InvalidInputException,
    "Mismatch Type": duckdb.TypeMismatchException,
    "Not implemented": duckdb.NotImplementedException,
    "Out of Memory": duckdb.OutOfMemoryException,
    "Out of Range": duckdb.OutOfRangeException,
    "Permission": duckdb.PermissionException,
    "TransactionContext": duckdb.TransactionException,
}
# An absolute path of two parts or more; only its last part is kept.
_PATH = re.compile(r"(?<![\w/:.])(?:/[^\s/'\"`]+)+/([^\s/'\"`]+)")
# Clients accept about 8 KiB of trailers, in which text is percent-encoded.
_TEXT_BYTES_MAX = 4096


def of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the status code and the text of an error."""
    error = _streamed(error)
    code = _code(error)
    if code is Code.INTERNAL:
        text = "".join(traceback.format_exception(error))
        events.emit("call_crashed", level=logging.ERROR, error=type(error).__name__, traceback=text)
    return code, _short(_text(error))


def _streamed(error: Exception) -> Exception:
    """Return the DuckDB error that Arrow has wrapped; any other error unchanged."""
    found = _STREAMED_TEXT.match(str(error)) if isinstance(error, OSError | pa.ArrowException) else None
    kind = _STREAMED.get(found[1]) if found else None
    return error if kind is None else kind(str(error)).with_traceback(error.__traceback__)


def _code(error: Exception) -> grpc.StatusCode:
    match error:
        case CatchmentError():
            return next((code for kind, code in _OURS if isinstance(error, kind)), Code.INTERNAL)
        case duckdb.Error():
            return _code_of_duckdb(error)
        case pa.ArrowMemoryError() | MemoryError():
            return Code.RESOURCE_EXHAUSTED
        case pa.ArrowNotImplementedError():
            return Code.UNIMPLEMENTED
        case pa.ArrowException() | UnicodeError():
            return Code.INVALID_ARGUMENT
        case _:
            return Code.INTERNAL


def _code_of_duckdb(error: duckdb.Error) -> grpc.StatusCode:
    text = str(error).lower()
    for kind, phrase, code in _PHRASES:
        if isinstance(error, kind) and phrase in text:
            return code
    return next((code for kind, code in _DUCKDB if isinstance(error, kind)), Code.INTERNAL)


def _text(error: Exception) -> str:
    match error:
        case CatchmentError():
            return f"{error.message} {error.hint}" if error.hint else error.message
        case duckdb.InternalException() | duckdb.FatalException():
            return (
                "DuckDB failed internally on this statement, which was not executed; the server's log has the details."
            )
        case duckdb.Error() | pa.ArrowException() | UnicodeError():
            # The rest is a part of the statement, which the client knows.
            message, line, statement = str(error).partition("\n\nLINE ")
            return _PATH.sub(r"\1", message) + line + statement
        case MemoryError():
            return "Out of memory."
        case _:
            return "The server failed; its log has the details."


def _short(text: str) -> str:
    shortened = text
    while len(quote(shortened, safe="")) > _TEXT_BYTES_MAX:
        shortened = shortened[: len(shortened) * 3 // 4]
    return shortened if shortened == text else f"{shortened} …"
