"""The data pipelines: Spark schedules, DuckDB computes, DuckLake commits."""

from catchment.pipeline.deliver import Deliverer, Report, Source
from catchment.pipeline.parquet import ParquetFiles, Retirement
from catchment.pipeline.plan import Plan, Unit
from catchment.pipeline.spark import SparkRunner, spark_session
from catchment.pipeline.work import Format, Input, Mode

__all__ = [
    "Deliverer",
    "Format",
    "Input",
    "Mode",
    "ParquetFiles",
    "Plan",
    "Report",
    "Retirement",
    "Source",
    "SparkRunner",
    "Unit",
    "spark_session",
]
