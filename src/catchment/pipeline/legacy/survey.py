"""Reads every file's footer before anything moves: finds unreadable files, and columns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from catchment.lake import extensions
from catchment.lake.types import Column
from catchment.pipeline import inputs
from catchment.pipeline.legacy.tree import Leaf
from catchment.pipeline.work import Input, UnitPart

_FILES_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A file that cannot be read, with the reason."""

    leaf: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShape:
    """Files with the same columns, apart from keys in folders: their leaves and rows."""

    columns: tuple[Column, ...]
    files: tuple[tuple[str, str], ...]
    rows: tuple[int, ...]

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(leaf for leaf, _ in self.files))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Contents of the footers of some leaves."""

    shapes: tuple[FileShape, ...]
    bad: tuple[BadFile, ...]

    def rows_by_leaf(self) -> dict[str, int]:
        """Return the number of rows in each leaf's readable files."""
        found: dict[str, int] = {}
        for shape in self.shapes:
            for (leaf, _), rows in zip(shape.files, shape.rows, strict=True):
                found[leaf] = found.get(leaf, 0) + rows
        return found


def survey(root: Path, leaves: Sequence[Leaf]) -> Survey:
    """Read the footers of all files of the leaves under `root`, a bounded number at a time."""
    shapes: dict[tuple[Column, ...], tuple[list[tuple[str, str]], list[int]]] = {}
    bad: list[BadFile] = []
    with extensions.connect() as connection:
        for parts in _portions(root, leaves):
            groups, failures = inputs.inspect(connection, [part for part, _ in parts])
            names = {part.input.uri: (leaf, Path(part.input.uri).name) for part, leaf in parts}
            for failure in failures:
                leaf, name = names[failure.path]
                bad.append(BadFile(leaf=leaf, name=name, reason=inputs.bare_reason(failure)))
            for group in groups:
                columns = tuple(Column(name=name, type=kind) for name, kind in group.columns)
                files, rows = shapes.setdefault(columns, ([], []))
                files.extend(names[part.input.uri] for part in group.parts)
                rows.extend(inputs.rows(connection, group))
    return Survey(
        shapes=tuple(
            FileShape(columns=columns, files=tuple(files), rows=tuple(rows))
            for columns, (files, rows) in shapes.items()
        ),
        bad=tuple(bad),
    )


def _portions(root: Path, leaves: Iterable[Leaf]) -> Iterator[list[tuple[UnitPart, str]]]:
    portion: list[tuple[UnitPart, str]] = []
    for leaf in leaves:
        for each in leaf.files:
            uri = str(root / leaf.path / each.name)
            portion.append((UnitPart(unit_id=leaf.path, input=Input(uri=uri, bytes=each.bytes)), leaf.path))
        if len(portion) >= _FILES_AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion
