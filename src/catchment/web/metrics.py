"""Metrics: each declared once, with its meaning and what to do, and read from a `Status`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from catchment.foundation.meters import Distribution
from catchment.status.model import PARTS, Status, StatusPart

T = TypeVar("T")
Kind = Literal["counter", "gauge", "histogram"]
Sample = tuple[tuple[str, ...], float | Distribution]
PREFIX = "catchment_"
# Metrics of the process itself, from the Prometheus client.
PROCESS = (
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
)
_FAMILIES: Mapping[Kind, type[Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """One metric: `help` describes it, `read` explains how to read it, `act` what to do about it."""

    name: str
    kind: Kind
    help: str
    read: str
    act: str
    samples: Callable[[Status], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def exposition(metrics: Sequence[MetricInfo], status: Status, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics in Prometheus' text format, and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector(metrics, status))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector:
    def __init__(self, metrics: Sequence[MetricInfo], status: Status) -> None:
        self._metrics = metrics
        self._status = status

    def collect(self) -> Iterator[Metric]:
        for each in self._metrics:
            family = _FAMILIES[each.kind](each.name, each.help, labels=each.labels)
            for labels, value in each.samples(self._status):
                if isinstance(value, Distribution):
                    family.add_metric(labels, buckets=_buckets(value), sum_value=value.sum)
                else:
                    family.add_metric(labels, value)
            yield family


def _buckets(found: Distribution) -> list[tuple[str, float]]:
    """Prometheus buckets are cumulative: each includes those before it."""
    total, buckets = 0, []
    for bound, count in zip((*found.bounds, float("inf")), found.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return buckets


# Sources of samples.


def metered(name: str) -> Callable[[Status], Iterable[Sample]]:
    """Samples of the meter of that name; by label, if it has labels."""

    def samples(status: Status) -> Iterator[Sample]:
        found = status.meters[name]
        if isinstance(found, Mapping):
            for label, value in found.items():
                yield (label,), value
        else:
            yield (), found

    return samples


def single(
    part: Callable[[Status], StatusPart[T]], read: Callable[[T], float | None]
) -> Callable[[Status], Iterable[Sample]]:
    """One number of a part; no sample while the part is unavailable."""

    def samples(status: Status) -> Iterator[Sample]:
        found = part(status).value
        value = None if found is None else read(found)
        if value is not None:
            yield (), value

    return samples


def several(
    part: Callable[[Status], StatusPart[T]], read: Callable[[T], Iterable[Sample]]
) -> Callable[[Status], Iterable[Sample]]:
    """Numbers of a part by label; no samples while the part is unavailable."""

    def samples(status: Status) -> Iterable[Sample]:
        found = part(status).value
        return () if found is None else read(found)

    return samples


def available(status: Status) -> Iterator[Sample]:
    """Which parts are available."""
    for name in PARTS:
        yield (name,), float(getattr(status, name).value is not None)
