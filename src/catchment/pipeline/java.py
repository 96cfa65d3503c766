"""Finding the Java that Spark runs on."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from catchment import settings
from catchment.errors import JavaMissingError

VERSION_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_S_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime that Spark can use."""

    path: str
    version: int


def find_java() -> Java:
    """The Java that Spark would use, or an error that says what to install."""
    home = settings.java_home()
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None or not Path(path).exists():
        raise JavaMissingError("Spark needs Java 17 or newer, and there is no Java on this machine.")
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=_ANSWER_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissingError(f"Spark needs Java 17 or newer, and {path} does not run: {error}") from None
    version = _VERSION.search(answer.stderr + answer.stdout)
    if version is None or int(version[1]) < VERSION_MIN:
        raise JavaMissingError(
            f"Spark needs Java {VERSION_MIN} or newer; {path} is {version[1] if version else 'unknown'}."
        )
    return Java(path=path, version=int(version[1]))
