"""The models of this scenario: none."""

from catchment.schema.models import TableRow

MODELS: list[type[TableRow]] = []
