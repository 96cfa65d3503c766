"""Counting: what threads count is never lost, costs next to nothing, and comes out as Prometheus reads it."""

import json
import re
import threading
import timeit
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from catchment.foundation.clock import SystemClock
from catchment.foundation.meters import OTHER, Counter, Distribution, Histogram, Labelled, Meters
from catchment.server.statement_log import SLOW_MAX, TEXT_CHARACTERS_MAX, StatementLog
from catchment.server.values import Principal, Role
from catchment.testing import FakeClock
from catchment.web.metric_catalogue import METRICS
from catchment.web.metrics import PROCESS, exposition
from tests.status.sample_status import full_status

DEPLOY = Path(__file__).parents[2] / "deploy"
ANN = Principal("ann", Role.ADMIN)
COST_US_MAX = 5.0
NAME = re.compile(r"\b(?:catchment|process)_[a-z_]+")


def test_what_many_threads_count_adds_up_also_when_they_are_gone() -> None:
    counter, histogram = Counter(), Histogram((1.0, 2.0))

    def count() -> None:
        for value in (1.0, 1.5, 3.0):
            counter.add(2)
            histogram.observe(value)

    for _ in range(3):
        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    count()
    assert counter.read() == 25 * 6
    assert histogram.read() == Distribution((1.0, 2.0), (25, 25, 25), 25 * 5.5)


def test_a_quantile_lies_where_that_share_of_the_values_ends() -> None:
    found = Distribution((1.0, 2.0, 4.0), (50, 40, 9, 1), 0.0)
    assert found.quantile(0.5) == 1.0
    assert found.quantile(0.7) == pytest.approx(1.5)
    assert found.quantile(0.99) == pytest.approx(4.0)
    # Beyond the last bound nothing is known but that.
    assert found.quantile(1.0) == 4.0
    assert Distribution((1.0,), (0, 0), 0.0).quantile(0.5) is None
    assert Distribution((1.0,), (0, 0), 0.0).mean is None


def test_the_difference_of_two_readings_is_what_came_between() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5)
    before = histogram.read()
    histogram.observe(3.0)
    assert histogram.read().minus(before) == Distribution((1.0,), (0, 1), 3.0)


def test_labels_without_end_are_counted_together() -> None:
    labelled = Labelled("known")
    for number in range(2_000):
        labelled.add(f"label {number}")
    labelled.add("known", 5)
    found = labelled.read()
    assert found["known"] == 5
    assert found[OTHER] == 2_000 - 999
    assert len(found) == 1_001


def test_counting_an_acknowledged_statement_takes_less_than_five_microseconds() -> None:
    meters, clock = Meters(), SystemClock()
    log = StatementLog(meters, slow_seconds=1.0, clock=clock)

    def count() -> None:
        with log.running("session", ANN, "INSERT INTO duckling_queue.t VALUES (1)"):
            started_s = clock.monotonic_s()
            meters.acked(rows=1, size=100, seconds=clock.monotonic_s() - started_s)

    # The best of many short spells: others use this machine too, and a long one is never without them.
    assert min(timeit.repeat(count, number=100, repeat=400)) / 100 * 1e6 < COST_US_MAX


def test_a_statement_is_seen_while_it_runs_and_remembered_when_it_took_long() -> None:
    clock = FakeClock()
    log = StatementLog(Meters(), slow_seconds=2.0, clock=clock)
    with log.running("0123456789abcdef", ANN, "SELECT 1"):
        clock.advance(3)
        [running] = log.now()
        assert (running.user, running.session, running.seconds, running.text) == ("ann", "012345", 3.0, "SELECT 1")
        assert log.slow() == ()
    assert log.now() == ()
    assert [each.text for each in log.slow()] == ["SELECT 1"]
    with log.running("x", ANN, "SELECT 2"):
        clock.advance(1)
    assert [each.text for each in log.slow()] == ["SELECT 1"]


def test_slow_statements_are_bounded_in_number_and_length_and_the_newest_are_kept() -> None:
    clock, meters = FakeClock(), Meters()
    log = StatementLog(meters, slow_seconds=0.0, clock=clock)
    for number in range(SLOW_MAX + 10):
        with log.running("x", ANN, f"{number} " + "x" * 2 * TEXT_CHARACTERS_MAX):
            pass
    found = log.slow()
    assert len(found) == SLOW_MAX
    assert found[0].text.startswith(f"{SLOW_MAX + 9} ")
    assert all(len(each.text) == TEXT_CHARACTERS_MAX for each in found)
    assert meters.statement_seconds.read().count == SLOW_MAX + 10


def test_a_statement_that_fails_is_counted_and_no_longer_runs() -> None:
    meters = Meters()
    log = StatementLog(meters, slow_seconds=1.0, clock=FakeClock())
    with pytest.raises(RuntimeError), log.running("x", ANN, "SELECT 1"):
        raise RuntimeError
    assert log.now() == ()
    assert meters.statements_failed.read() == 1


def test_every_metric_has_samples_when_there_is_something_to_say() -> None:
    status = full_status()
    assert [metric.name for metric in METRICS if not list(metric.samples(status))] == []


def test_every_meter_is_a_metric() -> None:
    names = {metric.name for metric in METRICS}
    for meter in vars(Meters()):
        assert {f"catchment_{meter}", f"catchment_{meter}_total"} & names, meter


def test_what_is_exposed_is_what_the_parser_of_prometheus_reads() -> None:
    text, content_type = exposition(METRICS, full_status())
    assert content_type.startswith("text/plain")
    found = {family.name: family for family in text_string_to_metric_families(text.decode())}
    for metric in METRICS:
        family = found[metric.name.removesuffix("_total")]
        assert family.type == metric.kind
        assert family.documentation == metric.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    buckets = [each.value for each in found["catchment_ack_seconds"].samples if each.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert set(PROCESS) <= {sample.name for family in found.values() for sample in family.samples}


def test_a_part_that_is_away_has_no_samples_and_the_others_have() -> None:
    text, _ = exposition(METRICS, full_status(lake_away="the catalog is gone"))
    found = {family.name: family.samples for family in text_string_to_metric_families(text.decode())}
    assert not found["catchment_lake_files"]
    assert found["catchment_buffer_rows"]
    assert {each.labels["part"]: each.value for each in found["catchment_part_available"]}["lake"] == 0


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_says_how_to_read_it_and_what_to_do(metric: Any) -> None:
    assert re.fullmatch(r"catchment_[a-z_]+[a-z]", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    for text in (metric.help, metric.read, metric.act):
        assert text[:1].isupper() or text[:1] in "`01"
        assert text.endswith(".")


@pytest.mark.parametrize("name", ["alerts.yml", "grafana-dashboard.json"])
def test_alerts_and_dashboard_use_metrics_that_exist(name: str) -> None:
    known = set(PROCESS)
    for metric in METRICS:
        known |= {metric.name} if metric.kind != "histogram" else set()
        known |= (
            {f"{metric.name}{end}" for end in ("_bucket", "_sum", "_count")} if metric.kind == "histogram" else set()
        )
    used = set(NAME.findall((DEPLOY / name).read_text(encoding="utf-8")))
    assert len(used) > 10
    assert used - known == set()


def test_the_dashboard_is_json_whose_panels_do_not_lie_over_each_other() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
