"""Common parts of every command: settings, output, confirmation, and exit codes of errors."""

import os
import pwd
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

import catchment
from catchment import Catchment
from catchment.cli.output import Output
from catchment.errors import EXIT_NEEDS_YOU, CatchmentError, InputError, StoppedError
from catchment.foundation import events
from catchment.foundation.events import Event


def named_folder(text: str) -> Path:
    """Read a folder given as an option. An empty text is an unset variable, not the current folder."""
    if not text:
        raise typer.BadParameter("it is empty. Name a folder, or leave the option out.")
    return Path(text)


Home = Annotated[
    Path | None,
    typer.Option("--home", parser=named_folder, metavar="PATH", help="Data folder; default: CATCHMENT_HOME."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCommand:
    """A running command: the product, and where to print."""

    catchment: Catchment
    out: Output
    # Whether stderr is a log for programs.
    logs_json: bool


@contextmanager
def command(home: Path | None, as_json: bool, **options: object) -> Iterator[RunningCommand]:
    """Run a command; an error becomes a message, a hint and an exit code.

    `options` are settings given on the command line; None means not given.
    """
    out = Output(as_json=as_json)
    try:
        with catchment.open(home, **options) as opened:
            settings = opened.settings
            logs_json = out.screen is None if settings.log_json is None else settings.log_json
            events.configure_logging(level=settings.log_level, as_json=logs_json, colour=out.is_colourful)
            yield RunningCommand(catchment=opened, out=out, logs_json=logs_json)
    except CatchmentError as error:
        out.error(error)
        raise typer.Exit(error.exit_code) from None
    except (KeyboardInterrupt, RuntimeError) as error:
        # While a statement runs, DuckDB turns Ctrl-C into its own error.
        if isinstance(error, RuntimeError) and str(error) != "Query interrupted":
            raise
        stopped = StoppedError()
        out.error(stopped)
        raise typer.Exit(stopped.exit_code) from None


def agree(run: RunningCommand, question: str, *, yes: bool) -> None:
    """Continue only with --yes, or after a yes at a terminal."""
    if yes:
        return
    answer = run.out.ask(question)
    if answer is None:
        raise InputError("There is no terminal to ask on.", hint="Add --yes, or preview with --dry-run.")
    if not answer:
        run.out.say("Nothing was changed.")
        raise typer.Exit(EXIT_NEEDS_YOU)


def whoami() -> str:
    """Return the name of the user that runs the command."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


@contextmanager
def reporting_spark(out: Output) -> Iterator[None]:
    """Report on stderr that Spark starts, which takes some seconds."""

    def report(event: Event) -> None:
        match event.verb:
            case "spark_starting":
                out.say(f"  Spark starts on {event.facts['master']} (its log: {event.facts['log']}) …")
            case "spark_started":
                out.say(f"  Spark {event.facts['version']} is up.")

    with events.listening(report):
        yield


@contextmanager
def stopping_gently(out: Output, answer: str) -> Iterator[Callable[[], bool]]:
    """Handle Ctrl-C in two steps. The first prints `answer`, and work that polls the yielded
    function stops by itself; the second stops at once.
    """
    asked, wake = False, threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        wake.set()

    def acknowledge() -> None:
        wake.wait()
        if asked:
            out.say(f"  {answer} Ctrl-C again stops at once, which is safe too.")

    # A signal handler must not print: it may have interrupted a print.
    thread = threading.Thread(target=acknowledge, name="catchment-interrupt", daemon=True)
    thread.start()
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
        wake.set()
        thread.join()
