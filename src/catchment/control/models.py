"""Tables of the control database. Each change needs a new script in `scripts/`, as tests check."""

from datetime import datetime
from typing import Any

from catchment.schema import TableRow


class User(TableRow):
    """A user by name. Not in use: the server keeps its users in a file (`server/users.py`)."""

    __tablename__ = "users"

    name: str
    role: str
    password_hash: str
    created_at: datetime
    disabled: bool = False


class Shard(TableRow):
    """A lake with tenants; names are unique. `address` is its server's, `home` its folder.

    `stats` is the shard's last report about itself, at `seen_at`.
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
    """A tenant by its unique number, and its shard; `limits` by name.

    Numbers are unsigned 64-bit integers and columns are signed: the upper half is stored as
    negative numbers, in two's complement. `epoch` counts the changes of the tenant's route.
    """

    __tablename__ = "tenants"

    number: int
    name: str
    shard: Shard
    limits: dict[str, Any] = {}  # noqa: RUF012 - a row gets a copy of it
    created_at: datetime
    epoch: int = 1


class Move(TableRow):
    """A tenant's move between two shards; `data` belongs to its `state`.

    `version` counts the changes of a row: an update names the version that was read, and fails if
    the row has another one. A finished move has `finished_at` and an `outcome`; a tenant has at
    most one unfinished move. `token` is the move's unique name.
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
