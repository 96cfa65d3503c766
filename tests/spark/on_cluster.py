"""Delivers on a local cluster with two executor processes; started by the cluster test.

    python -m tests.spark.on_cluster HOME CATALOG_URL FILE…

Prints how many driver and executor JVMs ran, and how many units were delivered and failed.
"""

import sys
from pathlib import Path

import psutil
from pydantic import SecretStr

from catchment.lake import Lake
from catchment.pipeline import Deliverer, Mode, ParquetFiles, SparkRunner
from catchment.settings import Settings
from tests.scenes import EVENTS


def main(home: str, catalog: str, *paths: str) -> None:
    settings = Settings(home=Path(home), lake_catalog=SecretStr(catalog), spark_master="local-cluster[2,1,1024]")
    files = [Path(path) for path in paths]
    with Lake.from_settings(settings) as lake, SparkRunner(settings) as runner:
        deliverer = Deliverer(lake, runner, settings)
        # Half of them one way and all of them the other, so that both kernels run over there.
        adopted = deliverer.run(ParquetFiles(files[:4], EVENTS), mode=Mode.ADOPT, digests=True)
        rewritten = deliverer.run(ParquetFiles(files, EVENTS), mode=Mode.REWRITE)
        running = [_command(each) for each in psutil.Process().children(recursive=True)]
        executors = sum("CoarseGrainedExecutorBackend" in line for line in running)
        drivers = sum("org.apache.spark.deploy.SparkSubmit" in line for line in running)
        counts = (drivers, executors, adopted.delivered + rewritten.delivered, len(rewritten.failures))
        sys.stdout.write(" ".join(map(str, counts)) + "\n")


def _command(process: psutil.Process) -> str:
    # Spark's workers come and go: one may end between being listed and being asked.
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
