"""The same jobs on executors in their own processes, which share only storage with the driver."""

import sys
from pathlib import Path

from tests.conftest import MakeSettings
from tests.pipeline.legacy.generated_tree import LegacyTable, Odd, TreeShape
from tests.pipeline.legacy.legacy_home import SMALL, assert_imported, make_scene
from tests.repo.source_tree import ROOT
from tests.sample_events import assert_exactly_once, event_files
from tests.shortcuts import warm
from tests.shortcuts.made_lakes import new_lake


def test_the_same_jobs_pass_on_separate_executors(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings("sqlite")
    files = event_files(tmp_path / "in", 8)
    files[7].write_bytes(b"damaged")
    with new_lake(settings, events=True) as lake:
        tables = (*SMALL, LegacyTable(name="nginx_access_log", shape=TreeShape.ACCESS_LOG, leaves=3, rows_per_file=20))
        odd = set(Odd) - {Odd.CONFLICT}
        scene = make_scene(tmp_path, lake, settings, tables=tables, odd=odd)
        # A process of its own: a Python process has room for one Spark session, and this run has
        # one already.
        url = settings.catalog_url.get_secret_value()
        command = [sys.executable, "-m", "tests.spark.on_cluster", str(settings.home), url, str(scene.home.home)]
        ended = warm.run([*command, *map(str, files)], cwd=ROOT, timeout=300)
        assert ended.returncode == 0, ended.stderr
        drivers, executors, delivered, failed, leaves, stayed = ended.stdout.split()
        assert (delivered, failed) == ("7", "1")
        known = [leaf for leaf in scene.home.leaves if leaf.files and leaf.table in scene.rows]
        assert (leaves, stayed) == (str(len(known)), "0")
        assert int(executors) == 2
        assert drivers == "1"
        assert_exactly_once(lake, 7)
        assert_imported(scene)
