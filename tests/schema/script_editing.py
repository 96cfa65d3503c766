"""Scripts as a developer edits them: choosing options, and writing the open parts."""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

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
