"""The integration examples of the design: a development server, and a production pipeline."""

import logging
import shutil
import sys
from pathlib import Path

import pytest

from catchment.schema.check import State
from catchment.schema.migrate import Migrate
from tests.schema.projects import Scene, scene

log = logging.getLogger("dev-server")


def _dev_server(here: Scene) -> None:
    engine, models = here.engine, here.models
    migrate = Migrate(engine, models)
    result = migrate.check()

    match result.state:
        case State.CURRENT:
            pass  # ready to go
        case State.PENDING:
            for script in result.pending:
                migrate.apply(script)
            sys.exit(0)  # reload to recheck
        case _:
            log.error(result.status())
            sys.exit(1)


def _production(here: Scene, offsite: Path) -> list[str]:
    printed: list[str] = []
    print, exit = printed.append, sys.exit  # noqa: A001

    def push_to_s3(path: Path) -> None:
        shutil.copy(path, offsite)

    engine, models, db_path = here.engine, here.models, here.path
    migrate = Migrate(engine, models)
    result = migrate.check()

    match result.state:
        case State.CURRENT:
            print("Nothing to migrate")
        case State.PENDING:
            push_to_s3(db_path)  # offsite backup
            for script in result.pending:
                migrate.apply(script)
        case State.DRIFT:
            print("Model drift — generate migration first")
            print(result.status())
            exit(1)
        case _:
            print(result.status())
            exit(1)
    return printed


@pytest.mark.parametrize("name", ["scripts_only", "pending"])
def test_a_development_server_applies_pending_scripts_and_starts_the_second_time(tmp_path: Path, name: str) -> None:
    here = scene(name, tmp_path)
    with pytest.raises(SystemExit) as ended:
        _dev_server(here)
    assert ended.value.code == 0
    _dev_server(here)
    assert here.check().state is State.CURRENT


@pytest.mark.parametrize("name", ["conflict", "diverged", "diverged_with_ref", "model_changed"])
def test_a_development_server_does_not_start_if_the_state_needs_attention(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    here = scene(name, tmp_path)
    with pytest.raises(SystemExit) as ended:
        _dev_server(here)
    assert ended.value.code == 1
    assert here.check().status() in caplog.text


def test_production_backs_up_and_applies_pending_scripts(tmp_path: Path) -> None:
    here, offsite = scene("pending", tmp_path), tmp_path / "offsite.sqlite"
    assert _production(here, offsite) == []
    assert _production(here, offsite) == ["Nothing to migrate"]
    assert here.rows("SELECT count(*) FROM _migrations", offsite) == [(2,)]
    assert here.rows("SELECT count(*) FROM _migrations") == [(3,)]


@pytest.mark.parametrize("name", ["conflict", "diverged", "model_changed"])
def test_production_stops_if_the_state_needs_attention(tmp_path: Path, name: str) -> None:
    here = scene(name, tmp_path)
    before = here.content()
    with pytest.raises(SystemExit) as ended:
        _production(here, tmp_path / "offsite.sqlite")
    assert ended.value.code == 1
    assert here.content() == before
