"""What the name of a Spark master says: how many tasks run at the same time, and how often one is tried."""

import re

from catchment.foundation.settings import Settings, cpu_count

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*(\d+))?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_CLUSTER_PARALLELISM = 16


def parallelism(settings: Settings) -> int:
    """How many tasks run at the same time, by the master's name alone, so that planning needs no session."""
    local, cluster = _LOCAL.fullmatch(settings.spark_master), _LOCAL_CLUSTER.fullmatch(settings.spark_master)
    if local:
        return cpu_count() if local[1] == "*" else int(local[1] or 1)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    return int(settings.spark_conf.get("spark.default.parallelism", _CLUSTER_PARALLELISM))


def master_that_retries(settings: Settings) -> str:
    """The master by a name under which it tries a task as often as it is set to."""
    # Local Spark ignores spark.task.maxFailures: it gives up at the first lost worker unless the master says otherwise.
    local = _LOCAL.fullmatch(settings.spark_master)
    if local and not local[2]:
        return f"local[{local[1] or 1},{settings.spark_task_failures_max}]"
    return settings.spark_master
