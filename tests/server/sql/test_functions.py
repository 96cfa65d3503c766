"""Functions of DuckDB that a tenant's users may call: only reviewed ones."""

from pathlib import Path

import pytest

from catchment.server.sql import functions

REVIEWED = Path(__file__).with_name("tenant_functions.txt")


def test_the_functions_that_tenants_may_call_are_those_that_were_reviewed() -> None:
    # Another version of DuckDB may bring new ones: see that none reads the catalog, and write them
    # to the file.
    assert functions.allowed_to_tenants() == frozenset(REVIEWED.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    "name", ["pg_get_viewdef", "pg_get_constraintdef", "format_type", "get_block_size", "nextval", "current_setting"]
)
def test_functions_that_read_the_catalog_or_settings_are_not_for_tenants(name: str) -> None:
    assert name in functions.refused_to_tenants()


@pytest.mark.parametrize("name", ["upper", "sum", "now", "uuid", "list_transform", "current_schema", "getvariable"])
def test_functions_that_compute_something_are_for_tenants(name: str) -> None:
    assert name in functions.allowed_to_tenants()


def test_a_macro_is_refused_because_of_the_functions_it_calls() -> None:
    # Its definition is a call of sleep_ms.
    assert "pg_sleep" in functions.refused_to_tenants()
