"""Retrying and dropping dead letters. Each is one transaction of the lake."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from catchment.errors import InputError, PreconditionError
from catchment.foundation import events, files, sql
from catchment.foundation.ids import TableId
from catchment.lake import DeadLetter, Lake, reshape, types
from catchment.lake.dead_letters import DeadLetters
from catchment.queue import incoming


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """Result of a retry: ids of letters that were delivered, and the reasons for the others."""

    delivered: tuple[str, ...]
    refused: dict[str, str]


def retry(lake: Lake, ids: Sequence[str] | None = None) -> Retried:
    """Insert the letters' rows into their tables and remove the letters, atomically."""
    letters = sorted(_named(lake, ids), key=_shape)
    delivered: list[str] = []
    refused: dict[str, str] = {}
    for _, group in groupby(letters, key=_shape):
        letters_alike = list(group)
        try:
            _deliver(lake, letters_alike)
            delivered += [letter.id for letter in letters_alike]
        except InputError:
            # One by one: good letters must not be blocked by bad ones.
            for letter in letters_alike:
                try:
                    _deliver(lake, [letter])
                    delivered.append(letter.id)
                except InputError as error:
                    refused[letter.id] = error.message
    events.emit(
        "dead_letters_retried",
        letter_ids=events.first_few([*delivered, *refused]),
        delivered=len(delivered),
        refused=len(refused),
    )
    return Retried(delivered=tuple(delivered), refused=refused)


def drop(lake: Lake, ids: Sequence[str]) -> int:
    """Delete dead letters and their rows permanently; return how many."""
    _named(lake, ids)
    with lake.write() as connection:
        dropped = DeadLetters(connection, lake.name).remove(ids)
    events.emit("dead_letters_dropped", letter_ids=events.first_few(ids), letters=dropped)
    return dropped


def _shape(letter: DeadLetter) -> tuple[TableId, str]:
    return letter.table, letter.content().schema.to_string()


def _named(lake: Lake, ids: Sequence[str] | None) -> list[DeadLetter]:
    letters = lake.dead_letters(ids)
    missing = set(ids or ()) - {letter.id for letter in letters}
    if missing:
        raise InputError(
            f"There is no dead letter {sorted(missing)[0]}.", hint="`catchment queue dead-letters list` shows them."
        )
    return letters


def _deliver(lake: Lake, letters: Sequence[DeadLetter]) -> None:
    rows = pa.concat_tables([letter.content() for letter in letters])
    with lake.write(into=files.local_path(lake.table(letters[0].table).folder)) as connection:
        target = lake.table_in(connection, letters[0].table)
        columns = incoming.columns_of(rows.schema)
        reason = reshape.misfit(columns, target.columns)
        if reason is not None:
            raise PreconditionError(f"{target.id} does not take the row: {reason}.")
        if DeadLetters(connection, lake.name).remove([letter.id for letter in letters]) != len(letters):
            raise PreconditionError("Another process has just retried or dropped some of these letters.")
        connection.register("catchment_letters_again", rows)
        chosen = ", ".join(reshape.select_list(columns, target.columns))
        query = f"SELECT {chosen} FROM temp.main.catchment_letters_again"
        try:
            for column in target.columns:
                kept = types.kept(column, inserted=True)
                if kept and connection.execute(f"SELECT 1 FROM ({query}) WHERE NOT {kept} LIMIT 1").fetchone():
                    raise PreconditionError(f"{target.id} does not keep the value of column {column.name!r} unchanged.")
            connection.execute(
                f"INSERT INTO {sql.qualified(lake.name, target.id.schema, target.id.name)} BY NAME {query}"
            )
        finally:
            connection.unregister("catchment_letters_again")
