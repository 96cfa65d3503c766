"""A delivery and a legacy import on a local cluster of two executors; started by the cluster test.

    python -m tests.spark.on_cluster HOME CATALOG_URL LEGACY_HOME FILE…

Prints how many driver and executor JVMs ran, how many units were delivered and failed, and the same
of leaves.
"""

import sys
from pathlib import Path

import psutil
from pydantic import SecretStr

from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import Deliverer, Mode, ParquetFiles, SparkRunner, java
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import LegacyImport
from catchment.pipeline.legacy.report import LegacyReport
from tests.sample_events import EVENTS


def main(home: str, catalog: str, legacy: str, *paths: str) -> None:
    settings = Settings(
        home=Path(home),
        lake_catalog=SecretStr(catalog),
        spark_master="local-cluster[2,1,1024]",
        spark_conf={"spark.executor.extraJavaOptions": java.driver_options()},
    )
    files = [Path(path) for path in paths]
    with Lake.from_settings(settings) as lake, SparkRunner(settings) as runner:
        deliverer = Deliverer(lake, runner, settings)
        # Half of them one way and all of them the other, so that both kernels run over there.
        adopted = deliverer.run(ParquetFiles(files[:4], EVENTS), mode=Mode.ADOPT, digests=True)
        rewritten = deliverer.run(ParquetFiles(files, EVENTS), mode=Mode.REWRITE)
        imported = _import(Path(legacy), lake, deliverer)
        running = [_command(each) for each in psutil.Process().children(recursive=True)]
        executors = sum("CoarseGrainedExecutorBackend" in line for line in running)
        drivers = sum("org.apache.spark.deploy.SparkSubmit" in line for line in running)
        units = (adopted.delivered + rewritten.delivered, len(rewritten.failures))
        leaves = (imported.leaves, len(imported.failures))
        sys.stdout.write(" ".join(map(str, (drivers, executors, *units, *leaves))) + "\n")


def _import(home: Path, lake: Lake, deliverer: Deliverer) -> LegacyReport:
    return LegacyImport(
        ImportFolders.tailpipe(home),
        ImportOptions(quarantine=True),
        find_lake=lambda: lake,
        deliverer=lambda: deliverer,
        parallelism=deliverer.runner.parallelism,
        adopt_bytes_min=1 << 40,
        data_path=Path(lake.address.data_path),
        clock=SystemClock(),
    ).run()


def _command(process: psutil.Process) -> str:
    # Spark's workers come and go: one may end between being listed and being asked.
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
