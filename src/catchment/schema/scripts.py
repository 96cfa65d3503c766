"""Migration scripts: files named `NNN.name.sql`, their contents, and how a folder of them is read."""

import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import ScriptError
from catchment.foundation import sql

# Lines that `check` puts at the top of a diverged file; they are not part of the script.
WARNING = "-- catchment-check:"

_NAME = re.compile(r"([0-9]{3}|[1-9][0-9]{3,8})\.([^/\x00-\x1f\x7f]+)\.sql")
_KEEPS_ROWS = re.compile(r"^-- keeps-rows: *(\S.*?) *$", re.MULTILINE)
_UNDECIDED = re.compile(r"^-- undecided: *(\S.*?) *$", re.MULTILINE)
_BOM = "\ufeff"
_COMMENT = re.compile(r"--[^\n]*")
_IDENTIFIER = r'(?:"(?:[^"]|"")+"|\w+)'
_TABLE_MADE_OR_GONE = re.compile(
    rf"\b(?P<verb>CREATE(?:\s+OR\s+REPLACE)?\s+TABLE|ALTER\s+TABLE|DROP\s+TABLE|RENAME\s+TO)\s+"
    rf"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?(?:{_IDENTIFIER}\.)*(?P<name>{_IDENTIFIER})",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ScriptName:
    """The name of a script's file: a number of at least three digits, and a short description."""

    number: int
    slug: str

    @classmethod
    def parse(cls, filename: str) -> "ScriptName | None":
        """Parse a file name; return None if it is not the name of a script."""
        found = _NAME.fullmatch(filename)
        return cls(number=int(found[1]), slug=found[2]) if found else None

    def __str__(self) -> str:
        return f"{label(self.number)}.{self.slug}.sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptStatement:
    """One statement of a script, and the line on which it starts."""

    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script on disk: `raw` is the file's text, `text` the recorded part, without a warning."""

    name: ScriptName
    raw: str

    @property
    def filename(self) -> str:
        return str(self.name)

    @property
    def number(self) -> int:
        return self.name.number

    @property
    def text(self) -> str:
        return normalised(without_warning(self.raw))

    def statements(self) -> tuple[ScriptStatement, ...]:
        """Return the statements, as SQLite separates them: the body of a trigger stays whole."""
        return tuple(_split(self.text))

    def keeps_rows(self) -> tuple[str, ...]:
        """Return the tables that must keep their number of rows, by its `-- keeps-rows:` lines."""
        return tuple(dict.fromkeys(_KEEPS_ROWS.findall(self.text)))

    def refuse_undecided(self) -> None:
        """Raise ScriptError if the script has an open decision."""
        subjects = undecided_in(self.text)
        if subjects:
            raise ScriptError(
                f"{self.filename} leaves something to decide: {', '.join(subjects)}.",
                hint=f"Choose in {self.filename}: remove the `-- ` before one option, and the line `undecided`.",
                undecided=subjects,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file that has the name of a script and cannot be read as one."""

    name: ScriptName
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Contents of a folder: scripts by number, unreadable files, and files with a wrong name."""

    scripts: tuple[Script, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    misnamed: tuple[str, ...] = ()

    @property
    def numbers(self) -> list[int]:
        """The numbers of all files that have one; a number of two files occurs twice."""
        return [each.name.number for each in self.scripts] + [each.name.number for each in self.unreadable]


def tables_made(texts: Iterable[str]) -> frozenset[str]:
    """Return folded names of tables that scripts created, altered or renamed, and not dropped."""
    found: set[str] = set()
    for text in texts:
        for match in _TABLE_MADE_OR_GONE.finditer(_COMMENT.sub("", text)):
            name = sql.fold(match["name"].strip('"').replace('""', '"'))
            if match["verb"].upper().startswith("DROP"):
                found.discard(name)
            else:
                found.add(name)
    return frozenset(found)


def undecided_in(text: str) -> list[str]:
    """Return the open decisions of a script, which are lines `-- undecided: <subject>`."""
    return list(dict.fromkeys(_UNDECIDED.findall(text)))


def label(number: int) -> str:
    """Return a number as it appears in file names."""
    return f"{number:03d}"


def normalised(text: str) -> str:
    """Return the text with uniform line ends and without a byte order mark."""
    body = text.removeprefix(_BOM).replace("\r\n", "\n").rstrip("\n")
    return f"{body}\n" if body else ""


def without_warning(raw: str) -> str:
    """Return the text without the warning lines at its top."""
    while raw.startswith(WARNING):
        _, _, raw = raw.partition("\n")
    return raw


def with_warning(raw: str, lines: list[str]) -> str:
    """Return the text with these lines as its warning, instead of an existing one."""
    return "".join(f"{WARNING} {line}".rstrip() + "\n" for line in lines) + without_warning(raw)


def read_folder(path: Path) -> Folder:
    """Read all `.sql` files in the folder; a missing folder is empty."""
    found: list[Script | Unreadable] = []
    misnamed: list[str] = []
    for filename in sorted(_sql_files(path)):
        name = ScriptName.parse(filename)
        if name is None:
            misnamed.append(filename)
        else:
            found.append(_read(path / filename, name))
    found.sort(key=lambda each: each.name)
    return Folder(
        scripts=tuple(each for each in found if isinstance(each, Script)),
        unreadable=tuple(each for each in found if isinstance(each, Unreadable)),
        misnamed=tuple(misnamed),
    )


def _sql_files(path: Path) -> Iterator[str]:
    if path.is_dir():
        yield from (each.name for each in path.iterdir() if each.name.lower().endswith(".sql"))


def _read(path: Path, name: ScriptName) -> Script | Unreadable:
    try:
        raw = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return Unreadable(name=name, reason=f"it is not UTF-8 (byte {error.start})")
    except OSError as error:
        return Unreadable(name=name, reason=str(error.strerror))
    if "\x00" in raw:
        return Unreadable(name=name, reason="it contains a NUL character")
    return Script(name=name, raw=raw)


def _split(text: str) -> Iterator[ScriptStatement]:
    start = 0
    while start < len(text):
        end = _end_of_statement(text, start)
        first = past_comments(text, start, end)
        if first < end:
            yield ScriptStatement(text=text[first:end], line=text.count("\n", 0, first) + 1)
        start = end


def _end_of_statement(text: str, start: int) -> int:
    """Return the end of the statement: after the first semicolon that completes it for SQLite."""
    semicolon = text.find(";", start)
    while semicolon >= 0:
        if sqlite3.complete_statement(text[start : semicolon + 1]):
            return semicolon + 1
        semicolon = text.find(";", semicolon + 1)
    return len(text)


def past_comments(text: str, start: int, end: int) -> int:
    """Return the first position that is neither space nor comment nor a lone semicolon."""
    while start < end:
        if text.startswith("--", start):
            newline = text.find("\n", start, end)
            start = end if newline < 0 else newline + 1
        elif text.startswith("/*", start):
            closed = text.find("*/", start + 2, end)
            start = end if closed < 0 else closed + 2
        elif text[start].isspace() or text[start] == ";":
            start += 1
        else:
            return start
    return end
