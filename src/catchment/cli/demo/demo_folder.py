"""Where the demo keeps everything: a folder of its own in the home, which later runs find again.

    demo/a/, demo/b/        the homes of the two shards, each with a mark of the process that the demo started there
    demo/control.sqlite     their control database
    demo/users.json         the writers, who log in as users of the run's tenant
    demo/schemas/t1.*       scripts and backups of a tenant's tables
    demo/legacy/sales-1/    the tree that a run imports, and its backup

Every run has a tenant of its own, so that all acts are new each time; what earlier runs left stays, and is counted.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import InputError, StateError
from catchment.foundation import files
from catchment.foundation.clock import Clock
from catchment.foundation.files import HeldLock
from catchment.foundation.settings import FILE_NAME, Settings, declared, load_settings, settings_of
from catchment.pipeline.legacy.folders import ImportFolders, ImportPhase
from catchment.tenants.model import ShardId

A, B = ShardId("a"), ShardId("b")
SHARDS = (A, B)
# What the environment must leave to the demo: it would be the same for both shards.
_OWN = (
    *("lake_catalog", "lake_data_path", "lake_name", "control_db", "shard_name", "shard_secret", "shard_ca"),
    *("queue_enable", "queue_layout", "queue_root", "queue_bypass", "queue_max_db_bytes"),
    *("server_host", "server_auth", "server_users_file", "server_tls_certificate", "server_tls_key"),
)


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """The demo's folder."""

    folder: Path

    @classmethod
    def in_home(cls, home: Path) -> "DemoPlace":
        """The folder in the home, whether it is there or not."""
        return cls(home.absolute() / "demo")

    @property
    def schemas(self) -> Path:
        return self.folder / "schemas"

    @property
    def users(self) -> Path:
        return self.folder / "users.json"

    def home(self, shard: ShardId) -> Path:
        """The home of a shard."""
        return self.folder / shard.name

    def settings(self, shard: ShardId) -> Settings:
        """What the shard's server goes by; the environment may tell of Spark and of limits, and not of places."""
        given, written = load_settings(self.home(shard)), settings_of(self.home(shard))
        told = [name for name in _OWN if getattr(given, name) != getattr(written, name)]
        if told:
            variables = ", ".join(each.variable for each in declared() if each.name in told)
            raise InputError(f"The environment sets {variables}, and the demo brings its own.", hint="Unset it first.")
        return given

    def lock(self, clock: Clock) -> HeldLock:
        """Keep others out; the system lets go of it when this process ends."""
        held = files.FileLock(self.folder / "demo.lock", clock=clock).take()
        if held is None:
            raise StateError(
                f"A demo runs in {self.folder} already.", hint="Stop it with Ctrl-C there, or say another --home."
            )
        return held

    def write_settings(self) -> None:
        """Make both homes: one control database, one list of users, one secret among the shards.

        Nobody has to log in, so that the dashboard is open; who does log in is that user.
        """
        secret = secrets.token_urlsafe(24)
        control = f"sqlite:{self.folder / 'control.sqlite'}"
        for shard in SHARDS:
            files.make_folder(self.home(shard))
            lines = (
                "# Written by every `catchment demo`.",
                f"control_db = {_quoted(control)}",
                f"server_users_file = {_quoted(str(self.users))}",
                "server_auth = false",
                f"shard_secret = {_quoted(secret)}",
            )
            files.replace_text(self.home(shard) / FILE_NAME, "\n".join(lines) + "\n", private=True)

    def tree(self) -> tuple[int, ImportFolders]:
        """The tree to import, with its number: one that an earlier run was stopped at, or else a new one."""
        number = 1
        while True:
            place = ImportFolders.tree(self.folder / "legacy" / f"sales-{number}")
            if place.phase() is not ImportPhase.DONE:
                return number, place
            number += 1


def _quoted(text: str) -> str:
    """A text in TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
