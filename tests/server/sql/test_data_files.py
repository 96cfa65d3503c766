"""No statement reads a data file by its name: it may have the rows of another tenant."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from catchment.app import App
from catchment.errors import CatchmentError, InputError, NotAllowedError, NotSupportedError, StateError
from catchment.foundation.settings import Settings
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.values import Call, Principal, Role
from catchment.tenants.model import TenantId
from tests.server.sql import data_file_statements


@dataclass(frozen=True)
class Place:
    """A server's inside, with a tenant, and a data file that is another's."""

    registry: SessionRegistry
    file: Path

    def spelled(self, spelling: str) -> str:
        stem = str(self.file).removesuffix(".parquet")
        return spelling.format(file=self.file, stem=stem, folder=self.file.parent)


def run(session: Session, text: str) -> pa.Table:
    """What a text gives."""
    call = Call()
    result = session.execute(text, call).result
    return pa.Table.from_batches(result.batches(call), result.schema)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    settings = Settings(home=tmp_path_factory.mktemp("files"), lake_threads_max=1)
    with App(settings, sandboxed=True) as app:
        registry = SessionRegistry(app)
        founder = registry.open(Principal("founder", Role.ADMIN))
        for table in ("main.t", "t7.t", "t8.secrets"):
            run(founder, f"CREATE SCHEMA IF NOT EXISTS {table.partition('.')[0]}")
            run(founder, f"CREATE TABLE {table} (a INTEGER, b VARCHAR)")
            run(founder, f"INSERT INTO {table} SELECT i, 'sesame' FROM range(100) r(i)")
        yield Place(registry, next((Path(settings.data_path) / "t8" / "secrets").glob("*.parquet")))
        registry.close_all()


def is_statement(text: str) -> bool:
    """Whether it is SQL to DuckDB; what its parser refuses reads nothing."""
    try:
        return bool(duckdb.extract_statements(text))
    except duckdb.Error:
        return False


@pytest.mark.parametrize("tenant", [None, TenantId(7)])
@pytest.mark.parametrize("spelling", data_file_statements.SPELLINGS)
def test_a_data_file_is_refused_in_every_position_of_a_table(
    place: Place, spelling: str, tenant: TenantId | None
) -> None:
    session = place.registry.open(Principal("somebody", Role.WRITER, tenant))
    tried = 0
    for text in filter(is_statement, data_file_statements.statements(place.spelled(spelling))):
        tried += 1
        # DuckDB's own errors come too late: it has looked for the file.
        with pytest.raises((NotAllowedError, NotSupportedError, InputError)):
            run(session, text)
        with contextlib.suppress(StateError):
            run(session, "ROLLBACK")
    assert tried > 300


@pytest.mark.parametrize("name", ["t8.secrets", "lake.t8.secrets", '"T8" . "secrets"', "x: t8.secrets", "main.t"])
def test_another_tenants_table_is_refused_in_every_position_of_a_table(place: Place, name: str) -> None:
    session = place.registry.open(Principal("somebody", Role.WRITER, TenantId(7)))
    tried = 0
    for text in filter(is_statement, data_file_statements.statements(name)):
        tried += 1
        # Both have the columns of the tenant's own: what was let through would work.
        with pytest.raises((CatchmentError, duckdb.CatalogException)):
            run(session, text)
        with contextlib.suppress(StateError):
            run(session, "ROLLBACK")
    assert tried > 200
