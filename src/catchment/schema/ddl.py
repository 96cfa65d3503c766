"""The text of a CREATE TABLE statement: parsed into parts, and edited only in those that differ.

A table may have properties that models do not express: CHECK, COLLATE, UNIQUE, AUTOINCREMENT,
STRICT, comments. So a statement is never regenerated from its parsed form. It is cut at the commas
between its columns and constraints, the pieces that change are edited by position, and the rest is
put back character by character. A statement that cannot be parsed is refused.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from catchment.errors import InputError
from catchment.foundation import sql
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Reference

# SQLite's own rules: https://www.sqlite.org/lang_keywords.html,
# https://www.sqlite.org/lang_comment.html.
_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\f\r]+|--[^\n]*|/\*.*?(?:\*/|\Z))
      | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      | (?P<text>[xX]?'(?:[^']|'')*')
      | (?P<number>0[xX][0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_TABLE_CONSTRAINTS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"})
_COLUMN_CONSTRAINTS = frozenset(
    {"CONSTRAINT", "PRIMARY", "NOT", "NULL", "UNIQUE", "CHECK", "DEFAULT", "COLLATE", "REFERENCES", "GENERATED", "AS"}
)


class Aspect(StrEnum):
    """Aspect of a column that can differ."""

    TYPE = "type"
    NULLABILITY = "nullability"
    DEFAULT = "default"
    PRIMARY_KEY = "primary key"
    REFERENCES = "references"
    GENERATED = "generated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnEdit:
    """The wanted form of a column; only the named aspects are changed."""

    column: DeclaredColumn
    aspects: frozenset[Aspect]
    reference: Reference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlToken:
    """A token of SQL text, by kind and position."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The token as a keyword; empty for a quoted name."""
        return self.text.upper() if self.kind in ("word", "sign") else ""

    @property
    def name(self) -> str:
        """The token as a name, without its quotes."""
        if self.kind == "quoted" or self.text.startswith("'"):
            return self.text[1:-1].replace(self.text[-1] * 2, self.text[-1])
        return self.text


def tokens(text: str) -> list[DdlToken]:
    """Return the tokens of SQL text, without spaces and comments."""
    return [
        DdlToken(kind=found.lastgroup or "", text=found[0], start=found.start(), end=found.end())
        for found in _TOKEN.finditer(text)
        if found.lastgroup != "space"
    ]


def mentions(text: str, name: str) -> bool:
    """Return whether SQL text contains the name, bare or in quotes; may be a false positive."""
    wanted = sql.fold(name)
    return any(sql.fold(token.name) == wanted for token in tokens(text) if token.kind not in ("number", "sign"))


def quotes(text: str, name: str) -> bool:
    """Return whether SQL text contains the name in double quotes.

    If there is no such column, SQLite reads it as a text, except after a dot, as in `old."name"`.
    """
    wanted = sql.fold(name)
    found = tokens(text)
    return any(
        token.text.startswith('"') and sql.fold(token.name) == wanted and before.text != "."
        for before, token in pairwise(found)
    )


def column_sql(column: DeclaredColumn, reference: Reference | None = None) -> str:
    """Return the definition of a column."""
    parts = [sql.identifier(column.name)]
    if column.type:
        parts.append(column.type)
    if column.primary_key:
        parts.append("PRIMARY KEY")
    if not column.nullable:
        parts.append("NOT NULL")
    if _has_default(column):
        parts.append(_default_sql(column))
    if reference is not None:
        parts.append(_reference_sql(reference))
    return " ".join(parts)


def create_sql(table: DeclaredTable) -> str:
    """Return the statement that creates the table of a model: each foreign key has one column."""
    references = {reference.columns[0]: reference for reference in table.references}
    columns = ",\n".join(f"    {column_sql(column, references.get(column.name))}" for column in table.columns)
    return f"CREATE TABLE {sql.identifier(table.name)} (\n{columns}\n)"


def has_word(text: str, word: str) -> bool:
    """Return whether SQL text contains the keyword outside quotes and comments."""
    return any(token.word == word for token in tokens(text))


def edited(
    text: str, *, name: str, edits: Sequence[ColumnEdit] = (), added: Sequence[str] = (), dropped: Sequence[str] = ()
) -> str:
    """Return a statement for a table called `name`, with columns changed, added and dropped."""
    head, pieces, tail = _cut(text, name)
    gone = {sql.fold(each) for each in dropped}
    wanted = {sql.fold(edit.column.name): edit for edit in edits}
    moved = {key for key, edit in wanted.items() if Aspect.REFERENCES in edit.aspects}
    kept: list[str] = []
    constraints: list[str] = []
    for piece in pieces:
        first = tokens(piece)[0]
        key = sql.fold(first.name)
        if first.word in _TABLE_CONSTRAINTS:
            constraints += [] if _referring_column(piece) in moved else [piece]
        elif key not in gone:
            kept.append(_edited_column(piece, wanted[key]) if key in wanted else piece)
    if not kept:
        raise InputError("No column is left.")
    kept = _with_added(kept, added, is_last=not constraints)
    return head + ",".join([*kept, *constraints]) + tail


def _with_added(kept: list[str], added: Sequence[str], *, is_last: bool) -> list[str]:
    margin = re.match(r"\s*", kept[-1])
    before = margin[0] if margin and len(kept) > 1 else " "
    end = ""
    if is_last and tokens(kept[-1])[-1].end == len(kept[-1].rstrip()):
        end = kept[-1][len(kept[-1].rstrip()) :]
        kept = [*kept[:-1], kept[-1].rstrip()]
    kept = [*kept, *(before + definition for definition in added)]
    return [*kept[:-1], kept[-1] + end]


def _cut(text: str, name: str) -> tuple[str, list[str], str]:
    """Return the statement up to its first parenthesis, the parts between the commas, and the rest."""
    found = tokens(text)
    opening = next((place for place, token in enumerate(found) if token.text == "("), None)
    if opening is None or opening < 3 or found[0].word != "CREATE" or "AS" in (token.word for token in found[:opening]):
        raise InputError("It is not a CREATE TABLE statement with columns.")
    head = f"CREATE TABLE {sql.identifier(name)} ("
    pieces: list[str] = []
    start, depth = found[opening].end, 0
    for token in found[opening:]:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if (token.text == "," and depth == 1) or depth == 0:
            pieces.append(text[start : token.start])
            start = token.end
        if depth == 0:
            if not all(tokens(piece) for piece in pieces):
                break
            return head, pieces, text[token.start :]
    raise InputError("Its parentheses do not match.")


def _referring_column(piece: str) -> str | None:
    """Return the column that a constraint makes a foreign key, if it is a single column."""
    found = tokens(piece)
    words = [token.word for token in found]
    if "FOREIGN" not in words[:3]:
        return None
    inner = found[words.index("FOREIGN") + 3 : words.index(")")]
    return sql.fold(inner[0].name) if len(inner) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clause:
    kind: str
    start: int
    end: int


def _edited_column(piece: str, edit: ColumnEdit) -> str:
    found = tokens(piece)
    type_end, clauses = _clauses(found)
    replaced: list[tuple[int, int, str]] = []
    appended: list[str] = []
    column = edit.column
    if Aspect.GENERATED in edit.aspects:
        raise InputError(f"{column.name} is computed from other columns.")
    if Aspect.TYPE in edit.aspects:
        replaced.append((found[0].end, type_end, f" {column.type}" if column.type else ""))
    if Aspect.PRIMARY_KEY in edit.aspects:
        if not column.primary_key or any(clause.kind == "PRIMARY" for clause in clauses):
            raise InputError("Its primary key is different.")
        appended.append("PRIMARY KEY")
    if Aspect.NULLABILITY in edit.aspects:
        replaced += _without(piece, clauses, "NOT", "NULL")
        appended += [] if column.nullable else ["NOT NULL"]
    if Aspect.DEFAULT in edit.aspects:
        replaced += _without(piece, clauses, "DEFAULT")
        appended += [_default_sql(column)] if _has_default(column) else []
    if Aspect.REFERENCES in edit.aspects:
        replaced += _without(piece, clauses, "REFERENCES")
        appended += [] if edit.reference is None else [_reference_sql(edit.reference)]
    last = max([type_end, *(clause.end for clause in clauses)])
    replaced.append((last, last, "".join(f" {each}" for each in appended)))
    # From the end to the start, so that positions stay valid; of two edits at one position, the
    # earlier one comes first.
    for start, end, _, text in sorted(((*each[:2], at, each[2]) for at, each in enumerate(replaced)), reverse=True):
        piece = piece[:start] + text + piece[end:]
    return piece


def _without(piece: str, clauses: Sequence[_Clause], *kinds: str) -> Iterator[tuple[int, int, str]]:
    for clause in clauses:
        if clause.kind in kinds:
            # Removed with the blanks before it; the line end stays, because it may end a comment.
            start = len(piece[: clause.start].rstrip(" \t"))
            yield start, clause.end, " " if piece[clause.end : clause.end + 1].strip() else ""


def _clauses(found: list[DdlToken]) -> tuple[int, list[_Clause]]:
    """Return where a column's type ends, and the constraints after it."""
    place = 1
    while place < len(found) and found[place].word not in _COLUMN_CONSTRAINTS:
        place = _after_parentheses(found, place) if found[place].text == "(" else place + 1
    type_end = found[place - 1].end
    clauses: list[_Clause] = []
    while place < len(found):
        start = place
        if found[place].word == "CONSTRAINT":
            place += 2
        kind = found[place].word if place < len(found) else ""
        place = _after_clause(found, place, kind)
        if place > len(found):
            raise InputError("It ends too early.")
        clauses.append(_Clause(kind=kind, start=found[start].start, end=found[place - 1].end))
    return type_end, clauses


def _after_clause(found: list[DdlToken], place: int, kind: str) -> int:
    """Return the position after the constraint that starts at `place`.

    See https://www.sqlite.org/syntax/column-constraint.html.
    """
    match kind:
        case "PRIMARY":
            place = _after_words(found, place + 2, "ASC", "DESC")
            return _after_words(found, _after_conflict(found, place), "AUTOINCREMENT")
        case "NOT":
            return _after_conflict(found, place + 2)
        case "NULL" | "UNIQUE":
            return _after_conflict(found, place + 1)
        case "CHECK":
            return _after_parentheses(found, place + 1)
        case "COLLATE":
            return place + 2
        case "DEFAULT":
            if _word(found, place + 1) == "(":
                return _after_parentheses(found, place + 1)
            return _after_words(found, place + 1, "+", "-") + 1
        case "REFERENCES":
            return _after_reference(found, place)
        case "GENERATED" | "AS":
            place = place + 3 if kind == "GENERATED" else place + 1
            return _after_words(found, _after_parentheses(found, place), "STORED", "VIRTUAL")
    raise InputError(f"It contains {found[min(place, len(found) - 1)].text}, which is not supported there.")


def _after_reference(found: list[DdlToken], place: int) -> int:
    place += 2
    if _word(found, place) == "(":
        place = _after_parentheses(found, place)
    while True:
        word, following = _word(found, place), _word(found, place + 1)
        if word == "ON":
            place += 4 if _word(found, place + 2) in ("SET", "NO") else 3
        elif word == "MATCH":
            place += 2
        elif word == "DEFERRABLE" or (word == "NOT" and following == "DEFERRABLE"):
            place += 1 if word == "DEFERRABLE" else 2
            place += 2 if _word(found, place) == "INITIALLY" else 0
        else:
            return place


def _after_conflict(found: list[DdlToken], place: int) -> int:
    return place + 3 if _word(found, place) == "ON" else place


def _after_words(found: list[DdlToken], place: int, *words: str) -> int:
    return place + 1 if _word(found, place) in words else place


def _after_parentheses(found: list[DdlToken], place: int) -> int:
    depth = 0
    for at in range(place, len(found)):
        depth += {"(": 1, ")": -1}.get(found[at].text, 0)
        if depth == 0:
            return at + 1
    raise InputError("Its parentheses do not match.")


def _word(found: list[DdlToken], place: int) -> str:
    return found[place].word if place < len(found) else ""


def _has_default(column: DeclaredColumn) -> bool:
    return column.default is not None and column.default.upper() != "NULL"


def _default_sql(column: DeclaredColumn) -> str:
    text = column.default or ""
    plain = re.fullmatch(r"[xX]?'(?:[^']|'')*'|[+-]?[\w.+-]+", text)
    return f"DEFAULT {text}" if plain else f"DEFAULT ({text})"


def _reference_sql(reference: Reference) -> str:
    targets = f" ({sql.identifiers(reference.targets)})" if reference.targets else ""
    return f"REFERENCES {sql.identifier(reference.table)}{targets}"
