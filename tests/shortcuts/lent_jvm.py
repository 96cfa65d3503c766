"""A JVM that passes from one warm process to the next: each stops its Spark, and the JVM runs on.

A JVM ends when the other end of its stdin is closed. That end is passed on: a process that dies
while it has a JVM takes it with it, as it would its own.
"""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

from pyspark import SparkConf

from catchment.foundation.settings import environment
from catchment.pipeline import spark_driver
from catchment.pipeline.jvm import launch_gateway
from tests.repo.source_tree import ROOT

ASK, GIVE = "ask", "give"
# Fixed for the life of a JVM. The next Spark sets everything else again.
_SETTINGS = ("spark.driver.memory", "spark.driver.extraJavaOptions")
_VARIABLES = ("JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH", "SPARK_CONF_DIR", "SPARK_HOME", "TZ")
_ANSWER_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Jvm:
    """Where Java listens, and for whom it would do."""

    kind: str
    port: int
    secret: str


class Lender:
    """Keeps idle JVMs, each with the end of its stdin."""

    def __init__(self) -> None:
        self._idle: list[tuple[Jvm, int]] = []

    def answer(self, line: socket.socket, asked: Mapping[str, Any], streams: list[int]) -> None:
        """Take what is given, or lend one of the kind that is asked for, if there is any."""
        fit = None
        if asked["kind"] == GIVE:
            self._idle.append((Jvm(**asked["jvm"]), streams[0]))
        else:
            fit = next((each for each in self._idle if each[0].kind == asked["of"]), None)
        if fit is None:
            line.sendall(b"\n")
            return
        self._idle.remove(fit)
        jvm, stdin = fit
        socket.send_fds(line, [json.dumps(asdict(jvm)).encode()], [stdin])
        os.close(stdin)


def borrow_from(lender: str) -> None:
    """Have Spark start in a JVM that is lent there, from now on in this process."""

    def launch(conf: SparkConf, log: IO[bytes], *, seconds_max: float) -> Any:
        told = dict(conf.getAll())
        kind = json.dumps([sorted(told), [told.get(each) for each in _SETTINGS], [*map(os.environ.get, _VARIABLES)]])
        said, streams = _say(lender, {"kind": ASK, "of": kind}, [])
        if streams:
            jvm, stdin = Jvm(**json.loads(said)), streams[0]
            with environment(PYSPARK_GATEWAY_PORT=str(jvm.port), PYSPARK_GATEWAY_SECRET=jvm.secret):
                gateway = launch_gateway(conf, log, seconds_max=seconds_max)
        else:
            gateway = launch_gateway(conf, log, seconds_max=seconds_max, cwd=ROOT)
            where = gateway.gateway_parameters
            jvm, stdin = Jvm(kind=kind, port=where.port, secret=where.auth_token), _disowned(gateway)
        close = gateway.close

        def give_back() -> None:
            close()
            _say(lender, {"kind": GIVE, "jvm": asdict(jvm)}, [stdin])
            os.close(stdin)

        gateway.close = give_back
        return gateway

    vars(spark_driver)["launch_gateway"] = launch


def _disowned(gateway: Any) -> int:
    """The end of the stdin of a JVM that is not to be waited for here."""
    process, gateway.proc = gateway.proc, None
    process.returncode = 0
    stdin = os.dup(process.stdin.fileno())
    process.stdin.close()
    return stdin


def _say(lender: str, words: Mapping[str, Any], streams: list[int]) -> tuple[bytes, list[int]]:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(lender)
        socket.send_fds(line, [json.dumps(words).encode() + b"\n"], streams)
        said, received, _, _ = socket.recv_fds(line, _ANSWER_BYTES_MAX, 1)
    for each in received:
        os.set_inheritable(each, False)
    return said, received
