"""Limits of tenants: refused at once with the time to retry, without delay for others."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catchment.errors import InputError, LakeUnavailableError, QuotaExceededError
from catchment.tenants.model import TenantConfig, TenantId
from catchment.tenants.quota import Quotas, Usage
from catchment.testing import FakeClock

SEVEN, EIGHT = TenantId(7), TenantId(8)
SLOW = TenantConfig(rows_per_second_max=10)
FEW_TABLES = TenantConfig(tables_max=2)
SMALL = TenantConfig(storage_bytes_max=1_000)


class Meter:
    """What tenants use, as the test says; counts how often it is asked."""

    def __init__(self) -> None:
        self.usage = Usage(tables=0, storage_bytes=0)
        self.asked = 0
        self.is_away = False

    def __call__(self, tenant: TenantId) -> Usage:
        self.asked += 1
        if self.is_away:
            raise LakeUnavailableError
        return self.usage


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def quotas(meter: Meter, clock: FakeClock) -> Quotas:
    return Quotas(meter, usage_seconds_max=10, clock=clock)


def refused(act: Callable[[], None]) -> QuotaExceededError:
    with pytest.raises(QuotaExceededError) as raised:
        act()
    return raised.value


def test_a_tenant_without_limits_is_never_refused_and_never_measured(quotas: Quotas, meter: Meter) -> None:
    for _ in range(3):
        quotas.admit(SEVEN, TenantConfig(), rows=10**9, tables_new=1)
    assert meter.asked == 0


def test_over_its_rate_a_tenant_is_refused_at_once_with_the_time_to_retry(quotas: Quotas, clock: FakeClock) -> None:
    quotas.admit(SEVEN, SLOW, rows=10)
    error = refused(lambda: quotas.admit(SEVEN, SLOW, rows=5))
    assert error.facts["retry_after_s"] == pytest.approx(0.5)
    assert error.facts["limit"] == "rows_per_second_max"
    assert clock.slept_s == []
    clock.advance(0.4)
    assert refused(lambda: quotas.admit(SEVEN, SLOW, rows=5)).facts["retry_after_s"] == pytest.approx(0.1)
    clock.advance(0.11)
    quotas.admit(SEVEN, SLOW, rows=5)


def test_rest_saves_up_no_more_than_one_second(quotas: Quotas, clock: FakeClock) -> None:
    quotas.admit(SEVEN, SLOW, rows=1)
    clock.advance(3600)
    quotas.admit(SEVEN, SLOW, rows=10)
    refused(lambda: quotas.admit(SEVEN, SLOW, rows=1))


def test_a_write_of_more_than_a_seconds_rows_is_refused_as_too_large(quotas: Quotas) -> None:
    error = refused(lambda: quotas.admit(SEVEN, SLOW, rows=11))
    assert error.hint == "Send at most 10 rows at once."
    assert "retry_after_s" not in error.facts
    quotas.admit(SEVEN, SLOW, rows=10)


def test_a_tenant_at_its_limit_takes_nothing_from_another(quotas: Quotas) -> None:
    quotas.admit(SEVEN, SLOW, rows=10)
    refused(lambda: quotas.admit(SEVEN, SLOW, rows=1))
    quotas.admit(EIGHT, SLOW, rows=10)


def test_a_new_rate_holds_from_the_next_write_on(quotas: Quotas, clock: FakeClock) -> None:
    quotas.admit(SEVEN, TenantConfig(rows_per_second_max=1_000), rows=1)
    refused(lambda: quotas.admit(SEVEN, SLOW, rows=11))
    quotas.admit(SEVEN, SLOW, rows=10)
    refused(lambda: quotas.admit(SEVEN, SLOW, rows=1))


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 20)), max_size=60), st.integers(1, 20))
def test_in_any_stretch_of_time_no_more_rows_come_than_the_rate_and_one_second_allow(
    writes: list[tuple[float, int]], rate: int
) -> None:
    clock = FakeClock()
    quotas = Quotas(Meter(), usage_seconds_max=10, clock=clock)
    config = TenantConfig(rows_per_second_max=rate)
    taken: list[tuple[float, int]] = []
    for pause_s, rows in writes:
        clock.advance(pause_s)
        try:
            quotas.admit(SEVEN, config, rows=rows)
        except QuotaExceededError as error:
            wait_s = error.facts.get("retry_after_s")
            assert wait_s is None or wait_s > 0
        else:
            taken.append((clock.monotonic_s(), rows))
    for first, (start_s, _) in enumerate(taken):
        for last, (end_s, _) in enumerate(taken[first:], start=first):
            assert sum(rows for _, rows in taken[first : last + 1]) <= rate * (end_s - start_s + 1) + 1e-3


@given(st.floats(0, 1), st.integers(1, 1_000), st.integers(1, 1_000))
@example(0.027, 85, 57)
def test_a_retry_at_the_given_time_is_admitted(pause_s: float, rate: int, rows: int) -> None:
    clock = FakeClock()
    quotas = Quotas(Meter(), usage_seconds_max=10, clock=clock)
    config = TenantConfig(rows_per_second_max=rate)
    quotas.admit(SEVEN, config, rows=rate)
    clock.advance(pause_s)
    try:
        quotas.admit(SEVEN, config, rows=min(rows, rate))
    except QuotaExceededError as error:
        clock.advance(error.facts["retry_after_s"])
        quotas.admit(SEVEN, config, rows=min(rows, rate))


def test_of_threads_that_write_at_once_as_many_get_in_as_may(quotas: Quotas) -> None:
    threads = 8
    together = threading.Barrier(threads)
    config = TenantConfig(rows_per_second_max=100)

    def write(_: int) -> int:
        together.wait()
        admitted = 0
        for _ in range(50):
            try:
                quotas.admit(SEVEN, config, rows=1)
            except QuotaExceededError:
                continue
            admitted += 1
        return admitted

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(write, range(threads))) == 100


def test_a_table_too_many_is_refused_and_writes_to_those_that_are_there_are_not(quotas: Quotas, meter: Meter) -> None:
    meter.usage = Usage(tables=2, storage_bytes=0)
    assert refused(lambda: quotas.admit(SEVEN, FEW_TABLES, rows=1, tables_new=1)).facts["tables_max"] == 2
    quotas.admit(SEVEN, FEW_TABLES, rows=1)


def test_the_last_table_that_is_allowed_may_be_made(quotas: Quotas, meter: Meter) -> None:
    meter.usage = Usage(tables=1, storage_bytes=0)
    quotas.admit(SEVEN, FEW_TABLES, rows=1, tables_new=1)
    refused(lambda: quotas.admit(SEVEN, FEW_TABLES, rows=1, tables_new=2))


def test_a_full_store_takes_no_rows(quotas: Quotas, meter: Meter, clock: FakeClock) -> None:
    meter.usage = Usage(tables=1, storage_bytes=999)
    quotas.admit(SEVEN, SMALL, rows=1)
    meter.usage = Usage(tables=1, storage_bytes=1_000)
    clock.advance(10)
    assert refused(lambda: quotas.admit(SEVEN, SMALL, rows=1)).facts["limit"] == "storage_bytes_max"


def test_usage_is_measured_again_when_it_is_too_old_and_not_before(
    quotas: Quotas, meter: Meter, clock: FakeClock
) -> None:
    quotas.admit(SEVEN, SMALL, rows=1)
    clock.advance(9.9)
    quotas.admit(SEVEN, SMALL, rows=1)
    assert meter.asked == 1
    clock.advance(0.1)
    quotas.admit(SEVEN, SMALL, rows=1)
    assert meter.asked == 2
    quotas.admit(EIGHT, SMALL, rows=1)
    assert meter.asked == 3


def test_a_refused_write_uses_up_no_rows(quotas: Quotas, meter: Meter, clock: FakeClock) -> None:
    config = TenantConfig(rows_per_second_max=10, storage_bytes_max=1_000)
    meter.usage = Usage(tables=1, storage_bytes=1_000)
    refused(lambda: quotas.admit(SEVEN, config, rows=10))
    quotas.admit(SEVEN, SLOW, rows=10)


def test_with_the_lake_away_the_last_measure_counts_and_without_one_none(
    quotas: Quotas, meter: Meter, clock: FakeClock
) -> None:
    meter.usage = Usage(tables=1, storage_bytes=1_000)
    refused(lambda: quotas.admit(SEVEN, SMALL, rows=1))
    meter.is_away = True
    clock.advance(60)
    refused(lambda: quotas.admit(SEVEN, SMALL, rows=1))
    quotas.admit(EIGHT, SMALL, rows=1)


def test_another_failure_of_the_measure_is_not_hidden(clock: FakeClock) -> None:
    def broken(tenant: TenantId) -> Usage:
        raise InputError(f"{tenant} is not here.")

    with pytest.raises(InputError):
        Quotas(broken, usage_seconds_max=10, clock=clock).admit(SEVEN, SMALL, rows=1)


def test_a_slow_measurement_of_one_tenant_delays_no_other_tenant_and_a_repeated_one_no_write(clock: FakeClock) -> None:
    is_asking, may_answer = threading.Event(), threading.Event()
    asked: list[TenantId] = []

    def usage(tenant: TenantId) -> Usage:
        asked.append(tenant)
        if asked.count(SEVEN) == 2:
            is_asking.set()
            assert may_answer.wait(10)
        return Usage(tables=0, storage_bytes=0)

    quotas = Quotas(usage, usage_seconds_max=10, clock=clock)
    quotas.admit(SEVEN, SMALL, rows=1)
    clock.advance(10)
    with ThreadPoolExecutor(3) as pool:
        stuck = pool.submit(quotas.admit, SEVEN, SMALL, rows=1)
        assert is_asking.wait(10)
        pool.submit(quotas.admit, EIGHT, SLOW, rows=1).result(10)
        pool.submit(quotas.admit, SEVEN, SMALL, rows=1).result(10)
        assert not stuck.done()
        may_answer.set()
        stuck.result(10)
    assert asked.count(SEVEN) == 2
