"""Identities: tables, producers, units of delivery and jobs."""

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from catchment.errors import InputError
from catchment.foundation.clock import Clock

DEFAULT_SCHEMA = "main"
_JOB_ID = re.compile(r"job-([0-9a-f]{12})-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A table of the lake, by schema and name."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `table` or `schema.table`."""
        schema, dot, name = text.rpartition(".")
        if not name or (dot and not schema) or "." in schema:
            raise InputError(f"{text!r} is not a table name.", hint="Write `table` or `schema.table`.")
        return cls(schema or DEFAULT_SCHEMA, name)

    @classmethod
    def of(cls, table: "str | TableId") -> "TableId":
        """Return the table, parsed if it is a text."""
        if isinstance(table, TableId):
            return table
        if not isinstance(table, str):
            raise InputError(f"{table!r} is not a table name.", hint="Write `table` or `schema.table`.")
        return cls.parse(table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class ProducerId:
    """A producer of deliveries: the kind of source, its name, and its generation.

    A source that is wiped and created again is a new generation, so that an old watermark never
    hides new rows.
    """

    kind: str
    source: str
    generation: str

    def __post_init__(self) -> None:
        if ":" in self.kind or ":" in self.generation:
            raise InputError(
                f"A producer's kind and generation must not contain a colon: {self.kind!r}, {self.generation!r}."
            )

    def __str__(self) -> str:
        return f"{self.kind}:{self.generation}:{self.source}"

    @classmethod
    def parse(cls, text: str) -> Self:
        kind, _, rest = text.partition(":")
        generation, _, source = rest.partition(":")
        if not (kind and generation and source):
            raise InputError(f"{text!r} is not a producer.", hint="`catchment lake audit` lists the producers.")
        return cls(kind, source, generation)


def unit_id(kind: str, *parts: str | int) -> str:
    """Return the stable id of a unit: the same parts give the same id on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def new_job_id(clock: Clock) -> str:
    """Create an id for one run of a job; ids sort by start time."""
    milliseconds = int(clock.now().timestamp() * 1000)
    return f"job-{milliseconds:012x}-{secrets.token_hex(6)}"


def job_started_at(job_id: str) -> datetime | None:
    """Return when the job with this id started, or None if the text is not a job id."""
    match = _JOB_ID.fullmatch(job_id)
    return datetime.fromtimestamp(int(match[1], 16) / 1000, UTC) if match else None
