"""`ControlStore`: shards, tenants and moves (by compare-and-swap) in the control database.

The same statements run on SQLite and PostgreSQL. Both serialize writers, so values that a
transaction has read are still current when it writes. After ControlUnavailableError a change may
have been made: read again, then decide.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from catchment.control import ControlDatabase
from catchment.control.contract import ControlTransaction
from catchment.errors import AlreadyExistsError, ConflictError, InputError, InvariantError, StateError
from catchment.foundation import sql
from catchment.foundation.clock import Clock, SystemClock
from catchment.tenants.model import (
    Idle,
    MigrationState,
    MoveInfo,
    Route,
    ShardId,
    ShardInfo,
    TenantConfig,
    TenantId,
    TenantInfo,
    state_from_json,
)

# Outcomes of a move.
OUTCOMES = frozenset({"complete", "aborted", "reversed"})
MOVES_SHOWN_MAX = 1_000
_ACTIVE = "active"
_DRAINING = "draining"
_HALF = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """Last report of a shard, with its time; None if it has not reported yet."""

    stats: Mapping[str, Any]
    seen_at: datetime | None

    @property
    def replication_lag_s(self) -> float:
        """Age of the oldest row that a replica does not have yet."""
        return float(self.stats.get("replication_lag_s", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The facts that determine a tenant's route; `tenant` is None if it was not created."""

    tenant: TenantInfo | None
    move: MoveInfo | None
    shards: tuple[ShardInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFacts:
    """Content of the store at one moment, with unfinished moves and the newest others."""

    shards: tuple[ShardInfo, ...]
    reports: Mapping[ShardId, ShardReport]
    tenants: tuple[TenantInfo, ...]
    moves: tuple[MoveInfo, ...]


class ControlStore:
    """Shards, tenants and moves, stored durably. Safe for any number of threads and processes."""

    def __init__(self, database: ControlDatabase, *, clock: Clock | None = None) -> None:
        self._database = database
        self._clock: Clock = clock or SystemClock()

    def add_shard(self, shard: ShardInfo) -> None:
        """Add a shard. Raises AlreadyExistsError if there is one of that name."""
        values = [shard.id.name, shard.region, shard.location, shard.home, _state(shard), _moment(self._clock.now())]
        with self._database.transaction() as session:
            if session.execute(_statement("shard_add"), values).rowcount != 1:
                raise AlreadyExistsError(f"Shard {shard.id} already exists.", hint="`catchment shard list` shows it.")

    def change_shard(self, shard: ShardInfo) -> None:
        """Change a shard's region, location, home and state. Raises StateError if one of its
        tenants may not live in the region.
        """
        with self._database.transaction() as session:
            _shard(session, shard.id)
            for tenant in _tenants(session, "WHERE shards.name = ?", [shard.id.name]):
                refuse_foreign(tenant.id, tenant.config, shard)
            values = [shard.region, shard.location, shard.home, _state(shard), shard.id.name]
            session.execute(_statement("shard_change"), values)

    def shards(self) -> tuple[ShardInfo, ...]:
        """Return all shards, by name."""
        with self._database.reading() as session:
            return _shards(session)

    def shard(self, shard: ShardId) -> ShardInfo:
        """Return a shard. Raises InputError if there is none of that name."""
        with self._database.reading() as session:
            return _shard(session, shard)

    def set_draining(self, shard: ShardId, is_draining: bool = True) -> None:
        """Stop placing tenants in the shard, or allow it again."""
        with self._database.transaction() as session:
            _shard(session, shard)
            state = _DRAINING if is_draining else _ACTIVE
            session.execute("UPDATE shards SET state = ? WHERE name = ?", [state, shard.name])

    def report(self, shard: ShardId, stats: Mapping[str, Any]) -> None:
        """Store the report of a shard; its `replication_lag_s` affects its region's health."""
        values = [json.dumps(stats), _moment(self._clock.now()), shard.name]
        with self._database.transaction() as session:
            _shard(session, shard)
            session.execute("UPDATE shards SET stats = ?, seen_at = ? WHERE name = ?", values)

    def create_tenant(self, tenant: TenantId, name: str, config: TenantConfig, shard: ShardId) -> TenantInfo:
        """Create a tenant in a shard, in epoch 1. Raises AlreadyExistsError if there is one of that
        number.
        """
        now = self._clock.now()
        values = [_signed(tenant), name, shard.name, json.dumps(config.to_json()), _moment(now)]
        with self._database.transaction() as session:
            _refuse_unfit(tenant, config, _shard(session, shard))
            if session.execute(_statement("tenant_add"), values).rowcount != 1:
                raise AlreadyExistsError(
                    f"Tenant {tenant} already exists.", hint=f"`catchment tenant show {tenant}` shows it."
                )
        return TenantInfo(id=tenant, name=name, config=config, shard=shard, epoch=1, created_at=now)

    def tenants(self) -> tuple[TenantInfo, ...]:
        """Return all tenants, by number."""
        with self._database.reading() as session:
            return _tenants(session)

    def tenant(self, tenant: TenantId) -> TenantInfo:
        """Return a tenant. Raises InputError if there is none of that number."""
        with self._database.reading() as session:
            return _tenant(session, tenant)

    def set_config(self, tenant: TenantId, config: TenantConfig) -> None:
        """Replace the tenant's limits. Raises StateError if they exclude its region."""
        with self._database.transaction() as session:
            refuse_foreign(tenant, config, _shard(session, _tenant(session, tenant).shard))
            values = [json.dumps(config.to_json()), _signed(tenant)]
            session.execute("UPDATE tenants SET limits = ? WHERE number = ?", values)

    def open_move(self, tenant: TenantId, source: ShardId, target: ShardId, now: datetime) -> MoveInfo:
        """Start a move of the tenant. Raises StateError if one is unfinished, or if the tenant does
        not live in `source`.
        """
        token = secrets.token_hex(8)
        idle = Idle()
        values = [
            *(_signed(tenant), source.name, target.name, idle.name, json.dumps(idle.to_json())),
            *(token, _moment(now), _moment(now)),
        ]
        with self._database.transaction() as session:
            known = _tenant(session, tenant)
            unfinished = _newest_move(session, tenant, is_open=True)
            if unfinished is not None:
                raise _unfinished(unfinished)
            if known.shard != source or source == target:
                raise StateError(
                    f"{tenant} lives in {known.shard}; it cannot move from {source} to {target}.",
                    home=str(known.shard),
                )
            _refuse_unfit(tenant, known.config, _shard(session, target))
            session.execute(_statement("move_open"), values)
            [opened] = _moves(session, "WHERE moves.token = ?", [token])
            return opened

    def move(self, tenant: TenantId) -> MoveInfo | None:
        """Return the tenant's unfinished move, if there is one."""
        with self._database.reading() as session:
            return _newest_move(session, tenant, is_open=True)

    def last_move(self, tenant: TenantId) -> MoveInfo | None:
        """Return the tenant's newest move, finished or not."""
        with self._database.reading() as session:
            return _newest_move(session, tenant, is_open=False)

    def moves(self) -> tuple[MoveInfo, ...]:
        """Return unfinished moves, then finished ones, newest first; at most a thousand."""
        with self._database.reading() as session:
            return _latest_moves(session)

    def change_move(
        self, move: MoveInfo, state: MigrationState, *, route: Route | None = None, outcome: str | None = None
    ) -> MoveInfo:
        """Change a move. Raises ConflictError, without effect, if it changed since it was read.

        The tenant's `route` changes in the same transaction, and its epoch must increase. With an
        `outcome` the move is over.
        """
        if outcome is not None and outcome not in OUTCOMES:
            raise InvariantError(f"{outcome!r} is not an outcome of a move.")
        now = self._clock.now()
        finished_at = now if outcome else None
        values = [
            *(state.name, json.dumps(state.to_json()), _moment(now), finished_at and _moment(finished_at), outcome),
            *(move.id, move.version),
        ]
        with self._database.transaction() as session:
            if session.execute(_statement("move_change"), values).rowcount != 1:
                raise _overtaken(session, move)
            if route is not None:
                _change_route(session, move, route)
        return replace(
            move, state=state, version=move.version + 1, updated_at=now, finished_at=finished_at, outcome=outcome
        )

    def placement(self, tenant: TenantId) -> Placement:
        """Return everything that determines the tenant's route."""
        with self._database.reading() as session:
            known = _find_tenant(session, tenant)
            unfinished = _newest_move(session, tenant, is_open=True) if known else None
            return Placement(tenant=known, move=unfinished, shards=_shards(session))

    def facts(self) -> ControlFacts:
        """Return the whole content."""
        with self._database.reading() as session:
            return ControlFacts(
                shards=_shards(session),
                reports=_reports(session),
                tenants=_tenants(session),
                moves=_latest_moves(session),
            )


def refuse_foreign(tenant: TenantId, config: TenantConfig, shard: ShardInfo) -> None:
    """Raise StateError if the tenant may not live in the shard's region."""
    if not config.allows(shard.region):
        raise StateError(
            f"{tenant} must live in {', '.join(sorted(config.required_regions))}; {shard.id} is in {shard.region}.",
            required_regions=sorted(config.required_regions),
            region=shard.region,
        )


def _refuse_unfit(tenant: TenantId, config: TenantConfig, shard: ShardInfo) -> None:
    refuse_foreign(tenant, config, shard)
    if shard.is_draining:
        raise StateError(f"{shard.id} is being drained and accepts no tenants.", hint="Choose another shard.")


def _statement(name: str) -> str:
    return sql.statement("catchment.tenants", name)


def _shards(session: ControlTransaction) -> tuple[ShardInfo, ...]:
    return tuple(
        ShardInfo(id=ShardId(name), region=region, location=address, home=home, is_draining=state == _DRAINING)
        for name, region, address, home, state, _, _ in session.execute(_statement("shards_read")).fetchall()
    )


def _shard(session: ControlTransaction, shard: ShardId) -> ShardInfo:
    found = next((each for each in _shards(session) if each.id == shard), None)
    if found is None:
        raise InputError(f"There is no shard {shard}.", hint="`catchment shard list` shows all shards.")
    return found


def _reports(session: ControlTransaction) -> dict[ShardId, ShardReport]:
    return {
        ShardId(name): ShardReport(stats=_json(stats), seen_at=seen_at and _time(seen_at))
        for name, _, _, _, _, stats, seen_at in session.execute(_statement("shards_read")).fetchall()
    }


def _tenants(session: ControlTransaction, where: str = "", values: Sequence[Any] = ()) -> tuple[TenantInfo, ...]:
    rows = session.execute(f"{_statement('tenants_read')} {where}", values).fetchall()
    found = (
        TenantInfo(
            id=_unsigned(number),
            name=name,
            config=TenantConfig.from_json(_json(limits)),
            shard=ShardId(shard),
            epoch=epoch,
            created_at=_time(created_at),
        )
        for number, name, limits, shard, epoch, created_at in rows
    )
    return tuple(sorted(found, key=lambda tenant: tenant.id))


def _find_tenant(session: ControlTransaction, tenant: TenantId) -> TenantInfo | None:
    return next(iter(_tenants(session, "WHERE tenants.number = ?", [_signed(tenant)])), None)


def _tenant(session: ControlTransaction, tenant: TenantId) -> TenantInfo:
    found = _find_tenant(session, tenant)
    if found is None:
        raise InputError(f"There is no tenant {tenant}.", hint="`catchment tenant list` shows all tenants.")
    return found


def _moves(session: ControlTransaction, where: str, values: Sequence[Any] = ()) -> tuple[MoveInfo, ...]:
    rows = session.execute(f"{_statement('moves_read')} {where}", values).fetchall()
    return tuple(
        MoveInfo(
            id=number,
            token=token,
            tenant=_unsigned(tenant),
            source=ShardId(source),
            target=ShardId(target),
            state=state_from_json(state, _json(data)),
            version=version,
            created_at=_time(created_at),
            updated_at=_time(updated_at),
            finished_at=finished_at and _time(finished_at),
            outcome=outcome,
        )
        for (
            number, token, tenant, source, target, state, data, version, created_at, updated_at, finished_at, outcome,
        ) in rows
    )  # fmt: skip


def _newest_move(session: ControlTransaction, tenant: TenantId, *, is_open: bool) -> MoveInfo | None:
    only = "AND moves.finished_at IS NULL" if is_open else ""
    where = f"WHERE tenants.number = ? {only} ORDER BY moves.id DESC LIMIT 1"
    return next(iter(_moves(session, where, [_signed(tenant)])), None)


def _latest_moves(session: ControlTransaction) -> tuple[MoveInfo, ...]:
    return _moves(session, f"ORDER BY moves.finished_at IS NULL DESC, moves.id DESC LIMIT {MOVES_SHOWN_MAX}")


def _change_route(session: ControlTransaction, move: MoveInfo, route: Route) -> None:
    _shard(session, route.primary)
    values = [route.primary.name, route.epoch, _signed(move.tenant), route.epoch]
    if session.execute(_statement("tenant_route"), values).rowcount != 1:
        epoch = _tenant(session, move.tenant).epoch
        raise ConflictError(
            f"The route of {move.tenant} is in epoch {epoch} and cannot change to {route.epoch}.", epoch=epoch
        )


def _overtaken(session: ControlTransaction, move: MoveInfo) -> ConflictError:
    now = next(iter(_moves(session, "WHERE moves.id = ?", [move.id])), None)
    if now is None:
        return ConflictError(f"The move of {move.tenant} no longer exists.")
    return ConflictError(
        f"The move of {move.tenant} has changed: it is now in {now.state.name}, version {now.version}, "
        f"and was read at version {move.version}.",
        state=now.state.name,
        version=now.version,
        outcome=now.outcome,
    )


def _unfinished(move: MoveInfo) -> StateError:
    return StateError(
        f"{move.tenant} is already being moved from {move.source} to {move.target}; the move is in {move.state.name}.",
        hint=f"`catchment tenant status {move.tenant}` shows it; `move` continues it, `abort` undoes it.",
        source=str(move.source),
        target=str(move.target),
        state=move.state.name,
        version=move.version,
        token=move.token,
    )


def _state(shard: ShardInfo) -> str:
    return _DRAINING if shard.is_draining else _ACTIVE


def _signed(tenant: TenantId) -> int:
    """Return the number as stored in a signed 64-bit column: the upper half in two's complement."""
    return tenant.number if tenant.number < _HALF else tenant.number - 2 * _HALF


def _unsigned(number: int) -> TenantId:
    return TenantId(number % (2 * _HALF))


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()


def _time(kept: str | datetime) -> datetime:
    """Return a stored time: SQLite has no time zone, PostgreSQL has any."""
    time = datetime.fromisoformat(kept) if isinstance(kept, str) else kept
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _json(kept: Any) -> Any:
    """Return a stored document: SQLite has text, PostgreSQL a value."""
    return json.loads(kept) if isinstance(kept, str) else kept
