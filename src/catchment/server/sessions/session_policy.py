"""What the statements of a session may do: the SQL policy, as it applies to the session's user."""

from dataclasses import replace

import duckdb

from catchment.errors import NotAllowedError
from catchment.foundation import sql
from catchment.server.engine.parsing import ParsedStatement
from catchment.server.sessions import touched_tenants
from catchment.server.sessions.connections import Connection
from catchment.server.sessions.session_state import SessionState
from catchment.server.sql.catalog_lists import Reader, limit_lists
from catchment.server.sql.sql_policy import Permission, authorize
from catchment.server.sql.statement_plan import FRESH, QUEUE, FreshRead, Plain
from catchment.server.sql.syntax import SqlReading
from catchment.server.values import Role, running_call
from catchment.tenants.model import TenantId

# Schemas that a fresh read names, but reads from elsewhere.
_READ_ELSEWHERE = frozenset({FRESH, QUEUE})


class SessionPolicy:
    """Authorizes the statements of one session."""

    def __init__(self, state: SessionState) -> None:
        self.state = state

    def require(self, role: Role, what: str) -> None:
        """Refuse a caller whose role is not sufficient."""
        if self.state.principal.role < role:
            raise NotAllowedError(f"{what} requires the role `{role.name.lower()}`.")

    def authorized(self, step: Plain | FreshRead, connection: Connection) -> tuple[ParsedStatement, Permission]:
        """Return the statement as DuckDB parses it, and its permission."""
        statement = self.state.parser.statements(step.text)[-1]
        reading = SqlReading(statement.type, step.text, step.tokens, self.state.parser)
        fresh = _READ_ELSEWHERE if isinstance(step, FreshRead) else None
        permission = self.permission_for(reading, connection, fresh=fresh, lists_limited=isinstance(step, Plain))
        self._require_macros(permission.macros, connection)
        return statement, permission

    def permission_for(
        self,
        reading: SqlReading,
        connection: Connection,
        *,
        fresh: frozenset[str] | None = None,
        lists_limited: bool = False,
    ) -> Permission:
        """Return the statement's permission; a tenant's user may name only the tenant's tables.

        For a user without a tenant, all tenants whose tables are named must have their primary
        here. With `lists_limited`, the statement runs as `readable` returns it, and its macros are
        looked up.
        """
        permission = authorize(reading, self.state.principal)
        sees_all = self.state.scope is None and self.state.principal.role >= Role.ADMIN
        if not lists_limited and ((permission.lists and not sees_all) or permission.macros):
            raise NotAllowedError("Catalog lists and table macros can be read only by separate queries.")
        if self.state.scope is not None:
            self.state.scope.examine(reading, fresh=fresh)
        elif touched := self._touched(reading, connection):
            with self.state.reading_lake(touched):
                return replace(permission, touched=touched)
        return permission

    def owner(self, schema: str) -> frozenset[TenantId]:
        """Return the tenant that owns the schema; empty for a tenant's user, or if none owns it."""
        routing = self.state.backend.tenants
        if routing is None or self.state.scope is not None:
            return frozenset()
        return touched_tenants.owner(routing.residents(), schema)

    def readable(self, step: Plain, permission: Permission) -> Plain:
        """Return the query as this session may run it, with catalog lists limited."""
        scope = self.state.scope
        if scope is not None and step.tokens[0].text == "explain":
            step = replace(step, text=scope.qualify_created(step.text, step.tokens))
        if not permission.lists:
            return step
        reader = Reader(self.state.lake.name, None if scope is None else scope.schema)
        return replace(step, text=limit_lists(step.text, step.tokens, reader, self.state.parser))

    def _require_macros(self, names: frozenset[str], connection: Connection) -> None:
        """Check that table functions that are not DuckDB's are macros of lake or session."""
        if not names:
            return
        scope = self.state.scope
        own = "true" if scope is None else f"(database_name = 'temp' OR schema_name = {sql.literal(scope.schema)})"
        listed = ", ".join(sql.literal(name) for name in sorted(names))
        found = connection.table(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type = 'table_macro' "
            f"AND NOT internal AND {own} AND lower(function_name) IN ({listed})",
            running_call(),
        )
        missing = names - set(found.column(0).to_pylist())
        if missing:
            raise duckdb.CatalogException(f"Catalog Error: Table Function with name {min(missing)} does not exist!")

    def _touched(self, reading: SqlReading, connection: Connection) -> frozenset[TenantId]:
        """Return the tenants whose tables a statement names; none for a tenant's user."""
        backend = self.state.backend
        if backend.tenants is None or self.state.scope is not None:
            return frozenset()
        found = backend.tenants.residents()
        return touched_tenants.touched(found, backend.views, reading, connection)
