"""Import planning: determines every table, leaf, problem and size, without side effects."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb

from catchment.errors import InputError
from catchment.foundation import ids, sql
from catchment.foundation.ids import DEFAULT_SCHEMA, ProducerId, TableId
from catchment.foundation.text import plural
from catchment.lake import Table, extensions, types
from catchment.lake.tables import PartitionKey
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import ImportPhase
from catchment.pipeline.legacy.survey import BadFile, Survey
from catchment.pipeline.legacy.table_columns import ColumnDrift, TableColumns, decide_columns
from catchment.pipeline.legacy.tree import TABLE_KEY, TAILPIPE_KEYS, Leaf, Stray, Tree, tables_of
from catchment.pipeline.legacy.views import LegacyView
from catchment.pipeline.plan import Unit, mode_for
from catchment.pipeline.work import Input, Mode

KIND = "legacy"
# Rough speeds of one core, for an estimate of the duration.
_REWRITE_BYTES_PER_S = 60_000_000
_READ_BYTES_PER_S = 150_000_000
_FILE_S = 0.004
_START_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import. `keys` are the folders' keys with types; `table` is for all leaves."""

    mode: Mode = Mode.AUTO
    schema: str = DEFAULT_SCHEMA
    partition_by: tuple[str, ...] | None = None
    keys: tuple[Column, ...] = TAILPIPE_KEYS
    table: str | None = None
    quarantine: bool = False
    digests: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """The import into one table: `leaves` to import, and `blocked` leaves with the reasons.

    `leaves` have only files to import. `insert_reason` is why rows must be inserted, if they must.
    `late` columns are added once the leaf of `starts_with` is in the table. DuckLake keeps no
    bounds for a column that is added to a table with files, and only then can files that lack it be
    adopted.
    """

    id: TableId
    leaves: tuple[Leaf, ...]
    blocked: Mapping[str, str]
    columns: tuple[Column, ...]
    added: tuple[Column, ...]
    partition_by: tuple[str, ...]
    exists: bool
    findings: tuple[ColumnDrift, ...]
    rows: Mapping[str, int]
    mode: Mode
    adopt_bytes_min: int
    insert_reason: str | None = None
    late: tuple[Column, ...] = ()
    starts_with: tuple[Leaf, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(leaf.bytes for leaf in self.leaves)

    @property
    def files(self) -> int:
        return sum(len(leaf.files) for leaf in self.leaves)

    @property
    def row_count(self) -> int:
        return sum(self.rows.get(leaf.path, 0) for leaf in self.leaves)

    def mode_of(self, leaf: Leaf) -> Mode:
        """Return how to import the leaf: adopted if its files are large or cannot be coalesced."""
        if self.mode is not Mode.AUTO:
            return self.mode
        if leaf.keys != self.partition_by:
            return Mode.REWRITE
        alone = len(leaf.files) == 1
        large = all(each.bytes >= self.adopt_bytes_min for each in leaf.files)
        return Mode.ADOPT if alone or large else Mode.REWRITE

    @property
    def adopted(self) -> tuple[Leaf, ...]:
        """Leaves to adopt; others are rewritten, and so are leaves that turn out not to fit."""
        return tuple(leaf for leaf in self.leaves if self.mode_of(leaf) is Mode.ADOPT)

    def without(self, leaves: Container[str]) -> "TablePlan":
        """Return a copy without the leaves of these paths."""
        return replace(
            self,
            leaves=tuple(leaf for leaf in self.leaves if leaf.path not in leaves),
            starts_with=tuple(leaf for leaf in self.starts_with if leaf.path not in leaves),
        )

    def unit(self, root: Path, leaf: Leaf) -> Unit:
        """Return the leaf as a unit; its id depends on its files, not on the tree's folder."""
        return Unit(
            id=unit_id(self.id, leaf),
            source=leaf.path,
            inputs=inputs_of(root, leaf),
            prefers=self.mode_of(leaf),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyPlan:
    """An import as it would run now, and everything that prevents it."""

    phase: ImportPhase
    tables: tuple[TablePlan, ...]
    empty: tuple[str, ...]
    strays: tuple[Stray, ...]
    bad: tuple[BadFile, ...]
    quarantined: Mapping[str, tuple[str, ...]]
    views_without_data: tuple[str, ...]
    leaves_moved: int = 0
    disk_needed_bytes: int = 0
    disk_free_bytes: int = 0
    seconds: float = 0.0
    refusals: tuple[str, ...] = ()
    # Every leaf that was seen, so that a run can check whether the tree is still the planned one.
    seen: tuple[Leaf, ...] = ()

    @property
    def leaves(self) -> int:
        return sum(len(table.leaves) for table in self.tables)

    def may_be_unreadable(self, leaf: str) -> bool:
        """Return whether a leaf was left out for an unreadable file, or failed when it was read."""
        blocked = any(leaf in table.blocked for table in self.tables)
        return not blocked or any(each.leaf == leaf for each in self.bad)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that needs attention, as sentences."""
        return tuple(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from self.refusals
        for bad in self.bad:
            quarantined = bad.name in self.quarantined.get(bad.leaf, ())
            yield f"{bad.leaf}/{bad.name}: {bad.reason}" + (
                " It will be quarantined in the backup." if quarantined else ""
            )
        for table in self.tables:
            for leaf, reason in table.blocked.items():
                yield f"{leaf} cannot be imported: {reason}."
        for stray in self.strays:
            yield f"{stray.path} stays in the backup and is not imported: {stray.reason}."
        for view in self.views_without_data:
            yield f"The view {view} has no data."
        if self.leaves_moved:
            moved = plural(self.leaves_moved, "leaf", "leaves")
            yield f"{moved} moved before a move was interrupted: a run imports them too."

    def explain(self) -> Iterator[str]:
        """Yield the plan as sentences for the operator."""
        size = sum(table.bytes for table in self.tables) / 1e6
        files = sum(table.files for table in self.tables)
        rows = sum(table.row_count for table in self.tables)
        yield (
            f"{plural(self.leaves, 'leaf', 'leaves')} with {plural(files, 'file')}, "
            f"{plural(rows, 'row')} and {size:,.1f} MB, into {plural(len(self.tables), 'table')}."
        )
        for table in self.tables:
            yield from _explain_table(table)
        if self.empty:
            yield f"{plural(len(self.empty), 'leaf', 'leaves')} without a Parquet file, kept in the backup."
        yield (
            f"Disk: {self.disk_needed_bytes / 1e6:,.1f} MB needed, {self.disk_free_bytes / 1e6:,.1f} MB free. "
            f"About {self.seconds:,.0f} s."
        )


def _explain_table(table: TablePlan) -> Iterator[str]:
    adopted = len(table.adopted)
    state = "exists" if table.exists else "is created"
    by = f", partitioned by {', '.join(table.partition_by)}" if table.partition_by else ""
    how = f"{adopted:,} to be adopted, {len(table.leaves) - adopted:,} to be rewritten."
    if table.mode is Mode.INSERT:
        how = f"{len(table.leaves):,} to be inserted, because {table.insert_reason}."
    leaves = plural(len(table.leaves), "leaf", "leaves")
    yield f"{table.id} {state}{by}: {leaves}, {plural(table.row_count, 'row')}; {how}"
    if table.exists and table.added:
        yield f"  added: {', '.join(f'{column.name} {column.type}' for column in table.added)}"
    for finding in table.findings:
        many = finding.files != 1
        facts = (
            ("lack" if many else "lacks", finding.missing),
            ("have more" if many else "has more", finding.extra),
            ("widen" if many else "widens", finding.widened),
        )
        for verb, names in facts:
            if names:
                yield f"  {plural(finding.files, 'file')} {verb}: {', '.join(names)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFacts:
    """Input of the plan. `views` is None for a tree that no database describes.

    `above` are keys in the names of the folders that contain the tree. `moved` are leaves that an
    interrupted move has already taken into `migrating/`. `encrypted` is whether the lake is.
    """

    phase: ImportPhase
    tree: Tree
    views: tuple[LegacyView, ...] | None
    surveys: Mapping[str, Survey]
    existing: Mapping[str, Table]
    adopt_bytes_min: int
    quarantined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    above: tuple[str, ...] = ()
    moved: tuple[Leaf, ...] = ()
    encrypted: bool = False


def plan(facts: TreeFacts, options: ImportOptions) -> LegacyPlan:
    """Decide everything that can be decided before the first file is moved."""
    bad = tuple(each for survey in facts.surveys.values() for each in survey.bad)
    quarantined = {leaf: tuple(names) for leaf, names in facts.quarantined.items()}
    if options.quarantine:
        for each in bad:
            quarantined[each.leaf] = tuple(dict.fromkeys((*quarantined.get(each.leaf, ()), each.name)))
    by_table = tables_of(facts.tree.leaves)
    expected = {view.name: view.columns for view in facts.views or ()}
    return LegacyPlan(
        phase=facts.phase,
        tables=tuple(
            _plan_table(name, leaves, expected.get(name), facts, options, quarantined)
            for name, leaves in by_table.items()
        ),
        empty=facts.tree.empty,
        strays=facts.tree.strays,
        bad=bad,
        quarantined=quarantined,
        views_without_data=_without_data(expected, facts) if facts.phase is ImportPhase.READY else (),
        leaves_moved=len(facts.moved),
        seen=facts.tree.leaves,
    )


def _without_data(views: Iterable[str], facts: TreeFacts) -> tuple[str, ...]:
    return tuple(sorted(set(views) - {leaf.table for leaf in (*facts.tree.leaves, *facts.moved)}))


def unit_id(table: TableId, leaf: Leaf) -> str:
    """Return the unit's id; the same leaf with the same files always has the same id."""
    facts = [str(fact) for each in leaf.files for fact in (each.name, each.bytes, each.modified_ns)]
    return ids.unit_id(KIND, str(table), leaf.path, *facts)


def inputs_of(root: Path, leaf: Leaf) -> tuple[Input, ...]:
    """Return the leaf's files as inputs."""
    own = {sql.fold(key) for key in leaf.keys}
    # Keys of folders above the leaf's key folders, such as the table's, are not columns of its
    # files.
    above = keys_of(root / leaf.path)
    return tuple(
        Input(
            uri=str(root / leaf.path / each.name),
            bytes=each.bytes,
            modified_ns=each.modified_ns,
            hive_keys=leaf.keys,
            without=tuple(key for key in above if sql.fold(key) not in own),
        )
        for each in leaf.files
    )


def keys_of(path: Path) -> tuple[str, ...]:
    """Return the keys in the names of the path's folders."""
    return tuple(part.partition("=")[0] for part in path.parts if "=" in part)


def producer_of(table: TableId) -> ProducerId:
    """Return the producer under which the ledger records a table's leaves."""
    return ProducerId(KIND, str(table), "1")


def without_files(leaf: Leaf, names: Sequence[str]) -> Leaf:
    """Return the leaf without quarantined files."""
    return replace(leaf, files=tuple(each for each in leaf.files if each.name not in names))


def bytes_adopted(tables: Sequence[TablePlan]) -> int:
    """Return how many bytes are linked into the lake; the rest is rewritten."""
    return sum(leaf.bytes for table in tables for leaf in table.adopted)


def seconds_estimate(tables: Sequence[TablePlan], *, parallelism: int, digests: bool) -> float:
    """Estimate how long the import takes."""
    adopted = bytes_adopted(tables)
    rewritten = sum(table.bytes for table in tables) - adopted
    work = rewritten / _REWRITE_BYTES_PER_S + (adopted / _READ_BYTES_PER_S if digests else 0.0)
    return _START_S + work / parallelism + sum(table.files for table in tables) * _FILE_S


def _plan_table(
    name: str,
    leaves: Sequence[Leaf],
    view: tuple[Column, ...] | None,
    facts: TreeFacts,
    options: ImportOptions,
    quarantined: Mapping[str, tuple[str, ...]],
) -> TablePlan:
    existing = facts.existing.get(name)
    survey = facts.surveys[name]
    keys = _key_columns(existing, options.keys)
    expected = tuple(_expected(name, view or (), keys))
    settled = decide_columns(
        expected,
        survey.shapes,
        keys=(*(key.name for key in keys), TABLE_KEY),
        table=None if existing is None else existing.columns,
    )
    blocked = dict(_hidden(leaves, survey, facts.above)) | _blocked(leaves, settled, survey, keys, quarantined)
    blocked |= {leaf.path: leaf.doubt for leaf in leaves if leaf.doubt is not None}
    refusal = _refusal(name, existing, options) if existing is not None else None
    if refusal is not None:
        blocked = {leaf.path: refusal for leaf in leaves}
    wanted = (without_files(leaf, quarantined.get(leaf.path, ())) for leaf in leaves)
    partition_by = _partition_by(name, settled.columns, keys, existing, options)
    mode, insert_reason = mode_for(
        Table(
            id=TableId(options.schema, name),
            uuid="",
            folder="",
            columns=settled.columns,
            partition_by=existing.partition_by if existing else tuple(PartitionKey(column=key) for key in partition_by),
            encrypted=facts.encrypted,
        ),
        options.mode,
    )
    planned = TablePlan(
        id=TableId(options.schema, name),
        leaves=tuple(leaf for leaf in wanted if leaf.files and leaf.path not in blocked),
        blocked=blocked,
        columns=settled.columns,
        added=settled.added,
        partition_by=partition_by,
        exists=existing is not None,
        findings=settled.findings,
        rows=survey.rows_by_leaf(),
        mode=mode,
        adopt_bytes_min=facts.adopt_bytes_min,
        insert_reason=insert_reason,
    )
    return planned if planned.exists else _with_late_columns(planned, survey)


def _refusal(name: str, table: Table, options: ImportOptions) -> str | None:
    """Return why nothing can be imported into an existing table, or None."""
    own = next((column for column in table.columns if sql.fold(column.name) == TABLE_KEY), None)
    if options.table is None and own is not None and own.default != sql.literal(name):
        return f"the table's column {own.name} has no default {sql.literal(name)}, and would be NULL"
    return None


def _with_late_columns(planned: TablePlan, survey: Survey) -> TablePlan:
    """Return the plan with columns that files to be adopted lack marked as late."""
    adopted = planned.adopted
    keys = {sql.fold(key) for leaf in adopted[:1] for key in leaf.keys}
    plain = (column for column in planned.columns if column.default is None and column.nullable)
    optional = {sql.fold(column.name): column for column in plain if sql.fold(column.name) not in keys}
    columns_by_leaf: dict[str, set[str]] = {leaf.path: set() for leaf in adopted}
    missing: set[str] = set()
    for shape in survey.shapes:
        names = {sql.fold(column.name) for column in shape.columns}
        for leaf in shape.leaves:
            if leaf in columns_by_leaf:
                columns_by_leaf[leaf] |= names
                missing |= optional.keys() - names
    if not missing:
        return planned
    first = max(adopted, key=lambda leaf: len(missing - columns_by_leaf[leaf.path]))
    late = tuple(column for name, column in optional.items() if name in missing - columns_by_leaf[first.path])
    return replace(planned, late=late, starts_with=(first,)) if late else planned


def _expected(name: str, view: Sequence[Column], keys: Sequence[Column]) -> Iterator[Column]:
    """Yield the view's columns in order, with the keys' own types, then keys that it lacks."""
    by_name = {sql.fold(key.name): key for key in keys}
    for column in view:
        if sql.fold(column.name) == TABLE_KEY:
            yield replace(column, type="VARCHAR", default=sql.literal(name))
        else:
            yield by_name.pop(sql.fold(column.name), column)
    yield from by_name.values()


def _key_columns(existing: Table | None, keys: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns found in folders, with the type that an existing table gives them.

    Not the view's type: it is guessed from the values, and an index of digits would lose its
    leading zeros.
    """
    known = {sql.fold(column.name): column for column in (existing.columns if existing else ())}
    return tuple(known.get(sql.fold(key.name), key) for key in keys)


def _partition_by(
    name: str, columns: Sequence[Column], keys: Sequence[Column], existing: Table | None, options: ImportOptions
) -> tuple[str, ...]:
    if existing is not None:
        return tuple(key.column for key in existing.partition_by)
    if options.partition_by is None:
        return tuple(key.name for key in keys)
    known = {sql.fold(column.name): column.name for column in columns}
    missing = [key for key in options.partition_by if sql.fold(key) not in known]
    if missing:
        raise InputError(
            f"{name} has no column {', '.join(missing)} to partition by.",
            hint="Change --partition-by, or leave it out.",
        )
    return tuple(known[sql.fold(key)] for key in options.partition_by)


def _blocked(
    leaves: Sequence[Leaf],
    settled: TableColumns,
    survey: Survey,
    keys: Sequence[Column],
    quarantined: Mapping[str, tuple[str, ...]],
) -> dict[str, str]:
    """Return the leaves that cannot be imported as they are, with the reason."""
    blocked = settled.conflicts()
    for bad in survey.bad:
        if bad.name not in quarantined.get(bad.leaf, ()):
            blocked.setdefault(bad.leaf, f"its file {bad.name} cannot be read (--quarantine imports the others)")
    for at, key in enumerate(keys):
        refused = _uncastable({leaf.values[at] for leaf in leaves}, key)
        for leaf in leaves:
            if leaf.values[at] in refused:
                blocked.setdefault(leaf.path, f"{leaf.values[at]!r} is not exactly a {key.type}, which {key.name} is")
    return blocked


def _hidden(leaves: Sequence[Leaf], survey: Survey, above: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield leaves for which DuckDB would read a wrong key value from a folder above the tree."""
    keys = {sql.fold(key): key for key in above}
    reason = "a folder above the tree is named {}=…, which would replace its own values: move the tree"
    for leaf in leaves:
        yield from ((leaf.path, reason.format(key)) for name, key in keys.items() if name in map(sql.fold, leaf.keys))
    for shape in survey.shapes:
        names = {sql.fold(column.name) for column in shape.columns}
        yield from ((leaf, reason.format(key)) for name, key in keys.items() if name in names for leaf in shape.leaves)


def _uncastable(values: set[str | None], key: Column) -> frozenset[str]:
    texts = sorted(value for value in values if value is not None)
    if not texts or key.type == "VARCHAR":
        return frozenset()
    # A cast that rounds would merge leaves: the value must be the same in a more precise type.
    kind = types.parse(key.type).id
    wider = "TIMESTAMP" if kind == "date" else "DECIMAL(38,12)" if "int" in kind or kind == "decimal" else key.type
    query = (
        f"SELECT v FROM unnest({sql.literals(texts)}) t(v) "
        f"WHERE TRY_CAST(v AS {key.type}) IS NULL OR TRY_CAST(v AS {wider}) <> TRY_CAST(v AS {key.type})"
    )
    try:
        with extensions.scratch() as connection:
            return frozenset(row[0] for row in connection.execute(query).fetchall())
    except duckdb.Error as error:
        raise InputError(f"Key {key.name} has type {key.type}: {error}") from None
