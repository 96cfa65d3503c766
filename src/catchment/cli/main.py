"""The `catchment` command."""

from typing import Annotated

import typer

from catchment.cli import demo, lake, queue
from catchment.cli.context import AsJson, Home, command
from catchment.doctor import examine
from catchment.errors import EXIT_NEEDS_YOU
from catchment.settings import FILE_NAME, declared

_SETTINGS = "\n\n".join(
    f"`{each.variable}`{f' ({each.unit})' if each.unit else ''}: {each.help}"
    + (f" [default: {each.default}]" if each.default else "")
    for each in declared()
)

app = typer.Typer(
    help="The durable front door of a DuckLake.",
    epilog=f"Settings, from the environment or from `{FILE_NAME}` in the home:\n\n{_SETTINGS}",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.add_typer(lake.group, name="lake")
app.add_typer(queue.group, name="queue")
app.command(name="demo")(demo.demo)


@app.command()
def doctor(home: Home = None, as_json: AsJson = False) -> None:
    """Check that this machine has what Catchment needs; exit 2 when something is missing."""
    with command(home, as_json) as run:
        checks = []
        for check in examine(run.app.settings):
            checks.append(check)
            run.out.say(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}")
            if check.hint and not check.ok:
                run.out.say(f"     {check.hint}")
        ok = all(check.ok for check in checks)
        missing = ", ".join(check.name for check in checks if not check.ok)
        run.out.value({"ok": ok, "checks": checks}, ["Ready." if ok else f"Not ready: {missing}."])
        if not ok:
            raise typer.Exit(EXIT_NEEDS_YOU)


@app.callback(invoke_without_command=True)
def version_option(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The durable front door of a DuckLake."""
    if version:
        typer.echo(_version())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _version() -> str:
    from importlib.metadata import version

    return version("catchment")


def main() -> None:
    """Run the command line."""
    app()
