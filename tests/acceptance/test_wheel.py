"""The wheel, as somebody installs it who has no checkout: complete, with its requirements and no other, and it runs.

A download of Spark for each run would be slow. So the requirements come from the environment that runs the tests, as
links: those that the wheel's metadata asks for, theirs in turn, and nothing else. What only the tests need is not
there, and neither is the checkout.
"""

import http.client
import json
import os
import re
import signal
import ssl
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
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.repo.source_tree import ROOT, SOURCE

CERTIFICATES = ROOT / "tests" / "certificates"
HEALTHCHECK = ROOT / "deploy" / "healthcheck.py"
DEMO = ("catchment", "demo", "--json")
_PATIENCE_S = 300.0
_PAGES = {"/": b"<!doctype html>", "/static/style.css": b"{", "/static/live.js": b"EventSource"}


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
    """A virtual environment with the wheel in it, and a folder to be in that is no checkout."""

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
            env={**kept, "PATH": path, "HOME": str(self.folder), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )

    def run(self, *command: str) -> str:
        """What a command prints that ends well."""
        with self.start(*command) as process:
            try:
                out, err = process.communicate(timeout=_PATIENCE_S)
            finally:
                process.kill()
        assert process.returncode == 0, f"{out}\n{err}"
        return out


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    folder = tmp_path_factory.mktemp("dist")
    # As `make wheel` does it.
    _done([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)])
    (path,) = folder.iterdir()
    return Wheel(path)


@pytest.fixture(scope="module")
def installed(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("user")
    environment = folder / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    _done([*pip, "install", "--no-deps", "--no-index", str(wheel.path)])
    found = Installed(environment, folder)
    for required in _closure(wheel.requirements):
        _link(required, found.site)
    return found


def _done(command: list[str]) -> None:
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def _closure(requirements: list[Requirement], extras: frozenset[str] = frozenset()) -> Iterator[Distribution]:
    """Everything that has to be installed for these requirements; some of it more than once."""
    for requirement in requirements:
        if any(_applies(requirement, extra) for extra in (*extras, "")):
            required = distribution(requirement.name)
            yield required
            theirs = [Requirement(text) for text in required.requires or []]
            yield from _closure(theirs, frozenset(requirement.extras))


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _link(required: Distribution, site: Path) -> None:
    """Put a distribution's packages, modules and metadata where another environment finds them."""
    for top in {file.parts[0] for file in required.files or []} - {"..", "__pycache__"}:
        link = site / top
        if not link.exists():
            link.symlink_to(Path(str(required.locate_file(top))).resolve())


def _get(web: str, path: str) -> tuple[int, bytes]:
    trust = ssl.create_default_context(cafile=CERTIFICATES / "loopback.crt")
    connection = http.client.HTTPSConnection(web.removeprefix("https://"), timeout=_PATIENCE_S, context=trust)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _is_well(installed: Installed) -> bool:
    """What the image's health check says."""
    env = {"CATCHMENT_HOME": str(installed.folder / "served")}
    return subprocess.run([sys.executable, HEALTHCHECK], env=env, capture_output=True, check=False).returncode == 0


def test_the_wheel_holds_the_package_whole_and_nothing_else(wheel: Wheel) -> None:
    there = {path for path in SOURCE.rglob("*") if path.is_file() and path.parent.name != "__pycache__"}
    packed = {name for name in wheel.files if ".dist-info/" not in name}
    assert packed == {str(path.relative_to(SOURCE.parent)) for path in there}
    assert {re.sub(r"^.*\.", "", name) for name in packed} >= {"html", "css", "js", "svg", "sql", "typed", "py", "pyi"}


def test_the_wheel_says_what_it_is_and_under_which_licence(wheel: Wheel) -> None:
    metadata = wheel.metadata
    assert (metadata["Name"], metadata["License-Expression"]) == ("catchment", "Apache-2.0")
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.files)


def test_what_the_wheel_requires_is_what_the_tests_run_with(wheel: Wheel) -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {canonicalize_name(name): Version(version) for name, version in pins.items()}
    required = {canonicalize_name(each.metadata["Name"]): each.version for each in _closure(wheel.requirements)}
    assert {"duckdb", "pyspark", "psycopg-binary"} <= set(required)
    assert {name: Version(version) for name, version in required.items()} == {name: pinned[name] for name in required}
    for each in wheel.requirements:
        if _applies(each, ""):
            assert each.specifier.contains(required[canonicalize_name(each.name)]), str(each)


def test_the_checkout_is_out_of_reach_of_the_wheel(installed: Installed) -> None:
    asked = "import catchment, sys, json; print(json.dumps([catchment.__file__, *sys.path]))"
    module, *path = json.loads(installed.run("python", "-c", asked))
    assert Path(module) == installed.site / "catchment" / "__init__.py"
    assert not [each for each in path if each and Path(each).resolve().is_relative_to(ROOT / "src")]


def test_the_machine_is_found_fit_from_the_wheel(installed: Installed) -> None:
    checks: list[dict[str, Any]] = json.loads(installed.run("catchment", "doctor", "--json"))["checks"]
    assert [each for each in checks if not each["ok"]] == []


def test_a_server_of_the_wheel_has_its_pages_and_its_container_sees_how_it_is(installed: Installed) -> None:
    tls = ("--tls-certificate", str(CERTIFICATES / "loopback.crt"), "--tls-key", str(CERTIFICATES / "loopback.key"))
    command = ("catchment", "serve", "--port", "0", "--web-port", "0", "--home", "served", *tls)
    with (installed.folder / "serve.err").open("w") as err, installed.start(*command, err=err.fileno()) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready ")
            web = process.stdout.readline().removeprefix("web ").strip()
            for path, part in _PAGES.items():
                status, body = _get(web, path)
                assert (status, part in body) == (200, True), path
            assert _is_well(installed)
            process.send_signal(signal.SIGTERM)
            assert process.wait(_PATIENCE_S) == 0
            assert not _is_well(installed)
        finally:
            process.kill()


def test_the_demo_of_the_wheel_loses_nothing(installed: Installed) -> None:
    """Spark's workers are part of it: they too find Catchment where the wheel put it."""
    told = json.loads(installed.run(*DEMO))
    assert (told["ok"], told["errors"]) == (True, [])
    assert [each for each in told["checks"] if not each["ok"]] == []
    assert told["acked"] == told["in_lake"] == told["distinct"] > 0
    assert told["legacy"]["rows"] > 0
