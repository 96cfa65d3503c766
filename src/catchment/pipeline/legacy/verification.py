"""Verification: compares each leaf's rows in the backup, the ledger's record and the lake.

Rows are compared by number and by a digest that does not depend on their order. No result of the
import itself is trusted: the backup and the lake are both read to the end.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake import Delivery, Lake, Table, digest, extensions
from catchment.pipeline import inputs
from catchment.pipeline.legacy.import_plan import inputs_of, unit_id
from catchment.pipeline.legacy.report import Mismatch
from catchment.pipeline.legacy.tree import Leaf
from catchment.pipeline.work import UnitPart

Keys = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A number of rows, and their digest as a number."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(rows=self.rows + other.rows, digest=(self.digest + other.digest) % (1 << 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A leaf and its root folder; the ledger must have it if `must_be_recorded`."""

    root: Path
    leaf: Leaf
    must_be_recorded: bool = True


def check_table(
    lake: Lake, name: TableId, found: Sequence[Found], *, alone: bool = True
) -> tuple[int, int, list[Mismatch]]:
    """Compare a table with its leaves. Return the numbers of leaves and rows, and mismatches.

    If `alone`, the table has only imported rows. Otherwise each row of a leaf must be in the table
    as often as in the leaf, and there may be others.
    """
    table = lake.find_table(name)
    if table is None:
        missing = Mismatch(table=str(name), leaf="", reason="the lake has no such table")
        return 0, 0, [missing] if any(each.must_be_recorded for each in found) else []
    # By their ids: a leaf may have been imported in two runs, and then two imports have it under
    # the same path.
    by_id = {unit_id(name, each.leaf): each for each in found}
    with lake.ledger() as ledger:
        recorded = ledger.delivered(by_id, table.uuid)
    in_lake = {unit: each.leaf for unit, each in by_id.items() if unit in recorded}
    source, unreadable = _source_sums(table, {unit: each for unit, each in by_id.items() if unit in recorded})
    wrong = {
        unit: "the ledger does not have it"
        for unit, each in by_id.items()
        if each.must_be_recorded and unit not in recorded
    }
    wrong |= unreadable | dict(_against_ledger(source, recorded))
    mismatches = [Mismatch(table=str(name), leaf=by_id[unit].leaf.path, reason=why) for unit, why in wrong.items()]
    if alone:
        mismatches += _against_lake(lake, table, in_lake, source)
    else:
        mismatches += _within_lake(lake, table, {unit: each for unit, each in by_id.items() if unit in source})
    return len(in_lake), sum(each.rows for each in source.values()), mismatches


def _source_sums(table: Table, found: Mapping[str, Found]) -> tuple[dict[str, Sum], dict[str, str]]:
    """Return each leaf's sum, read from its files, and the unreadable leaves with reasons."""
    parts = [
        UnitPart(unit_id=unit, input=source)
        for unit, each in found.items()
        for source in inputs_of(each.root, each.leaf)
    ]
    sums: defaultdict[str, Sum] = defaultdict(Sum)
    with extensions.connect() as connection:
        groups, failures = inputs.inspect(connection, parts)
        unreadable = {failure.unit_id: inputs.bare_reason(failure) for failure in failures}
        for group in groups:
            try:
                digests = inputs.digests(connection, [group], table.columns)
            except duckdb.Error as error:
                if len(group.parts) > 1:
                    # One part makes the query fail: reading them one by one shows which.
                    groups.extend(replace(group, parts=(part,)) for part in group.parts)
                else:
                    unreadable[group.parts[0].unit_id] = " ".join(str(error).split())
                continue
            for part, rows in zip(group.parts, inputs.rows(connection, group), strict=True):
                sums[part.unit_id] += Sum(rows=rows, digest=digest.number(digests[part.input.uri]))
    return {unit: each for unit, each in sums.items() if unit not in unreadable}, unreadable


def _against_ledger(source: Mapping[str, Sum], recorded: Mapping[str, Delivery]) -> Iterator[tuple[str, str]]:
    for unit, found in source.items():
        delivery = recorded[unit]
        if delivery.rows != found.rows:
            yield unit, f"the backup has {found.rows} rows, and the ledger recorded {delivery.rows}"
        elif delivery.digest is not None and digest.number(delivery.digest) != found.digest:
            yield unit, f"its {found.rows} rows in the backup are not those that the ledger recorded"


def _against_lake(lake: Lake, table: Table, found: Mapping[str, Leaf], source: Mapping[str, Sum]) -> Iterator[Mismatch]:
    """Compare leaves, by their keys, with the lake's rows of the same keys."""
    names = next((leaf.keys for leaf in found.values()), ())
    lake_sums = _lake_sums(lake, table, names)
    same_keys: defaultdict[Keys, list[str]] = defaultdict(list)
    canonical = _canonical(table, names, (leaf.values for leaf in found.values()))
    for unit, leaf in found.items():
        same_keys[tuple(canonical[at].get(v, v) for at, v in enumerate(leaf.values))].append(unit)
    for keys, ids in same_keys.items():
        lakes = lake_sums.pop(keys, Sum())
        if not all(unit in source for unit in ids):
            continue
        wanted = sum((source[unit] for unit in ids), Sum())
        if lakes != wanted:
            kind = "different ones" if lakes.rows == wanted.rows else f"{lakes.rows}"
            reason = f"the backup has {wanted.rows} rows, and the lake has {kind}"
            paths = dict.fromkeys(found[unit].path for unit in ids)
            yield from (Mismatch(table=str(table.id), leaf=path, reason=reason) for path in paths)
    for keys, lakes in lake_sums.items():
        if lakes.rows:
            named = ", ".join(f"{name}={value}" for name, value in zip(names, keys, strict=True)) or "all of them"
            yield Mismatch(
                table=str(table.id), leaf="", reason=f"the lake has {lakes.rows} rows that are in no leaf: {named}"
            )


def _within_lake(lake: Lake, table: Table, found: Mapping[str, Found]) -> Iterator[Mismatch]:
    """Yield leaves with rows that the lake lacks, or has fewer times than the leaves together."""
    parts = [
        UnitPart(unit_id=unit, input=source)
        for unit, each in found.items()
        for source in inputs_of(each.root, each.leaf)
    ]
    name = sql.qualified(lake.name, table.id.schema, table.id.name)
    row_hash = digest.row_hash(table.columns)
    with lake.snapshot() as connection:
        groups, _ = inputs.inspect(connection, parts)
        if not groups:
            return
        with inputs.relation(connection, groups, table.columns, named=True) as query:
            lacking = connection.execute(
                f"WITH backup AS (SELECT {inputs.URI} AS uri, {row_hash} AS h FROM ({query})), "
                "wanted AS (SELECT h, count(*) AS n, any_value(uri) AS uri FROM backup GROUP BY h), "
                f"there AS (SELECT {row_hash} AS h, count(*) AS n FROM {name} GROUP BY h) "
                "SELECT uri, sum(wanted.n - coalesce(there.n, 0)) FROM wanted LEFT JOIN there USING (h) "
                "WHERE coalesce(there.n, 0) < wanted.n GROUP BY uri"
            ).fetchall()
    leaf_of = {part.input.uri: found[part.unit_id].leaf.path for part in parts}
    missing: defaultdict[str, int] = defaultdict(int)
    for uri, count in lacking:
        missing[leaf_of[uri]] += int(count)
    for leaf, count in missing.items():
        yield Mismatch(table=str(table.id), leaf=leaf, reason=f"{count} of its rows are not in the lake")


def _lake_sums(lake: Lake, table: Table, keys: Sequence[str]) -> dict[Keys, Sum]:
    listed = "".join(f"{sql.identifier(key)}::VARCHAR, " for key in keys)
    name = sql.qualified(lake.name, table.id.schema, table.id.name)
    text = f"SELECT {listed} count(*), {digest.rows_digest(table.columns)} FROM {name} GROUP BY ALL"
    with lake.snapshot() as connection:
        return {tuple(row[:-2]): Sum(rows=row[-2], digest=row[-1]) for row in connection.execute(text).fetchall()}


def _canonical(table: Table, keys: Sequence[str], values: Iterable[Keys]) -> list[dict[str | None, str | None]]:
    """Return, for each key, how the lake spells the values of the folders."""
    columns = {sql.fold(column.name): column for column in table.columns}
    found: list[dict[str | None, str | None]] = []
    with extensions.scratch() as connection:
        for key, texts in zip(keys, zip(*values, strict=True), strict=True):
            known = sql.literals(sorted({text for text in texts if text is not None}))
            kind = columns[sql.fold(key)].type
            query = f"SELECT v, CAST(CAST(v AS {kind}) AS VARCHAR) FROM unnest({known}::VARCHAR[]) t(v)"
            found.append(dict(connection.execute(query).fetchall()))
    return found
