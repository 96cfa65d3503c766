"""Limits of tenants: rows per second, tables, bytes. A write over a limit is refused immediately."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from catchment.errors import QuotaExceededError, RetryableError
from catchment.foundation.clock import Clock, SystemClock
from catchment.tenants.model import TenantConfig, TenantId

BURST_S = 1.0
# Age at which a tenant's usage is measured again, by a query of the lake.
USAGE_SECONDS_MAX = 10
_TENANTS_MAX = 100_000
# Rounding error of float sums: a caller that retries at the time given is not refused again.
_ROWS_LOST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resource usage of a tenant."""

    tables: int
    storage_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """Rows that may be written at one moment; refilled at the rate, up to one second's rows."""

    rows: float
    at_s: float

    def filled(self, rate: int, now_s: float) -> "TokenBucket":
        """Return the bucket at a later moment."""
        elapsed_s = max(0.0, now_s - self.at_s)
        return TokenBucket(rows=min(rate * BURST_S, self.rows + elapsed_s * rate), at_s=now_s)

    def wait_s(self, rows: int, rate: int) -> float:
        """Return how long to wait until that many rows may be written; 0 if they may be now."""
        missing = rows - self.rows
        return missing / rate if missing > _ROWS_LOST else 0.0


class Quotas:
    """Enforces the limits of tenants. Thread-safe; tenants do not wait for each other.

    `usage` may be slow, because it queries the lake: it is called for a tenant at most once in
    `usage_seconds_max`, by one of that tenant's writers. While the lake is unavailable the last
    result applies, and without one nothing is refused: rows are buffered then, and the buffer has a
    bound.
    """

    def __init__(
        self,
        usage: Callable[[TenantId], Usage],
        *,
        usage_seconds_max: float = USAGE_SECONDS_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._usage = usage
        self._usage_seconds_max = usage_seconds_max
        self._clock: Clock = clock or SystemClock()
        # By tenant, the most recent writer last. A bucket that is evicted a second after its last
        # use would be full again.
        self._meters: OrderedDict[TenantId, _Meter] = OrderedDict()
        # Guards the dictionary, briefly; each meter has its own lock.
        self._mutex = threading.Lock()

    def admit(self, tenant: TenantId, config: TenantConfig, *, rows: int, tables_new: int = 0) -> None:
        """Count a write, or raise QuotaExceededError and count nothing."""
        if config.tables_max is not None and tables_new:
            self._admit_tables(tenant, config.tables_max, tables_new)
        if config.storage_bytes_max is not None:
            self._admit_storage(tenant, config.storage_bytes_max)
        if config.rows_per_second_max is not None:
            self._admit_rows(tenant, config.rows_per_second_max, rows)

    def _admit_tables(self, tenant: TenantId, tables_max: int, tables_new: int) -> None:
        usage = self._used(tenant)
        if usage is not None and usage.tables + tables_new > tables_max:
            raise QuotaExceededError(
                f"{tenant} has {usage.tables} tables; its limit is {tables_max}.",
                hint="Drop a table, or request a higher limit.",
                limit="tables_max",
                tables=usage.tables,
                tables_max=tables_max,
            )

    def _admit_storage(self, tenant: TenantId, storage_bytes_max: int) -> None:
        usage = self._used(tenant)
        if usage is not None and usage.storage_bytes >= storage_bytes_max:
            raise QuotaExceededError(
                f"{tenant} uses {usage.storage_bytes:,} bytes; its limit is {storage_bytes_max:,}.",
                hint="Delete rows, or request a higher limit.",
                limit="storage_bytes_max",
                storage_bytes=usage.storage_bytes,
                storage_bytes_max=storage_bytes_max,
            )

    def _admit_rows(self, tenant: TenantId, rate: int, rows: int) -> None:
        if rows > rate * BURST_S:
            raise QuotaExceededError(
                f"{tenant} may write {rate:,} rows per second; this write has {rows:,}.",
                hint=f"Send at most {rate:,} rows at once.",
                limit="rows_per_second_max",
                rows=rows,
                rows_per_second_max=rate,
            )
        wait_s = self._meter(tenant).take(rows, rate, self._clock.monotonic_s())
        if wait_s > 0:
            raise QuotaExceededError(
                f"{tenant} is at its limit of {rate:,} rows per second.",
                hint=f"Send them again in {wait_s:.3f} s.",
                limit="rows_per_second_max",
                retry_after_s=wait_s,
                rows_per_second_max=rate,
            )

    def _used(self, tenant: TenantId) -> Usage | None:
        meter = self._meter(tenant)
        return meter.used(lambda: self._usage(tenant), self._usage_seconds_max, self._clock)

    def _meter(self, tenant: TenantId) -> "_Meter":
        with self._mutex:
            meter = self._meters.setdefault(tenant, _Meter())
            self._meters.move_to_end(tenant)
            while len(self._meters) > _TENANTS_MAX:
                self._meters.popitem(last=False)
            return meter


class _Meter:
    """Rate and usage of one tenant."""

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None
        self._usage: Usage | None = None
        self._asked_at_s: float | None = None
        # Held for a few instructions.
        self._mutex = threading.Lock()
        # Held by the writer that queries the usage; the others use the last result, if there is
        # one.
        self._asking = threading.Lock()

    def take(self, rows: int, rate: int, now_s: float) -> float:
        """Take all of the rows or none, and return how long to wait before they may be written."""
        with self._mutex:
            bucket = (self._bucket or TokenBucket(rows=rate * BURST_S, at_s=now_s)).filled(rate, now_s)
            wait_s = bucket.wait_s(rows, rate)
            taken = 0 if wait_s > 0 else rows
            self._bucket = TokenBucket(rows=bucket.rows - taken, at_s=now_s)
            return wait_s

    def used(self, ask: Callable[[], Usage], seconds_max: float, clock: Clock) -> Usage | None:
        """Return the usage, at most `seconds_max` old; older if another thread is renewing it."""
        if self._is_fresh(seconds_max, clock):
            return self._usage
        if not self._asking.acquire(blocking=self._asked_at_s is None):
            return self._usage
        try:
            if not self._is_fresh(seconds_max, clock):
                self._renew(ask, clock)
            return self._usage
        finally:
            self._asking.release()

    def _renew(self, ask: Callable[[], Usage], clock: Clock) -> None:
        now_s = clock.monotonic_s()
        # If the query fails, the last result applies, for as long as a new one would.
        with suppress(RetryableError):
            self._usage = ask()
        self._asked_at_s = now_s

    def _is_fresh(self, seconds_max: float, clock: Clock) -> bool:
        return self._asked_at_s is not None and clock.monotonic_s() - self._asked_at_s < seconds_max
