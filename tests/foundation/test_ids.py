"""Identities: parsing reverses formatting, and equal things have equal ids."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import InputError
from catchment.foundation.ids import ProducerId, TableId, job_started_at, new_job_id, unit_id
from catchment.testing import FakeClock

# A busy machine is not a failure.
UNHURRIED = settings(deadline=None)

NAMES = st.text(st.characters(exclude_characters="."), min_size=1)
WORDS = st.text(st.characters(exclude_characters=":"), min_size=1)
PARTS = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])) | st.integers(), min_size=1).map(tuple)


@UNHURRIED
@given(schema=NAMES, name=NAMES)
def test_a_table_is_read_back_from_its_text(schema: str, name: str) -> None:
    assert TableId.parse(str(TableId(schema, name))) == TableId(schema, name)


def test_a_table_without_a_schema_is_in_main() -> None:
    assert TableId.parse("events") == TableId("main", "events")


@pytest.mark.parametrize("text", ["", ".", "events.", ".events", "a.b.c"])
def test_a_text_that_is_not_a_table_name_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(InputError) as raised:
        TableId.parse(text)
    assert repr(text) in raised.value.message
    assert raised.value.hint == "Write `table` or `schema.table`."


@UNHURRIED
@given(kind=WORDS, generation=WORDS, source=st.text(min_size=1))
def test_a_producer_is_read_back_from_its_text_even_if_its_source_contains_colons(
    kind: str, generation: str, source: str
) -> None:
    producer = ProducerId(kind, source, generation)
    assert ProducerId.parse(str(producer)) == producer


@pytest.mark.parametrize(("kind", "generation"), [("a:b", "1"), ("queue", "1:2")])
def test_a_colon_that_would_make_parsing_ambiguous_is_refused(kind: str, generation: str) -> None:
    with pytest.raises(InputError, match="must not contain a colon"):
        ProducerId(kind, "source", generation)


@pytest.mark.parametrize("text", ["", "queue", "queue:1", "queue:1:", "queue::source", ":1:source"])
def test_a_text_that_is_not_a_producer_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a producer"):
        ProducerId.parse(text)


def test_a_unit_keeps_its_id_from_release_to_release() -> None:
    # The ledgers of existing lakes hold such ids: were they computed otherwise, every unit would be
    # delivered again.
    assert unit_id("parquet", "main.events", "/in/a.parquet", 17) == "parquet-f2d3ab441ed07ac4326dbdddfea70eef"


@UNHURRIED
@given(one=PARTS, other=PARTS)
def test_two_units_share_an_id_only_if_their_parts_are_equal(
    one: tuple[str | int, ...], other: tuple[str | int, ...]
) -> None:
    alike = list(map(str, one)) == list(map(str, other))
    assert (unit_id("unit", *one) == unit_id("unit", *other)) is alike


def test_units_of_different_kinds_never_share_an_id() -> None:
    assert unit_id("leaf", "a") != unit_id("slice", "a")


def test_job_ids_sort_by_the_time_their_jobs_started() -> None:
    clock = FakeClock()
    made = []
    for _ in range(50):
        made.append(new_job_id(clock))
        clock.advance(0.001)
    assert made == sorted(made)


def test_jobs_that_start_together_have_different_ids() -> None:
    clock = FakeClock()
    assert new_job_id(clock) != new_job_id(clock)


@UNHURRIED
@given(microseconds=st.integers(0, 10**16))
def test_a_job_id_says_to_the_millisecond_when_its_job_started(microseconds: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    started_at = job_started_at(new_job_id(FakeClock(moment)))
    assert started_at is not None
    assert abs(moment - started_at) <= timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "text", ["", "job", "job-0-0", "job-0123456789ab-0123456789a", "xjob-019b76daa800-0c4edc666259"]
)
def test_a_text_that_is_not_a_job_id_has_no_start(text: str) -> None:
    assert job_started_at(text) is None
