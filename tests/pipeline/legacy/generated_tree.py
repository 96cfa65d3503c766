"""Generated data in Tailpipe's layout before it had a lake: Parquet in hive folders, and views in a
DuckDB file.

```
<home>/data/[<workspace>/]tailpipe.db
<home>/data/[<workspace>/]tp_table=<t>/tp_partition=<p>/tp_index=<i>/tp_date=<d>/<name>.parquet
```

The hive keys are only in the folders' names. All data is derived from the seed, and every row of a
home has a unique `tp_id`. Oddities of real trees are enabled one by one (`Odd`): each one has
leaves of its own in the first table, which are added after the views were created, like data that
came later.
"""

import glob
import hashlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

import duckdb

from catchment.foundation import sql

DATABASE = "tailpipe.db"
TABLE_KEY = "tp_table"
KEYS = ("tp_partition", "tp_index", "tp_date")
NULL_SEGMENT = "__HIVE_DEFAULT_PARTITION__"

_PARTITIONS = ("prod", "dev")
_INDEXES = 5
_FIRST_DATE = date(2024, 1, 1)
_ODD_ROWS = 20
_CRUMB_FILES = 40
_CRUMB_ROWS = 3
_WRITERS = 2
_SNAP = "snap_20240101120000_000001.parquet"
_TABLE_WITHOUT_VIEW = "half_collected_log"
_VIEW_WITHOUT_DATA = "forgotten_log"


class TreeShape(StrEnum):
    """Columns of a table; both have lists, a list of structs, and a column for each kind of drift."""

    CLOUDTRAIL = "cloudtrail"
    ACCESS_LOG = "access_log"


class Odd(StrEnum):
    """Oddities that a tree may have beside clean leaves; created only on request."""

    # An index of digits that must not be read as a number: 000123456789.
    LEADING_ZEROS = "leading_zeros"
    # Values with slashes, percent signs, spaces, quotes, foreign letters; encoded in some folders,
    # plain in another.
    ENCODED_VALUES = "encoded_values"
    # A leaf whose index is NULL, and one whose date is NULL.
    NULL_VALUES = "null_values"
    # A leaf without files.
    EMPTY_LEAF = "empty_leaf"
    # A file that lacks `tp_usernames`.
    MISSING_COLUMN = "missing_column"
    # A file with `tp_tags`, a list that is in no view.
    EXTRA_COLUMN = "extra_column"
    # A file in which the INTEGER column is a BIGINT, with values that need it.
    WIDER_NUMBER = "wider_number"
    # A file in which the structs of the list have one more field.
    WIDER_ITEMS = "wider_items"
    # A file with its columns in reverse order.
    OTHER_ORDER = "other_order"
    # A file in which the VARCHAR column is a STRUCT: neither converts to the other.
    CONFLICT = "conflict"
    # Texts with place holders, quotes, line ends; NaN and infinity.
    HOSTILE_VALUES = "hostile_values"
    # A Parquet file cut in half, beside a good one.
    TRUNCATED_FILE = "truncated_file"
    # A file of no bytes, beside a good one.
    ZERO_BYTE_FILE = "zero_byte_file"
    # A file of random bytes, beside a good one.
    GARBAGE_FILE = "garbage_file"
    # Leftovers of an interrupted collection or compaction: names that end in .tmp, .invalid,
    # .compacted.
    LEFTOVERS = "leftovers"
    # Leftovers of a compaction that was killed between its renames: all rows are in names that end
    # in .compacted.
    CUT_COMPACTION = "cut_compaction"
    # File names with spaces and quotes, and one that matches another file's name if read as a glob.
    STRANGE_NAMES = "strange_names"
    # A Parquet file of no rows, beside one with rows.
    ZERO_ROWS = "zero_rows"
    # Many files of a few rows in one leaf.
    CRUMBS = "crumbs"
    # A Parquet file directly below the table's folder.
    WRONG_DEPTH = "wrong_depth"
    # A table's folder without a view.
    TABLE_WITHOUT_VIEW = "table_without_view"
    # A view of a folder that does not exist any more.
    VIEW_WITHOUT_DATA = "view_without_data"
    # Views that left the keys' types to DuckDB: an index of digits is a BIGINT there.
    GUESSED_KEYS = "guessed_keys"
    # The last table's view is in `tailpipe.db.wal` only.
    WAL = "wal"


# Oddities whose leaf cannot be imported as it is.
BLOCKING = frozenset({Odd.CONFLICT, Odd.TRUNCATED_FILE, Odd.ZERO_BYTE_FILE, Odd.GARBAGE_FILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyTable:
    """Size of a table without its oddities; it has at least one leaf, file and row."""

    name: str
    shape: TreeShape = TreeShape.CLOUDTRAIL
    leaves: int = 4
    files_per_leaf: int = 1
    rows_per_file: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyLeaf:
    """One folder at the level of the date. `rows` counts Parquet rows; other files are separate."""

    path: str
    table: str
    values: tuple[str | None, ...]
    files: tuple[str, ...] = ()
    rows: int = 0
    odd: Odd | None = None
    unreadable: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyHome:
    """A generated home. Paths are relative to `data`; `values` are those of `KEYS`, decoded."""

    home: Path
    data: Path
    tables: tuple[LegacyTable, ...]
    views: tuple[str, ...]
    leaves: tuple[LegacyLeaf, ...]
    places: Mapping[Odd, tuple[str, ...]]

    @property
    def database(self) -> Path:
        """The DuckDB file with the views."""
        return self.data / DATABASE

    def rows(self, table: str, *, without: frozenset[Odd] = frozenset()) -> int:
        """Return the number of rows in the table's leaves, except leaves with one of these
        oddities.
        """
        return sum(leaf.rows for leaf in self.leaves if leaf.table == table and leaf.odd not in without)


def make_legacy_home(
    home: Path,
    *,
    tables: Sequence[LegacyTable],
    workspace: str = "default",
    seed: int = 0,
    odd: frozenset[Odd] = frozenset(),
) -> LegacyHome:
    """Create a home, whose data folder must not exist; an empty `workspace` omits that level."""
    data = home / "data" / workspace
    data.mkdir(parents=True)
    with duckdb.connect() as connection:
        tree = _Tree(data, connection, seed)
        for table in tables:
            tree.put_table(table)
        tree.write()
        views = _make_views(tree, tables, odd)
        for one in Odd:
            if one in odd and one in _LEAVES:
                _LEAVES[one](tree, tables[0], one)
        tree.write()
        _spoil(tree)
    return LegacyHome(
        home=home,
        data=data,
        tables=tuple(tables),
        views=views,
        leaves=tuple(tree.leaves),
        places={one: tuple(paths) for one, paths in tree.places.items()},
    )


def snapshot_tree(path: Path) -> dict[str, tuple[int, str]]:
    """Return all files below the path with size and SHA-256, and all folders."""
    found: dict[str, tuple[int, str]] = {}
    for folder, folders, names in os.walk(path):
        below = Path(folder)
        found |= {f"{(below / name).relative_to(path)}/": (0, "") for name in folders}
        for name in names:
            with (below / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                found[str((below / name).relative_to(path))] = (file.tell(), digest)
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """A shape's columns: expressions over the row's number `i`, and the names of those that drift."""

    own: Mapping[str, str]
    text: str
    number: str
    real: str
    items: str


# Columns of every table, beside tp_id and the two timestamps, which differ by file.
_COMMON = {
    "tp_source_type": "'aws_s3_bucket'",
    "tp_akas": "['arn:aws:iam::' || (hash(i, {seed}) % 90) || ':user/u' || (hash(i, {seed}) % 500)]",
    "tp_ips": "CASE WHEN i % 7 = 0 THEN [] ELSE ['10.0.' || (hash(i, {seed} + 1) % 256) || '.7', '192.168.0.1'] END",
    "tp_usernames": "CASE WHEN i % 5 > 0 THEN ['u' || (hash(i, {seed}) % 500), NULL] END",
}

_SHAPES = {
    TreeShape.CLOUDTRAIL: _Columns(
        own={
            "event_name": "(['GetObject', 'PutObject', 'AssumeRole'])[1 + (hash(i, {seed} + 2) % 3)::INTEGER]",
            "aws_region": "(['us-east-1', 'eu-west-1', 'ap-south-1'])[1 + (hash(i, {seed} + 3) % 3)::INTEGER]",
            "read_only": "CASE WHEN i % 11 > 0 THEN hash(i, {seed} + 4) % 2 = 0 END",
            "error_message": "CASE WHEN i % 4 = 0 THEN 'denied: ' || md5((hash(i, {seed}) % 5000)::VARCHAR) END",
            "session_seconds": "(hash(i, {seed} + 5) % 43200)::INTEGER",
            "duration_ms": "(hash(i, {seed} + 6) % 1000000) / 1000.0::DOUBLE",
            "user_identity": "{{'type': 'IAMUser', 'account_id': lpad((hash(i, {seed}) % 90)::VARCHAR, 12, '0'), "
            "'session': {{'mfa': i % 3 = 0, 'created': TIMESTAMP '2024-01-01' + to_seconds((i % 86400)::BIGINT)}}}}",
            "resources": "CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN [] ELSE ["
            "{{'arn': 'arn:aws:s3:::bucket-' || (hash(i, {seed}) % 200), 'type': 'AWS::S3::Bucket'}}, "
            "{{'arn': NULL, 'type': 'AWS::S3::Object'}}] END",
            "request_parameters": "('{{\"key\": \"' || hash(i, {seed} + 7) || '\"}}')::JSON",
        },
        text="error_message",
        number="session_seconds",
        real="duration_ms",
        items="resources",
    ),
    TreeShape.ACCESS_LOG: _Columns(
        own={
            "remote_addr": "'10.' || (hash(i, {seed} + 2) % 256) || '.' || (hash(i, {seed} + 3) % 256) || '.9'",
            "method": "(['GET', 'PUT', 'POST', 'DELETE'])[1 + (hash(i, {seed} + 4) % 4)::INTEGER]",
            "path": "'/v1/' || md5((hash(i, {seed}) % 5000)::VARCHAR) || '/items/' || (hash(i, {seed} + 5) % 1000000)",
            "status": "(200 + (hash(i, {seed} + 6) % 5) * 100)::INTEGER",
            "bytes_sent": "(hash(i, {seed} + 7) % 10000000)::BIGINT",
            "user_agent": "CASE WHEN i % 9 > 0 THEN 'agent/' || (hash(i, {seed} + 8) % 300) END",
            "request_seconds": "(hash(i, {seed} + 9) % 1000000) / 1000.0::DOUBLE",
            "upstreams": "[{{'address': '10.1.0.' || (hash(i, {seed}) % 20), 'seconds': (i % 1000) / 100.0::DOUBLE}}]",
        },
        text="user_agent",
        number="status",
        real="request_seconds",
        items="upstreams",
    ),
}

_FILE_OWN = ("tp_id", "tp_timestamp", "tp_ingest_timestamp")

_HOSTILE_TEXTS = (
    "{SNAPSHOT_ID}",
    'it\'s "quoted"',
    "two\nlines\r\n",
    "tab\tand \\ backslash",
    "",
    "NULL",
    "%2F",
    NULL_SEGMENT,
    "naïve ☃ 𝄞",
)

_STRANGE_NAMES = ("with space.parquet", 'it\'s "quoted".parquet', "part[1].parquet", "part1.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A Parquet file to be written into a leaf; `drift` selects from the table's columns."""

    name: str
    rows: int = _ODD_ROWS
    drift: str = "*"


@dataclass(slots=True)
class _Tree:
    """The tree under construction: pending statements, leaves, places of oddities."""

    data: Path
    connection: duckdb.DuckDBPyConnection
    seed: int
    leaves: list[LegacyLeaf] = field(default_factory=list)
    places: dict[Odd, list[str]] = field(default_factory=dict)
    rng: random.Random = field(init=False)
    rows: int = 0
    due: list[str] = field(default_factory=list)
    sources: dict[tuple[TreeShape, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def put_table(self, table: LegacyTable, odd: Odd | None = None) -> None:
        """Add clean leaves, spread over partitions, indexes and days."""
        indexes = [
            f"{self.rng.randrange(10**11, 10**12)}" if table.shape is TreeShape.CLOUDTRAIL else f"web-{n:02d}"
            for n in range(_INDEXES)
        ]
        for n in range(table.leaves):
            day = _FIRST_DATE + timedelta(days=n // (len(_PARTITIONS) * _INDEXES))
            values = (_PARTITIONS[n % 2], indexes[n // 2 % _INDEXES], day.isoformat())
            files = [
                _Wanted(name=f"data_{n:06d}_{file}.parquet", rows=table.rows_per_file)
                for file in range(table.files_per_leaf)
            ]
            self.put_leaf(table, values, files, odd=odd)

    def put_leaf(
        self,
        table: LegacyTable,
        values: tuple[str | None, ...],
        files: Sequence[_Wanted],
        *,
        odd: Odd | None,
        plain: str = "",
    ) -> LegacyLeaf:
        """Add a leaf whose files the next `write` writes; characters in `plain` are not encoded in
        its path.
        """
        keyed = zip(KEYS, values, strict=True)
        path = "/".join((f"{TABLE_KEY}={table.name}", *(f"{key}={_segment(value, plain)}" for key, value in keyed)))
        (self.data / path).mkdir(parents=True)
        self.due += [self._statement(table, wanted, values[-1], f"{path}/{wanted.name}") for wanted in files]
        leaf = LegacyLeaf(
            path=path,
            table=table.name,
            values=values,
            files=tuple(wanted.name for wanted in files),
            rows=sum(min(wanted.rows, table.rows_per_file) for wanted in files),
            odd=odd,
        )
        self.leaves.append(leaf)
        if odd is not None:
            self.mark(odd, path)
        return leaf

    def put_file(self, table: LegacyTable, path: str) -> None:
        """Add a Parquet file outside all leaves."""
        self.due.append(self._statement(table, _Wanted(name=path), None, path))

    def mark(self, odd: Odd, place: str) -> None:
        self.places.setdefault(odd, []).append(place)

    def write(self) -> None:
        """Run the pending statements on several connections: a small file keeps only one core busy."""
        statements, self.due = self.due, []
        connections = [self.connection.cursor() for _ in range(_WRITERS)]
        with ThreadPoolExecutor(_WRITERS) as pool:
            shares = [statements[n::_WRITERS] for n in range(_WRITERS)]
            for _ in pool.map(_run, connections, shares):
                pass
        for connection in connections:
            connection.close()

    def _statement(self, table: LegacyTable, wanted: _Wanted, day: str | None, path: str) -> str:
        source = self._source(table.shape, table.rows_per_file)
        number = _SHAPES[table.shape].number
        midnight = f"TIMESTAMP {sql.literal(day or _FIRST_DATE.isoformat())}"
        first, self.rows = self.rows, self.rows + wanted.rows
        rows = (
            f"SELECT 'c' || lower(to_base({first} + i, 32, 19)) AS tp_id, "
            f"{midnight} + to_milliseconds(at_ms) AS tp_timestamp, {midnight} + INTERVAL 1 DAY AS tp_ingest_timestamp, "
            f"* EXCLUDE (i, at_ms) REPLACE (({number} + {first % 977})::INTEGER AS {number}) "
            f"FROM {source} WHERE i < {wanted.rows}"
        )
        target = sql.literal(str(self.data / path))
        return f"COPY (SELECT {wanted.drift} FROM ({rows})) TO {target} (FORMAT parquet, COMPRESSION snappy)"

    def _source(self, shape: TreeShape, rows: int) -> str:
        """Return the relation of base rows for files of a shape, created once."""
        if (shape, rows) not in self.sources:
            name = sql.identifier(f"{shape}_{rows}")
            columns = ", ".join(
                f"{made.format(seed=self.seed)} AS {column}"
                for column, made in (_COMMON | dict(_SHAPES[shape].own)).items()
            )
            self.connection.execute(
                f"CREATE TABLE {name} AS SELECT i, i * 86399999 // {rows} AS at_ms, {columns} FROM range({rows}) r(i)"
            )
            self.sources[shape, rows] = name
        return self.sources[shape, rows]


def _run(connection: duckdb.DuckDBPyConnection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def _segment(value: str | None, plain: str) -> str:
    if value is None:
        return NULL_SEGMENT
    return "".join(letter if letter in plain else quote(letter, safe="") for letter in value)


def _column_names(shape: TreeShape) -> tuple[str, ...]:
    return (*_FILE_OWN, *_COMMON, *_SHAPES[shape].own)


def _make_views(tree: _Tree, tables: Sequence[LegacyTable], odd: frozenset[Odd]) -> tuple[str, ...]:
    """Create the database while every view's files exist, because DuckDB reads them then."""
    seen = list(tables)
    if Odd.VIEW_WITHOUT_DATA in odd:
        seen.insert(0, LegacyTable(name=_VIEW_WITHOUT_DATA, shape=tables[0].shape, leaves=1))
        tree.mark(Odd.VIEW_WITHOUT_DATA, _VIEW_WITHOUT_DATA)
        _with_passing_data(tree, seen[0])
    statements = [_view(tree.data, table, guessed=Odd.GUESSED_KEYS in odd) for table in seen]
    if Odd.GUESSED_KEYS in odd:
        tree.places[Odd.GUESSED_KEYS] = [table.name for table in seen]
    database, log = tree.data / DATABASE, tree.data / f"{DATABASE}.wal"
    with duckdb.connect(database) as connection:
        _run(connection, [*statements[:-1], "CHECKPOINT", statements[-1]])
        # The state that a killed program leaves; closing would write the log into the database.
        killed = (database.read_bytes(), log.read_bytes())
    if Odd.WAL in odd:
        database.write_bytes(killed[0])
        log.write_bytes(killed[1])
        tree.mark(Odd.WAL, seen[-1].name)
    _remove_passing_data(tree)
    return tuple(table.name for table in seen)


def _view(data: Path, table: LegacyTable, *, guessed: bool) -> str:
    columns = sql.identifiers((*_column_names(table.shape), TABLE_KEY, *KEYS))
    files = sql.literal(f"{glob.escape(str(data))}/{TABLE_KEY}={table.name}/*/*/*/*.parquet")
    types = "{'tp_table': VARCHAR, 'tp_partition': VARCHAR, 'tp_index': VARCHAR, 'tp_date': DATE}"
    source = files if guessed else f"read_parquet({files}, hive_partitioning = true, hive_types = {types})"
    return f"CREATE OR REPLACE VIEW {sql.identifier(table.name)} AS SELECT {columns} FROM {source}"


def _with_passing_data(tree: _Tree, table: LegacyTable) -> None:
    path = f"{TABLE_KEY}={table.name}/tp_partition=p/tp_index=1/tp_date={_FIRST_DATE}"
    (tree.data / path).mkdir(parents=True)
    tree.put_file(table, f"{path}/gone.parquet")
    tree.write()


def _remove_passing_data(tree: _Tree) -> None:
    for folder, _, names in os.walk(tree.data / f"{TABLE_KEY}={_VIEW_WITHOUT_DATA}", topdown=False):
        for name in names:
            (Path(folder) / name).unlink()
        Path(folder).rmdir()


def _values(odd: Odd, index: str | None = "web-00") -> tuple[str | None, ...]:
    return (f"odd_{odd}", index, _FIRST_DATE.isoformat())


def _zeros(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    tree.put_leaf(table, _values(odd, "000123456789"), [_Wanted(name="data.parquet")], odd=odd)


def _encoded(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    spread = (("team/a b", "100%"), ("a=b", "x+y"), ("%2F", 'it\'s "odd"'), ("über", "\t"))
    for partition, index in spread:
        values = (partition, index, _FIRST_DATE.isoformat())
        tree.put_leaf(table, values, [_Wanted(name="data.parquet")], odd=odd)
    plain = ("team a & b", "it's ü+1", _FIRST_DATE.isoformat())
    tree.put_leaf(table, plain, [_Wanted(name="data.parquet")], odd=odd, plain=" &'ü+")


def _nulls(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    tree.put_leaf(table, _values(odd, None), [_Wanted(name="data.parquet")], odd=odd)
    tree.put_leaf(table, (f"odd_{odd}", "web-00", None), [_Wanted(name="data.parquet")], odd=odd)


def _empty(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    tree.put_leaf(table, _values(odd), [], odd=odd)


def _drifted(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    """Add an ordinary file, and one that has drifted."""
    columns = _SHAPES[table.shape]
    at = "row_number() OVER (ORDER BY tp_id)"
    # One past the end of the list is NULL.
    texts = f"{sql.literals(_HOSTILE_TEXTS)}[1 + {at} % {len(_HOSTILE_TEXTS) + 1}]"
    reals = f"coalesce(['NaN', '-Infinity', '-0.0'][1 + {at} % 5]::DOUBLE, {columns.real})"
    drift = {
        Odd.MISSING_COLUMN: "* EXCLUDE (tp_usernames)",
        Odd.EXTRA_COLUMN: "*, ['env:prod', NULL] AS tp_tags",
        Odd.WIDER_NUMBER: f"* REPLACE ({columns.number}::BIGINT + 3000000000 AS {columns.number})",
        Odd.WIDER_ITEMS: f"* REPLACE (list_transform({columns.items}, lambda item: struct_insert(item, note := 'new')) "
        f"AS {columns.items})",
        Odd.OTHER_ORDER: sql.identifiers(reversed(_column_names(table.shape))),
        Odd.CONFLICT: f"* REPLACE ({{'code': 7, 'message': {columns.text}}} AS {columns.text})",
        Odd.HOSTILE_VALUES: f"* REPLACE ({texts} AS {columns.text}, {reals} AS {columns.real})",
    }[odd]
    files = [_Wanted(name="data_0.parquet"), _Wanted(name="data_1.parquet", drift=drift)]
    tree.put_leaf(table, _values(odd), files, odd=odd)


def _strange(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    tree.put_leaf(table, _values(odd), [_Wanted(name=name) for name in _STRANGE_NAMES], odd=odd)


def _zero_rows(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    files = [_Wanted(name="data_0.parquet"), _Wanted(name="data_1.parquet", rows=0)]
    tree.put_leaf(table, _values(odd), files, odd=odd)


def _crumbs(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    files = [_Wanted(name=f"crumb_{n:04d}.parquet", rows=_CRUMB_ROWS) for n in range(_CRUMB_FILES)]
    tree.put_leaf(table, _values(odd), files, odd=odd)


def _to_be_spoiled(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    tree.put_leaf(table, _values(odd), [_Wanted(name="data_0.parquet")], odd=odd)


def _wrong_depth(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    place = f"{TABLE_KEY}={table.name}/stray.parquet"
    tree.put_file(table, place)
    tree.mark(odd, place)


def _without_view(tree: _Tree, table: LegacyTable, odd: Odd) -> None:
    tree.put_table(LegacyTable(name=_TABLE_WITHOUT_VIEW, shape=table.shape, leaves=2, rows_per_file=_ODD_ROWS), odd)


# Oddities in files or folders; the others are in the database, and created with the views.
_LEAVES: Mapping[Odd, Callable[[_Tree, LegacyTable, Odd], None]] = {
    Odd.LEADING_ZEROS: _zeros,
    Odd.ENCODED_VALUES: _encoded,
    Odd.NULL_VALUES: _nulls,
    Odd.EMPTY_LEAF: _empty,
    Odd.MISSING_COLUMN: _drifted,
    Odd.EXTRA_COLUMN: _drifted,
    Odd.WIDER_NUMBER: _drifted,
    Odd.WIDER_ITEMS: _drifted,
    Odd.OTHER_ORDER: _drifted,
    Odd.CONFLICT: _drifted,
    Odd.HOSTILE_VALUES: _drifted,
    Odd.TRUNCATED_FILE: _to_be_spoiled,
    Odd.ZERO_BYTE_FILE: _to_be_spoiled,
    Odd.GARBAGE_FILE: _to_be_spoiled,
    Odd.LEFTOVERS: _to_be_spoiled,
    Odd.CUT_COMPACTION: _to_be_spoiled,
    Odd.STRANGE_NAMES: _strange,
    Odd.ZERO_ROWS: _zero_rows,
    Odd.CRUMBS: _crumbs,
    Odd.WRONG_DEPTH: _wrong_depth,
    Odd.TABLE_WITHOUT_VIEW: _without_view,
}


def _spoil(tree: _Tree) -> None:
    """Write unreadable files and leftovers beside the good files that they are derived from."""
    for n, leaf in enumerate(tree.leaves):
        folder = tree.data / leaf.path
        match leaf.odd:
            case Odd.TRUNCATED_FILE:
                good = (folder / leaf.files[0]).read_bytes()
                tree.leaves[n] = _beside(folder, leaf, good[: len(good) // 2])
            case Odd.ZERO_BYTE_FILE:
                tree.leaves[n] = _beside(folder, leaf, b"")
            case Odd.GARBAGE_FILE:
                tree.leaves[n] = _beside(folder, leaf, tree.rng.randbytes(1000))
            case Odd.LEFTOVERS:
                names = tuple(f"old_{ending}.parquet.{ending}" for ending in ("tmp", "invalid", "compacted"))
                for name in names:
                    (folder / name).write_bytes((folder / leaf.files[0]).read_bytes())
                # Compacted rows are in a file of that name.
                (folder / leaf.files[0]).rename(folder / _SNAP)
                tree.leaves[n] = replace(leaf, files=(_SNAP, *leaf.files[1:]), leftovers=names)
            case Odd.CUT_COMPACTION:
                (folder / f"{_SNAP}.tmp").write_bytes((folder / leaf.files[0]).read_bytes())
                moved = [(folder / name).rename(folder / f"{name}.compacted") for name in leaf.files]
                tree.leaves[n] = replace(leaf, files=tuple(each.name for each in moved), leftovers=(f"{_SNAP}.tmp",))
            case _:
                pass


def _beside(folder: Path, leaf: LegacyLeaf, content: bytes) -> LegacyLeaf:
    name = f"data_{leaf.odd}.parquet"
    (folder / name).write_bytes(content)
    return replace(leaf, unreadable=(name,))
