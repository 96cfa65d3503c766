"""The last audit's result, in a file in the home: the status shows it without running an audit."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from catchment.foundation import files
from catchment.lake.audit import AuditReport

FILE_NAME = "audit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAudit:
    """Time and result of the last audit of the whole lake."""

    at: datetime
    ok: bool
    findings: int
    notes: int


def note(home: Path, report: AuditReport, now: datetime) -> None:
    """Store an audit's result."""
    done = LastAudit(at=now, ok=report.ok, findings=len(report.findings), notes=len(report.notes))
    files.replace_text(home / FILE_NAME, json.dumps({**asdict(done), "at": now.isoformat()}) + "\n")


def last(home: Path) -> LastAudit | None:
    """Return the last audit's result; None if there was none or it cannot be read."""
    try:
        kept = json.loads((home / FILE_NAME).read_text(encoding="utf-8"))
        return LastAudit(**{**kept, "at": datetime.fromisoformat(kept["at"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
