"""DuckDB's parser: the contract, and the one that runs in this process."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import duckdb
from duckdb import StatementType

from catchment.server.engine.databases import ParserDatabase


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
    """Parses in this process: DuckDB's own texts, and clients' where no engine runs."""

    def statements(self, text: str) -> tuple[ParsedStatement, ...]:
        """Return the statements of a text; duckdb.Error if DuckDB cannot parse it."""
        with _instance().cursor() as parser:
            found = parser.extract_statements(text)
        return tuple(ParsedStatement(each.type, frozenset(each.named_parameters)) for each in found)

    def tree(self, text: str) -> str:
        """Return DuckDB's tree of a query, as JSON; an object with `error` if there is none."""
        with _instance().cursor() as parser:
            row = parser.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
        return str(row[0]) if row else '{"error": true}'


@cache
def _instance() -> duckdb.DuckDBPyConnection:
    """Return an instance without access to files: to parse an IMPORT DATABASE, DuckDB reads them."""
    return ParserDatabase().open()
