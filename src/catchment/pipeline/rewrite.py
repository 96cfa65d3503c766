"""Rewriting in a worker: reads inputs that fit, writes few large files in the table's layout."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import duckdb
import pyarrow as pa

from catchment.errors import InvariantError
from catchment.foundation import files, sql
from catchment.lake import digest, types
from catchment.lake.placeholders import has_token
from catchment.lake.types import Column
from catchment.pipeline import failure_cause, inputs
from catchment.pipeline.inputs import Group
from catchment.pipeline.parquet_writer import OutputFile, copy, hashes, wrongly_null
from catchment.pipeline.work import FileFacts, OutputShape, Task, TaskResult, UnitFacts, UnitFailure, UnitPart


def rewrite(connection: duckdb.DuckDBPyConnection, task: Task, folder: Path) -> TaskResult:
    """Write the task's parts. Units that cannot be read or do not fit are left out and reported."""
    groups, failures = inputs.inspect(connection, task.parts)
    for group in groups:
        reason = inputs.conflicts(group, task.shape.columns)
        if reason is not None:
            failures.extend(inputs.failure(part, reason) for part in group.parts)
    attempt = 0
    while groups := _without(groups, failures):
        attempt += 1
        try:
            result = _write(connection, groups, task, folder / f"{attempt:03d}", failures)
            changed = inputs.changed(part for group in groups for part in group.parts)
            if not changed:
                return result
            failures.extend(changed)
        except _INPUT_ERRORS as error:
            files.remove_tree(folder / f"{attempt:03d}")
            if failure_cause.is_of_the_machine(error):
                raise
            found = list(_probe(connection, groups, task.shape, folder / "probe"))
            if not found:
                # No single input causes it: disk, memory or a bug. Spark may retry the task
                # elsewhere.
                raise InvariantError(
                    f"Task {task.number} failed though each of its inputs can be written: {error}"
                ) from error
            failures.extend(found)
    return TaskResult(number=task.number, files=(), units=(), failures=tuple(failures))


class _RefusedError(Exception):
    """The written rows contain a value that the table must not get."""


# Errors that a bad input can cause in its reader; any other error is not the input's fault.
_INPUT_ERRORS = (duckdb.Error, pa.ArrowException, OSError, _RefusedError)


def _write(
    connection: duckdb.DuckDBPyConnection, groups: list[Group], task: Task, folder: Path, failures: list[UnitFailure]
) -> TaskResult:
    files.make_folder(folder)
    outputs = _copy(connection, groups, task.shape, folder, threads=task.threads)
    _refuse_outputs(connection, outputs, task.shape)
    parts = [part for group in groups for part in group.parts]
    units = list(dict.fromkeys(part.unit_id for part in parts))
    rows_in = _rows(connection, groups)
    if sum(rows_in) != sum(output.rows for output in outputs):
        raise InvariantError(f"Task {task.number} read {sum(rows_in)} rows and wrote {sum(o.rows for o in outputs)}.")
    # Rows with deletions applied come out of a join, which guarantees no order.
    joined = any(part.input.lake_file is not None and part.input.lake_file.deletes for part in parts)
    ordered = len(units) == 1 or not (task.shape.sort_by or task.shape.partition_by or joined)
    by_file, by_part = _sums(connection, outputs, task.shape.columns, rows_in)
    if not ordered:
        # The output no longer shows which row came from which input, so the inputs are read once
        # more and must agree.
        by_part = _sums_of_source(connection, groups, task.shape.columns)
        if digest.text(sum(by_part)) != digest.text(sum(by_file)):
            raise InvariantError(f"Task {task.number} wrote rows that differ from those it read.")
    for output in outputs:
        files.sync_file(Path(output.path))
    return TaskResult(
        number=task.number,
        files=tuple(
            FileFacts(
                path=output.path,
                place=str(Path(output.path).relative_to(folder).parent),
                rows=output.rows,
                bytes=output.bytes,
                digest=digest.text(number),
                unit_ids=tuple(units),
            )
            for output, number in zip(outputs, by_file, strict=True)
        ),
        units=tuple(_unit_facts(parts, rows_in, by_part)),
        failures=tuple(failures),
    )


def _copy(
    connection: duckdb.DuckDBPyConnection, groups: list[Group], shape: OutputShape, folder: Path, *, threads: int = 1
) -> list[OutputFile]:
    # If files are split by size, several threads would mix up the order of the rows.
    split = bool(shape.partition_by) or threads == 1
    # The result of a transform is in the folder's name only: no file of the table has it as a
    # column.
    parts = [f"{key.clause} AS {sql.identifier(key.folder)}" for key in shape.partition_by if key.is_transform]
    _refuse_changed(connection, groups, shape)
    with inputs.relation(connection, groups, shape.columns) as query:
        return copy(
            connection,
            f"SELECT {', '.join(['*', *parts])} FROM ({query}){_order_by(shape)}",
            shape.columns,
            folder if split else folder / "data_0.parquet",
            partition_by=[key.folder for key in shape.partition_by],
            with_keys=not parts,
            file_bytes=shape.file_bytes if split else None,
        )


def _refuse_changed(connection: duckdb.DuckDBPyConnection, groups: list[Group], shape: OutputShape) -> None:
    """Refuse values that the lake would return changed; only few types have any."""
    found = ((column, types.kept(column, inserted=shape.inserted)) for column in shape.columns)
    conditions = {column.name: condition for column, condition in found if condition is not None}
    if not conditions:
        return
    with inputs.relation(connection, groups, shape.columns) as query:
        # One scan checks all columns; the failing column is determined only for the row that is
        # found.
        kept = " AND ".join(conditions.values())
        chosen = ", ".join(f"{each}, {sql.identifier(name)}::VARCHAR" for name, each in conditions.items())
        row = connection.execute(f"SELECT {chosen} FROM ({query}) WHERE NOT ({kept}) LIMIT 1").fetchone()
    if row is not None:
        at = row[::2].index(False)
        raise _RefusedError(f"column {[*conditions][at]!r} contains {row[2 * at + 1]}, which DuckLake would change")


def _order_by(shape: OutputShape) -> str:
    return f" ORDER BY {', '.join(key.clause for key in shape.sort_by)}" if shape.sort_by else ""


def _refuse_outputs(connection: duckdb.DuckDBPyConnection, outputs: Sequence[OutputFile], shape: OutputShape) -> None:
    name = wrongly_null(connection, outputs, shape.columns)
    if name is not None:
        raise _RefusedError(f"column {name!r} is NULL in some row and must not be")
    for each in outputs:
        for value in each.partition.values():
            if value is not None and (has_token(value) or value.casefold() in _READ_AS_NULL):
                raise _RefusedError(
                    f"partition {each.partition} contains text that DuckLake would replace or read as NULL"
                )


# Text in a `key=value` folder that stands for NULL.
_READ_AS_NULL = ("null", "__hive_default_partition__")


def _rows(connection: duckdb.DuckDBPyConnection, groups: Iterable[Group]) -> list[int]:
    return [count for group in groups for count in inputs.rows(connection, group)]


def _sums(
    connection: duckdb.DuckDBPyConnection,
    outputs: Sequence[OutputFile],
    columns: Sequence[Column],
    rows_in: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Return digests of the written files, per file and per run of rows."""
    by_file, by_run = _RunSums([output.rows for output in outputs]), _RunSums(rows_in)
    for part in hashes(connection, [output.path for output in outputs], columns):
        by_file.feed(part)
        by_run.feed(part)
    return by_file.sums, by_run.sums


class _RunSums:
    """Sums a stream of hashes over consecutive runs of known lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.sums = [0] * len(lengths)
        self._ends = list(accumulate(lengths))
        self._run = 0
        self._position = 0

    def feed(self, hashes: pa.Array) -> None:
        offset = 0
        while offset < len(hashes):
            while self._ends[self._run] <= self._position:
                self._run += 1
            length = min(self._ends[self._run] - self._position, len(hashes) - offset)
            total = hashes.slice(offset, length).sum().as_py() or 0
            self.sums[self._run] += total
            offset += length
            self._position += length


def _sums_of_source(connection: duckdb.DuckDBPyConnection, groups: list[Group], columns: Sequence[Column]) -> list[int]:
    by_uri = inputs.digests(connection, groups, columns)
    return [digest.number(by_uri[part.input.uri]) for group in groups for part in group.parts]


def _unit_facts(parts: Sequence[UnitPart], rows: Sequence[int], sums: Sequence[int]) -> Iterator[UnitFacts]:
    totals: dict[str, tuple[int, int]] = {}
    for part, count, number in zip(parts, rows, sums, strict=True):
        before = totals.get(part.unit_id, (0, 0))
        totals[part.unit_id] = (before[0] + count, before[1] + number)
    for unit_id, (count, number) in totals.items():
        yield UnitFacts(unit_id=unit_id, rows=count, digest=digest.text(number))


def _without(groups: Iterable[Group], failures: Iterable[UnitFailure]) -> list[Group]:
    failed = {each.unit_id for each in failures}
    left = (
        Group(parts=tuple(part for part in group.parts if part.unit_id not in failed), columns=group.columns)
        for group in groups
    )
    return [group for group in left if group.parts]


def _probe(
    connection: duckdb.DuckDBPyConnection, groups: Iterable[Group], shape: OutputShape, scratch: Path
) -> Iterator[UnitFailure]:
    """Write the inputs one by one, to find those that make the task fail."""
    for part, columns in ((part, group.columns) for group in groups for part in group.parts):
        try:
            files.make_folder(scratch)
            outputs = _copy(connection, [Group(parts=(part,), columns=columns)], shape, scratch)
            _refuse_outputs(connection, outputs, shape)
        except _INPUT_ERRORS as error:
            yield inputs.failure(part, error)
        finally:
            files.remove_tree(scratch)
