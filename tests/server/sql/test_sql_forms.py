"""Every form of statement in the reference behaves as described there, for every kind of user."""

import contextlib
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from catchment.app import App
from catchment.errors import CatchmentError, StateError
from catchment.foundation.settings import Settings
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.sql.sql_forms import FORMS, Form
from catchment.server.values import Call, Principal, Role
from catchment.tenants.model import TenantId

ALL = [form for forms in FORMS.values() for form in forms]
USERS = [(role, None) for role in Role] + [(Role.READER, TenantId(7)), (Role.WRITER, TenantId(7))]


def run(session: Session, text: str) -> pa.Table:
    """What a text gives."""
    call = Call()
    result = session.execute(text, call).result
    return pa.Table.from_batches(result.batches(call), result.schema)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionRegistry]:
    settings = Settings(home=tmp_path_factory.mktemp("forms"), lake_threads_max=1, queue_auto_create_tables=True)
    with App(settings, sandboxed=True) as app:
        registry = SessionRegistry(app)
        founder = registry.open(Principal("founder", Role.ADMIN))
        for schema in ("main", "t7", "t8"):
            run(founder, f"CREATE SCHEMA IF NOT EXISTS {schema}")
            run(founder, f"CREATE TABLE {schema}.t (a INTEGER, b VARCHAR)")
            run(founder, f"INSERT INTO {schema}.t VALUES (1, 'x')")
            run(founder, f"CREATE TABLE {schema}.nested (s STRUCT(x INTEGER))")
        yield registry
        registry.close_all()


@pytest.fixture(scope="module")
def sessions(registry: SessionRegistry) -> dict[tuple[Role, TenantId | None], Session]:
    return {(role, tenant): registry.open(Principal("somebody", role, tenant)) for role, tenant in USERS}


@pytest.mark.parametrize(("role", "tenant"), USERS, ids=str)
@pytest.mark.parametrize("form", ALL, ids=lambda form: form.example)
def test_a_form_of_statement_is_allowed_or_refused_as_the_reference_says(
    sessions: dict[tuple[Role, TenantId | None], Session], form: Form, role: Role, tenant: TenantId | None
) -> None:
    session = sessions[role, tenant]
    is_theirs = form.least is not None and (tenant is None or form.tenants)
    try:
        if is_theirs and form.least is not None and role >= form.least:
            run(session, form.example)
        else:
            with pytest.raises((CatchmentError, duckdb.CatalogException)) as refused:
                run(session, form.example)
            error = refused.value
            said = error.message if isinstance(error, CatchmentError) else str(error)
            assert form.reason in said or "may only read" in said
            assert form.reason or role < Role.WRITER
    finally:
        with contextlib.suppress(StateError):
            run(session, "ROLLBACK")


def test_refused_statements_have_a_reason() -> None:
    assert [form.example for form in ALL if not form.reason and (form.least is None or not form.tenants)] == []
