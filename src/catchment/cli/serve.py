"""`catchment serve`: start the Flight SQL server, and stop it by a signal."""

import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from catchment.cli.context import AsJson, Home, RunningCommand, command, reporting_spark
from catchment.errors import EXIT_STOPPED
from catchment.foundation import events
from catchment.foundation.events import Event

if TYPE_CHECKING:
    from catchment.server.flight_server import FlightServer


def serve(
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; other than loopback it requires users and TLS.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0: any free port.", min=0, max=65_535)] = None,
    web_port: Annotated[
        str | None, typer.Option(help="Port of metrics and status; 0: any free port, `off`: none; default: 4215.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM.")] = None,
    shard: Annotated[str | None, typer.Option(help="Name of this server as a shard for tenants.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Serve lake and queue over Flight SQL until Ctrl-C or SIGTERM; a second one stops it at once."""
    options = {
        "server_host": host,
        "server_port": port,
        "server_web_port": web_port,
        "server_tls_certificate": tls_certificate,
        "server_tls_key": tls_key,
        "shard_name": shard,
    }
    with _signalled() as wait_for_signal, command(home, as_json, **options) as run, _reporting(run):
        server = run.catchment.server()
        server.start()
        _say_ready(run, server)
        wait_for_signal()
        _say(run, "Stopping: running calls may finish, then buffered rows are flushed …")
        if not server.stop():
            _say(run, "The last flush takes longer: its rows are on disk, and the next start flushes them.")
            # Closing would wait for that flush.
            os._exit(0)
        _say(run, "Stopped.")


def _say(run: RunningCommand, text: str) -> None:
    """Print for a person; if stderr is a log for programs, events contain the same."""
    if not run.logs_json:
        run.out.say(text)


def _say_ready(run: RunningCommand, server: "FlightServer") -> None:
    settings = run.catchment.settings
    login, tls = server.authenticator.login_required, settings.server_tls_certificate is not None
    facts = {"uri": server.uri, "pid": os.getpid(), "login": login, "tls": tls, "home": settings.home.absolute()}
    if settings.shard_name is not None:
        facts["shard"] = settings.shard_name
    line = " ".join(f"{name}={_word(value)}" for name, value in facts.items() if name != "uri")
    # Before the ready line, so that a program that waits for it finds the rest printed.
    for each in _welcome(server.uri, settings.server_tls_certificate, login=login):
        _say(run, each)
    web = server.web_address
    if web is not None:
        _say(run, f"Health: `catchment status`, {web}/status.json, and {web}/metrics for Prometheus.")
    lines = [f"ready {server.uri} {line}", *([] if web is None else [f"web {web}"])]
    run.out.value({"ready": True, **facts, "web": web}, lines)


def _welcome(uri: str, certificate: Path | None, *, login: bool) -> Iterator[str]:
    who = "users log in" if login else "without login, for every user of this machine"
    yield f"Catchment serves Arrow Flight SQL at {uri}, {who}. Ctrl-C stops it."
    yield "From Python, with `pip install adbc-driver-flightsql pyarrow`:"
    yield ""
    options = [
        *(['"username": "NAME", "password": "PASSWORD"'] if login else []),
        *(
            [f'"adbc.flight.sql.client_option.tls_root_certs": open({str(certificate.absolute())!r}).read()']
            if certificate
            else []
        ),
    ]
    more = f"{{{', '.join(options)}}}, " if options else ""
    yield "    import adbc_driver_flightsql.dbapi as flight"
    # A client cannot connect to a wildcard address, and a certificate names a host.
    reached = uri.replace("//0.0.0.0:", "//HOST:").replace("//[::]:", "//HOST:")
    yield f'    with flight.connect("{reached}", {more}autocommit=True) as connection, connection.cursor() as cursor:'
    yield '        print(cursor.execute("SELECT 42 AS answer").fetchall())'
    yield ""


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


@contextmanager
def _reporting(run: RunningCommand) -> Iterator[None]:
    """Report the steps of the start, and when Spark starts."""
    out = run.out
    if run.logs_json:
        with _warnings_to_log():
            yield
        return

    def report(event: Event) -> None:
        facts = event.facts
        match event.verb:
            case "control_backed_up":
                out.say(
                    f"The control database {facts['database']} was backed up into {facts['backups']}, and upgraded: "
                    f"{', '.join(facts['scripts'])}."
                )
            case "lake_away":
                out.say(f"The lake cannot be reached: {facts['reason']}")
                out.say("Writes to tables that the queue knows are accepted, and flushed once it is available again.")

    with reporting_spark(out), events.listening(report):
        yield


@contextmanager
def _warnings_to_log() -> Iterator[None]:
    """Send Python's own warnings and thread errors to the log instead of stderr."""
    before, threading.excepthook = threading.excepthook, _log_died
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        threading.excepthook = before


def _log_died(died: threading.ExceptHookArgs) -> None:
    error = died.exc_value
    text = "" if error is None else "".join(traceback.format_exception(error))
    thread = "" if died.thread is None else died.thread.name
    events.emit("thread_died", level=logging.ERROR, thread=thread, error=died.exc_type.__name__, traceback=text)


@contextmanager
def _signalled() -> Iterator[Callable[[], object]]:
    """Yield a function that waits for the first SIGTERM or Ctrl-C. A second one ends the process at
    once: acknowledged rows are durable.
    """
    # A handler must not take a lock that its own thread may hold; this queue takes none.
    heard: SimpleQueue[int] = SimpleQueue()
    is_asked = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            os._exit(EXIT_STOPPED)
        is_asked = True
        heard.put(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield heard.get
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
