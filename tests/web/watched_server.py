"""A server in its own process, and a client that speaks plain HTTP."""

import base64
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.shortcuts import warm

ROOT = Path(__file__).parents[2]
PASSWORD = "correct horse"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    code: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Watched:
    """A server with a web server beside it."""

    home: Path
    uri: str
    web: str | None

    def get(self, path: str, *, user: str | None = None, password: str = PASSWORD, **headers: str) -> Answer:
        """Request a path, as that user or anonymously."""
        if user is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        request = urllib.request.Request(f"{self.web}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return Answer(found.status, _lower(found.headers), found.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, _lower(refused.headers), refused.read().decode())

    def scrape(self, *, user: str | None = None) -> dict[str, Metric]:
        """The metrics by name, as Prometheus's own parser reads them."""
        answer = self.get("/metrics", user=user)
        assert answer.code == 200, answer.body
        return {family.name: family for family in text_string_to_metric_families(answer.body)}

    def execute(self, *statements: str, user: str | None = None) -> None:
        """Run statements in one session."""
        login = {} if user is None else {"username": user, "password": PASSWORD}
        with flight.connect(self.uri, login, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                cursor.fetchall()


@contextmanager
def watched(home: Path, *, web_port: str = "0") -> Iterator[Watched]:
    """A server that is killed at the end."""
    process = warm.Process(
        [sys.executable, "-m", "tests.web.watched_server_child", str(home), web_port],
        cwd=ROOT,
        env={**os.environ, "CATCHMENT_LAKE_THREADS_MAX": "1"},
        stdin=warm.PIPE,
        stdout=warm.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        ready = process.stdout.readline()
        assert ready, "it did not come up"
        yield Watched(home, **json.loads(ready))
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=60)


def sample(families: Mapping[str, Metric], name: str, suffix: str = "", **labels: str) -> float:
    """The one sample of a family with that ending and these labels."""
    [found] = [
        each.value
        for each in families[name.removesuffix("_total")].samples
        if each.name == name + suffix and labels.items() <= each.labels.items()
    ]
    return float(found)


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
