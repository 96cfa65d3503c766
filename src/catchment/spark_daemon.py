"""Parent process of Spark's Python workers: PySpark's own daemon, with a faster start.

    python -m catchment.spark_daemon pyspark.worker

Spark starts one on every machine that runs tasks, with its own archives on the path: PySpark in a
zip, and a jar. Python compiles modules in a zip again in every process and searches the whole jar
for packages, which takes longer than everything else before a first task. If the same PySpark is
installed, it is imported from there. The modules of Catchment that workers need are imported here,
once for all of them.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

_ARCHIVES = (".zip", ".jar")


def installed_first(path: Sequence[str]) -> list[str]:
    """Return the path without the archives of an installed PySpark; unchanged if none is installed."""
    found = PathFinder.find_spec("pyspark", [each for each in path if not each.endswith(_ARCHIVES)])
    if found is None or found.origin is None:
        return list(path)
    # Installers may create links here, and Spark does not notice that its own location is one.
    spark_home = Path(found.origin).resolve().parent
    return [each for each in path if not (each.endswith(_ARCHIVES) and Path(each).resolve().is_relative_to(spark_home))]


def main() -> None:
    """Serve workers until Spark closes stdin."""
    sys.path[:] = installed_first(sys.path)
    import_module("catchment.pipeline.kernel")
    # DuckDB opens a database when it is imported. A fork would lose its threads, so it must have
    # none.
    import_module("duckdb").execute("SET threads = 1")
    runpy.run_module("pyspark.daemon", run_name="__main__")


if __name__ == "__main__":
    main()
