"""The tables of the control database. A change here needs the next script in `scripts/`; a test says so."""

from datetime import datetime
from typing import Any

from catchment.schema import TableRow


class User(TableRow):
    """Somebody who may connect; names are unique."""

    __tablename__ = "users"

    name: str
    role: str
    password_hash: str
    created_at: datetime
    disabled: bool = False


class Shard(TableRow):
    """A lake that tenants live in; names are unique. `address` is where its server listens, `home` is its folder.

    `stats` is what it last said of itself, at `seen_at`.
    """

    __tablename__ = "shards"

    name: str
    region: str
    address: str
    state: str
    created_at: datetime
    home: str = ""
    stats: dict[str, Any] = {}  # noqa: RUF012 - a row gets a copy of it
    seen_at: datetime | None


class Tenant(TableRow):
    """A tenant by its number, which is unique, and the shard that it lives in; `limits` by name.

    Numbers have 64 bits without a sign, and columns have one: the upper half is kept as what is negative in two's
    complement. `epoch` counts the changes of the tenant's route.
    """

    __tablename__ = "tenants"

    number: int
    name: str
    shard: Shard
    limits: dict[str, Any] = {}  # noqa: RUF012 - a row gets a copy of it
    created_at: datetime
    epoch: int = 1


class Move(TableRow):
    """A tenant's move between two shards; `data` is what belongs to its `state`.

    `version` counts the changes of a row: whoever changes it names the one that was read, and has lost where it is
    another. A move has `finished_at` and an `outcome` when it is over; a tenant has at most one that has not.
    `token` is the move's own name, and unique.
    """

    __tablename__ = "moves"

    tenant: Tenant
    source: Shard
    target: Shard
    state: str
    data: dict[str, Any] = {}  # noqa: RUF012 - a row gets a copy of it
    version: int = 0
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    error: str | None
    token: str = ""
    outcome: str | None


MODELS: tuple[type[TableRow], ...] = (User, Shard, Tenant, Move)
