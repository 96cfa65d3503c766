"""DuckDB's parser: the contract, and the one that runs in this process."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from duckdb import StatementType

from catchment.lake import extensions


@dataclass(frozen=True, slots=True)
class ParsedStatement:
    """A statement as DuckDB parses it: its type, and the names of its parameters."""

    type: StatementType
    named_parameters: frozenset[str]


class Parser(Hashable, Protocol):
    """Parses texts of clients. Thread-safe."""

    def statements(self, text: str) -> tuple[ParsedStatement, ...]:
        """Return the statements of a text; duckdb.Error if DuckDB cannot parse it."""

    def tree(self, text: str) -> str:
        """Return DuckDB's tree of a query, as JSON; an object with `error` if there is none."""


class LocalParser:
    """Parses in this process: for texts that are trusted, and where no engine runs."""

    def statements(self, text: str) -> tuple[ParsedStatement, ...]:
        """Return the statements of a text; duckdb.Error if DuckDB cannot parse it."""
        with extensions.scratch() as parser:
            found = parser.extract_statements(text)
        return tuple(ParsedStatement(each.type, frozenset(each.named_parameters)) for each in found)

    def tree(self, text: str) -> str:
        """Return DuckDB's tree of a query, as JSON; an object with `error` if there is none."""
        with extensions.scratch() as parser:
            row = parser.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
        return str(row[0]) if row else '{"error": true}'
