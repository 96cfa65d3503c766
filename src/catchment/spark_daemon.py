"""The process that Spark's Python workers are forked from: PySpark's own, but that it, and they, are ready sooner.

    python -m catchment.spark_daemon pyspark.worker

Spark starts one on every machine that runs tasks, with archives of its own on the path: PySpark in a zip, and a jar.
Python compiles what lies in a zip in every process anew, and looks for packages in all of the jar, which takes longer
than the rest of what comes before a first task. Where the same PySpark is installed, it is taken from there. And what
workers need of Catchment is imported here, once for all of them.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

_ARCHIVES = (".zip", ".jar")


def installed_first(path: Sequence[str]) -> list[str]:
    """The path without the archives that belong to a PySpark which is installed; without one, the path as it is."""
    found = PathFinder.find_spec("pyspark", [each for each in path if not each.endswith(_ARCHIVES)])
    if found is None or found.origin is None:
        return list(path)
    # Installers may put links there, and Spark does not see that its own place is one.
    spark_home = Path(found.origin).resolve().parent
    return [each for each in path if not (each.endswith(_ARCHIVES) and Path(each).resolve().is_relative_to(spark_home))]


def main() -> None:
    """Serve workers until Spark closes stdin."""
    sys.path[:] = installed_first(sys.path)
    import_module("catchment.pipeline.kernel")
    # DuckDB opens a database when it is imported. A fork would miss its threads, so it is to have none.
    import_module("duckdb").execute("SET threads = 1")
    runpy.run_module("pyspark.daemon", run_name="__main__")


if __name__ == "__main__":
    main()
