"""Data pipelines: Spark schedules, DuckDB computes, DuckLake commits."""

from catchment.pipeline.deliver import Deliverer, DeliveryReport, Source
from catchment.pipeline.parquet_source import ParquetFiles, Retirement
from catchment.pipeline.plan import Plan, Unit
from catchment.pipeline.runner import SparkRunner, spark_session
from catchment.pipeline.work import Format, Input, Mode

__all__ = [
    "Deliverer",
    "DeliveryReport",
    "Format",
    "Input",
    "Mode",
    "ParquetFiles",
    "Plan",
    "Retirement",
    "Source",
    "SparkRunner",
    "Unit",
    "spark_session",
]
