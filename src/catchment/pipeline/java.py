"""The Java runtime for Spark: how to find it and how to start it."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from catchment.errors import JavaMissingError, SparkFailedError
from catchment.foundation import settings

VERSION_MIN = 17
# The JVM only schedules, and mostly for a short time: an optimizing compiler costs more than it
# gains. Measured, a session starts with 7 s of CPU instead of 12, and a small job takes 50 ms
# instead of 85.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_S_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime that Spark can use."""

    path: str
    version: int


def find_java() -> Java:
    """Return the Java that Spark would use, or raise an error with a hint on what to install."""
    home = settings.java_home()
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if home and not shutil.which(str(path)):
        raise JavaMissingError(
            f"Spark needs Java {VERSION_MIN} or newer; JAVA_HOME is {home}, which has no Java.",
            hint="Set JAVA_HOME to a Java folder, or unset it to use the `java` of PATH. "
            "If none is installed, install a Java runtime: `apt-get install openjdk-17-jre-headless`.",
        )
    if path is None:
        raise JavaMissingError("Spark needs Java 17 or newer, and there is no Java on this machine.")
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=_ANSWER_S_MAX, check=True)
    except subprocess.TimeoutExpired as error:
        raise SparkFailedError(f"{path} did not report its version within {error.timeout:g} s.") from None
    except (OSError, subprocess.SubprocessError) as error:
        if getattr(error, "returncode", 0) < 0:
            raise SparkFailedError(f"Java was killed while it reported its version: {error}") from None
        raise JavaMissingError(f"Spark needs Java 17 or newer, and {path} does not run: {error}") from None
    found = _VERSION.search(answer.stderr + answer.stdout)
    if found is None or int(found[1]) < VERSION_MIN:
        raise JavaMissingError(
            f"Spark needs Java {VERSION_MIN} or newer; {path} is {found[1] if found else 'unknown'}."
        )
    return Java(path=path, version=int(found[1]))


def archive_path() -> Path:
    """Return the path of the archive of Spark's classes that Java maps into memory, if it exists.

    Such an archive belongs to one Java and one set of jars, so it is stored next to the packages.
    Java itself checks whether it fits, and starts without it if it does not; a damaged archive can
    prevent Java from starting.
    """
    return Path(sys.prefix) / "share" / "catchment" / f"spark-{version('pyspark')}.jsa"


def driver_options() -> str:
    """Return the Java options of Spark's driver."""
    return _with_archive() if archive_path().exists() else OPTIONS


def is_archived(options: str | None) -> bool:
    """Return whether these are the options that pass the archive to Java."""
    return options == _with_archive()


def _with_archive() -> str:
    return f'{OPTIONS} "-XX:SharedArchiveFile={archive_path()}"'
