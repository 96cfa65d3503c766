"""Imports of legacy Parquet as calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from catchment.api.choices import one_of
from catchment.app import App
from catchment.pipeline import Mode
from catchment.pipeline.legacy import import_source
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import LegacyImport
from catchment.pipeline.legacy.report import LegacyReport


class ImportArguments(TypedDict, total=False):
    """Arguments of an import. A Tailpipe home is imported unless `tree` names a folder.

    home: Tailpipe's home; default ~/.tailpipe.
    workspace: the workspace in its `data/`; needed only if there are several.
    tree: any folder of hive folders; needs `keys`.
    keys: with `tree`, the folders' keys from the top, such as `region,day:DATE`.
    table: with `tree`, the table's name; default the folder's name.
    schema: schema of the lake that gets the tables; default `main`.
    mode: `auto`, which chooses for each leaf, `adopt`, `rewrite` or `insert`.
    partition_by: columns to partition new tables by; default the keys.
    quarantine: move unreadable files to the backup and import the rest of their leaf.
    digests: read adopted files to the end and record their digests; default True.
    """

    home: str | Path | None
    workspace: str | None
    tree: str | Path | None
    keys: str | None
    table: str | None
    schema: str
    mode: Mode | str
    partition_by: tuple[str, ...] | None
    quarantine: bool
    digests: bool


class LegacyApi:
    """Imports of hive folders into lake tables, with a backup and a proof.

    An import moves the files: when it is complete, the original tree is in the backup, `migrated/`
    in Tailpipe's `migration/` or in `<tree>.migration/`. `job(…).undo()` puts it back.
    """

    def __init__(self, find_app: Callable[[], App]) -> None:
        self._find_app = find_app

    @property
    def _app(self) -> App:
        return self._find_app()

    def job(self, **arguments: Unpack[ImportArguments]) -> LegacyImport:
        """Return an import, to plan, run, verify or undo it; changes nothing."""
        given: dict[str, Any] = dict(arguments)
        named = ("home", "workspace", "tree", "keys", "table")
        source = import_source.find(**{name: given.pop(name, None) for name in named})
        given["mode"] = one_of(Mode, given.get("mode", Mode.AUTO))
        options = ImportOptions(keys=source.keys, table=source.table, **given)
        return self._app.legacy_import(source.folders, options)

    def run(self, **arguments: Unpack[ImportArguments]) -> LegacyReport:
        """Import, or resume an interrupted import, and return its report; does not ask first.

        Leaves that cannot be imported raise no error: they are in the report's `failures`, and the
        report's `ok` is False. To see what would happen, call `job(…).plan()`.
        """
        return self.job(**arguments).run()
