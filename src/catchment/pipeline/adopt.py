"""Adoption in a worker: links a Parquet file that already fits the table into the lake.

Registering a file that DuckLake misreads would lose rows silently. A file is therefore adopted only
if its footer shows that DuckLake reads it correctly: same types, standard lists, no hidden NaN or
NULL, no missing column. A file that only fails these adoption checks is reported as rewritable.
"""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import unquote

import duckdb

from catchment.errors import StorageFailedError
from catchment.foundation import files, sql
from catchment.lake import types
from catchment.lake.placeholders import has_token
from catchment.lake.types import Column
from catchment.pipeline import inputs
from catchment.pipeline.inputs import Group
from catchment.pipeline.work import FileFacts, Format, Input, Task, TaskResult, UnitFacts, UnitFailure, UnitPart

# The folder name that every writer uses if the key is NULL.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A file that can be adopted."""

    part: UnitPart
    rows: int
    digest: str | None

    @property
    def path(self) -> Path:
        return files.local_path(self.part.input.uri)


def adopt(connection: duckdb.DuckDBPyConnection, task: Task, folder: Path) -> TaskResult:
    """Link the task's files. Leave out and report those that must not be adopted."""
    groups, failures = inputs.inspect(connection, task.parts)
    fit: list[_Fit] = []
    written: list[FileFacts] = []
    units: list[UnitFacts] = []
    for group in groups:
        reason = _unfit(connection, group, task)
        if reason is not None:
            refused = inputs.conflicts(group, task.shape.columns)
            failures.extend(inputs.failure(part, refused or reason, rewritable=refused is None) for part in group.parts)
            continue
        footers = _footers(connection, group, task.shape.columns)
        misplaced = _misplaced(connection, group, task)
        digests, unreadable = _digests(connection, group, task)
        failures.extend(unreadable)
        for part in group.parts:
            rows, hidden = footers[part.input.uri]
            obstacle = misplaced.get(part.input.uri) or hidden
            if obstacle is None:
                fit.append(_Fit(part=part, rows=rows, digest=digests.get(part.input.uri)))
            else:
                failures.append(inputs.failure(part, obstacle, rewritable=True))
    unsynced = files.sync_files([one.path for one in fit if one.rows])
    for one in fit:
        if one.path in unsynced:
            failures.append(inputs.failure(one.part, unsynced[one.path]))
            continue
        try:
            if one.rows:
                written.append(_link(one, task, folder / f"{len(written):06d}.parquet"))
        except StorageFailedError as error:
            failures.append(inputs.failure(one.part, error))
        else:
            units.append(UnitFacts(unit_id=one.part.unit_id, rows=one.rows, digest=one.digest))
    failures.extend(inputs.changed(task.parts))
    return TaskResult(number=task.number, files=tuple(written), units=tuple(units), failures=tuple(failures))


def _unfit(connection: duckdb.DuckDBPyConnection, group: Group, task: Task) -> str | None:
    """Return why no file of the group can be adopted, judged by their common schema."""
    first = group.parts[0].input
    if first.format is not Format.PARQUET:
        return f"a {first.format} file is not Parquet"
    if first.lake_file is not None and group.obstacle is not None:
        return group.obstacle
    keys_in_path = tuple(sql.fold(key) for key in first.hive_keys)
    if first.lake_file is None:
        if any(key.is_transform for key in task.shape.partition_by):
            return "the table is partitioned by transforms, and only folders of a lake are trusted to represent them"
        if keys_in_path != tuple(sql.fold(key.column) for key in task.shape.partition_by):
            return "its folders do not have exactly the table's partition keys"
    have = {sql.fold(name): types.normal(kind) for name, kind in group.columns}
    keys = set(keys_in_path)
    want = {sql.fold(column.name): column for column in task.shape.columns}
    if not set(have) <= set(want):
        return f"the table has no column {', '.join(sorted(set(have) - set(want)))}"
    for key, column in want.items():
        if not column.nullable and types.parse(column.type).id in ("list", "struct", "map"):
            return f"column {column.name!r} is nested and must not be NULL, which its footer does not show"
        if key not in have:
            if not _may_lack(column):
                return f"column {column.name!r} is missing, which DuckLake's statistics would not show"
        elif key not in keys and have[key] != types.normal(column.type):
            return f"column {column.name!r} is {have[key]}, not {column.type}"
    return _odd_layout(connection, first)


def _may_lack(column: Column) -> bool:
    """Return whether DuckLake correctly reads a file that lacks the column.

    It does if the column has an initial value, or has no bounds. If there are bounds from files
    that have the column, DuckLake would assume that it contains no NULL, and IS NULL would miss the
    rows.
    """
    if column.default is not None:
        return column.initial is not None and column.default == sql.literal(column.initial)
    return column.nullable and column.unbounded


def _odd_layout(connection: duckdb.DuckDBPyConnection, first: Input) -> str | None:
    """Return a layout that DuckDB reads correctly but DuckLake does not once it is registered."""
    rows = connection.execute(_LAYOUT.format(inputs.paths([first]))).fetchall()
    left_out = {sql.fold(name) for name in first.without}
    for at, (name, kind, repetition, _, logical) in enumerate(rows):
        if sql.fold(name) in left_out:
            return f"it has its own column {name!r} in addition to the one in its path"
        if kind == "INT96":
            return f"column {name!r} contains INT96 timestamps"
        if _FOREIGN.search(logical or ""):
            return f"column {name!r} is stored as {logical}, which no file of a lake is"
        standard = name in ("list", "key_value") and at > 0 and rows[at - 1][3] in ("LIST", "MAP", "MAP_KEY_VALUE")
        if repetition == "REPEATED" and not standard:
            return f"its list {name!r} is not in the standard layout"
        if repetition == "REPEATED" and name == "list" and rows[at + 1][0] != "element":
            return f"its list of {rows[at + 1][0]!r} is not in the standard layout"
    return None


_LAYOUT = "SELECT name, type, repetition_type, converted_type, logical_type FROM parquet_schema({})"
# DuckDB reads these as TIME and FLOAT, and DuckLake refuses to register them as such.
_FOREIGN = re.compile(r"Float16Type|TimeType.*MILLIS=M")


def _misplaced(connection: duckdb.DuckDBPyConnection, group: Group, task: Task) -> dict[str, str]:
    """Return files, by uri, with folder values that DuckLake would misread, and the reason."""
    keys = {sql.fold(key) for key in group.parts[0].input.hive_keys}
    if not keys:
        return {}
    uris = [part.input.uri for part in group.parts]
    found = {uri: "its path contains text that DuckLake would replace" for uri in uris if has_token(uri)}
    values = {uri: _values_in_path(uri, keys) for uri in uris}
    for column in task.shape.columns:
        key = sql.fold(column.name)
        if key in keys:
            wrong = _no_values(connection, {each[key] for each in values.values()}, column.type)
            reasons = {text: f"its folder is {key}={text}, which is not a {column.type}" for text in wrong}
            found |= {uri: reasons[each[key]] for uri, each in values.items() if each[key] in wrong}
    return found


def _no_values(connection: duckdb.DuckDBPyConnection, texts: Iterable[str], kind: str) -> set[str]:
    """Return the texts, as written in a path, that cannot be read as a value of that type."""
    meant = {text: unquote(text) for text in texts}
    listed = sql.literals(sorted(set(meant.values()) - {_NO_VALUE}))
    query = f"SELECT text FROM (SELECT unnest({listed}::VARCHAR[]) AS text) WHERE TRY_CAST(text AS {kind}) IS NULL"
    wrong = {text for (text,) in connection.execute(query).fetchall()}
    return {text for text, value in meant.items() if value in wrong}


def _footers(
    connection: duckdb.DuckDBPyConnection, group: Group, columns: Sequence[Column]
) -> dict[str, tuple[int, str | None]]:
    """Return each file's row count, by uri, and why its statistics rule out adoption, if so."""
    uris = inputs.paths(part.input for part in group.parts)
    required = sql.literals(sql.fold(column.name) for column in columns if not column.nullable)
    found = connection.execute(
        _FOOTERS.format(uris=uris, required=required, folded=sql.folded("path_in_schema"))
    ).fetchall()
    return {uri: (int(rows), _hidden(*suspects)) for uri, rows, *suspects in found}


def _hidden(null: str | None, token: str | None, nan: str | None, old: str | None, bare: str | None) -> str | None:
    """Return why the statistics rule out adoption; each argument is a column with that problem."""
    if null is not None:
        return f"column {null!r} may contain NULL and must not"
    if token is not None:
        return f"the statistics of column {token!r} contain text that DuckLake would replace"
    if nan is not None:
        return f"the statistics of column {nan!r} may hide NaN"
    if old is not None:
        return f"the statistics of column {old!r} are in the old format, which orders text wrongly"
    if bare is not None:
        return f"column {bare!r} has no statistics, which would make DuckLake discard those of the table"
    return None


# DuckDB omits a column's minimum and maximum if it contains NaN. Other writers ignore NaN in them,
# and DuckLake would then skip the file for a filter that NaN matches.
_FOOTERS = """
SELECT file_name,
       any_value(num_rows),
       any_value(path_in_schema) FILTER (
           list_contains({required}::VARCHAR[], {folded}) AND coalesce(stats_null_count, 1) > 0
       ),
       any_value(path_in_schema) FILTER (
           type = 'BYTE_ARRAY' AND regexp_matches(
               concat_ws(' ', stats_min_value, stats_max_value, stats_min, stats_max), '\\{{[A-Z_]+\\}}'
           )
       ),
       any_value(path_in_schema) FILTER (
           type IN ('FLOAT', 'DOUBLE') AND coalesce(created_by, '') NOT LIKE 'DuckDB%'
           AND coalesce(stats_max_value, stats_max) IS NOT NULL
       ),
       any_value(path_in_schema) FILTER (
           type = 'BYTE_ARRAY' AND stats_max IS NOT NULL AND coalesce(created_by, '') NOT LIKE 'DuckDB%'
           AND stats_max_value IS NULL
       ),
       any_value(path_in_schema) FILTER (
           type NOT IN ('FLOAT', 'DOUBLE') AND coalesce(stats_max_value, stats_max) IS NULL
           AND coalesce(stats_null_count, 0) < num_values
       )
FROM parquet_file_metadata({uris}) LEFT JOIN parquet_metadata({uris}) USING (file_name)
GROUP BY file_name
"""


def _digests(
    connection: duckdb.DuckDBPyConnection, group: Group, task: Task
) -> tuple[dict[str, str], list[UnitFailure]]:
    """Return each file's digest, by uri, if the job requests it; unreadable files are failures."""
    if not task.digest:
        return {}, []
    try:
        return inputs.digests(connection, [group], task.shape.columns), []
    except duckdb.Error as error:
        if len(group.parts) == 1:
            return {}, [inputs.failure(group.parts[0], error)]
    digests: dict[str, str] = {}
    failures: list[UnitFailure] = []
    for part in group.parts:
        found, unreadable = _digests(connection, Group(parts=(part,), columns=group.columns), task)
        digests |= found
        failures += unreadable
    return digests, failures


def _link(fit: _Fit, task: Task, target: Path) -> FileFacts:
    files.link_or_copy(fit.path, target, is_synced=True)
    return FileFacts(
        path=str(target),
        place=_place(fit.part.input, [key.column for key in task.shape.partition_by]),
        rows=fit.rows,
        bytes=target.stat().st_size,
        digest=fit.digest,
        unit_ids=(fit.part.unit_id,),
    )


def _place(source: Input, keys: Sequence[str]) -> str:
    if source.lake_file is not None:
        return source.lake_file.place
    if not keys:
        return "."
    wanted = {sql.fold(key): key for key in keys}
    values = _values_in_path(source.uri, wanted)
    # DuckLake splits a folder's name at every equals sign.
    return str(PurePath(*(f"{key}={values[low].replace('=', '%3D')}" for low, key in wanted.items())))


def _values_in_path(uri: str, keys: Container[str]) -> dict[str, str]:
    """Return the values of these keys in the folder names, as written there."""
    pairs = (segment.partition("=") for segment in PurePath(uri).parts[:-1])
    return {sql.fold(key): value for key, equals, value in pairs if equals and sql.fold(key) in keys}
