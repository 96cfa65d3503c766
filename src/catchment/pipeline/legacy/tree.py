"""Reads a tree: its leaves, by table and key values, and everything in it that is not a leaf."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from catchment.foundation import files
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import DATABASE, DATABASE_FILES

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
TABLE_KEY = "tp_table"
TAILPIPE_KEYS = (
    Column(name="tp_partition", type="VARCHAR"),
    Column(name="tp_index", type="VARCHAR"),
    Column(name="tp_date", type="DATE"),
)
SUFFIX = ".parquet"
# How Tailpipe compacts a leaf: it copies all its files into snap_*.parquet.tmp, and renames them to
# *.parquet.compacted; renames the copy to snap_*.parquet; and deletes the files. It may have been
# killed between any two of these steps.
COMPACTED = ".parquet.compacted"
_SNAP = "snap_"
_UNSURE = (
    "a compaction by Tailpipe was interrupted, and rows of files *.compacted may or may not be in snap_*.parquet: if "
    "they are, delete snap_*.parquet.tmp, otherwise remove .compacted from the names"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFile:
    """A Parquet file of a leaf, with the facts that distinguish it from another file of that name."""

    name: str
    bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A folder with Parquet files, which is imported whole or not at all.

    `path` is relative to the tree; `values` are those of the keys, decoded, None for NULL. `doubt`
    is why it is unknown which files of the folder belong to the leaf.
    """

    table: str
    path: str
    keys: tuple[str, ...]
    values: tuple[str | None, ...]
    files: tuple[LeafFile, ...]
    doubt: str | None = None

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A file or folder that is kept in the backup and not imported, with the reason."""

    path: str
    reason: str
    bytes: int
    parquet_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Result of a walk: leaves, empty leaf folders, and strays."""

    leaves: tuple[Leaf, ...]
    empty: tuple[str, ...]
    strays: tuple[Stray, ...]

    def of(self, tables: Iterable[str]) -> "Tree":
        """Return the tree with leaves of these tables only; others become strays."""
        known = frozenset(tables)
        unknown: defaultdict[str, list[LeafFile]] = defaultdict(list)
        for leaf in self.leaves:
            if leaf.table not in known:
                levels = len(leaf.keys)
                unknown[str(PurePosixPath(*PurePosixPath(leaf.path).parts[:-levels]))] += leaf.files
        strays = tuple(
            Stray(
                path=path,
                reason="no view describes this table",
                bytes=sum(each.bytes for each in found),
                parquet_files=len(found),
            )
            for path, found in unknown.items()
        )
        return Tree(
            leaves=tuple(leaf for leaf in self.leaves if leaf.table in known),
            empty=self.empty,
            strays=self.strays + strays,
        )


def walk(root: Path, *, keys: Sequence[str], table: str | None = None, workspaces: bool = False) -> Tree:
    """Read the tree under `root`. Its folders start with the table's name, unless `table` is given.

    With `workspaces` they may also be one level deeper, in a folder without its own database.
    """
    levels = tuple(keys) if table is not None else (TABLE_KEY, *keys)
    leaves: list[Leaf] = []
    empty: list[str] = []
    strays: list[Stray] = []
    nested = _workspaces(root) if workspaces else ()
    for folder, folders, names in os.walk(root):
        folders.sort()
        path = PurePosixPath(os.path.relpath(folder, root))
        parts = () if path == PurePosixPath(".") else path.parts
        wanted = (name for name in sorted(names) if parts or name not in DATABASE_FILES)
        found = [file for name in wanted if (file := _file(f"{folder}/{name}", name)) is not None]
        linked = (name for name in folders if os.path.islink(f"{folder}/{name}"))  # noqa: PTH114 - a Path costs as much again
        strays.extend(Stray(path=str(path / name), reason="a link to a folder", bytes=0) for name in linked)
        values = _values(parts, levels)
        if values is None and parts and parts[0] in nested:
            values = _values(parts[1:], levels)
        if values is None:
            strays.extend(_stray(path, each, "it is in no leaf") for each in found)
            continue
        strays.extend(_stray(path, each, "its name is not UTF-8") for each in found if not files.is_text(each.name))
        found = [each for each in found if files.is_text(each.name)]
        parquet, doubt = _parquet(found, compacts=table is None)
        strays.extend(_stray(path, each, "a leftover, not a Parquet file") for each in found if each not in parquet)
        if not parquet:
            empty.append(str(path))
            continue
        named = values if table is not None else values[1:]
        leaves.append(
            Leaf(
                table=table if table is not None else values[0] or NULL_VALUE,
                path=str(path),
                keys=tuple(keys),
                values=named,
                files=parquet,
                doubt=doubt,
            )
        )
    return Tree(leaves=tuple(leaves), empty=tuple(empty), strays=tuple(strays))


def _workspaces(root: Path) -> frozenset[str]:
    folders = (each for each in root.glob("*") if "=" not in each.name and each.is_dir())
    return frozenset(each.name for each in folders if not (each / DATABASE).exists())


def _parquet(found: Sequence[LeafFile], *, compacts: bool) -> tuple[tuple[LeafFile, ...], str | None]:
    """Return a leaf's files, and why they are in doubt, if so; `compacts` for Tailpipe's trees."""
    names = [each.name.lower() for each in found]
    cut_off = compacts and any(name.endswith(COMPACTED) for name in names)
    is_done = cut_off and any(name.startswith(_SNAP) and name.endswith(SUFFIX) for name in names)
    endings = (SUFFIX, COMPACTED) if cut_off and not is_done else (SUFFIX,)
    is_unsure = is_done and any(name.startswith(_SNAP) and name.endswith(f"{SUFFIX}.tmp") for name in names)
    parquet = tuple(each for each, name in zip(found, names, strict=True) if name.endswith(endings))
    return parquet, _UNSURE if is_unsure else None


def tables_of(leaves: Iterable[Leaf]) -> dict[str, list[Leaf]]:
    """Return the leaves by their table, in order."""
    found: defaultdict[str, list[Leaf]] = defaultdict(list)
    for leaf in leaves:
        found[leaf.table].append(leaf)
    return dict(sorted(found.items()))


def _values(parts: Sequence[str], levels: Sequence[str]) -> tuple[str | None, ...] | None:
    """Return the values of the folders' keys, or None if these are not the folders of a leaf."""
    if len(parts) != len(levels) or not all(map(files.is_text, parts)):
        return None
    return tuple(_decoded(parts, levels)) if _matches(parts, levels) else None


def _matches(parts: Sequence[str], levels: Sequence[str]) -> bool:
    return all(part.partition("=")[0] == key and "=" in part for part, key in zip(parts, levels, strict=True))


def _decoded(parts: Iterable[str], levels: Iterable[str]) -> Iterator[str | None]:
    for part, key in zip(parts, levels, strict=True):
        value = part[len(key) + 1 :]
        # DuckDB, which wrote the views and files, reads both texts as NULL.
        yield None if value == NULL_VALUE or value.upper() == "NULL" else unquote(value)


def _file(path: str, name: str) -> LeafFile | None:
    try:
        facts = os.stat(path)  # noqa: PTH116 - for thousands of files, and a Path costs as much again
    except FileNotFoundError:
        try:
            # A broken link is listed like any other file; reading it reports the error.
            facts = os.lstat(path)
        except FileNotFoundError:
            # A process that only reads the status may run while an import moves leaves.
            return None
    return LeafFile(name=name, bytes=facts.st_size, modified_ns=facts.st_mtime_ns)


def _stray(path: PurePosixPath, file: LeafFile, reason: str) -> Stray:
    shown = str(path / file.name).encode("utf-8", "backslashreplace").decode()
    return Stray(path=shown, reason=reason, bytes=file.bytes, parquet_files=int(file.name.lower().endswith(SUFFIX)))
