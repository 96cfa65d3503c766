"""A legacy import on Spark: the same rows, the same backup, and damaged files are named."""

from pathlib import Path

from catchment.lake import Lake
from catchment.pipeline import SparkRunner
from catchment.pipeline.legacy.import_plan import ImportOptions
from tests.conftest import MakeSettings
from tests.pipeline.legacy.generated_tree import LegacyTable, Odd, TreeShape
from tests.pipeline.legacy.legacy_home import ADOPT_ALL, SMALL, assert_imported, leaf_of, make_scene


def test_a_legacy_home_is_imported_on_spark_with_every_oddity_it_has(
    make_settings: MakeSettings, spark_runner: SparkRunner, tmp_path: Path
) -> None:
    settings = make_settings("sqlite")
    tables = (*SMALL, LegacyTable(name="nginx_access_log", shape=TreeShape.ACCESS_LOG, leaves=3, rows_per_file=20))
    with Lake.from_settings(settings) as lake:
        scene = make_scene(tmp_path, lake, settings, tables=tables, odd=set(Odd) - {Odd.CONFLICT})
        report = scene.job(runner=spark_runner, adopt_bytes_min=ADOPT_ALL, units_per_commit_max=10).run()
        broken = (Odd.TRUNCATED_FILE, Odd.ZERO_BYTE_FILE, Odd.GARBAGE_FILE)
        assert {failure.leaf for failure in report.failures} == {leaf_of(scene, odd).path for odd in broken}
        report = scene.job(ImportOptions(quarantine=True), runner=spark_runner).run()
        assert report.ok, report.failures
        assert set(scene.modes().values()) == {"adopt", "rewrite"}
        assert_imported(scene)
