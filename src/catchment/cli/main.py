"""The `catchment` command."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from catchment.cli.context import AsJson, Home, command
from catchment.cli.output import Output, discard_stdout, is_stdout_full
from catchment.errors import EXIT_NEEDS_YOU, InputError, StorageFailedError
from catchment.foundation.settings import FILE_NAME, SettingInfo, declared

# Modules beside this one, imported on demand: `catchment schema` needs no pipeline.
_PARTS = ("demo", "status", "lake", "queue", "legacy", "schema", "serve", "user", "tenant", "shard")
# Key of a context: whether stdout gets JSON.
_AS_JSON = "catchment.as_json"
_STYLE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,
}


@contextmanager
def _usage_errors(*, as_json: bool) -> Iterator[None]:
    """With `as_json`, print a usage error as JSON too; otherwise it is shown with the usage."""
    try:
        yield
    except TyperException as error:
        if not as_json:
            raise
        context = getattr(error, "ctx", None)
        called = "catchment" if context is None else context.command_path
        reported = InputError(error.format_message(), hint=f"`{called} --help` shows how it is called.")
        Output(as_json=True).error(reported)
        raise typer.Exit(error.exit_code) from None


class CommandLine(TyperGroup):
    """The commands; those of other modules are imported on demand."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name; None after importing all, so that one can be suggested."""
        if cmd_name in _PARTS:
            self._load(cmd_name)
        elif cmd_name not in self.commands:
            self.load_all()
        return super().get_command(ctx, cmd_name)

    def load_all(self) -> None:
        """Import every part."""
        for part in _PARTS:
            self._load(part)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments before the command's name; report usage errors like other errors."""
        as_json = "--json" in args
        with _usage_errors(as_json=as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_AS_JSON] = as_json
        return context

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest, and run the command."""
        with _usage_errors(as_json=ctx.meta[_AS_JSON]):
            return super().invoke(ctx)

    def _load(self, part: str) -> None:
        if part not in self.commands:
            self.commands[part] = _load(part)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, in the order of `--help`."""
        own = [name for name in self.commands if name not in _PARTS]
        return [*own, *_PARTS]


app = typer.Typer(
    cls=CommandLine,
    help="The durable front door of a DuckLake.",
    epilog=f"Settings come from the environment or from `{FILE_NAME}` in the home: `catchment settings` lists them.",
    no_args_is_help=True,
    **_STYLE,
)


@app.command()
def doctor(
    *,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare", help="Halve Spark's start time on this machine; needs about 70 MB beside the packages."
        ),
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine for Catchment's requirements; exit 2 if one is not met."""
    with command(home, as_json) as run:
        checks = []
        for check in run.catchment.doctor(prepare=prepare):
            checks.append(check)
            run.out.say(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}")
            if check.hint and not check.ok:
                run.out.say(f"     {check.hint}")
        ok = all(check.ok for check in checks)
        missing = ", ".join(check.name for check in checks if not check.ok)
        run.out.value({"ok": ok, "checks": checks}, ["Ready." if ok else f"Not ready: {missing}."])
        if not ok:
            raise typer.Exit(EXIT_NEEDS_YOU)


@app.command()
def settings(*, as_json: AsJson = False) -> None:
    """List every setting, with its variable, default and unit."""
    listed = declared()
    groups = dict.fromkeys(each.group for each in listed)
    lines = [
        line
        for group in groups
        for line in (group, *(_setting_line(each) for each in listed if each.group == group), "")
    ]
    Output(as_json=as_json).value({"file": FILE_NAME, "settings": listed}, lines[:-1])


@app.callback(invoke_without_command=True)
def version_option(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The durable front door of a DuckLake."""
    if version:
        typer.echo(installed_version("catchment"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def command_line() -> CommandLine:
    """Return the whole command line with every part imported, for generated documentation."""
    root = get_command(app)
    assert isinstance(root, CommandLine)
    root.load_all()
    return root


def main() -> None:
    """Run the command line."""
    try:
        app()
    except OSError as error:
        if not is_stdout_full(error):
            raise
        discard_stdout()
        reported = StorageFailedError(
            f"The output cannot be written: {error.strerror}.",
            hint="Check the free space at the destination of stdout, then run the command again.",
        )
        Output(as_json=False).error(reported)
        raise SystemExit(reported.exit_code) from None


def _setting_line(setting: SettingInfo) -> str:
    default = f" [default: {f'{setting.default} {setting.unit}'.rstrip()}]" if setting.default else ""
    return f"  {setting.variable}: {setting.help}{default}"


def _load(part: str) -> TyperCommand | TyperGroup:
    """Return a module's commands: its `group`, or the function named like the module."""
    module = import_module(f"catchment.cli.{part}")
    alone = typer.Typer(**_STYLE)
    group = vars(module).get("group")
    if group is not None:
        alone.add_typer(group, name=part)
        return get_group(alone).commands[part]  # type: ignore[return-value]
    alone.command(name=part)(vars(module)[part])
    return get_command(alone)  # type: ignore[return-value]
