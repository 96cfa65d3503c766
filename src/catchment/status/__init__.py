"""The status of a home, as one value for the command line, JSON, metrics and pages."""

from catchment.status.model import Health, Status, StatusPart
from catchment.status.reader import StatusReader

__all__ = ["Health", "Status", "StatusPart", "StatusReader"]
