"""Where Spark's Python workers import PySpark from."""

from pathlib import Path

import pytest

from catchment.spark_daemon import installed_first


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """PySpark, as pip installs it."""
    home = tmp_path / "site-packages" / "pyspark"
    home.mkdir(parents=True)
    (home / "__init__.py").touch()
    return home


def test_archives_of_the_pyspark_that_is_installed_are_left_out(spark_home: Path) -> None:
    archives = [str(spark_home / "python" / "lib" / "pyspark.zip"), str(spark_home / "jars" / "spark-core.jar")]
    others = ["/elsewhere/mine.zip", str(spark_home.parent)]
    assert installed_first([*archives, *others]) == others


def test_sparks_own_archive_is_left_out_even_if_a_path_is_a_link(spark_home: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "pyspark").symlink_to(spark_home)
    for home in (spark_home, links / "pyspark"):
        assert installed_first([str(home / "jars" / "spark-core.jar"), str(links)]) == [str(links)]


def test_a_separately_installed_spark_brings_its_own_pyspark(spark_home: Path) -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/jars/spark-core.jar", str(spark_home.parent)]
    assert installed_first(path) == path


def test_without_an_installed_pyspark_the_archive_is_used(tmp_path: Path) -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", str(tmp_path)]
    assert installed_first(path) == path
