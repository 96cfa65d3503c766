"""Segments on disk: names, folders, and moves between them."""

from pathlib import Path

import pytest

from catchment.errors import InvariantError, StorageFailedError
from catchment.foundation.settings import Settings
from catchment.queue.buffer_factory import LAYOUTS
from catchment.queue.sessions.segment_files import SegmentFolders, SegmentName, SegmentState, wal_of
from catchment.testing import FakeClock

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
TEXT = f"duckling_queue_{UUID}_1767225600.db"


@pytest.fixture
def layout(tmp_path: Path) -> SegmentFolders:
    layout = SegmentFolders(tmp_path)
    layout.make()
    return layout


def test_a_name_is_read_and_written_alike() -> None:
    name = SegmentName.parse(TEXT)
    assert name == SegmentName(timestamp=1_767_225_600, uuid=UUID)
    assert str(name) == TEXT


def test_a_new_name_says_when_it_was_given_and_is_given_once() -> None:
    clock = FakeClock()
    one, other = SegmentName.new(clock), SegmentName.new(clock)
    assert one.timestamp == int(clock.now().timestamp())
    assert one != other
    assert SegmentName.parse(str(one)) == one


@pytest.mark.parametrize(
    "text",
    [
        "",
        "buffer.duckdb",
        f"{TEXT}.wal",
        f"x{TEXT}",
        f"duckling_queue_{UUID}.db",
        f"duckling_queue_{UUID}_.db",
        f"duckling_queue_{UUID}_-5.db",
        f"duckling_queue_{UUID.upper()}_5.db",
        "duckling_queue_123_5.db",
        f"../{TEXT}",
        f"{TEXT}\n",
    ],
)
def test_a_name_that_is_not_a_segments_is_not_parsed_as_one(text: str) -> None:
    assert SegmentName.parse(text) is None


def test_older_segments_come_first(layout: SegmentFolders) -> None:
    clock = FakeClock()
    names = []
    for _ in range(3):
        names.append(SegmentName.new(clock))
        clock.advance(1)
    for name in reversed(names):
        layout.path(SegmentState.ACTIVE, name).touch()
    (layout.root / SegmentState.ACTIVE / "something else").touch()
    assert layout.names(SegmentState.ACTIVE) == names


def test_a_wal_alone_still_stands_for_its_segment(layout: SegmentFolders) -> None:
    name = SegmentName.new(FakeClock())
    path = layout.path(SegmentState.ACTIVE, name)
    wal_of(path).write_bytes(b"12345")
    assert layout.names(SegmentState.ACTIVE) == [name]
    assert layout.contains(SegmentState.ACTIVE, name)
    path.write_bytes(b"123")
    assert layout.names(SegmentState.ACTIVE) == [name]
    assert layout.bytes(SegmentState.ACTIVE) == 8


def test_a_segment_goes_from_active_to_sealed_to_flushed_and_no_further(layout: SegmentFolders) -> None:
    name = SegmentName.new(FakeClock())
    layout.path(SegmentState.ACTIVE, name).touch()
    layout.advance(name, SegmentState.ACTIVE)
    assert [layout.names(state) for state in SegmentState] == [[], [name], []]
    layout.advance(name, SegmentState.SEALED)
    assert [layout.names(state) for state in SegmentState] == [[], [], [name]]
    with pytest.raises(InvariantError):
        layout.advance(name, SegmentState.FLUSHED)


def test_a_segment_that_is_not_there_cannot_move(layout: SegmentFolders) -> None:
    with pytest.raises(StorageFailedError):
        layout.advance(SegmentName.new(FakeClock()), SegmentState.ACTIVE)


def test_removing_a_segment_takes_its_wal_along_and_may_be_repeated(layout: SegmentFolders) -> None:
    name = SegmentName.new(FakeClock())
    layout.path(SegmentState.ACTIVE, name).touch()
    wal_of(layout.path(SegmentState.ACTIVE, name)).touch()
    layout.remove(name, SegmentState.ACTIVE)
    layout.remove(name, SegmentState.ACTIVE)
    assert not layout.contains(SegmentState.ACTIVE, name)


def test_the_setting_allows_the_layouts_that_are_registered_and_no_other() -> None:
    pattern = Settings.model_json_schema()["properties"]["queue_layout"]["pattern"]
    assert pattern == f"^({'|'.join(LAYOUTS)})$"
