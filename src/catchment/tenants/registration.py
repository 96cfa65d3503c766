"""Checks before a shard is added: its home, its location, and the server there."""

from collections.abc import Callable
from pathlib import Path

from catchment.errors import AlreadyExistsError, InputError, RetryableError
from catchment.foundation import server_file
from catchment.foundation.settings import FILE_NAME, Settings, settings_of
from catchment.tenants.model import ShardId, ShardInfo
from catchment.tenants.shard_api import ShardNode

_REGION = "default"
_SCHEMES = ("grpc://", "grpc+tls://")
# Any of these identifies a folder as a home.
_SIGNS = (FILE_NAME, server_file.FILE_NAME, "duckling_queue", "data", "catalog.sqlite")


def shard_home(settings: Settings) -> Path:
    """Return the home of the settings. Raises InputError if it is not one, or if its file does not
    describe its lake: a process that moves a tenant reads only that file.
    """
    folder = settings.home.absolute()
    if not any((folder / sign).exists() for sign in _SIGNS):
        raise InputError(
            f"{folder} is not a home of Catchment.", hint=f"Start `catchment serve --home {folder} --shard NAME` first."
        )
    written = settings_of(folder)
    if (written.catalog_url, written.data_path) != (settings.catalog_url, settings.data_path):
        raise InputError(
            "Catalog and data path of this home come from the environment, which other processes do not have.",
            hint=f"Write lake_catalog and lake_data_path into {folder / FILE_NAME}.",
        )
    return folder


def shard_location(settings: Settings, shard: ShardId, location: str | None) -> str:
    """Return the location of a shard: the given one, or that of the server that runs on the home."""
    if location is not None:
        if not location.startswith(_SCHEMES):
            raise InputError(
                f"{location!r} is not a location.", hint="Write grpc://HOST:PORT, or grpc+tls://HOST:PORT."
            )
        return location
    found = server_file.find(settings)
    if found is None:
        raise InputError(
            "No server runs on this home, so its location is unknown.",
            hint=f"Start `catchment serve --shard {shard}` on it, or give --location grpc://HOST:PORT.",
        )
    return found.uri


def described_shard(
    shard: ShardId, home: Path, location: str, region: str | None, known: ShardInfo | None
) -> ShardInfo:
    """Return the shard to register; a `known` one keeps its region and whether it is being drained.

    Raises AlreadyExistsError if the known one has another home.
    """
    if known is not None and known.home != str(home):
        raise AlreadyExistsError(
            f"Shard {shard} already exists; its home is {known.home}.",
            hint="`catchment shard list` shows it. Choose another name, or give its --home.",
        )
    return ShardInfo(
        id=shard,
        region=region or (known.region if known else _REGION),
        location=location,
        home=str(home),
        is_draining=known is not None and known.is_draining,
    )


def find_unreachable(shard: ShardInfo, connect: Callable[[ShardId, str], ShardNode]) -> str | None:
    """Check that the server at the location is this shard, and raise InputError if it is another.

    Returns the reason if the server could not be reached, otherwise None.
    """
    try:
        answered = connect(shard.id, shard.location).facts()["shard"]
    except RetryableError as error:
        return error.message
    if answered != shard.id.name:
        raise InputError(
            f"The server at {shard.location} is shard {answered}.", hint="Use that name, or another location."
        )
    return None
