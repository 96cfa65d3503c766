"""Records of applied scripts: the table `_migrations`, stored in the database that it describes."""

import sqlite3
from dataclasses import astuple, dataclass

from catchment.errors import InputError
from catchment.foundation import sql

TABLE = "_migrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedScript:
    """One applied script with its whole text; the times are ISO timestamps."""

    number: int
    filename: str
    script: str
    started_at: str
    finished_at: str


def read(connection: sqlite3.Connection) -> tuple[AppliedScript, ...]:
    """Return all records, by number; empty if there is no table. Does not create the table."""
    is_there = connection.execute(
        "SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = ?", [TABLE]
    ).fetchone()
    if not is_there:
        return ()
    try:
        rows = connection.execute(sql.statement("catchment.schema", "migrations_read")).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        raise InputError(
            f"The table {TABLE} is not Catchment's: {error}.", hint="If another tool created it, rename it."
        ) from error
    fields = ("number", "filename", "script", "started_at", "finished_at")
    return tuple(AppliedScript(**dict(zip(fields, row, strict=True))) for row in rows)


def record(connection: sqlite3.Connection, entry: AppliedScript) -> None:
    """Add a record within the caller's transaction; create the table if there is none."""
    connection.execute(sql.statement("catchment.schema", "migrations_create"))
    connection.execute(sql.statement("catchment.schema", "migrations_record"), astuple(entry))
