"""Catchment: the durable front door of a DuckLake.

    import catchment

    with catchment.open("data", queue_auto_create_tables=True) as c:
        c.queue.enqueue("events", rows)   # durable when it returns
        c.queue.flush()                   # Parquet in the lake, exactly once

Errors are in `catchment.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from catchment.api.front_door import Catchment, open  # noqa: A004

if TYPE_CHECKING:
    from catchment.foundation.ids import TableId
    from catchment.pipeline import Mode, Retirement
    from catchment.schema import TableRow
    from catchment.server.values import Role

__all__ = ["Catchment", "Mode", "Retirement", "Role", "TableId", "TableRow", "open"]

_VALUES = {
    "Mode": "catchment.pipeline",
    "Retirement": "catchment.pipeline",
    "Role": "catchment.server.values",
    "TableId": "catchment.foundation.ids",
    "TableRow": "catchment.schema",
}


def __getattr__(name: str) -> Any:
    """Import a value when it is used: every process imports this package, few need all of it."""
    if name not in _VALUES:
        raise AttributeError(f"module 'catchment' has no attribute {name!r}")
    return getattr(import_module(_VALUES[name]), name)
