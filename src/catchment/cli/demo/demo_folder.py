"""The demo's folder in the home; later runs use it again.

    demo/a/, demo/b/        homes of the two shards
    demo/control.sqlite     their control database
    demo/users.json         the writers, which log in as users of the run's tenant
    demo/schemas/           migration scripts of the tenants' tables
    demo/legacy/sales-1/    the hive folders that a run imports, and their backup

Every run creates a tenant, so that all steps are new each time; tenants of earlier runs stay.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import catchment
from catchment import Catchment
from catchment.errors import InputError, StateError
from catchment.foundation import files
from catchment.foundation.clock import Clock
from catchment.foundation.settings import FILE_NAME, declared, settings_of

A, B = SHARDS = ("a", "b")
# Settings that the demo writes: from the environment, they would be the same for both shards.
_OWN = (
    *("lake_catalog", "lake_data_path", "lake_name", "control_db", "shard_name", "shard_secret", "shard_ca"),
    *("queue_enable", "queue_layout", "queue_root", "queue_bypass", "queue_max_db_bytes"),
    *("server_host", "server_auth", "server_users_file", "server_tls_certificate", "server_tls_key"),
)


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The folder, and the homes in it."""

    path: Path

    @classmethod
    def in_home(cls, home: Path) -> "DemoFolder":
        """Return the folder of a home; it need not exist."""
        return cls(home.absolute() / "demo")

    def home(self, shard: str) -> Path:
        """Return the home of a shard."""
        return self.path / shard

    @contextmanager
    def locked(self, clock: Clock) -> Iterator[None]:
        """Keep other demos out of the folder; the lock ends with this process."""
        held = files.FileLock(self.path / "demo.lock", clock=clock).take()
        if held is None:
            raise StateError(
                f"A demo already runs in {self.path}.", hint="Stop it with Ctrl-C there, or use another --home."
            )
        try:
            yield
        finally:
            held.release()

    def open(self, shard: str) -> Catchment:
        """Open a shard's home. Raises InputError if the environment sets a setting of the demo."""
        opened, written = catchment.open(self.home(shard)), settings_of(self.home(shard))
        names = [name for name in _OWN if getattr(opened.settings, name) != getattr(written, name)]
        if names:
            variables = ", ".join(each.variable for each in declared() if each.name in names)
            raise InputError(
                f"The environment sets {variables}, which the demo sets itself.", hint="Unset it for the demo."
            )
        return opened

    def write_settings(self) -> None:
        """Write the settings of both homes: one control database, one file of users, one secret.

        Clients need not log in, so that the dashboard is open. The writers do, as users of their
        tenant.
        """
        values = {
            "control_db": f"sqlite:{self.path / 'control.sqlite'}",
            "server_users_file": str(self.path / "users.json"),
            "server_auth": False,
            "shard_secret": secrets.token_urlsafe(24),
        }
        # A basic string of TOML is written like one of JSON.
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items()]
        for shard in SHARDS:
            files.make_folder(self.home(shard))
            text = "".join(["# Written by every `catchment demo`.\n", *lines])
            files.replace_text(self.home(shard) / FILE_NAME, text, private=True)
