"""Structure of a database or of models: tables, columns and foreign keys as plain values.

Names are compared as in SQLite and DuckDB, ignoring the case of ASCII letters; `Structure.find` and
`DeclaredTable.find` do so.
"""

from dataclasses import dataclass

from catchment.foundation import sql


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredColumn:
    """A column as declared; `default` is the text of an SQL expression.

    `primary_key` is its position in the primary key, from one, or 0 if it is not in it. A
    `generated` column is computed from others: it accepts no values.
    """

    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    primary_key: int = 0
    generated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key; an empty `targets` means the other table's primary key."""

    columns: tuple[str, ...]
    table: str
    targets: tuple[str, ...] = ()
    on_delete: str = "NO ACTION"
    on_update: str = "NO ACTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTable:
    """A table. `ddl` is the statement that created it, if stored; comparisons ignore it."""

    name: str
    columns: tuple[DeclaredColumn, ...]
    references: tuple[Reference, ...] = ()
    ddl: str = ""

    def find(self, column: str) -> DeclaredColumn | None:
        wanted = sql.fold(column)
        return next((each for each in self.columns if sql.fold(each.name) == wanted), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The user's tables of a database: neither the engine's own nor `_migrations`."""

    tables: tuple[DeclaredTable, ...] = ()

    def find(self, table: str) -> DeclaredTable | None:
        wanted = sql.fold(table)
        return next((each for each in self.tables if sql.fold(each.name) == wanted), None)
