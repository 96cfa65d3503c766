"""Values of tenants: formatted identities, positions that cover each other, serialized states."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import InputError
from catchment.foundation.ids import TableId
from catchment.tenants.model import (
    Complete,
    DualWrite,
    Finalizing,
    Idle,
    MigrationState,
    Positions,
    PreparingTarget,
    ShardId,
    TenantConfig,
    TenantId,
    state_from_json,
)

NUMBERS = st.integers(0, 2**64 - 1)
# Few names and small numbers, so that positions often know the same tables; names may hold dots,
# schemas do not.
TABLES = st.builds(TableId, st.sampled_from(["main", "t7"]), st.sampled_from(["a", "b.c", ".", "ü"]))
POSITIONS = st.builds(Positions, st.dictionaries(TABLES, st.integers(0, 5)))
LIMIT = st.none() | st.integers(1, 2**53)
CONFIGS = st.builds(
    TenantConfig,
    rows_per_second_max=LIMIT,
    tables_max=LIMIT,
    storage_bytes_max=LIMIT,
    required_regions=st.frozensets(st.text(max_size=3), max_size=3),
)
STATES: st.SearchStrategy[MigrationState] = st.one_of(
    st.just(Idle()),
    st.builds(PreparingTarget, st.integers(0, 2**64)),
    st.builds(DualWrite, POSITIONS, st.integers(0, 9)),
    st.builds(Finalizing, st.integers(0, 2**63), st.floats(0, 1e6)),
    st.builds(Complete, st.none() | st.floats(0, 1e6)),
)


@given(NUMBERS)
def test_a_tenant_is_read_as_it_is_shown(number: int) -> None:
    tenant = TenantId(number)
    assert str(tenant) == f"t{number}"
    assert TenantId.parse(str(tenant)) == TenantId.parse(str(number)) == tenant


@pytest.mark.parametrize(
    "text", ["", "t", "T7", "7t", "t-1", " t7", "t7\n", "tt7", "t\N{ARABIC-INDIC DIGIT SEVEN}", "t18446744073709551616"]
)
def test_a_text_that_is_not_a_tenant_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        TenantId.parse(text)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_of_more_than_64_bits_is_not_a_tenant(number: int) -> None:
    with pytest.raises(InputError):
        TenantId(number)


def test_every_tenant_has_a_schema_of_its_own_and_the_default_one_has_main() -> None:
    assert [TenantId(number).schema for number in (0, 1, 2**64 - 1)] == ["main", "t1", "t18446744073709551615"]


@pytest.mark.parametrize("name", ["", "A", "1a", "-a", "a_b", "a.b", "a\n", "a" * 64])
def test_a_name_that_no_shard_can_have_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        ShardId(name)
    assert ShardId("a-1" * 21).name == "a-1" * 21


@given(CONFIGS)
def test_limits_come_back_from_json(config: TenantConfig) -> None:
    assert TenantConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("limit", ["rows_per_second_max", "tables_max", "storage_bytes_max"])
def test_a_limit_of_zero_is_refused(limit: str) -> None:
    with pytest.raises(InputError, match=limit):
        TenantConfig.from_json({limit: 0})


def test_a_limit_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="rows_max"):
        TenantConfig.from_json({"rows_max": 5})


def test_a_tenant_without_regions_may_live_in_any() -> None:
    assert TenantConfig().allows("eu")
    bound = TenantConfig(required_regions=frozenset({"eu", "ch"}))
    assert [bound.allows(region) for region in ("eu", "ch", "us")] == [True, True, False]


@given(POSITIONS, POSITIONS)
def test_positions_cover_others_exactly_if_no_row_of_theirs_is_missing(one: Positions, other: Positions) -> None:
    def rows(positions: Positions) -> set[tuple[TableId, int]]:
        return {(table, seq) for table, last in positions.by_table.items() for seq in range(1, last + 1)}

    assert one.covers(other) == (rows(other) <= rows(one))
    assert one.total == len(rows(one))


@given(POSITIONS)
def test_positions_come_back_from_json(positions: Positions) -> None:
    assert Positions.from_json(json.loads(json.dumps(positions.to_json()))) == positions


@given(STATES)
def test_a_state_comes_back_from_json(state: MigrationState) -> None:
    assert state_from_json(state.name, json.loads(json.dumps(state.to_json()))) == state


def test_a_move_that_an_older_version_completed_has_no_pause() -> None:
    assert state_from_json("Complete", {}) == Complete(None)


def test_the_number_of_the_cutover_is_the_rows_of_all_tables() -> None:
    cutover = Positions({TableId("t7", "a"): 3, TableId("t7", "b"): 4})
    assert DualWrite(cutover).cutover_seqno == DualWrite(cutover).to_json()["cutover_seqno"] == 7


def test_a_state_of_another_name_is_refused() -> None:
    with pytest.raises(InputError, match="Dreaming"):
        state_from_json("Dreaming", {})
