"""Errors as a client sees them."""

import duckdb
import grpc
import pyarrow as pa
import pytest

from catchment import errors
from catchment.errors import CatchmentError
from catchment.foundation import events
from catchment.server.flight import grpc_status

Code = grpc.StatusCode

OURS = {
    errors.LimitError: Code.RESOURCE_EXHAUSTED,
    errors.BackpressureError: Code.RESOURCE_EXHAUSTED,
    errors.ConflictError: Code.ABORTED,
    errors.LakeUnavailableError: Code.UNAVAILABLE,
    errors.StorageFailedError: Code.UNAVAILABLE,
    errors.FlushFailedError: Code.UNAVAILABLE,
    errors.LockTimeoutError: Code.UNAVAILABLE,
    errors.CommitUnknownError: Code.UNKNOWN,
    errors.CancelledError: Code.CANCELLED,
    errors.TimedOutError: Code.DEADLINE_EXCEEDED,
    errors.FencedError: Code.FAILED_PRECONDITION,
    errors.NotLoggedInError: Code.UNAUTHENTICATED,
    errors.NotAllowedError: Code.PERMISSION_DENIED,
    errors.NotSupportedError: Code.UNIMPLEMENTED,
    errors.TableMissingError: Code.NOT_FOUND,
    errors.AlreadyExistsError: Code.ALREADY_EXISTS,
    errors.StateError: Code.FAILED_PRECONDITION,
    errors.PreconditionError: Code.FAILED_PRECONDITION,
    errors.InputError: Code.INVALID_ARGUMENT,
    errors.TypeConflictError: Code.INVALID_ARGUMENT,
    errors.InvariantError: Code.INTERNAL,
}
STATEMENTS = {
    "SELEC 1": Code.INVALID_ARGUMENT,
    "SELECT nope": Code.INVALID_ARGUMENT,
    "SELECT 'x'::INT": Code.INVALID_ARGUMENT,
    "SELECT * FROM nope": Code.NOT_FOUND,
    "CREATE TABLE there (x INT)": Code.ALREADY_EXISTS,
    "INSERT INTO there VALUES (NULL)": Code.INVALID_ARGUMENT,
    "SELECT 9223372036854775807 + 1::BIGINT": Code.INVALID_ARGUMENT,
    "COMMIT": Code.FAILED_PRECONDITION,
}


@pytest.mark.parametrize(("kind", "code"), OURS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_error_of_ours_has_the_status_that_says_what_to_do(
    kind: type[CatchmentError], code: grpc.StatusCode
) -> None:
    assert grpc_status.of(kind("It broke.", hint="Mend it.")) == (code, "It broke. Mend it.")


@pytest.mark.parametrize(("statement", "code"), STATEMENTS.items())
def test_an_error_of_duckdb_has_the_status_that_says_what_to_do(statement: str, code: grpc.StatusCode) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE there (x INT NOT NULL)")
        with pytest.raises(duckdb.Error) as caught:
            connection.execute(statement)
    found, text = grpc_status.of(caught.value)
    assert found is code
    assert text == str(caught.value)


def test_two_transactions_that_change_the_same_row_conflict() -> None:
    with duckdb.connect() as one, one.cursor() as other:
        one.execute("CREATE TABLE t AS SELECT 1 AS x")
        one.execute("BEGIN; UPDATE t SET x = 2")
        other.execute("BEGIN")
        with pytest.raises(duckdb.Error) as caught:
            other.execute("UPDATE t SET x = 3")
    assert grpc_status.of(caught.value)[0] is Code.ABORTED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (duckdb.InterruptException("Interrupted!"), Code.CANCELLED),
        (duckdb.OutOfMemoryException("Out of Memory Error: no"), Code.RESOURCE_EXHAUSTED),
        (duckdb.PermissionException("Permission Error: no"), Code.PERMISSION_DENIED),
        (duckdb.IOException("IO Error: away"), Code.UNAVAILABLE),
        (pa.ArrowInvalid("odd"), Code.INVALID_ARGUMENT),
        (pa.ArrowMemoryError("no"), Code.RESOURCE_EXHAUSTED),
        (OSError("Conversion Error: no"), Code.INVALID_ARGUMENT),
        (OSError("INTERRUPT Error: Interrupted!"), Code.CANCELLED),
        (OSError("Disk on fire"), Code.INTERNAL),
        (MemoryError(), Code.RESOURCE_EXHAUSTED),
        (UnicodeError("odd"), Code.INVALID_ARGUMENT),
        (ZeroDivisionError("secret"), Code.INTERNAL),
    ],
)
def test_other_errors_have_a_status_too(error: Exception, code: grpc.StatusCode) -> None:
    assert grpc_status.of(error)[0] is code


def test_errors_do_not_reveal_folders_of_the_server() -> None:
    error = duckdb.IOException(
        'IO Error: Cannot open file "/srv/lake data/x y/main/t/a.parquet": No such file, see a/b'
    )
    text = grpc_status.of(error)[1]
    assert "/srv" not in text
    assert "a.parquet" in text
    assert "see a/b" in text


def test_an_error_of_the_clients_statement_is_returned_unchanged() -> None:
    error = duckdb.BinderException("Binder Error: no\n\nLINE 1: SELECT * FROM '/home/me/a.csv'")
    assert grpc_status.of(error)[1].endswith("'/home/me/a.csv'")


def test_an_unexpected_error_is_logged_and_hidden_from_the_client() -> None:
    heard: list[events.Event] = []
    with events.listening(heard.append):
        code, text = grpc_status.of(ZeroDivisionError("secret"))
    assert (code, "secret" in text) == (Code.INTERNAL, False)
    assert [event.verb for event in heard] == ["call_crashed"]
    assert "secret" in heard[0].facts["traceback"]


def test_a_long_text_is_cut_to_what_fits_into_trailers() -> None:
    assert len(grpc_status.of(errors.InputError("ä" * 100_000))[1].encode()) < 4_100
    assert grpc_status.of(errors.InputError("x" * 1_000))[1] == "x" * 1_000
