"""A wheel of the checkout, installed as for a user without a checkout.

A download of Spark for each run would be slow. So the requirements come from the environment that
runs the tests, as links: those that the wheel's metadata asks for, theirs in turn, and nothing
else. What only the tests need is not there, and neither is the checkout. What `catchment doctor
--prepare` has made for Java is linked as well; Java takes it for the jars of the place where it was
made, so that is where Spark is at home.
"""

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pyspark
from packaging.requirements import Requirement

from catchment.pipeline import java
from tests.acceptance.shell import Ended
from tests.repo.source_tree import ROOT

PATIENCE_S = 300.0
SPARK_HOME = str(Path(pyspark.__file__).parent)


@dataclass(frozen=True)
class Wheel:
    """A wheel that was built from the checkout."""

    path: Path

    @property
    def files(self) -> set[str]:
        with zipfile.ZipFile(self.path) as archive:
            return set(archive.namelist())

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.path) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(archive.read(name).decode())

    @property
    def requirements(self) -> list[Requirement]:
        """What it asks for, extras and all."""
        return [Requirement(text) for text in self.metadata.get_all("Requires-Dist", [])]


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it, and a working folder outside of the checkout."""

    environment: Path
    folder: Path

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return next(self.environment.glob("lib/python*/site-packages"))

    def start(self, *command: str, err: int | None = subprocess.PIPE) -> "subprocess.Popen[str]":
        """Start a command as the user's shell would."""
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "CATCHMENT_LAKE_THREADS_MAX") if name in os.environ}
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            [self.environment / "bin" / command[0], *command[1:]],
            cwd=self.folder,
            env={**kept, "PATH": path, "HOME": str(self.folder), "COLUMNS": "200", "SPARK_HOME": SPARK_HOME},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )

    def run(self, *command: str) -> str:
        """What a command prints that ends well."""
        ended = self.ended(*command)
        assert ended.code == 0, f"{ended.out}\n{ended.err}"
        return ended.out

    def ended(self, *command: str) -> Ended:
        """How a command ends."""
        with self.start(*command) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
        return Ended(process.returncode, out, err)


def build(folder: Path) -> Wheel:
    """The wheel, made as `make wheel` does it."""
    _done([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)])
    (path,) = folder.iterdir()
    return Wheel(path)


def install(wheel: Wheel, folder: Path) -> Installed:
    """The wheel in a virtual environment of its own."""
    environment = folder / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    _done([*pip, "install", "--no-deps", "--no-index", str(wheel.path)])
    found = Installed(environment, folder)
    for required in closure(wheel.requirements):
        _link(required, found.site)
    archive = java.archive_path()
    if archive.exists():
        link = environment / archive.relative_to(sys.prefix)
        link.parent.mkdir(parents=True)
        link.symlink_to(archive)
    return found


def _done(command: list[str]) -> None:
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def closure(requirements: list[Requirement], extras: frozenset[str] = frozenset()) -> Iterator[Distribution]:
    """Everything that has to be installed for these requirements; some of it more than once."""
    for requirement in requirements:
        if any(applies(requirement, extra) for extra in (*extras, "")):
            required = distribution(requirement.name)
            yield required
            theirs = [Requirement(text) for text in required.requires or []]
            yield from closure(theirs, frozenset(requirement.extras))


def applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _link(required: Distribution, site: Path) -> None:
    """Put a distribution's packages, modules and metadata where another environment finds them."""
    for top in {file.parts[0] for file in required.files or []} - {"..", "__pycache__"}:
        link = site / top
        if not link.exists():
            link.symlink_to(Path(str(required.locate_file(top))).resolve())
