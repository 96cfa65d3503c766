"""A program for `spark-submit`, which provides its JVM: a session, and another one after it.

spark-submit submitted.py HOME
"""

import sys
from pathlib import Path

from catchment.foundation.settings import Settings
from catchment.pipeline import SparkRunner


def main(home: Path) -> None:
    """Say what a task of each session made."""
    for number in (1, 2):
        with SparkRunner(Settings(home=home, spark_master="local[1]")) as runner:
            sys.stdout.write(f"{runner.context.parallelize([number], 1).map(lambda each: each * 10).collect()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
