"""A copied lake equals a new one, and shares nothing with other copies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from catchment.foundation.settings import Settings
from catchment.lake import Lake
from tests.conftest import MakeSettings
from tests.sample_events import EVENTS, create_table, deliverer, event_files, rows_of, source_of
from tests.shortcuts.made_lakes import CATALOGS, new_lake

_METADATA = "__ducklake_metadata_lake"


@pytest.fixture(params=CATALOGS)
def make(request: pytest.FixtureRequest, tmp_path: Path, make_settings: MakeSettings) -> Callable[[str], Settings]:
    """Settings for a lake of its own, by name, with each kind of catalog in turn."""

    def make(name: str) -> Settings:
        home = tmp_path / name
        url = make_settings(request.param).catalog_url
        if request.param != "postgres":
            url = SecretStr(f"{request.param}:{home / 'catalog'}")
        return Settings(home=home, lake_catalog=url)

    return make


def _facts(lake: Lake) -> list[list[tuple[Any, ...]]]:
    """What the catalog has, but for places, identities and times."""
    return [
        rows_of(
            lake, f"SELECT key, value, scope FROM {_METADATA}.ducklake_metadata WHERE key <> 'data_path' ORDER BY ALL"
        ),
        rows_of(lake, f"SELECT schema_id, schema_name, path FROM {_METADATA}.ducklake_schema ORDER BY ALL"),
        rows_of(lake, f"SELECT table_id, table_name, path FROM {_METADATA}.ducklake_table ORDER BY ALL"),
        rows_of(lake, f"SELECT table_id, column_name, column_type FROM {_METADATA}.ducklake_column ORDER BY ALL"),
        rows_of(lake, f"SELECT snapshot_id, schema_version FROM {_METADATA}.ducklake_snapshot ORDER BY ALL"),
        rows_of(lake, "SELECT producer, epoch, seq FROM _catchment.producers"),
    ]


def test_a_copied_lake_equals_a_new_one(make: Callable[[str], Settings], tmp_path: Path) -> None:
    with Lake.from_settings(make("made")) as made:
        create_table(made)
        with new_lake(make("copied"), events=True) as copied:
            assert _facts(copied) == _facts(made)
            assert copied.find_table(EVENTS) is not None
            assert copied.address.data_path == str(tmp_path / "copied" / "data")


def test_rows_delivered_to_one_copy_of_a_lake_are_in_no_other(make: Callable[[str], Settings], tmp_path: Path) -> None:
    settings = [make(name) for name in ("one", "other")]
    with new_lake(settings[0], events=True) as one, new_lake(settings[1], events=True) as other:
        assert one.identity() != other.identity()
        assert one.table(EVENTS).uuid != other.table(EVENTS).uuid
        deliverer(one, settings[0]).run(source_of(event_files(tmp_path / "in", 1)))
        assert (len(rows_of(one)), len(rows_of(other))) == (10, 0)
        assert Path(one.address.data_path).is_relative_to(tmp_path / "one")
