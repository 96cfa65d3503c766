"""The name of Spark's master: how often a task is tried."""

import pytest

from catchment.foundation.settings import Settings
from catchment.pipeline.spark_master import TASK_FAILURES, TASK_FAILURES_MAX, master_that_retries


@pytest.mark.parametrize(
    ("master", "name"),
    [
        ("local", f"local[1,{TASK_FAILURES_MAX}]"),
        ("local[*]", f"local[*,{TASK_FAILURES_MAX}]"),
        ("local[3,2]", "local[3,2]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_local_master_retries_tasks_unless_its_name_says_how_often(master: str, name: str) -> None:
    assert master_that_retries(Settings(spark_master=master)) == name


def test_a_local_master_retries_as_often_as_spark_conf_says() -> None:
    given = Settings(spark_master="local[2]", spark_conf={TASK_FAILURES: "7"})
    assert master_that_retries(given) == "local[2,7]"
