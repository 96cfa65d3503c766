"""Random changes of tables between writes: the queue agrees with tables that had no queue.

Every table has a twin in a second lake, which is plain DuckLake. The twin gets each row at the
moment at which the queue acknowledges it, and each change of the table at the moment at which the
table gets it: from this process, or from another one that knows nothing of Catchment. Then the
table, read with what is buffered, has the columns and the rows of its twin at any time, and has
them in the lake after a flush.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest
from duckdb.sqltypes import DuckDBPyType
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from pydantic import SecretStr

from catchment.errors import InputError, LakeUnavailableError, TableMissingError
from catchment.foundation import faults
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import types
from catchment.testing import EmbeddedPostgres
from tests.queue.plain_ducklake import PlainProcess, connect
from tests.queue.queues import LAYOUTS_ON_DISK, Killed, QueueScene, assert_audited, die
from tests.shortcuts.made_lakes import put_lake

NAMES = ("t", "u", "T")
COLUMN_NAMES = ("a", "b", "c", "d", "A")
FIELD_NAMES = ("i", "j", "k", "I")
LEAVES = ("SMALLINT", "INTEGER", "VARCHAR", "FLOAT", "DATE", "DECIMAL(9,2)", "BOOLEAN")
NESTED = (
    "STRUCT(i INTEGER, j VARCHAR)",
    "STRUCT(i INTEGER, j SMALLINT)[]",
    "MAP(VARCHAR, STRUCT(i INTEGER, j VARCHAR))",
    "STRUCT(i STRUCT(j INTEGER, k VARCHAR), k INTEGER[])",
)
WIDER = (("INTEGER", "BIGINT"), ("SMALLINT", "INTEGER"), ("FLOAT", "DOUBLE"), ("DATE", "TIMESTAMP"))
COLUMNS_MAX = 5
# In a statement: the table, or its twin.
TABLE = "<table>"
SESSIONS = st.sampled_from(["one", "two"])
# Where a flush is killed: before the lake has the rows, and after it has them but the buffer does
# not know.
POINTS = st.sampled_from(
    ["deliver.before_commit", "deliver.after_commit", "queue.after_settle", "queue.before_retire", "queue.after_retire"]
)
# Whether this process makes a change, or another one does.
OWN = st.booleans()

Columns = list[tuple[str, DuckDBPyType]]
Answer = tuple[list[tuple[str, str]], list[str]]


class SchemaMachine(RuleBasedStateMachine):
    """One queue with a few names, the tables that have them, and their twins."""

    layout: ClassVar[str]
    catalog: ClassVar[str] = "sqlite"
    plain: ClassVar[PlainProcess | None] = None
    postgres: ClassVar[EmbeddedPostgres | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="catchment-machine-"))
        # One for each: an error inside DuckDB would end those of the next example, too.
        self.oracle = connect()
        self.numbers = count()
        # The twins of the tables, by the names that the tables have now.
        self.twins: dict[str, str] = {}
        # Tables that were written to since the last change: writers need not ask the lake for
        # those.
        self.current: set[str] = set()
        self.stranded = 0

    @initialize()
    def start(self) -> None:
        url = f"{self.catalog}:{self.home / 'catalog'}"
        if self.postgres is not None:
            url = f"postgres:{self.postgres.new_database()}"
        values: dict[str, Any] = {
            "home": self.home,
            "lake_catalog": SecretStr(url),
            "queue_layout": self.layout,
            "queue_flush_chunk_rows": 3,
            "queue_schema_check_seconds": 0,
        }
        settings = Settings(**values)
        put_lake(settings)
        self.queue = QueueScene(self.layout, settings)
        twins = self.home / "twins"
        self.oracle.execute(f"ATTACH 'ducklake:{twins}' AS twins (DATA_PATH '{twins}.data')")
        if self.plain is not None:
            kind, _, place = url.partition(":")
            attach = f"ATTACH 'ducklake:{kind}:{place}' AS lake (DATA_PATH '{settings.data_path}/')"
            assert self.plain.run(attach) is None
        self._create("CREATE TABLE", "t", "a INTEGER, b STRUCT(i INTEGER, j VARCHAR), c VARCHAR DEFAULT 'c'", own=True)

    # Rows.

    @rule(session=SESSIONS, away=st.booleans(), data=st.data())
    def enqueue(self, session: str, away: bool, data: st.DataObject) -> None:
        """Rows with some of the columns, some of which are NULL."""
        name = data.draw(st.sampled_from(NAMES))
        if name not in self.twins:
            with pytest.raises(TableMissingError):
                self.queue.coordinator.enqueue(TableId("main", name), self.oracle.sql("SELECT 1 AS a").to_arrow_table())
            return
        query, names = data.draw(self._rows(self._columns(name)))
        rows = self.oracle.execute(query).to_arrow_table()
        refused = self._on_twin(name, f"INSERT INTO {TABLE} ({names}) {query}")
        # Without the lake rows are bound to what was known last, which is right if the table is
        # still that.
        self.queue.lake.down = away and name in self.current
        try:
            self.queue.coordinator.enqueue(TableId("main", name), rows, session=session)
            self.current.add(name)
            taken = "taken"
        except (InputError, LakeUnavailableError) as error:
            taken = f"refused: {error}"
        finally:
            self.queue.lake.down = False
        assert (taken == "taken") == (refused is None), f"{taken} by the queue; by the twin: {refused}"

    @precondition(lambda self: self.twins)
    @rule(own=OWN, data=st.data())
    def insert_past_the_queue(self, own: bool, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.twins)))
        query, names = data.draw(self._rows(self._columns(name)))
        self._alter(name, f"INSERT INTO {TABLE} ({names}) {query}", own=own)

    # Changes of columns.

    @precondition(lambda self: self.twins)
    @rule(own=OWN, data=st.data())
    def change_columns(self, own: bool, data: st.DataObject) -> None:
        name, columns = data.draw(self._table())
        column, new = data.draw(st.sampled_from(columns))[0], data.draw(st.sampled_from(COLUMN_NAMES))
        leaf = data.draw(st.sampled_from(LEAVES))
        default = data.draw(_value(types.parse(leaf), nulls=False))
        changes = [f"RENAME COLUMN {column} TO {new}", f"DROP COLUMN {column}"]
        if len(columns) < COLUMNS_MAX:
            changes += [
                f"ADD COLUMN {new} {leaf}",
                f"ADD COLUMN {new} {leaf} DEFAULT {default}",
                f"ADD COLUMN {new} {data.draw(st.sampled_from(NESTED))}",
            ]
        self._alter(name, f"ALTER TABLE {TABLE} {data.draw(st.sampled_from(changes))}", own=own)

    @precondition(lambda self: self.twins)
    @rule(own=OWN, data=st.data())
    def change_what_columns_take(self, own: bool, data: st.DataObject) -> None:
        name, columns = data.draw(self._table())
        column, kind = data.draw(st.sampled_from(columns))
        changes = ["DROP DEFAULT", "SET NOT NULL", "DROP NOT NULL"]
        if not _inner(kind):
            changes.append(f"SET DEFAULT {data.draw(_value(kind))}")
        changes += [f"SET DATA TYPE {str(kind).replace(*each)}" for each in WIDER if each[0] in str(kind)]
        change = data.draw(st.sampled_from(changes))
        undo = f"ALTER TABLE {TABLE} ALTER COLUMN {column} DROP NOT NULL" if change == "SET NOT NULL" else None
        self._alter(name, f"ALTER TABLE {TABLE} ALTER COLUMN {column} {change}", own=own, undo=undo)

    @precondition(lambda self: self.twins)
    @rule(own=OWN, data=st.data())
    def exchange_two_names(self, own: bool, data: st.DataObject) -> None:
        name, columns = data.draw(self._table())
        one, other = data.draw(st.sampled_from(columns))[0], data.draw(st.sampled_from(columns))[0]
        if one != other:
            for old, new in ((one, "x"), (other, one), ("x", other)):
                self._alter(name, f"ALTER TABLE {TABLE} RENAME COLUMN {old} TO {new}", own=own)

    @precondition(lambda self: self.twins)
    @rule(own=OWN, data=st.data())
    def change_fields(self, own: bool, data: st.DataObject) -> None:
        """Of a struct, wherever it is."""
        name, columns = data.draw(self._table())
        structs = [each for column, kind in columns for each in _structs(column, kind)]
        if not structs:
            return
        path, fields = data.draw(st.sampled_from(structs))
        field, new = data.draw(st.sampled_from(fields)), data.draw(st.sampled_from(FIELD_NAMES))
        leaf = data.draw(st.sampled_from(LEAVES))
        default = data.draw(_value(types.parse(leaf), nulls=False))
        changes = [f"RENAME COLUMN {path}.{field} TO {new}", f"ADD COLUMN {path}.{new} {leaf}"]
        if len(fields) > 1:
            changes.append(f"DROP COLUMN {path}.{field}")
        changes.append(f"ADD COLUMN {path}.{new} {leaf} DEFAULT {default}")
        self._alter(name, f"ALTER TABLE {TABLE} {data.draw(st.sampled_from(changes))}", own=own)

    @precondition(lambda self: self.twins)
    @rule(own=OWN, data=st.data())
    def arrange_files(self, own: bool, data: st.DataObject) -> None:
        name, columns = data.draw(self._table())
        by = data.draw(st.sampled_from(columns))[0]
        changes = [f"SET PARTITIONED BY ({by})", "RESET PARTITIONED BY", f"SET SORTED BY ({by})", "RESET SORTED BY"]
        self._alter(name, f"ALTER TABLE {TABLE} {data.draw(st.sampled_from(changes))}", own=own)

    # Changes of tables.

    @precondition(lambda self: self.twins)
    @rule(own=OWN, data=st.data())
    def rename_a_table(self, own: bool, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.twins)))
        new = data.draw(st.sampled_from(NAMES))
        if new == name or (new.lower() in map(str.lower, self.twins) and new.lower() != name.lower()):
            return
        self._on_lake(name, f"ALTER TABLE {TABLE} RENAME TO {new}", own=own)
        self.twins[new] = self.twins.pop(name)

    @precondition(lambda self: self.twins)
    @rule(own=OWN, data=st.data())
    def drop_a_table(self, own: bool, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.twins)))
        self._strand(name)
        self._on_lake(name, f"DROP TABLE {TABLE}", own=own)

    @rule(own=OWN, data=st.data())
    def create_a_table(self, own: bool, data: st.DataObject) -> None:
        """Under a name that is free, or in place of the table that has it."""
        name = data.draw(st.sampled_from(NAMES))
        kinds = data.draw(st.lists(st.sampled_from((*LEAVES, *NESTED)), min_size=1, max_size=3))
        columns = ", ".join(f"{column} {kind}" for column, kind in zip(COLUMN_NAMES, kinds, strict=False))
        same = [each for each in self.twins if each.lower() == name.lower()]
        for each in same:
            self._strand(each)
        self._create("CREATE OR REPLACE TABLE" if same else "CREATE TABLE", name, columns, own=own)

    # What the queue does with its rows.

    @rule()
    def flush(self) -> None:
        report = self.queue.coordinator.force_flush_all()
        assert sum(each.stranded for each in report.tables) == self.stranded
        assert sum(each.buried for each in report.tables) == 0
        assert sum(state.rows for state in self.queue.buffer.tables()) == self.stranded
        for name in self.twins:
            assert self._lake_rows(name) == self._twin_rows(name)
        self.read()

    @rule()
    def read(self) -> None:
        for name in self.twins:
            table = TableId("main", name)
            with self.queue.coordinator.fresh(table) as fresh:
                assert _answer(fresh.connection, fresh.queries[table]) == self._twin_rows(name)

    @rule(session=SESSIONS)
    def end_a_session(self, session: str) -> None:
        self.queue.coordinator.end_session(session)

    @rule(start_again=st.sampled_from([QueueScene.reopen, QueueScene.crash]))
    def restart(self, start_again: Callable[[QueueScene], None]) -> None:
        start_again(self.queue)

    @rule(point=POINTS)
    def crash_during_a_flush(self, point: str) -> None:
        try:
            with faults.armed(point, die):
                self.queue.coordinator.force_flush_all()
        except Killed:
            self.queue.crash()

    def teardown(self) -> None:
        try:
            if hasattr(self, "queue"):
                self.flush()
                assert_audited(self.queue)
                self.queue.close()
        finally:
            self.oracle.close()
            if self.plain is not None:
                self.plain.run("DETACH DATABASE IF EXISTS lake")
            shutil.rmtree(self.home, ignore_errors=True)

    # Table and twin.

    def _alter(self, name: str, statement: str, *, own: bool, undo: str | None = None) -> None:
        """Change both; what the twin refuses is not done."""
        if self._on_twin(name, statement) is not None:
            return
        try:
            self._on_lake(name, statement, own=own)
        except (duckdb.Error, InputError):
            # DuckLake goes by what it knows of a table's rows, which may all be in the buffer.
            if undo is None:
                raise
            assert self._on_twin(name, undo) is None

    def _create(self, create: str, name: str, columns: str, *, own: bool) -> None:
        self._on_lake(name, f"{create} {TABLE} ({columns})", own=own)
        self.twins[name] = f"twins.twin{next(self.numbers)}"
        assert self._on_twin(name, f"CREATE TABLE {TABLE} ({columns})") is None

    def _on_twin(self, name: str, statement: str) -> str | None:
        try:
            self.oracle.execute(statement.replace(TABLE, self.twins[name]))
        except (duckdb.InternalException, duckdb.FatalException):
            raise
        except duckdb.Error as error:
            with suppress(duckdb.TransactionException):
                # Some of DuckLake's errors leave the transaction open that the statement was on its
                # own in.
                self.oracle.execute("ROLLBACK")
            return str(error)
        return None

    def _on_lake(self, name: str, statement: str, *, own: bool) -> None:
        self.current.clear()
        if own or self.plain is None:
            self.queue.sql(statement.replace(TABLE, f"main.{name}"))
            return
        error = self.plain.run(statement.replace(TABLE, f"lake.main.{name}"))
        if error is not None:
            raise duckdb.Error(error)
        # What was asked at the same moment may be from before the change.
        self.queue.clock.advance(0.001)

    def _strand(self, name: str) -> None:
        """The table is about to go: what the lake does not have of it by then never gets there."""
        twin = self.twins.pop(name)
        with self.queue.lake.cursor() as cursor:
            self.stranded += _number(self.oracle, twin) - _number(cursor, f"main.{name}")

    def _columns(self, name: str) -> Columns:
        found = self.oracle.execute(f"DESCRIBE {self.twins[name]}").fetchall()
        return [(column, types.parse(kind)) for column, kind, *_ in found]

    def _table(self) -> st.SearchStrategy[tuple[str, Columns]]:
        return st.sampled_from(sorted(self.twins)).map(lambda name: (name, self._columns(name)))

    def _rows(self, columns: Columns) -> st.SearchStrategy[tuple[str, str]]:
        """A query that gives rows with some of the columns, and the columns' names."""
        return st.lists(st.sampled_from(columns), min_size=1, unique_by=lambda each: each[0]).flatmap(
            lambda some: st.lists(_row(some), min_size=1, max_size=4).map(
                lambda rows: (" UNION ALL ".join(rows), ", ".join(name for name, _ in some))
            )
        )

    def _twin_rows(self, name: str) -> Answer:
        return _answer(self.oracle, f"FROM {self.twins[name]}")

    def _lake_rows(self, name: str) -> Answer:
        with self.queue.lake.cursor() as cursor:
            return _answer(cursor, f"FROM main.{name}")


def _row(columns: Columns) -> st.SearchStrategy[str]:
    return st.tuples(*(_value(kind) for _, kind in columns)).map(
        lambda values: (
            "SELECT "
            + ", ".join(
                f"CAST({value} AS {kind}) AS {name}" for value, (name, kind) in zip(values, columns, strict=True)
            )
        )
    )


def _value(kind: DuckDBPyType, *, nulls: bool = True) -> st.SearchStrategy[str]:
    """A value of the type, as SQL; NULL now and then, at every depth."""
    number = st.integers(0, 9)
    inner = _inner(kind)
    match kind.id:
        case "struct":
            names = [name for name, _ in inner]
            found = st.tuples(*(_value(each) for _, each in inner)).map(
                lambda parts: f"{{{', '.join(f'{name}: {part}' for name, part in zip(names, parts, strict=True))}}}"
            )
        case "list":
            found = st.lists(_value(inner[0][1]), max_size=2).map(lambda parts: f"[{', '.join(parts)}]")
        case "map":
            found = st.lists(_value(inner[1][1]), max_size=2).map(
                lambda parts: f"MAP {{{', '.join(f'{at}: {part}' for at, part in enumerate(parts))}}}"
            )
        case "varchar":
            found = number.map(lambda each: f"'it''s {each}'")
        case "date" | "timestamp":
            found = number.map(lambda each: f"'2024-01-1{each}'")
        case "boolean":
            found = st.sampled_from(["true", "false"])
        case _:
            found = number.map(str)
    return st.just("NULL") | found if nulls else found


def _inner(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    return types.children(kind) if kind.id in ("struct", "list", "map") else []


def _structs(path: str, kind: DuckDBPyType) -> Iterator[tuple[str, list[str]]]:
    """The structs in a column with the names of their fields, by what ALTER TABLE calls them."""
    inner = _inner(kind)
    names = ["element"] if kind.id == "list" else [name for name, _ in inner]
    if kind.id == "struct":
        yield path, names
    for name, (_, each) in zip(names, inner, strict=True):
        yield from _structs(f"{path}.{name}", each)


def _answer(connection: duckdb.DuckDBPyConnection, query: str) -> Answer:
    """The columns of a query, and its rows in an order of their own."""
    cursor = connection.execute(query)
    columns: Sequence[Any] = cursor.description or ()
    return [(each[0], str(each[1])) for each in columns], sorted(map(repr, cursor.fetchall()))


def _number(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


FEW = settings(
    deadline=None, max_examples=12, stateful_step_count=25, suppress_health_check=list(HealthCheck), database=None
)
ON_DISK = pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)


@pytest.fixture(scope="module")
def plain() -> Iterator[PlainProcess]:
    process = PlainProcess()
    yield process
    process.close()


def _machine(layout: str, catalog: str, **more: Any) -> type[SchemaMachine]:
    return type(f"{layout}_{catalog}", (SchemaMachine,), {"layout": layout, "catalog": catalog, **more})


@ON_DISK
def test_tables_that_change_under_a_queue_agree_with_tables_without_one(layout: str, plain: PlainProcess) -> None:
    run_state_machine_as_test(_machine(layout, "sqlite", plain=plain), settings=FEW)


@pytest.mark.soak
@ON_DISK
def test_tables_that_change_under_a_queue_agree_with_tables_without_one_for_long(
    layout: str, plain: PlainProcess
) -> None:
    many = settings(FEW, max_examples=100, stateful_step_count=50)
    run_state_machine_as_test(_machine(layout, "sqlite", plain=plain), settings=many)


@pytest.mark.soak
def test_tables_of_a_postgres_catalog_that_change_under_a_queue_agree_with_tables_without_one(
    plain: PlainProcess, postgres: EmbeddedPostgres
) -> None:
    machine = _machine("shared", "postgres", plain=plain, postgres=postgres)
    run_state_machine_as_test(machine, settings=FEW)


@pytest.mark.soak
def test_tables_of_a_duckdb_catalog_that_change_under_a_queue_agree_with_tables_without_one() -> None:
    run_state_machine_as_test(_machine("shared", "duckdb"), settings=FEW)
