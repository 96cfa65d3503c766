"""The sandbox of a DuckDB instance that runs untrusted SQL: locks on files and settings."""

from dataclasses import dataclass
from pathlib import Path

import duckdb

from catchment.foundation import files, sql
from catchment.lake.attach import LakeAddress

# Settings that a session may change for itself: they affect only its own results, not its access.
SESSION_SETTINGS = frozenset(
    {
        *("timezone", "calendar", "default_null_order", "null_order", "default_order", "integer_division"),
        *("enable_progress_bar", "enable_progress_bar_print", "progress_bar_time", "explain_output", "pivot_limit"),
        *("ieee_floating_point_ops", "scalar_subquery_error_on_multiple_rows", "order_by_non_integer_literal"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Limits of a sandboxed instance: the lake's data folder, a folder to spill to, and memory."""

    spill_path: Path
    memory_mb: int = 0

    def apply(self, connection: duckdb.DuckDBPyConnection, address: LakeAddress | None = None) -> None:
        """Sandbox the instance irrevocably; the catalog must be attached already."""
        settings: dict[str, sql.Value] = {
            "temp_directory": str(self.spill_path),
            # A table name must not resolve to a Python variable.
            "python_enable_replacements": False,
        }
        if self.memory_mb:
            settings["memory_limit"] = f"{self.memory_mb}MiB"
        for name, value in settings.items():
            connection.execute(f"SET {name} = {sql.literal(value)}")
        if address is not None:
            # Created now: later, the sandbox forbids creating its parents.
            files.make_folder(files.local_path(address.data_path))
            folder = sql.literal(address.data_path.rstrip("/") + "/")
            connection.execute(f"SET allowed_directories = [{folder}]")
        connection.execute("SET enable_external_access = false")
        open_to_sessions = ", ".join(sql.literal(name) for name in sorted(SESSION_SETTINGS))
        connection.execute(f"SET allowed_configs = [{open_to_sessions}]")
        connection.execute("SET lock_configuration = true")
