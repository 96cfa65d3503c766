"""The audit reports violations, and explains harmless deviations."""

from pathlib import Path

import pytest

from catchment.foundation.ids import ProducerId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from tests.sample_events import EVENTS, assert_exactly_once, create_table, deliverer, event_files, source_of


@pytest.fixture
def delivered(lake: Lake, settings: Settings, tmp_path: Path) -> Lake:
    """A lake with four units in two snapshots."""
    create_table(lake)
    files = event_files(tmp_path / "in", 4)
    deliverer(lake, settings).run(source_of(files[:2]))
    deliverer(lake, settings).run(source_of(files))
    assert_exactly_once(lake, 4)
    return lake


def _tamper(lake: Lake, statement: str) -> None:
    with lake.write() as connection:
        connection.execute(statement)


def _kinds(lake: Lake) -> set[str]:
    return {finding.kind for finding in lake.audit().findings}


def test_a_clean_lake_shows_what_each_producer_delivered(delivered: Lake) -> None:
    (producer,) = delivered.audit().producers
    assert (producer.units, producer.rows, producer.seq, producer.tables) == (4, 40, 4, (str(EVENTS),))


def test_a_lost_ledger_row_is_a_gap(delivered: Lake) -> None:
    _tamper(delivered, "DELETE FROM _catchment.deliveries WHERE seq_first = 2")
    assert {"seq_gap", "rows"} <= _kinds(delivered)


def test_a_doubled_ledger_row_is_a_unit_delivered_twice(delivered: Lake) -> None:
    _tamper(delivered, "INSERT INTO _catchment.deliveries SELECT * FROM _catchment.deliveries WHERE seq_first = 3")
    assert {"unit_twice", "seq_overlap"} <= _kinds(delivered)


def test_a_watermark_ahead_of_the_deliveries_is_found(delivered: Lake) -> None:
    _tamper(delivered, "UPDATE _catchment.producers SET seq = 9 WHERE producer LIKE 'parquet:%'")
    assert _kinds(delivered) == {"watermark"}


def test_rows_that_came_beside_the_units_of_a_delivery_are_found(delivered: Lake) -> None:
    _tamper(delivered, "UPDATE _catchment.deliveries SET rows = rows - 1 WHERE seq_first = 1")
    assert "rows" in _kinds(delivered)


def test_rows_that_vanished_from_the_catalog_are_found(delivered: Lake) -> None:
    with delivered.cursor() as cursor:
        cursor.execute(
            "DELETE FROM __ducklake_metadata_lake.ducklake_data_file WHERE data_file_id = "
            "(SELECT max(data_file_id) FROM __ducklake_metadata_lake.ducklake_data_file f "
            "JOIN __ducklake_metadata_lake.ducklake_table t USING (table_id) WHERE t.table_name = 'events')"
        )
    assert _kinds(delivered) == {"rows"}


def test_a_producer_that_was_never_seeded_is_found(delivered: Lake) -> None:
    _tamper(delivered, "DELETE FROM _catchment.producers WHERE producer LIKE 'parquet:%'")
    assert "unknown_producer" in _kinds(delivered)


def test_rows_that_a_user_deleted_are_a_note_and_no_finding(delivered: Lake) -> None:
    _tamper(delivered, "DELETE FROM events WHERE id < 5")
    report = delivered.audit()
    assert report.ok
    assert "deleted or rewritten since" in report.notes[0]


def test_rows_that_a_user_inserted_do_not_concern_the_audit(delivered: Lake) -> None:
    _tamper(delivered, "INSERT INTO events SELECT 1000 + i, 'mine' FROM range(50) r(i)")
    report = delivered.audit()
    assert report.ok
    assert not report.notes


def test_a_dropped_table_is_a_note(delivered: Lake) -> None:
    _tamper(delivered, "DROP TABLE events")
    report = delivered.audit()
    assert report.ok
    assert "was dropped" in report.notes[0]


def test_a_renamed_table_is_audited_under_its_new_name(delivered: Lake) -> None:
    _tamper(delivered, "ALTER TABLE events RENAME TO happenings")
    assert (delivered.audit().ok, delivered.audit().notes) == (True, ())
    _tamper(delivered, "UPDATE _catchment.deliveries SET rows = rows - 1 WHERE seq_first = 1")
    assert {finding.detail.partition(" ")[0] for finding in delivered.audit().findings} == {"main.happenings"}


def test_a_file_that_is_gone_or_another_is_found_though_the_catalog_has_its_rows(delivered: Lake) -> None:
    first, _ = sorted(Path(delivered.address.data_path, "main", "events").rglob("*.parquet"))
    first.write_bytes(b"")
    assert _kinds(delivered) == {"file_changed"}
    first.unlink()
    (finding,) = delivered.audit().findings
    assert (finding.kind, str(first) in finding.detail) == ("file_missing", True)


def test_a_file_that_is_registered_twice_is_found(delivered: Lake) -> None:
    first, _ = sorted(Path(delivered.address.data_path, "main", "events").rglob("*.parquet"))
    _tamper(delivered, f"CALL ducklake_add_data_files('lake', 'events', '{first}')")
    assert _kinds(delivered) == {"file_twice"}


def test_one_producer_can_be_audited_by_itself(delivered: Lake) -> None:
    everything = delivered.audit()
    (producer,) = _claims(delivered)
    assert delivered.audit(producer).producers == everything.producers


def _claims(lake: Lake) -> list[ProducerId]:
    with lake.ledger() as ledger:
        return [claim.producer for claim in ledger.producers()]
