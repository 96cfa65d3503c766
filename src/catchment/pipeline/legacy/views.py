"""The tables that a `tailpipe.db` describes: one view each, over files that may have moved since."""

from dataclasses import dataclass
from pathlib import Path

import duckdb

from catchment.errors import CorruptInputError
from catchment.lake import extensions
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import DATABASE

# A view's columns are in the catalog with the view. Querying the view itself would open its files.
_COLUMNS = """
SELECT v.view_name, c.column_name, c.data_type
FROM duckdb_views() v
JOIN duckdb_columns() c USING (database_name, schema_name)
WHERE v.database_name = current_database() AND NOT v.internal
  AND c.table_name = v.view_name AND c.column_name <> 'rowid'
ORDER BY v.view_name, c.column_index
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyView:
    """A table as its view shows it."""

    name: str
    columns: tuple[Column, ...]


def read_views(folder: Path) -> tuple[LegacyView, ...]:
    """Return every view of the database in `folder`, without touching the files that it reads."""
    path = folder / DATABASE
    try:
        with extensions.attached(path) as connection:
            rows = connection.execute(_COLUMNS).fetchall()
    except duckdb.Error as error:
        raise CorruptInputError(
            f"{path} cannot be read: {' '.join(str(error).split())}",
            hint="Nothing was moved. Import the folder as a plain tree: `catchment legacy run --tree DIR --keys …`.",
        ) from None
    views: dict[str, list[Column]] = {}
    for view, column, kind in rows:
        views.setdefault(view, []).append(Column(name=column, type=kind))
    return tuple(LegacyView(name=name, columns=tuple(columns)) for name, columns in views.items())
