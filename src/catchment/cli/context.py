"""What every command starts from: the settings, an output, and one way of ending with an error."""

import os
import pwd
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from catchment.cli.output import Output
from catchment.errors import EXIT_NEEDS_YOU, CatchmentError, InputError, StoppedError
from catchment.foundation import events
from catchment.foundation.events import Event
from catchment.foundation.pandas_probe import skip_pandas_probe
from catchment.foundation.settings import Settings, load_settings

if TYPE_CHECKING:
    from catchment.app import App


def named_folder(text: str) -> Path:
    """A folder as an option names it. An empty one is a variable that was not set, and not the current folder."""
    if not text:
        raise typer.BadParameter("it is empty. Name a folder, or leave the option out.")
    return Path(text)


Home = Annotated[
    Path | None,
    typer.Option(
        "--home", parser=named_folder, metavar="PATH", help="Folder that holds everything; default CATCHMENT_HOME."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A command that has its settings and an output, and no part of the product yet."""

    settings: Settings
    out: Output
    # Whether stderr is a log that programs read.
    logs_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCommand:
    """A command that is running."""

    app: "App"
    out: Output


@contextmanager
def started(home: Path | None, as_json: bool, **options: object) -> Iterator[Started]:
    """Run a command that needs no lake: its errors become a message, a hint and an exit code.

    `options` are settings that were given on the command line; None is one that was not.
    """
    out = Output(as_json=as_json)
    try:
        settings = load_settings(home, **options)
        logs_json = out.screen is None if settings.log_json is None else settings.log_json
        events.configure_logging(level=settings.log_level, as_json=logs_json, colour=out.is_colourful)
        yield Started(settings=settings, out=out, logs_json=logs_json)
    except CatchmentError as error:
        out.error(error)
        raise typer.Exit(error.exit_code) from None
    except (KeyboardInterrupt, RuntimeError) as error:
        # In the midst of a statement, DuckDB makes an error of its own of Ctrl-C.
        if isinstance(error, RuntimeError) and str(error) != "Query interrupted":
            raise
        stopped = StoppedError()
        out.error(stopped)
        raise typer.Exit(stopped.exit_code) from None


@contextmanager
def command(home: Path | None, as_json: bool, **options: object) -> Iterator[RunningCommand]:
    """Run a command on the whole of Catchment: its errors become a message, a hint and an exit code."""
    with started(home, as_json, **options) as run:
        # Imported here, because it brings the pipelines along, and there are commands that do without.
        from catchment.app import App

        skip_pandas_probe()
        with App(run.settings) as app:
            yield RunningCommand(app=app, out=run.out)


def agree(run: RunningCommand, question: str, *, yes: bool) -> None:
    """Go on only with a yes: by --yes, or by a person at a terminal."""
    if yes:
        return
    answer = run.out.ask(question)
    if answer is None:
        raise InputError("There is no terminal to ask on.", hint="Say the same with --yes, or look with --dry-run.")
    if not answer:
        run.out.say("Nothing was changed.")
        raise typer.Exit(EXIT_NEEDS_YOU)


def whoami() -> str:
    """Who runs the command, by the name that this machine has for them."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


@contextmanager
def telling_of_spark(out: Output) -> Iterator[None]:
    """Say on stderr that Spark starts, which takes a while."""

    def tell(event: Event) -> None:
        match event.verb:
            case "spark_starting":
                out.say(f"  Spark starts on {event.facts['master']} (its log: {event.facts['log']}) …")
            case "spark_started":
                out.say(f"  Spark {event.facts['version']} is up.")

    with events.listening(tell):
        yield


@contextmanager
def stopping_gently(out: Output, answer: str) -> Iterator[Callable[[], bool]]:
    """Take Ctrl-C in two steps: the first is answered, and work that asks stops by itself; the second ends it."""
    asked, wake = False, threading.Event()

    def hear(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        wake.set()

    def tell() -> None:
        wake.wait()
        if asked:
            out.say(f"  {answer} Ctrl-C again stops at once, which is safe too.")

    # A handler must not print: it may have interrupted a print.
    teller = threading.Thread(target=tell, name="catchment-interrupt", daemon=True)
    teller.start()
    before = signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
        wake.set()
        teller.join()
