"""What migrations are tested against: the content that a database must have, as dictionaries, and a
developer who edits scripts, chooses options and writes the open parts.

Nothing of the product's reading of scripts and structures is used here: it is what is on trial.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from catchment.schema.models import TableRow

Value = str | int | float | bytes | None
TABLES = ("users", "posts", "tags", "notes")
COLUMNS = ("a", "b", "order", "Größe")
# What each kind of field is in Python, what it is declared as, a default, and values that people
# put in.
KINDS: dict[str, tuple[Any, str, Any, tuple[Value, ...]]] = {
    "text": (str, "TEXT", "it's", ("abc", "12", "007", "1.5", "", "two\r\nlines", "é" * 300)),
    "integer": (int, "INTEGER", 7, (0, 12, -1, 2**62)),
    "real": (float, "REAL", 0.5, (0.5, 12.0, 0.1 + 0.2, 1e300)),
    "blob": (bytes, "BLOB", b"\x00\xff", (b"", b"\x00'", b"12" * 200)),
    "bool": (bool, "BOOL", True, (0, 1)),
    "moment": (datetime, "DATETIME", None, ("2026-01-02 03:04:05", "2026")),
    "json": (list[int], "JSON", [1], ("[1, 2]", "12")),
}
SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
NAME = r'"([^"]+)"'
SAID = re.compile(
    rf"^(?:ALTER TABLE {NAME} RENAME COLUMN {NAME} TO {NAME}|ALTER TABLE {NAME} RENAME TO {NAME}|"
    rf"ALTER TABLE {NAME} DROP COLUMN {NAME}|DROP TABLE {NAME}|-- The values of (\S+)\.(\S+) go\.|"
    r"-- by hand: (\w+) (\w+) (\S+) (\S+))",
    re.MULTILINE,
)
FIRST_BY_HAND = """\
-- by hand: check no_zero users id
CREATE TABLE "users" (
    id INTEGER PRIMARY KEY CHECK (id > 0), -- Catchment has no word for this,
    "a" TEXT COLLATE NOCASE /* nor for this */
);
"""
# At the start of a line only: an option that was not chosen may contain another one after `-- `.
UNDECIDED = re.compile(r"^-- undecided:", re.MULTILINE)
OPTION = re.compile(r"^-- \[\d+\] ")
LEFT = re.compile(r"^((?:-- )+)(.+) cannot be changed by a generated script\. (.*)$", re.MULTILINE)
IN_QUOTES = re.compile(r'(\S+) has "([^"]+)" in quotes, which')


@dataclass(frozen=True)
class Field:
    """A field of a model: its kind, or the table that it refers to."""

    kind: str
    nullable: bool = True
    has_default: bool = False
    target: str | None = None

    @property
    def declared(self) -> str:
        return f"{self.target.capitalize()}_ID" if self.target else KINDS[self.kind][1]

    @property
    def annotation(self) -> Any:
        if self.target:
            return self.target.capitalize() + (" | None" if self.nullable else "")
        return KINDS[self.kind][0] | None if self.nullable else KINDS[self.kind][0]

    @property
    def default(self) -> Any:
        return KINDS[self.kind][2] if self.has_default else None


Models = dict[str, dict[str, Field]]


@dataclass
class Held:
    """Expected content: rows by table and id, applied scripts, and objects made by hand."""

    rows: dict[str, dict[int, dict[str, Value]]] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    by_hand: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def run(self, text: str) -> None:
        """Apply the drops and renames of a script to the expected rows."""
        self.ran.append(text)
        for said in SAID.finditer(text):
            column_of, old, new, table, name, of, dropped, gone, lost_of, lost, kind, thing, on, what = said.groups()
            if column_of:
                self._move_column(column_of, old, new)
            elif table and not table.startswith("_new_"):
                self.rows[name] = self.rows.pop(table, {})
                self.by_hand = {k: (v[0], name if v[1] == table else v[1], v[2]) for k, v in self.by_hand.items()}
            elif of or lost_of:
                self._drop_column(of or lost_of, dropped or lost)
            elif gone and f'CREATE TABLE "_new_{gone}"' not in text:
                self.rows.pop(gone, None)
                self.by_hand = {k: v for k, v in self.by_hand.items() if v[1] != gone}
            elif kind == "forget":
                self.by_hand.pop(thing, None)
            elif kind:
                self.by_hand[thing] = (kind, on, what)

    def _move_column(self, table: str, old: str, new: str) -> None:
        if old != new:
            for row in self.rows.get(table, {}).values():
                if old in row:
                    row[new] = row.pop(old)
            self.by_hand = {k: (v[0], v[1], new if v[1:] == (table, old) else v[2]) for k, v in self.by_hand.items()}

    def _drop_column(self, table: str, column: str) -> None:
        for row in self.rows.get(table, {}).values():
            row.pop(column, None)
        self.by_hand = {k: v for k, v in self.by_hand.items() if v != ("index", table, column)}


def classes(models: Models) -> list[type[TableRow]]:
    """The models as classes."""
    found = []
    for table, fields in models.items():
        annotations = {name: each.annotation for name, each in fields.items()}
        values = {name: each.default for name, each in fields.items() if each.default is not None}
        body = {"__tablename__": table, "__annotations__": annotations, "__module__": __name__, **values}
        found.append(type(table.capitalize(), (TableRow,), body))
    return found


def mismatches(connection: sqlite3.Connection, held: Held) -> Iterator[str]:
    """In what the database is not what it must be."""
    there = tables_of(connection)
    for table in TABLES:
        rows = held.rows.get(table, {})
        found = rows_of(connection, table) if table in there else {}
        if rows.keys() != found.keys():
            yield f"{table} has the rows {[*found]}, not {[*rows]}"
            continue
        for key, row in rows.items():
            for column, value in row.items():
                if column not in found[key] or not _is_same(value, found[key][column]):
                    yield f"{table}.{column} of {key} is {found[key].get(column, 'gone')!r}, was {value!r}"
    schema = {name: (kind, table, text) for kind, name, table, text in connection.execute(SCHEMA)}
    for name, (kind, table, column) in held.by_hand.items():
        if kind == "check":
            if "CHECK (id > 0)" not in schema[table][2]:
                yield f"{table} has lost what was written by hand"
        elif name not in schema or (kind != "view" and schema[name][1] != table):
            yield f"{name} of {table} is gone"
        elif kind == "view" and not _is_told(connection, name, table, column):
            yield f"{name} does not tell {table}.{column}"
        elif kind == "trigger" and f'SELECT old."{column}"' not in schema[name][2]:
            yield f"{name} does not read {table}.{column}"
    yield from (f"integrity: {text}" for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok")
    yield from (f"foreign key: {row}" for row in connection.execute("PRAGMA foreign_key_check"))


def _is_told(connection: sqlite3.Connection, view: str, table: str, column: str) -> bool:
    """Whether a view has the values of the column, and no text that only spells its name."""
    rows = rows_of(connection, table)
    told = dict(connection.execute(f'SELECT * FROM "{view}"').fetchall())
    return told.keys() == rows.keys() and all(column in row and told[key] == row[column] for key, row in rows.items())


def columns_of(connection: sqlite3.Connection, table: str) -> list[tuple[str, str, int, str | None]]:
    """Name, type, whether it must have a value, and default of every column but `id`."""
    query = """SELECT name, type, "notnull", dflt_value FROM pragma_table_info(?) WHERE name <> 'id'"""
    return connection.execute(query, [table]).fetchall()


def tables_of(connection: sqlite3.Connection) -> list[str]:
    """The tables, without the record of what ran."""
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return sorted(found - {"_migrations"})


def rows_of(connection: sqlite3.Connection, table: str) -> dict[int, dict[str, Value]]:
    """The rows of a table, by id."""
    cursor = connection.execute(f'SELECT * FROM "{table}"')
    names = [each[0] for each in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor]
    return {row["id"]: row for row in found}


def targets_of(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """The table that each column refers to."""
    query = """SELECT "from", "table" FROM pragma_foreign_key_list(?)"""
    return dict(connection.execute(query, [table]).fetchall())


def _is_same(was: Value, now: Value) -> bool:
    """Whether a value equals the inserted one, also after a conversion such as 12 to '12'."""
    if isinstance(was, str) and isinstance(now, int | float):
        return was in (str(now), str(int(now)) if now == int(now) else "")
    if isinstance(was, int | float) and isinstance(now, str):
        return float(now) == was
    return now == was and isinstance(now, bytes) == isinstance(was, bytes)


def is_as(connection: sqlite3.Connection, models: Models) -> bool:
    """Whether the tables are what the models say."""
    if tables_of(connection) != sorted(models):
        return False
    for table, fields in models.items():
        columns = {name: rest for name, *rest in columns_of(connection, table)}
        targets = {name: each.target for name, each in fields.items() if each.target}
        if columns.keys() != fields.keys() or targets_of(connection, table) != targets:
            return False
        for name, each in fields.items():
            declared, is_needed, default = columns[name]
            if (declared, bool(is_needed)) != (each.declared, not each.nullable):
                return False
            wanted = json.dumps(each.default) if isinstance(each.default, list) else each.default
            if wanted is not None and connection.execute(f"SELECT {default or 'NULL'}").fetchone()[0] != wanted:
                return False
    return True


def plain(path: Path) -> str:
    """The text of a script, as it is recorded."""
    lines = path.read_bytes().decode().replace("\r\n", "\n").rstrip("\n").split("\n")
    while lines[0].startswith("-- catchment-check:"):
        del lines[0]
    return "\n".join(lines) + "\n"


def number_of(path: Path) -> int:
    """The number in a script's name; 0 where there is none."""
    return int(path.name[:3]) if path.name[:3].isdigit() else 0


def is_open(text: str) -> bool:
    """Whether the script leaves something to decide."""
    return UNDECIDED.search(text) is not None


def decided(text: str, choose: Callable[[int], int]) -> str:
    """The script with one option of each choice taken, by number; what is left to a person stays."""
    return "\n\n".join(_taken(block, choose) for block in text.rstrip("\n").split("\n\n")) + "\n"


def _taken(block: str, choose: Callable[[int], int]) -> str:
    lines = block.split("\n")
    options = sum(OPTION.match(line) is not None for line in lines)
    if not is_open(lines[0]) or not options:
        return block
    chosen, option = choose(options), 0
    taken: list[str] = []
    for line in lines[1:]:
        if OPTION.match(line):
            option += 1
        elif option == chosen:
            line = line.removeprefix("--").removeprefix(" ")
        taken.append(line)
    return "\n".join(taken).rstrip("\n")


def left_to_people(text: str, *, depth_max: int = 2) -> list[tuple[str, str, str]]:
    """Table, view and column of each change that the script leaves to a person, in options too:
    none has other reasons.

    A `depth_max` of 1 is without those in options that were not chosen.
    """
    found: list[tuple[str, str, str]] = []
    for marks, table, reason in LEFT.findall(text):
        why = IN_QUOTES.match(reason)
        assert why is not None, reason
        if marks.count("--") <= depth_max:
            found.append((table, *why.groups()))
    return found


def forgetting(connection: sqlite3.Connection, text: str) -> str:
    """Replace a script with open decisions: drop the views that are in the way."""
    left = left_to_people(text, depth_max=1)
    views = sorted({view for table, _, column in left for view in views_of(connection, table, column)})
    return "".join(f'-- by hand: forget {view} - -\nDROP VIEW "{view}";\n' for view in views) or "SELECT 1;\n"


def made_by_hand(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Kind and name of what was made by hand, in tables that are there or not."""
    return [*connection.execute("SELECT type, name FROM sqlite_schema WHERE name LIKE 'by_hand%'")]


def views_of(connection: sqlite3.Connection, table: str, column: str) -> list[str]:
    """The views that were made by hand of that column."""
    query = "SELECT name FROM sqlite_schema WHERE type = 'view' AND instr(sql, ?)"
    return [name for (name,) in connection.execute(query, [f', "{column}" FROM "{table}"'])]
