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
from catchment.cli.output import Output, give_up_stdout, is_of_output
from catchment.errors import EXIT_NEEDS_YOU, InputError, StorageFailedError
from catchment.foundation.settings import FILE_NAME, SettingInfo, declared

# Each is a module beside this one, imported when it is asked for: `catchment schema` needs no pipeline.
_PARTS = ("demo", "status", "lake", "queue", "legacy", "schema", "serve", "user", "tenant", "shard")
# The key under which a context knows whether stdout is to hold JSON.
_AS_JSON = "catchment.as_json"
_STYLE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,
}


@contextmanager
def _usage_told(*, as_json: bool) -> Iterator[None]:
    """With `as_json`, have stdout hold a wrong use of the command line too; else it is shown with the usage."""
    try:
        yield
    except TyperException as error:
        if not as_json:
            raise
        context = getattr(error, "ctx", None)
        called = "catchment" if context is None else context.command_path
        told = InputError(error.format_message(), hint=f"`{called} --help` shows how it is called.")
        Output(as_json=True).error(told)
        raise typer.Exit(error.exit_code) from None


class CommandLine(TyperGroup):
    """The commands; those of other modules are there once they are asked for."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None where there is none, and then all are there to suggest one of."""
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
        """Read what stands before the command's name; a wrong use is told as every other error is."""
        as_json = "--json" in args
        with _usage_told(as_json=as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_AS_JSON] = as_json
        return context

    def invoke(self, ctx: Any) -> Any:
        """Read the rest, and run the command."""
        with _usage_told(as_json=ctx.meta[_AS_JSON]):
            return super().invoke(ctx)

    def _load(self, part: str) -> None:
        if part not in self.commands:
            self.commands[part] = _load(part)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all, in the order of `--help`."""
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
        bool, typer.Option("--prepare", help="Have Spark start in half the time here: some 70 MB beside the packages.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Check that this machine has what Catchment needs; exit 2 when something is missing."""
    # Imported here, because it brings the pipelines along.
    from catchment.doctor import examine

    with command(home, as_json) as run:
        checks = []
        for check in examine(run.app.settings, prepare=prepare):
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
    """The whole of it, with every part imported: for whoever describes it."""
    root = get_command(app)
    assert isinstance(root, CommandLine)
    root.load_all()
    return root


def main() -> None:
    """Run the command line."""
    try:
        app()
    except OSError as error:
        if not is_of_output(error):
            raise
        give_up_stdout()
        told = StorageFailedError(
            f"The output cannot be written: {error.strerror}.",
            hint="Is there room where stdout goes? Then run it again.",
        )
        Output(as_json=False).error(told)
        raise SystemExit(told.exit_code) from None


def _setting_line(setting: SettingInfo) -> str:
    default = f" [default: {f'{setting.default} {setting.unit}'.rstrip()}]" if setting.default else ""
    return f"  {setting.variable}: {setting.help}{default}"


def _load(part: str) -> TyperCommand | TyperGroup:
    """The commands of a module: those of its `group`, or the one function that is called as the module is."""
    module = import_module(f"catchment.cli.{part}")
    alone = typer.Typer(**_STYLE)
    group = vars(module).get("group")
    if group is not None:
        alone.add_typer(group, name=part)
        return get_group(alone).commands[part]  # type: ignore[return-value]
    alone.command(name=part)(vars(module)[part])
    return get_command(alone)  # type: ignore[return-value]
