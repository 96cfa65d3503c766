"""The health of a region and the placement of tenants, as pure functions."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.tenants.control import health_of
from catchment.tenants.control_store import ShardReport
from catchment.tenants.model import RegionHealth, ShardId, ShardInfo, TenantConfig, TenantId
from catchment.tenants.placement import place

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANYWHERE = TenantConfig()
TENANTS = [TenantId(number) for number in range(4_000)]


def report(silent_s: float | None, lag_s: float = 0.0) -> ShardReport:
    seen_at = None if silent_s is None else NOW - timedelta(seconds=silent_s)
    return ShardReport(stats={"replication_lag_s": lag_s}, seen_at=seen_at)


def shards(count: int) -> list[ShardInfo]:
    return [
        ShardInfo(id=ShardId(f"s{number}"), region=("eu", "us")[number % 2], location="", home="")
        for number in range(count)
    ]


def homes(among: list[ShardInfo], config: TenantConfig = ANYWHERE) -> dict[TenantId, str]:
    found = {tenant: place(tenant, config, among) for tenant in TENANTS}
    return {tenant: shard.id.name for tenant, shard in found.items() if shard is not None}


@pytest.mark.parametrize(
    ("reports", "health"),
    [
        ([report(0)], RegionHealth.HEALTHY),
        ([report(29.999)], RegionHealth.HEALTHY),
        ([report(30)], RegionHealth.OFFLINE),
        ([report(None)], RegionHealth.OFFLINE),
        ([report(-3)], RegionHealth.HEALTHY),
        ([report(0, lag_s=5.0)], RegionHealth.HEALTHY),
        ([report(0, lag_s=5.001)], RegionHealth.DEGRADED),
        ([report(31, lag_s=9)], RegionHealth.OFFLINE),
        ([report(31), report(0)], RegionHealth.DEGRADED),
        ([report(None), report(0)], RegionHealth.DEGRADED),
        ([report(31), report(30)], RegionHealth.OFFLINE),
        ([report(0), report(0, lag_s=6)], RegionHealth.DEGRADED),
        ([report(0), report(1, lag_s=1)], RegionHealth.HEALTHY),
    ],
)
def test_a_region_is_offline_when_all_are_silent_and_degraded_when_one_is_or_lags(
    reports: list[ShardReport], health: RegionHealth
) -> None:
    assert health_of(reports, now=NOW) is health


def test_a_report_without_a_lag_has_none() -> None:
    assert health_of([ShardReport(stats={}, seen_at=NOW)], now=NOW) is RegionHealth.HEALTHY


def test_a_new_shard_takes_its_share_and_nothing_else_moves() -> None:
    before, after = homes(shards(4)), homes(shards(5))
    moved = {tenant for tenant in TENANTS if before[tenant] != after[tenant]}
    assert {after[tenant] for tenant in moved} == {"s4"}
    assert len(TENANTS) / 5 * 0.8 < len(moved) < len(TENANTS) / 5 * 1.2


def test_every_shard_has_about_the_same_number_of_tenants() -> None:
    chosen = list(homes(shards(5)).values())
    for shard in shards(5):
        assert len(TENANTS) / 5 * 0.8 < chosen.count(shard.id.name) < len(TENANTS) / 5 * 1.2


def test_a_draining_shard_gets_no_tenant_and_only_its_own_are_placed_on_others() -> None:
    all_of_them = shards(4)
    draining = ShardInfo(id=all_of_them[1].id, region="us", location="", home="", is_draining=True)
    before, after = homes(all_of_them), homes([all_of_them[0], draining, *all_of_them[2:]])
    assert "s1" not in after.values()
    assert {before[tenant] for tenant in TENANTS if before[tenant] != after[tenant]} == {"s1"}


def test_a_tenant_goes_to_its_own_regions_only() -> None:
    european = TenantConfig(required_regions=frozenset({"eu"}))
    assert set(homes(shards(4), european).values()) == {"s0", "s2"}
    assert place(TenantId(1), TenantConfig(required_regions=frozenset({"mars"})), shards(4)) is None
    assert place(TenantId(1), ANYWHERE, []) is None


def test_the_place_of_a_tenant_is_the_same_on_every_machine_and_in_every_version() -> None:
    chosen = [place(TenantId(number), ANYWHERE, shards(4)) for number in (0, 1, 7, 2**63, 2**64 - 1)]
    assert [shard.id.name for shard in chosen if shard] == ["s2", "s0", "s0", "s1", "s1"]


@given(st.integers(0, 2**64 - 1), st.permutations(shards(5)))
def test_the_order_of_the_shards_does_not_matter(number: int, among: list[ShardInfo]) -> None:
    assert place(TenantId(number), ANYWHERE, among) == place(TenantId(number), ANYWHERE, shards(5))
