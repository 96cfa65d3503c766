"""Meaning of a Spark master's name: how many tasks run at the same time, and their attempts."""

import re

from catchment.foundation.process import cpu_count
from catchment.foundation.settings import Settings

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*(\d+))?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_CLUSTER_PARALLELISM = 16
# Attempts of one task before its job fails: Spark's own default on a cluster.
TASK_FAILURES = "spark.task.maxFailures"
TASK_FAILURES_MAX = 4


def parallelism(settings: Settings) -> int:
    """Return how many tasks run at the same time, from the master's name, without a session."""
    local, cluster = _LOCAL.fullmatch(settings.spark_master), _LOCAL_CLUSTER.fullmatch(settings.spark_master)
    if local:
        return cpu_count() if local[1] == "*" else int(local[1] or 1)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    return int(settings.spark_conf.get("spark.default.parallelism", _CLUSTER_PARALLELISM))


def master_that_retries(settings: Settings) -> str:
    """Return the master's name with the number of attempts per task that is set."""
    # Local Spark ignores spark.task.maxFailures: it gives up at the first lost worker unless the
    # master's name has a number of attempts.
    local = _LOCAL.fullmatch(settings.spark_master)
    if local and not local[2]:
        return f"local[{local[1] or 1},{settings.spark_conf.get(TASK_FAILURES, TASK_FAILURES_MAX)}]"
    return settings.spark_master
