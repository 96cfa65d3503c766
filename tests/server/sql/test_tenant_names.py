"""Names that belong to a tenant, and errors that reveal nothing of others."""

import duckdb
import pytest

from catchment.errors import InputError, NotAllowedError, TableMissingError
from catchment.foundation.ids import TableId
from catchment.server.engine.parsing import LocalParser
from catchment.server.sql import tenant_isolation
from catchment.server.sql.sql_tokens import read
from catchment.server.sql.syntax import SqlReading
from catchment.server.sql.tenant_isolation import TenantScope
from catchment.tenants.model import TenantId

ISLAND = TenantScope(TenantId(7), "lake")


def examine(text: str, island: TenantScope = ISLAND) -> None:
    island.examine(SqlReading.of(text, LocalParser()))


@pytest.mark.parametrize("parts", [("x",), ("t7", "x"), ("T7", "x"), ("Lake", "t7", "x"), ("temp", "main", "x")])
def test_a_name_of_the_tenants_own_is_let_through(parts: tuple[str, ...]) -> None:
    ISLAND.require(parts)


@pytest.mark.parametrize("parts", [("t8", "x"), ("lake", "x"), ("main", "x"), ("lake", "t8", "x"), ("t7", "t8", "x")])
def test_any_other_name_does_not_exist(parts: tuple[str, ...]) -> None:
    with pytest.raises(duckdb.CatalogException, match=r"does not exist because schema \"\w+\" does not exist"):
        ISLAND.require(parts)


def test_in_a_lake_of_the_tenants_name_two_parts_are_not_enough() -> None:
    # DuckDB would take the first for the lake, and look in its `main`.
    island = TenantScope(TenantId(7), "t7")
    island.require(("t7", "t7", "x"))
    with pytest.raises(duckdb.CatalogException):
        island.require(("t7", "x"))
    with pytest.raises(duckdb.CatalogException):
        island.allows_search_path("USE t7", read(b"USE t7"))


@pytest.mark.parametrize("name", ["pg_class", "DUCKDB_TABLES", "sqlite_master"])
def test_a_view_of_duckdbs_own_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(NotAllowedError, match="users of a tenant") as refused:
        ISLAND.require((name,))
    assert "SHOW TABLES" in str(refused.value.hint)


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE x SET a = t8.a FROM y t8",
        "UPDATE x SET a = extract(year FROM t8.at) FROM y t8",
        "UPDATE x SET a = 1 WHERE x.a IS DISTINCT FROM x.b AND x.a IS NOT DISTINCT FROM x.c",
        "UPDATE x SET a = trim(both 'x' FROM x.b), b = substring(x.b FROM x.a)",
        "DELETE FROM x USING y t8, z t9 WHERE t8.a = t9.a",
        "INSERT INTO x SELECT t8.a, t8.b FROM y t8 GROUP BY t8.a, t8.b ORDER BY t8.a DESC, t8.b",
        "INSERT INTO x SELECT f(t8.a, t8.b) FROM y t8 JOIN z ON f(t8.a, z.b) WHERE t8.a IN (t8.b, z.a)",
        "MERGE INTO x USING y t8 ON x.a = t8.a WHEN MATCHED THEN UPDATE SET a = t8.a, b = t8.b",
        "CREATE TABLE x AS SELECT t8.a FROM y t8, LATERAL (SELECT t8.b)",
    ],
)
def test_an_alias_that_is_called_as_a_tenant_is_an_alias(text: str) -> None:
    examine(text)


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE x SET a = 1 FROM y, t8.z",
        "UPDATE x SET a = 1 FROM (y CROSS JOIN t8.z)",
        "UPDATE x SET a = 1 FROM y JOIN z ON f(y.a, z.a), t8.z",
        "DELETE FROM x USING y, t8.z",
        "DELETE FROM x WHERE trim((SELECT a FROM t8.z)) = 'x'",
        "INSERT INTO x SELECT 1 FROM range(3) r(i), t8.z",
        "CREATE VIEW x AS SELECT 1 FROM (SELECT 1) y, t8.z",
    ],
)
def test_a_table_is_found_in_every_position(text: str) -> None:
    with pytest.raises(duckdb.CatalogException, match="t8"):
        examine(text)


@pytest.mark.parametrize("silenced", ["names_by_tokens", "_examine_sqlglot"])
@pytest.mark.parametrize(
    "text",
    [
        "UPDATE x SET a = 1 FROM y, t8.z",
        "DELETE FROM t8.z",
        "CREATE VIEW x AS FROM t8.z",
        "TRUNCATE t8.z",
        "INSERT INTO x FROM y, u: t8.z",
        "INSERT INTO trim (SELECT a FROM t8.z)",
    ],
)
def test_each_of_the_two_checks_suffices_alone(monkeypatch: pytest.MonkeyPatch, text: str, silenced: str) -> None:
    monkeypatch.setattr(tenant_isolation, silenced, lambda *_: ())
    with pytest.raises(duckdb.CatalogException, match="t8"):
        examine(text)


@pytest.mark.parametrize(
    ("text", "placed"),
    [
        ("CREATE TABLE x (a INTEGER)", 'CREATE TABLE "lake"."t7".x (a INTEGER)'),
        ("CREATE OR REPLACE TABLE x AS FROM y", 'CREATE OR REPLACE TABLE "lake"."t7".x AS FROM y'),
        ('CREATE TABLE IF NOT EXISTS "é x" (a INT)', 'CREATE TABLE IF NOT EXISTS "lake"."t7"."é x" (a INT)'),
        ("/* é */ CREATE VIEW x AS SELECT 1", '/* é */ CREATE VIEW "lake"."t7".x AS SELECT 1'),
        ("CREATE TABLE t7.x (a INTEGER)", "CREATE TABLE t7.x (a INTEGER)"),
        ("CREATE TEMP TABLE x (a INTEGER)", "CREATE TEMP TABLE x (a INTEGER)"),
        ("CREATE TEMPORARY VIEW x AS SELECT 1", "CREATE TEMPORARY VIEW x AS SELECT 1"),
        ("INSERT INTO x SELECT 1", "INSERT INTO x SELECT 1"),
    ],
)
def test_a_table_created_without_a_schema_is_in_the_tenants(text: str, placed: str) -> None:
    assert ISLAND.qualify_created(text, read(text.encode())) == placed


@pytest.mark.parametrize("text", ["USE t7", "USE LAKE.T7", "SET schema = 't7'", "SET search_path TO 'lake.t7'"])
def test_the_search_path_may_be_set_to_its_own_value(text: str) -> None:
    assert ISLAND.allows_search_path(text, read(text.encode()))


@pytest.mark.parametrize("text", ["USE t8", "USE lake", "SET schema = 'main'", "SET search_path = 't7,t8'", "USE temp"])
def test_the_search_path_cannot_be_changed(text: str) -> None:
    with pytest.raises(duckdb.CatalogException, match="No catalog"):
        ISLAND.allows_search_path(text, read(text.encode()))


def test_a_variable_is_not_a_search_path() -> None:
    text = "SET VARIABLE x = 1"
    assert not ISLAND.allows_search_path(text, read(text.encode()))


def test_errors_name_no_candidates() -> None:
    told = (
        'Catalog Error: Table with name x does not exist!\nDid you mean "t8.x or\nmain.y"?\n\nLINE 1: FROM x\n        ^'
    )
    with pytest.raises(duckdb.CatalogException) as refused, ISLAND.redact_errors():
        raise duckdb.CatalogException(told)
    assert str(refused.value) == "Catalog Error: Table with name x does not exist!\n\nLINE 1: FROM x\n        ^"
    with pytest.raises(TableMissingError) as missing, ISLAND.redact_errors():
        raise TableMissingError("The lake has no table t7.x.", hint="Its tables: t8.secrets.")
    assert "t8" not in str(missing.value.hint)
    with pytest.raises(InputError, match="as it was") as kept, ISLAND.redact_errors():
        raise InputError("It is as it was.", hint="Keep it.")
    assert kept.value.hint == "Keep it."


def test_a_table_of_the_queue_is_the_tenants_or_missing() -> None:
    assert ISLAND.own(TableId("T7", "Events")) == TableId("t7", "Events")
    with pytest.raises(TableMissingError, match=r"There is no table t8\.secrets\."):
        ISLAND.own(TableId("t8", "secrets"))
