"""Records that a shard keeps of its tenants: small files, replaced as a whole, so that a crash
leaves the old or the new one.

<home>/tenants/t7.json        the record: role, epoch, replica, move, and whether the write barrier is closed
<home>/tenants/t7.hold.json   the snapshot from which a move copies the tenant; it stays the same when the move resumes
"""

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catchment.errors import CorruptInputError
from catchment.foundation import files
from catchment.tenants.model import Positions, TenantId
from catchment.tenants.shard_api import RetainedHistory, ShardRole, TenantRecord

FOLDER = "tenants"


@dataclass(frozen=True, slots=True)
class Residents:
    """Schemas of all tenants that a shard knows, and of those whose primary is another shard.

    Of the latter the shard has, had or gets a replica.
    """

    known: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()


class Records:
    """Records of one shard. Thread-safe; a thread that changes one must hold the tenant's lock."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._mutex = threading.Lock()
        # Content of the folder; only this process writes to it.
        self._known: dict[TenantId, TenantRecord] | None = None
        self._residents = Residents()

    def find(self, tenant: TenantId) -> TenantRecord | None:
        """Return the tenant's record, if there is one."""
        with self._mutex:
            return self._loaded().get(tenant)

    def all(self) -> tuple[TenantRecord, ...]:
        """Return the records of all tenants that are or were here."""
        with self._mutex:
            return tuple(record for _, record in sorted(self._loaded().items()))

    def residents(self) -> Residents:
        """Return the tenants that the shard knows."""
        with self._mutex:
            self._loaded()
            return self._residents

    def keep(self, record: TenantRecord) -> None:
        """Replace a tenant's record; durable when this returns."""
        with self._mutex:
            self._write(self._path(record.tenant), record.to_json())
            self._loaded()[record.tenant] = record
            self._sort()

    def retained(self, tenant: TenantId, move: str) -> RetainedHistory | None:
        """Return the history that this move copies, if it was recorded."""
        kept = _load(self._path(tenant, ".hold"))
        if kept is None or kept["move"] != move:
            return None
        return RetainedHistory(snapshot=kept["snapshot"], watermarks=Positions.from_json(kept["watermarks"]))

    def keep_retained(self, tenant: TenantId, move: str, retained: RetainedHistory) -> None:
        """Record the history that this move copies."""
        kept = {"move": move, "snapshot": retained.snapshot, "watermarks": retained.watermarks.to_json()}
        self._write(self._path(tenant, ".hold"), kept)

    def _loaded(self) -> dict[TenantId, TenantRecord]:
        if self._known is None:
            found = (_load(path) for path in self._folder.glob("t*.json") if "." not in path.stem)
            records = (TenantRecord.from_json(kept) for kept in found if kept is not None)
            self._known = {record.tenant: record for record in records}
            self._sort()
        return self._known

    def _sort(self) -> None:
        records = (self._known or {}).values()
        self._residents = Residents(
            known=frozenset(record.tenant.schema for record in records),
            away=frozenset(record.tenant.schema for record in records if record.role is not ShardRole.PRIMARY),
        )

    def _path(self, tenant: TenantId, what: str = "") -> Path:
        return self._folder / f"{tenant}{what}.json"

    def _write(self, path: Path, kept: dict[str, Any]) -> None:
        files.make_folder(self._folder)
        files.replace_text(path, json.dumps(kept, indent=2) + "\n")


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptInputError(
            f"{path} cannot be read: {error}.",
            hint="It records whether this shard is the tenant's primary. Restore it from a backup; "
            "the control database also records the primary.",
            path=str(path),
        ) from None
