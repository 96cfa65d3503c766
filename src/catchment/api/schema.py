"""Schema migrations as calls."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from catchment.errors import InputError
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.schema import Development, LakeEngine, Migrate, SqliteEngine, TableRow, develop
from catchment.schema.backups import KEEP
from catchment.schema.development import DevelopmentStep
from catchment.schema.migratable import Database
from catchment.schema.project_config import Project, find_project, is_lake, load_models

Models = str | Sequence[type[TableRow]]


class SchemaApi:
    """Migrations of a SQLite file, or of the lake's tables, by scripts.

    `db` is a path, or `lake` or `lake:SCHEMA`. `models` is a module's name, `module:LIST`, or a
    list of TableRow classes. Arguments that are left out come from `[tool.catchment.schema]` in the
    nearest `pyproject.toml`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @contextmanager
    def open(
        self,
        db: str | Path | None = None,
        models: Models | None = None,
        *,
        scripts: str | Path | None = None,
        folder: str | Path | None = None,
        backups_keep: int | None = None,
        needs_models: bool = True,
    ) -> Iterator[Migrate]:
        """Open a database with its models, to check, generate, rehearse, apply, back up or restore.

        `folder` is where scripts, backups and the lock of a lake's schema are kept; default the
        project's folder.
        Without `needs_models`, none are loaded: backups and restores work without.
        """
        here = Path.cwd()
        project = find_project(here)
        wanted = project.models if models is None else models
        if wanted is None and needs_models:
            raise InputError(
                "Which models?", hint="Give `--models pkg.module` or `models=`, or set `models` in the project's file."
            )
        found: Sequence[type[TableRow]] = ()
        if wanted is not None and needs_models:
            folders = dict.fromkeys([here, project.folder or here])
            found = load_models(wanted, path=folders) if isinstance(wanted, str) else wanted
        with self._database(project, None if db is None else str(db), scripts, folder, backups_keep) as database:
            yield Migrate(database, found)

    def develop(
        self,
        migrate: Migrate,
        *,
        allow_drops: bool = False,
        on_step: Callable[[DevelopmentStep], None] = lambda _: None,
    ) -> Development:
        """Restore, apply and generate until an open database matches its models; for development.

        Without `allow_drops`, nothing is generated that drops a table, or a column of a table with
        rows. `on_step` is called after each step.
        """
        return develop(migrate, allow_drops=allow_drops, on_step=on_step)

    @contextmanager
    def _database(
        self,
        project: Project,
        given: str | None,
        scripts: str | Path | None,
        folder: str | Path | None,
        backups_keep: int | None,
    ) -> Iterator[Database]:
        db = given or project.db
        if db is None:
            raise InputError("Which database?", hint="Give its path, or set `db` in [tool.catchment.schema].")
        keep = backups_keep or project.backups_keep or KEEP
        # The project's scripts belong to the project's own database, not to another one.
        is_own = project.db is not None and (db == project.db or Path(db).absolute() == Path(project.db).absolute())
        own = Path(scripts) if scripts is not None else project.scripts if is_own else None
        if is_lake(db):
            schema = db.partition(":")[2] or DEFAULT_SCHEMA
            here = Path() if project.folder in (None, Path.cwd()) else project.folder
            root = here if folder is None else Path(folder)
            # Not entered, which would create a lake: only a script does that.
            with closing(Lake.from_settings(self._settings)) as lake:
                yield LakeEngine(lake, schema=schema, folder=root, scripts=own, backups_keep=keep)
        else:
            with SqliteEngine(db, scripts=own, backups_keep=keep) as engine:
                yield engine
