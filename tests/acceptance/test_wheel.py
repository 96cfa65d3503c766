"""The wheel is complete, requires only what it declares, and runs outside of the checkout."""

import http.client
import json
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.acceptance.installed import PATIENCE_S, Installed, Wheel, applies, closure
from tests.repo.source_tree import ROOT, SOURCE

CERTIFICATES = ROOT / "tests" / "certificates"
HEALTHCHECK = ROOT / "deploy" / "healthcheck.py"
_PAGES = {"/": b"<!doctype html>", "/static/style.css": b"{", "/static/live.js": b"EventSource"}


def _get(web: str, path: str) -> tuple[int, bytes]:
    trust = ssl.create_default_context(cafile=CERTIFICATES / "loopback.crt")
    connection = http.client.HTTPSConnection(web.removeprefix("https://"), timeout=PATIENCE_S, context=trust)
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


def test_the_wheel_requires_the_versions_that_the_tests_run_with(wheel: Wheel) -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {canonicalize_name(name): Version(version) for name, version in pins.items()}
    required = {canonicalize_name(each.metadata["Name"]): each.version for each in closure(wheel.requirements)}
    assert {"duckdb", "pyspark", "psycopg-binary"} <= set(required)
    assert {name: Version(version) for name, version in required.items()} == {name: pinned[name] for name in required}
    for each in wheel.requirements:
        if applies(each, ""):
            assert each.specifier.contains(required[canonicalize_name(each.name)]), str(each)


def test_the_checkout_is_out_of_reach_of_the_wheel(installed: Installed) -> None:
    asked = "import catchment, sys, json; print(json.dumps([catchment.__file__, *sys.path]))"
    module, *path = json.loads(installed.run("python", "-c", asked))
    assert Path(module) == installed.site / "catchment" / "__init__.py"
    assert not [each for each in path if each and Path(each).resolve().is_relative_to(ROOT / "src")]


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
            assert process.wait(PATIENCE_S) == 0
            assert not _is_well(installed)
        finally:
            process.kill()
