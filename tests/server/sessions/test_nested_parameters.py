"""Values inside of bound values arrive in DuckDB as what they are."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from catchment.app import App
from catchment.foundation.settings import Settings
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.values import Call, Principal, Role

INTERVAL = pa.MonthDayNano([1, 2, 0])


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with App(Settings(home=tmp_path_factory.mktemp("nested"), lake_threads_max=1), sandboxed=True) as app:
        registry = SessionRegistry(app)
        yield registry.open(Principal("founder", Role.ADMIN))
        registry.close_all()


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ([INTERVAL, None], "INTERVAL[]", "[1 month 2 days, NULL]"),
        ({"i": INTERVAL, "a": 1}, "STRUCT(i INTERVAL, a INTEGER)", "{'i': 1 month 2 days, 'a': 1}"),
        ([{"i": [INTERVAL]}], "STRUCT(i INTERVAL[])[]", "[{'i': [1 month 2 days]}]"),
    ],
    ids=["list", "struct", "both"],
)
def test_an_interval_may_be_inside_of_a_value(session: Session, value: object, kind: str, text: str) -> None:
    call, bound = Call(), pa.table({"x": pa.array([value])})
    result = session.execute("SELECT typeof($1) AS kind, $1::VARCHAR AS x", call, parameters=bound).result
    (found,) = result.batches(call)
    assert found.to_pylist() == [{"kind": kind, "x": text}]
