"""`catchment serve`: the Flight SQL server, from its first line to its last signal."""

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

from catchment.cli.context import AsJson, Home, Started, started, telling_of_spark
from catchment.errors import EXIT_STOPPED
from catchment.foundation import events
from catchment.foundation.events import Event
from catchment.foundation.pandas_probe import skip_pandas_probe
from catchment.foundation.settings import default_variable

if TYPE_CHECKING:
    from catchment.server.flight_server import FlightServer


def serve(
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; one that others reach needs users and TLS.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 is any that is free.", min=0, max=65_535)] = None,
    web_port: Annotated[
        str | None, typer.Option(help="Port of metrics and status; 0 is any that is free, `off` is none; default 4215.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    shard: Annotated[str | None, typer.Option(help="Name under which it is a shard, in which tenants live.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Serve lake and queue over Arrow Flight SQL until Ctrl-C or SIGTERM; a second one ends it at once."""
    options = {
        "server_host": host,
        "server_port": port,
        "server_web_port": web_port,
        "server_tls_certificate": tls_certificate,
        "server_tls_key": tls_key,
        "shard_name": shard,
    }
    with _signalled() as wait_for_signal, started(home, as_json, **options) as run, _telling(run):
        # Read when gRPC is imported: it would tell stderr, in a form of its own, of every stranger's failed handshake.
        default_variable("GRPC_VERBOSITY", "NONE")
        from catchment.server.flight_server import FlightServer

        skip_pandas_probe()
        server = FlightServer(run.settings)
        server.start()
        _say_ready(run, server)
        wait_for_signal()
        _say(run, "Stopping: calls under way may finish, then what is buffered is flushed …")
        if not server.stop():
            _say(run, "The last flush takes longer: its rows are on the disk, and the next start goes on with them.")
            # Closing would wait for it.
            os._exit(0)
        _say(run, "Stopped.")


def _say(run: Started, text: str) -> None:
    """Tell a person; where programs read stderr line by line, events say the same."""
    if not run.logs_json:
        run.out.say(text)


def _say_ready(run: Started, server: "FlightServer") -> None:
    settings = run.settings
    login, tls = server.authenticator.login_required, settings.server_tls_certificate is not None
    facts = {"uri": server.uri, "pid": os.getpid(), "login": login, "tls": tls, "home": settings.home.absolute()}
    if settings.shard_name is not None:
        facts["shard"] = settings.shard_name
    line = " ".join(f"{name}={_word(value)}" for name, value in facts.items() if name != "uri")
    # First for those who read it, so that whoever waits for the ready line finds the rest there already.
    for each in _welcome(server.uri, settings.server_tls_certificate, login=login):
        _say(run, each)
    web = server.web_address
    if web is not None:
        _say(run, f"How it is doing: `catchment status`, {web}/status.json, and {web}/metrics for Prometheus.")
    lines = [f"ready {server.uri} {line}", *([] if web is None else [f"web {web}"])]
    run.out.value({"ready": True, **facts, "web": web}, lines)


def _welcome(uri: str, certificate: Path | None, *, login: bool) -> Iterator[str]:
    who = "users log in" if login else "without login, for everybody on this machine"
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
    # Nobody connects to a wildcard, and a certificate is made out to a name.
    reached = uri.replace("//0.0.0.0:", "//HOST:").replace("//[::]:", "//HOST:")
    yield f'    with flight.connect("{reached}", {more}autocommit=True) as connection, connection.cursor() as cursor:'
    yield '        print(cursor.execute("SELECT 42 AS answer").fetchall())'
    yield ""


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


@contextmanager
def _telling(run: Started) -> Iterator[None]:
    """Say what a start did on the way, and when Spark starts."""
    out = run.out
    if run.logs_json:
        with _in_one_form():
            yield
        return

    def tell(event: Event) -> None:
        facts = event.facts
        match event.verb:
            case "control_backed_up":
                out.say(
                    f"The control database {facts['database']} was backed up into {facts['backups']}, and upgraded: "
                    f"{', '.join(facts['scripts'])}."
                )
            case "lake_away":
                out.say(f"The lake cannot be reached: {facts['reason']}")
                out.say("Writes to tables that the queue knows are taken, and flushed once it is back.")

    with telling_of_spark(out), events.listening(tell):
        yield


@contextmanager
def _in_one_form() -> Iterator[None]:
    """Have Python itself say on stderr nothing but lines of the log."""
    before, threading.excepthook = threading.excepthook, _say_died
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        threading.excepthook = before


def _say_died(died: threading.ExceptHookArgs) -> None:
    error = died.exc_value
    text = "" if error is None else "".join(traceback.format_exception(error))
    thread = "" if died.thread is None else died.thread.name
    events.emit("thread_died", level=logging.ERROR, thread=thread, error=died.exc_type.__name__, traceback=text)


@contextmanager
def _signalled() -> Iterator[Callable[[], object]]:
    """What waits for the first SIGTERM or Ctrl-C. A second one ends the process: what is acknowledged is durable."""
    # A handler must not take a lock, which it may have interrupted its own thread in; this queue has none.
    heard: SimpleQueue[int] = SimpleQueue()
    is_asked = False

    def hear(number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            os._exit(EXIT_STOPPED)
        is_asked = True
        heard.put(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield heard.get
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
