"""The exposition for Prometheus: every declared metric, and the alerts and dashboard that use them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from catchment.foundation.meters import Meters
from catchment.web.metric_catalogue import METRICS
from catchment.web.metrics import PROCESS, exposition
from tests.status.sample_status import full_status

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = re.compile(r"\b(?:catchment|process)_[a-z_]+")


def test_every_metric_has_samples_for_a_full_status() -> None:
    status = full_status()
    assert [metric.name for metric in METRICS if not list(metric.samples(status))] == []


def test_every_meter_is_a_metric() -> None:
    names = {metric.name for metric in METRICS}
    for meter in vars(Meters()):
        assert {f"catchment_{meter}", f"catchment_{meter}_total"} & names, meter


def test_the_parser_of_prometheus_reads_the_exposition() -> None:
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


def test_an_unreachable_part_has_no_samples_and_the_others_have() -> None:
    text, _ = exposition(METRICS, full_status(lake_away="the catalog is gone"))
    found = {family.name: family.samples for family in text_string_to_metric_families(text.decode())}
    assert not found["catchment_lake_files"]
    assert found["catchment_buffer_rows"]
    assert {each.labels["part"]: each.value for each in found["catchment_part_available"]}["lake"] == 0


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_describes_how_to_read_it_and_what_to_do(metric: Any) -> None:
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
