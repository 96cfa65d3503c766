"""`deploy/` is for other machines, so it is read closely: every name exists, and it is hardened."""

import importlib.util
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import closing
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]

from catchment.errors import EXIT_NEEDS_YOU, SettingsError
from catchment.foundation.settings import PREFIX, QUEUE_PREFIX, SERVER_PORT, WEB_PORT, Settings, declared, load_settings
from catchment.server.access.auth import require_safe
from catchment.server.access.users import Users
from catchment.server.values import Role
from catchment.testing import FakeClock
from tests.repo.source_tree import ROOT

DEPLOY = ROOT / "deploy"
CERTIFICATES = ROOT / "tests" / "certificates"
OURS = (PREFIX, QUEUE_PREFIX)
DEFAULTS = Settings.model_fields
# What closing takes beyond the time that the server gives its last flush.
CLOSE_S = 5.0
CONTAINER_HOME = "/var/lib/catchment"
# Settings with a default are `#name = value`, others `##name = ""`; prose has a blank after its
# mark.
WITH_DEFAULT = re.compile(r"^#(?=[a-z])", re.MULTILINE)
EVERY = re.compile(r"^##?(?=[a-z])", re.MULTILINE)
# What systemd knows of what a unit may say, as far as ours says it.
DIRECTIVES = {
    "Unit": "Description Documentation Wants After",
    "Service": (
        "Type User EnvironmentFile ExecStart Restart RestartSec RestartPreventExitStatus KillMode KillSignal "
        "TimeoutStopSec OOMPolicy LimitNOFILE StateDirectory StateDirectoryMode WorkingDirectory UMask NoNewPrivileges "
        "CapabilityBoundingSet ProtectSystem ProtectHome PrivateTmp PrivateDevices ProtectClock ProtectHostname "
        "ProtectControlGroups ProtectKernelLogs ProtectKernelModules ProtectKernelTunables RestrictAddressFamilies "
        "RestrictNamespaces RestrictRealtime RestrictSUIDSGID LockPersonality SystemCallArchitectures"
    ),
    "Install": "WantedBy",
}
SERVICE_KEYS = {
    "build", "depends_on", "environment", "healthcheck", "image", "init", "ports", "restart", "stop_grace_period",
    "volumes",
}  # fmt: skip
# What other programs in the containers read.
FOREIGN_VARIABLES = {"POSTGRES_DB", "POSTGRES_USER", "POSTGRES_PASSWORD", "PGPASSWORD"}


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(variable)


def _read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


@cache
def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("catchment_docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _command(words: list[str]) -> None:
    """See that the words after `catchment` are a command with options that it has."""
    commands = dict(_generator().commands())
    named = [word for word in words if not word.startswith("-")]
    name = next(name for name in (f"catchment {' '.join(named[:n])}" for n in (2, 1)) if name in commands)
    known = {option for each in commands[name].params for option in each.opts}
    assert {word for word in words if word.startswith("--")} <= known


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)s", text)
    assert found, f"{text!r} is not a number of seconds"
    return float(found[1])


# The example of a settings file.


def test_the_example_of_settings_is_what_the_code_says() -> None:
    assert _read("catchment.toml") == _generator().settings_example(), "run `make docs`"


def test_the_example_file_sets_nothing() -> None:
    assert tomllib.loads(_read("catchment.toml")) == {}


def test_the_example_names_every_setting_once_and_is_toml_without_its_marks() -> None:
    found = tomllib.loads(EVERY.sub("", _read("catchment.toml")))
    assert list(found) == [each.name for each in declared() if each.name != "home"]
    assert {name for name, value in found.items() if value == ""} == {n for n in found if DEFAULTS[n].default is None}


def test_settings_that_the_example_sets_are_the_defaults(tmp_path: Path) -> None:
    before = load_settings(tmp_path)
    (tmp_path / "catchment.toml").write_text(WITH_DEFAULT.sub("", _read("catchment.toml")), encoding="utf-8")
    written = tomllib.loads((tmp_path / "catchment.toml").read_text(encoding="utf-8"))
    assert len(written) > 30
    assert set(written) == {name for name, field in DEFAULTS.items() if field.default is not None} - {"home"}
    assert load_settings(tmp_path) == before


def test_the_example_says_of_every_setting_what_it_is_and_in_which_unit() -> None:
    lines = _read("catchment.toml").splitlines()
    for each in declared():
        if each.name != "home":
            at = next(n for n, line in enumerate(lines) if re.match(rf"##?{each.name} = ", line))
            assert lines[at - 1].startswith(f"# {each.help}")
            assert not each.unit or lines[at - 1].endswith(f" In {each.unit}.")


# The unit of systemd.


def _unit() -> dict[str, dict[str, str]]:
    # Names are case-sensitive; a duplicate is refused.
    parser = RawConfigParser(delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(_read("catchment.service"))
    return {section: dict(parser[section]) for section in parser.sections()}


def test_the_unit_says_nothing_that_systemd_does_not_know() -> None:
    unit = _unit()
    assert list(unit) == list(DIRECTIVES)
    for section, said in unit.items():
        assert set(said) <= set(DIRECTIVES[section].split()), section


def test_the_unit_starts_a_command_that_exists_on_the_folder_that_it_may_write_to() -> None:
    service = _unit()["Service"]
    program, *words = service["ExecStart"].split()
    assert Path(program).name == "catchment"
    _command(words)
    assert words[words.index("--home") + 1] == service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"


def test_the_unit_ends_the_server_as_the_server_wants_to_end() -> None:
    service = _unit()["Service"]
    assert _seconds(service["TimeoutStopSec"]) > DEFAULTS["server_shutdown_seconds"].default + CLOSE_S
    # A signal to all of the group would end Spark before the last flush.
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == str(EXIT_NEEDS_YOU)


def test_the_unit_gives_the_server_no_more_than_it_needs() -> None:
    service = _unit()["Service"]
    assert service["User"] != "root"
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
    assert (service["ProtectSystem"], service["ProtectHome"], service["PrivateTmp"]) == ("strict", "yes", "yes")
    # Java writes code, and runs it.
    assert "MemoryDenyWriteExecute" not in service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    # The program has to exist.
    program = str(Path(sys.executable).with_name("catchment"))
    copy = tmp_path / "catchment.service"
    copy.write_text(_read("catchment.service").replace("/opt/catchment/bin/catchment serve", f"{program} serve"))
    ended = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    # The machine's own units are looked at too, and are not ours.
    assert [line for line in ended.stderr.splitlines() if "catchment" in line] == []


# The image.


def _instructions() -> list[tuple[str, str]]:
    parser = DockerfileParser(fileobj=io.BytesIO(_read("Dockerfile").encode()))
    return [(each["instruction"], each["value"]) for each in parser.structure if each["instruction"] != "COMMENT"]


def _values(instruction: str) -> list[str]:
    return [value for name, value in _instructions() if name == instruction]


def _copied() -> list[str]:
    """What the image takes from the checkout."""
    sources = [value.split()[:-1] for value in _values("COPY") if not value.startswith("--from=")]
    return [source for words in sources for source in words]


def test_files_that_the_image_copies_exist_and_are_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    assert allowed == set(_copied())
    assert all((ROOT / name).exists() for name in allowed)


def test_the_image_builds_with_everything_that_the_build_reads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    read = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"], "src"}
    assert read <= set(_copied())


def test_the_images_that_the_image_is_made_from_have_tags() -> None:
    bases = [value.split()[0] for value in _values("FROM")]
    assert len(set(bases)) == 1, "build and run are of one Python"
    assert re.fullmatch(r"python:3\.11[\d.]*-slim-\w+", bases[0])


def test_the_image_runs_as_a_user_without_rights() -> None:
    last = _values("USER")[-1]
    assert re.fullmatch(r"([1-9]\d{3,}):\1", last), "a number, so that others can tell that it is not root"
    assert any(f"--uid {last.partition(':')[0]} " in run for run in _values("RUN"))


def test_the_image_installs_pinned_versions_only() -> None:
    installs = [part for run in _values("RUN") for part in run.split("&&") if "pip install" in part]
    assert installs
    assert all("--constraint" in each for each in installs)
    assert any("hatchling" in each for each in installs)
    assert "hatchling==" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_the_image_names_ports_home_and_command_as_they_are() -> None:
    assert _values("EXPOSE") == [f"{SERVER_PORT} {WEB_PORT}"]
    assert _values("VOLUME") == _values("WORKDIR")[-1:] == [CONTAINER_HOME]
    assert _values("ENV") == [f"CATCHMENT_HOME={CONTAINER_HOME}"]
    assert _values("ENTRYPOINT") == ['["catchment"]']
    _command(yaml.safe_load(_values("CMD")[-1]))


def test_the_health_check_of_the_image_uses_a_program_in_it() -> None:
    (check,) = _values("HEALTHCHECK")
    program, script = yaml.safe_load(check.partition("CMD ")[2])
    assert program == "python"
    assert "deploy/healthcheck.py" in _copied()
    assert script in {value.split()[-1] + Path(value.split()[-2]).name for value in _values("COPY")}


# What the image asks its server.


class _Healthz(BaseHTTPRequestHandler):
    """A server that is well."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Discard the log line."""


@pytest.fixture
def healthz() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Healthz) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def nobody() -> Iterator[str]:
    """Reserve a port on which no process listens or can start to."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def _is_well(home: Path, *, uri: str, web: str | None, **environment: str) -> bool:
    (home / "server.json").write_text(json.dumps({"uri": uri, "web": web}), encoding="utf-8")
    command = [sys.executable, str(DEPLOY / "healthcheck.py")]
    env = {"CATCHMENT_HOME": str(home), **environment}
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


def test_a_server_that_answers_is_well_whatever_proxy_the_environment_names(
    tmp_path: Path, healthz: str, nobody: str
) -> None:
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), f"http://{nobody}")
    assert _is_well(tmp_path, uri=f"grpc://{nobody}", web=healthz)
    assert _is_well(tmp_path, uri=f"grpc://{nobody}", web=healthz, **proxies)
    assert not _is_well(tmp_path, uri=f"grpc://{nobody}", web=f"http://{nobody}")


@pytest.mark.parametrize("scheme", ["grpc", "grpc+tls"])
def test_a_server_without_web_is_well_while_its_flight_port_is_open(tmp_path: Path, scheme: str, nobody: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        assert _is_well(tmp_path, uri=f"{scheme}://127.0.0.1:{port}", web=None)
    assert not _is_well(tmp_path, uri=f"{scheme}://{nobody}", web=None)


def test_a_health_check_without_any_server_fails(tmp_path: Path) -> None:
    env = {"CATCHMENT_HOME": str(tmp_path)}
    command = [sys.executable, str(DEPLOY / "healthcheck.py")]
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode != 0


# The containers together.


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_read("compose.yml"))
    return found


def _services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = _compose()["services"]
    return services


def test_the_containers_are_described_in_words_that_compose_knows() -> None:
    assert set(_compose()) == {"name", "services", "volumes"}
    for name, service in _services().items():
        assert set(service) <= SERVICE_KEYS, name


def test_the_containers_are_made_from_images_with_tags() -> None:
    for service in _services().values():
        assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", service["image"])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert _services()["catchment"]["image"] == f"catchment:{version}"
    assert f"--tag catchment:{version} " in _read("Dockerfile")
    build = _services()["catchment"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()


def test_the_containers_are_reached_from_this_machine_alone() -> None:
    published = [port for service in _services().values() for port in service.get("ports", [])]
    assert published == [f"127.0.0.1:{port}:{port}" for port in (SERVER_PORT, WEB_PORT)]


def test_a_container_waits_for_the_health_of_what_it_needs() -> None:
    services = _services()
    needed = services["catchment"]["depends_on"]
    assert needed == {"postgres": {"condition": "service_healthy"}}
    assert all("healthcheck" in services[name] for name in needed)


def test_volumes_are_declared_and_the_home_is_one() -> None:
    used = [volume.split(":")[:2] for service in _services().values() for volume in service["volumes"]]
    assert {name for name, _ in used if not name.startswith(".")} == set(_compose()["volumes"])
    assert ["home", CONTAINER_HOME] in used


def test_containers_have_time_for_the_shutdown() -> None:
    least = DEFAULTS["server_shutdown_seconds"].default + CLOSE_S
    assert _seconds(_services()["catchment"]["stop_grace_period"]) > least


def test_variables_of_the_containers_are_settings_and_secrets_have_no_default() -> None:
    ours = {each.variable for each in declared()}
    for service in _services().values():
        for name, value in service["environment"].items():
            assert name in (ours if name.startswith(OURS) else FOREIGN_VARIABLES), name
            assert "password=" not in value
            assert "PASSWORD" not in name or re.fullmatch(r"\$\{POSTGRES_PASSWORD:\?[^}]+\}", value)


def test_the_server_takes_the_settings_of_its_container_once_there_is_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = _services()["catchment"]["environment"]
    tls = next(volume for volume in _services()["catchment"]["volumes"] if volume.startswith("./tls:")).split(":")[1]
    for name, value in given.items():
        if name.startswith(OURS):
            monkeypatch.setenv(name, value)
    asked = load_settings(tmp_path)
    assert (asked.server_tls_certificate, asked.server_tls_key) == (Path(tls, "server.crt"), Path(tls, "server.key"))
    # The files are the operator's.
    mounted = {
        "server_tls_certificate": CERTIFICATES / "loopback.crt",
        "server_tls_key": CERTIFICATES / "loopback.key",
    }
    settings = asked.model_copy(update=mounted)
    users = Users.from_settings(settings, clock=FakeClock())
    with pytest.raises(SettingsError, match="there are no users"):
        require_safe(settings, users)
    users.add("ada", Role.ADMIN, "correct horse battery staple")
    require_safe(settings, users)
    assert settings.catalog_url.get_secret_value().startswith("postgres:host=postgres ")
    assert settings.control_url == settings.catalog_url


@pytest.mark.parametrize("name", ["compose.yml", "catchment.service", "Dockerfile"])
def test_commands_in_the_instructions_exist(name: str) -> None:
    told = re.findall(r"^#.*?(?:\bbin/catchment|--no-deps catchment) (.+)$", _read(name), re.MULTILINE)
    for line in told:
        _command(line.split())
    assert bool(told) == (name != "Dockerfile")


# The rules of Prometheus. That their metrics exist is tested where metrics are.


def test_every_alert_has_a_name_of_its_own_a_condition_a_severity_and_a_sentence() -> None:
    (group,) = yaml.safe_load(_read("alerts.yml"))["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Catchment[A-Z]\w+", rule["alert"])
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert "for" not in rule or re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"].endswith(".")
