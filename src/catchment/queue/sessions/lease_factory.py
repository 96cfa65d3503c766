"""The kinds of leases, by the settings."""

from pathlib import Path

from catchment.errors import SettingsError
from catchment.foundation.clock import Clock
from catchment.foundation.settings import Settings
from catchment.lake.attach import PostgresCatalog, parse_catalog
from catchment.queue.sessions.leases import FileLeases, Leases


def leases_for(settings: Settings, root: Path, clock: Clock) -> Leases:
    """Return the leases of a PostgreSQL server if the settings have one, else of this host."""
    conninfo = _lease_server(settings)
    if conninfo is None:
        return FileLeases(root, clock)
    # Imported here and below, because only leases of a server need the PostgreSQL client.
    from catchment.queue.sessions.postgres_leases import PostgresLeases

    return PostgresLeases(conninfo, clock=clock)


def _lease_server(settings: Settings) -> str | None:
    """Return how to reach the PostgreSQL server for leases, or None if there is none."""
    if settings.queue_lease_postgres is not None:
        return _checked_conninfo(settings.queue_lease_postgres.get_secret_value())
    catalog = parse_catalog(settings.catalog_url.get_secret_value())
    return catalog.conninfo if isinstance(catalog, PostgresCatalog) else None


def _checked_conninfo(text: str) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    conninfo = text if "://" in text else text.removeprefix("postgres:").removeprefix("postgresql:")
    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error:
        # The reason is left out: the message would quote the string, including its password.
        raise SettingsError(
            "The PostgreSQL connection string of the queue's leases cannot be read.",
            hint="DUCKLING_QUEUE_LEASE_POSTGRES is `host=… dbname=…`, as for the lake's catalog.",
        ) from None
    return conninfo
