"""Parquet files as a source: each file is a unit, known by its path, size and time of change."""

import glob
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import duckdb

from catchment import faults, files, ids, sql
from catchment.errors import CorruptInputError, InputError
from catchment.ids import ProducerId, TableId
from catchment.lake import extensions
from catchment.lake.types import Column
from catchment.pipeline.plan import Unit
from catchment.pipeline.work import Input

KIND = "parquet"


class Retirement(StrEnum):
    """What becomes of a file once the lake has its rows."""

    KEEP = "keep"
    REMOVE = "remove"


class ParquetFiles:
    """Files to deliver into one table. A file that is changed in place is a new unit."""

    def __init__(self, paths: Sequence[Path], table: TableId, *, retirement: Retirement = Retirement.KEEP) -> None:
        self._paths = [path.absolute() for path in paths]
        self._retirement = retirement
        self.table = table
        self.producer = ProducerId(KIND, str(table), "1")

    def units(self) -> Sequence[Unit]:
        reals = files.real_paths(map(str, self._paths))
        return [self._unit(path, real) for path, real in zip(self._paths, reals, strict=True)]

    def retire(self, unit: Unit) -> None:
        if self._retirement is Retirement.REMOVE:
            for each in unit.inputs:
                path = files.local_path(each.uri)
                # A file that was put in its place meanwhile is another unit, and not delivered yet.
                if _facts(path) == (each.bytes, each.modified_ns):
                    files.remove(path)
                faults.reach("retire.between_inputs")

    def columns(self) -> tuple[Column, ...]:
        """The columns of all files together, for a table that is to hold them."""
        paths = sql.literals(glob.escape(str(path)) for path in self._paths)
        query = f"DESCRIBE FROM read_parquet({paths}, union_by_name = true, hive_partitioning = false)"
        try:
            with extensions.connect() as connection:
                return tuple(Column(name=row[0], type=row[1]) for row in connection.execute(query).fetchall())
        except duckdb.Error as error:
            raise CorruptInputError(f"The files' columns cannot be read: {error}") from None

    def _unit(self, path: Path, real: str) -> Unit:
        if not files.is_text(str(path)):
            raise InputError(f"The name of {str(path)!r} is not text.", hint="Give the file a name in UTF-8.")
        try:
            facts = path.stat()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from None
        return Unit(
            id=ids.unit_id(KIND, str(self.table), real, facts.st_size, facts.st_mtime_ns),
            source=str(path),
            inputs=(Input(uri=str(path), bytes=facts.st_size, modified_ns=facts.st_mtime_ns),),
        )


def _facts(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns
