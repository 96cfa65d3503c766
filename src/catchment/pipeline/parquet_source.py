"""Parquet files as a source: a unit per file, identified by path, size and modification time."""

import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import duckdb

from catchment.errors import CorruptInputError, InputError, StorageUnsupportedError
from catchment.foundation import faults, files, ids
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import extensions
from catchment.lake.types import Column
from catchment.pipeline import inputs
from catchment.pipeline.plan import Unit
from catchment.pipeline.work import Input, UnitPart

KIND = "parquet"


class Retirement(StrEnum):
    """What to do with a file once the lake has its rows."""

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
                # A file that replaced it in the meantime is another unit, and not delivered yet.
                if _facts(path) == (each.bytes, each.modified_ns):
                    files.remove(path)
                faults.reach("retire.between_inputs")

    def columns(self) -> tuple[Column, ...]:
        """Return the union of the readable files' columns, for a table to be created from them."""
        with extensions.connect() as connection:
            parts = [UnitPart(unit_id="", input=Input(uri=str(path), bytes=0)) for path in self._paths]
            groups, failures = inputs.inspect(connection, parts)
            if not groups:
                raise CorruptInputError(
                    f"No file can be read to create {self.table} from. {failures[0].reason}",
                    hint="Check that they are Parquet files, and completely written.",
                )
            # In file order: the first file's columns come first.
            readable = {part.input.uri for group in groups for part in group.parts}
            listed = inputs.paths(part.input for part in parts if part.input.uri in readable)
            query = f"DESCRIBE FROM read_parquet({listed}, union_by_name = true, hive_partitioning = false)"
            try:
                return tuple(Column(name=row[0], type=row[1]) for row in connection.execute(query).fetchall())
            except duckdb.Error as error:
                raise CorruptInputError(
                    f"The files' columns cannot be combined: {inputs.one_line(error)}",
                    hint="Check whether another process is still writing them.",
                ) from None

    def _unit(self, path: Path, real: str) -> Unit:
        if not files.is_text(str(path)):
            raise InputError(f"The name of {str(path)!r} is not valid text.", hint="Rename the file to a UTF-8 name.")
        try:
            facts = path.stat()
        except OSError as error:
            raise _unreadable(str(path), error) from None
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


def find_files(arguments: Sequence[str]) -> list[Path]:
    """Return the named files, and those below the named folders, in name order per folder."""
    found: list[Path] = []
    for argument in arguments:
        if not argument:
            raise InputError("A path is empty.", hint="Name a file or a folder; `.` is the current folder.")
        path = Path(argument)
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            raise _unreadable(argument, error) from None
        found.extend(sorted(_below(path)) if is_folder else [path])
    return found


def hive_keys(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return the keys of the `key=value` folders that contain the files, from the top."""
    folders = {folder: None for path in paths for folder in path.parts[:-1]}
    return tuple(dict.fromkeys(key for key, _, value in (f.partition("=") for f in folders) if key and value))


def _below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        # A folder removed in the meantime contains nothing; an unreadable one may contain anything.
        if not isinstance(error, FileNotFoundError):
            raise _unreadable(str(error.filename), error) from None

    for root, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            if name.endswith(".parquet") and _is_file(path := Path(root, name)):
                yield path


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(str(path), error) from None


def _unreadable(path: str, error: OSError) -> InputError:
    scheme, is_url, _ = path.partition("://")
    if is_url:
        return StorageUnsupportedError(
            f"{path} cannot be read: {scheme}:// storage is not supported.",
            hint="Use a local path or a mounted file system.",
        )
    if not isinstance(error, FileNotFoundError):
        hint = "Check that this user may read it."
    elif glob.has_magic(path):
        hint = "The shell found no match for the pattern. Check the pattern, and that the files exist."
    else:
        hint = "Check the path. A path without a leading slash is relative to the current folder."
    return InputError(f"{path} cannot be read: {error.strerror}.", hint=hint)
