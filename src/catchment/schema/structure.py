"""What a database looks like: tables, columns, foreign keys. Plain values, alike for models and for what is there.

Names compare as SQLite and DuckDB compare them, without regard to the case of ASCII letters; `Structure.find` and
`DeclaredTable.find` know that.
"""

from dataclasses import dataclass

from catchment.foundation import sql


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredColumn:
    """A column as the database declares it: `type` is the declared type, `default` the text of an SQL expression.

    `primary_key` is its place in the primary key, counted from one, and 0 when it has none. A `generated` column is
    computed from others: it takes no values.
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
    """A table. `ddl` is the statement that made it where the database keeps one; it takes no part in comparing."""

    name: str
    columns: tuple[DeclaredColumn, ...]
    references: tuple[Reference, ...] = ()
    ddl: str = ""

    def find(self, column: str) -> DeclaredColumn | None:
        wanted = sql.fold(column)
        return next((each for each in self.columns if sql.fold(each.name) == wanted), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The tables of a database that are its user's: neither the engine's own nor `_migrations`."""

    tables: tuple[DeclaredTable, ...] = ()

    def find(self, table: str) -> DeclaredTable | None:
        wanted = sql.fold(table)
        return next((each for each in self.tables if sql.fold(each.name) == wanted), None)
