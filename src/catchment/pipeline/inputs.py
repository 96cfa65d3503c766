"""Input reading in a worker: finds readable files with fitting columns, and unites them."""

import glob
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from catchment.foundation import files, sql
from catchment.lake import digest, reshape
from catchment.lake.types import Column
from catchment.pipeline import failure_cause, lake_file
from catchment.pipeline.work import Format, Input, UnitFailure, UnitPart

URI = "catchment__uri"
_STATEMENT = re.compile(r"LINE \d+:.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Inputs of one format with the same columns; `obstacle` is why none can be adopted."""

    parts: tuple[UnitPart, ...]
    columns: tuple[tuple[str, str], ...]
    obstacle: str | None = None


def inspect(connection: duckdb.DuckDBPyConnection, parts: Sequence[UnitPart]) -> tuple[list[Group], list[UnitFailure]]:
    """Group the parts by their columns. Parts that cannot be opened become failures of their units."""
    groups: list[Group] = []
    failures = changed(parts)
    failed = {each.path for each in failures}
    parts = [part for part in parts if part.input.uri not in failed]
    parquet = [part for part in parts if part.input.format is Format.PARQUET and part.input.lake_file is None]
    for same_schema in _by_schema(connection, parquet, failures):
        groups.extend(_described(connection, same_schema, failures))
    for same_schema in _by_arrow_schema([part for part in parts if part.input.format is Format.ARROW], failures):
        groups.extend(_described(connection, same_schema, failures))
    for part in parts:
        if _is_alone(part.input):
            groups.extend(_described(connection, (part,), failures))
    return groups, failures


def _is_alone(source: Input) -> bool:
    """Return whether the input is read by a separate relation."""
    return source.format is Format.DUCKDB or source.lake_file is not None


def changed(parts: Iterable[UnitPart]) -> list[UnitFailure]:
    """Return failures for parts whose file is missing or has changed since it was planned."""
    found = []
    for part in parts:
        if part.input.modified_ns or part.input.lake_file is not None:
            try:
                facts = files.local_path(part.input.uri).stat()
            except OSError as error:
                found.append(failure(part, error.strerror or str(error)))
            else:
                # The modification time of a lake's files is irrelevant: they are written once.
                modified_ns = part.input.modified_ns or facts.st_mtime_ns
                if (facts.st_size, facts.st_mtime_ns) != (part.input.bytes, modified_ns):
                    found.append(failure(part, "it has changed since it was planned"))
    return found


def paths(inputs: Iterable[Input]) -> str:
    """Return a SQL list of the files' paths, escaped because DuckDB treats a path as a pattern."""
    return sql.literals(glob.escape(each.uri) for each in inputs)


def conflicts(group: Group, columns: Sequence[Column]) -> str | None:
    """Return why the group's columns do not fit the table, or None."""
    # A value in a path is always text: it is cast, and a value that does not cast fails its unit.
    return reshape.misfit(_columns(group), columns, cast=group.parts[0].input.hive_keys)


@contextmanager
def relation(
    connection: duckdb.DuckDBPyConnection, groups: Sequence[Group], columns: Sequence[Column], *, named: bool = False
) -> Iterator[str]:
    """Yield a query for all groups in the table's columns; `named` adds the uri as column URI."""
    with _Opened(connection) as opened:
        yield " UNION ALL ".join(_select(opened, group, columns, named=named) for group in groups)


def rows(connection: duckdb.DuckDBPyConnection, group: Group) -> list[int]:
    """Return the number of rows of each part of the group; for Parquet, from its footer."""
    first = group.parts[0].input
    if first.format is Format.PARQUET and first.lake_file is None:
        listed = paths(part.input for part in group.parts)
        counts = dict(connection.execute(f"SELECT file_name, num_rows FROM parquet_file_metadata({listed})").fetchall())
        return [int(counts[part.input.uri]) for part in group.parts]
    with _Opened(connection) as opened:
        if first.format is Format.ARROW:
            return [opened.arrow(part.input).num_rows for part in group.parts]
        row = connection.execute(f"SELECT count(*) FROM {opened.scan(group.parts)}").fetchone()
    return [int(row[0]) if row else 0]


def digests(
    connection: duckdb.DuckDBPyConnection, groups: Sequence[Group], columns: Sequence[Column]
) -> dict[str, str]:
    """Return the digest of each input, by uri. Reads all the data."""
    with relation(connection, groups, columns, named=True) as query:
        text = f"SELECT {URI}, {digest.rows_digest(columns)} FROM ({query}) GROUP BY {URI}"
        found = dict(connection.execute(text).fetchall())
    return {part.input.uri: digest.text(int(found.get(part.input.uri, 0))) for group in groups for part in group.parts}


def _by_schema(
    connection: duckdb.DuckDBPyConnection, parts: Sequence[UnitPart], failures: list[UnitFailure]
) -> Iterator[tuple[UnitPart, ...]]:
    """Group Parquet parts by footer schema with one query; file by file only if that query fails."""
    if not parts:
        return
    try:
        found = connection.execute(_FINGERPRINTS.format(paths(part.input for part in parts))).fetchall()
    except duckdb.Error as error:
        if len(parts) == 1:
            failures.append(failure(parts[0], error))
            return
        middle = len(parts) // 2
        yield from _by_schema(connection, parts[:middle], failures)
        yield from _by_schema(connection, parts[middle:], failures)
        return
    prints = dict(found)
    same_schema: defaultdict[tuple[int, tuple[str, ...]], list[UnitPart]] = defaultdict(list)
    for part in parts:
        same_schema[prints[part.input.uri], part.input.hive_keys].append(part)
    yield from (tuple(each) for each in same_schema.values())


# Lists of paths are passed as literals: for a bound parameter, DuckDB queries Python for the type
# of every element, which cost a quarter of a whole rewrite.
_FINGERPRINTS = """
SELECT file_name, hash(list((name, type, type_length, repetition_type, num_children, converted_type, scale, precision,
                             logical_type)))
FROM parquet_schema({})
GROUP BY file_name
"""


def _by_arrow_schema(parts: Sequence[UnitPart], failures: list[UnitFailure]) -> Iterator[tuple[UnitPart, ...]]:
    """Group Arrow parts by schema, matched in the same way: one scan reads them all."""
    same_schema: defaultdict[tuple[bytes, tuple[str, ...]], list[UnitPart]] = defaultdict(list)
    for part in parts:
        try:
            with pa.memory_map(str(files.local_path(part.input.uri))) as mapped:
                schema = pa.ipc.open_file(mapped).schema
        except (pa.ArrowException, OSError) as error:
            failures.append(failure(part, error))
        else:
            same_schema[schema.serialize().to_pybytes(), part.input.select].append(part)
    yield from (tuple(each) for each in same_schema.values())


def _described(
    connection: duckdb.DuckDBPyConnection, parts: tuple[UnitPart, ...], failures: list[UnitFailure]
) -> Iterator[Group]:
    try:
        with _Opened(connection) as opened:
            found = connection.execute(f"DESCRIBE FROM {opened.scan(parts[:1])}").fetchall()
            obstacle = lake_file.obstacle(connection, parts[0].input)
            nanosecond_column = _nanosecond_column(connection, parts[0].input)
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        failures.extend(failure(part, error) for part in parts)
    else:
        if nanosecond_column is not None:
            reason = f"column {nanosecond_column!r} has nanosecond times, but a lake stores microseconds"
            failures.extend(failure(part, reason) for part in parts)
            return
        left_out = {sql.fold(name) for name in parts[0].input.without}
        columns = tuple((row[0], row[1]) for row in found if sql.fold(row[0]) not in left_out)
        yield Group(parts=parts, columns=columns, obstacle=obstacle)


def _nanosecond_column(connection: duckdb.DuckDBPyConnection, source: Input) -> str | None:
    """Return a column whose values DuckDB would truncate silently."""
    if source.format is not Format.PARQUET:
        return None
    row = connection.execute(_NANOSECONDS.format(paths([source]))).fetchone()
    return None if row is None else str(row[0])


_NANOSECONDS = "SELECT name FROM parquet_schema({}) WHERE logical_type LIKE 'TimeType%NANOS=N%'"


def failure(part: UnitPart, error: Exception | str, *, rewritable: bool = False) -> UnitFailure:
    """Return a failure of the part's unit, with the path in the reason."""
    return UnitFailure(
        unit_id=part.unit_id,
        path=part.input.uri,
        reason=f"{part.input.uri}: {one_line(error)}",
        rewritable=rewritable,
        transient=isinstance(error, Exception) and failure_cause.is_of_the_machine(error),
    )


def one_line(error: Exception | str) -> str:
    """Return an error's message in one line, without the SQL statement that DuckDB appends."""
    return " ".join(_STATEMENT.sub("", str(error)).split())


def bare_reason(of: UnitFailure) -> str:
    """Return the reason without the path, for a temporary file."""
    return of.reason.removeprefix(f"{of.path}: ")


def _select(opened: "_Opened", group: Group, columns: Sequence[Column], *, named: bool) -> str:
    chosen = reshape.select_list(_columns(group), columns)
    if named:
        first = group.parts[0].input
        chosen.append(f"{sql.literal(first.uri)} AS {URI}" if _is_alone(first) else URI)
    return f"SELECT {', '.join(chosen)} FROM {opened.scan(group.parts, named=named)}"


def _columns(group: Group) -> list[Column]:
    return [Column(name=name, type=kind) for name, kind in group.columns]


class _Opened:
    """Inputs opened for the duration of one query."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._names: list[str] = []
        self._attached: list[str] = []
        self._maps: list[pa.MemoryMappedFile] = []

    def __enter__(self) -> "_Opened":
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            self._connection.unregister(name)
        for name in self._attached:
            self._connection.execute(f"DETACH {sql.identifier(name)}")
        for mapped in self._maps:
            mapped.close()

    def scan(self, parts: Iterable[UnitPart], *, named: bool = False) -> str:
        """Return the FROM expression that reads the parts, which all have one format."""
        inputs = [part.input for part in parts]
        found = self._scan(inputs, named=named)
        if not inputs[0].select:
            return found
        chosen = (*inputs[0].select, *((URI,) if named and not _is_alone(inputs[0]) else ()))
        return f"(SELECT {', '.join(chosen)} FROM {found})"

    def _scan(self, inputs: Sequence[Input], *, named: bool) -> str:
        if inputs[0].lake_file is not None:
            return f"({lake_file.query(self._connection, inputs[0])})"
        match inputs[0].format:
            case Format.PARQUET:
                return _read_parquet(inputs, named=named)
            case Format.ARROW:
                return self._arrow(inputs, named=named)
            case Format.DUCKDB:
                return self._duckdb(inputs[0])

    def arrow(self, source: Input) -> pa.Table:
        """Return the rows of an Arrow file without copying them out of the file."""
        mapped = pa.memory_map(str(files.local_path(source.uri)))
        self._maps.append(mapped)
        return pa.ipc.open_file(mapped).read_all()

    def _arrow(self, inputs: Sequence[Input], *, named: bool) -> str:
        tables = [self.arrow(source) for source in inputs]
        if named:
            tables = [_with_uri(rows, source.uri) for rows, source in zip(tables, inputs, strict=True)]
        name = f"catchment_arrow_{len(self._names)}"
        # A bare capsule, valid for one query: DuckDB reads an Arrow table object at half the speed.
        self._connection.register(name, pa.concat_tables(tables).__arrow_c_stream__())
        self._names.append(name)
        return sql.identifier(name)

    def _duckdb(self, source: Input) -> str:
        name = f"catchment_file_{len(self._attached)}"
        self._connection.execute(f"ATTACH {sql.literal(source.uri)} AS {sql.identifier(name)} (READ_ONLY)")
        self._attached.append(name)
        return sql.qualified(name, "main", source.relation)


def _with_uri(rows: pa.Table, uri: str) -> pa.Table:
    # One byte per row instead of the repeated text.
    uris = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), rows.num_rows), pa.array([uri]))
    return rows.append_column(URI, uris)


def _read_parquet(inputs: Sequence[Input], *, named: bool) -> str:
    options = [paths(inputs)]
    keys = inputs[0].hive_keys
    if keys:
        hive = ", ".join(f"{sql.literal(key)}: 'VARCHAR'" for key in keys)
        options.append(f"hive_partitioning = true, hive_types = {{{hive}}}")
    else:
        options.append("hive_partitioning = false")
    if named:
        options.append(f"filename = {sql.literal(URI)}")
    return f"read_parquet({', '.join(options)})"
