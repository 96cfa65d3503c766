"""What every command starts from: the settings, an output, and one way of ending with an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from catchment import events
from catchment.app import App
from catchment.cli.output import Output
from catchment.errors import CatchmentError
from catchment.events import Event
from catchment.settings import load_settings

Home = Annotated[Path | None, typer.Option("--home", help="Folder that holds everything; default CATCHMENT_HOME.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that is running."""

    app: App
    out: Output


@contextmanager
def command(home: Path | None, as_json: bool) -> Iterator[Command]:
    """Run a command: its errors become a message, a hint and an exit code."""
    out = Output(as_json=as_json)
    try:
        settings = load_settings(home)
        events.configure_logging(level=settings.log_level, as_json=settings.log_json)
        with App(settings) as app:
            yield Command(app=app, out=out)
    except CatchmentError as error:
        out.error(error)
        raise typer.Exit(error.exit_code) from None


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
