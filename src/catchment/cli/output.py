"""The only place that prints: data on stdout, as text or JSON, and everything else on stderr."""

import dataclasses
import errno
import getpass
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from catchment.errors import CatchmentError


class Output:
    """A command's output. With `as_json`, stdout gets exactly one JSON value."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._data = Console(file=sys.stdout, highlight=False, emoji=False, soft_wrap=True)
        self._talk = Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True)

    def value(self, value: Any, lines: Iterable[str]) -> None:
        """Print the command's result: `value` as JSON, or `lines` for a person."""
        if self.as_json:
            self._json(value)
        else:
            for line in lines:
                self._data.print(escape(line))

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table for a person; never part of JSON output."""
        if not self.as_json:
            table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
            for column in columns:
                table.add_column(column)
            for row in rows:
                table.add_row(*(escape(str(cell)) for cell in row))
            self._data.print(table)

    def say(self, text: str, *, style: str | None = None) -> None:
        """Print progress or a remark on stderr; `style` is one of Rich's, such as `dim`."""
        self._talk.print(escape(text), style=style)

    def step(self, text: str) -> None:
        """Print a heading of a longer run on stderr."""
        self._talk.print(f"[bold cyan]▸[/] {escape(text)}")

    @property
    def screen(self) -> Console | None:
        """Stderr to draw on if it is a terminal; None if it is a file or a pipe."""
        return self._talk if self._talk.is_terminal else None

    @property
    def is_colourful(self) -> bool:
        """Whether stderr shows colours, and they are not disabled."""
        return self._talk.is_terminal and self._talk.color_system is not None and not self._talk.no_color

    def ask(self, question: str) -> bool | None:
        """Ask for yes or no; None without a terminal. Anything but a yes is a no."""
        if self.screen is None or not sys.stdin.isatty():
            return None
        self._talk.print(f"[bold]{escape(question)}[/] {escape('[y/N]')} ", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def ask_hidden(self, question: str) -> str | None:
        """Ask for a text without showing it; None without a terminal."""
        if self.screen is None or not sys.stdin.isatty():
            return None
        return getpass.getpass(question, stream=sys.stderr)

    def error(self, error: CatchmentError) -> None:
        """Print why the command failed, and what to do."""
        if self.as_json:
            shown = {"error": type(error).__name__, "message": error.message, "hint": error.hint, **plain(error.facts)}
            self._json(shown)
        self._talk.print(f"[bold red]error:[/] {escape(error.message)}")
        if error.hint:
            self._talk.print(f"[bold]hint:[/] {escape(error.hint)}")

    def _json(self, value: object) -> None:
        sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")
        # A reader may wait for it while the command continues.
        sys.stdout.flush()


def is_stdout_full(error: OSError) -> bool:
    """Return whether stdout is full: the error has no file name, and a code for missing space."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def discard_stdout() -> None:
    """Discard buffered stdout: the interpreter would fail on it again at exit."""
    with suppress(OSError), Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def plain(value: Any) -> Any:
    """Return a value in a form that JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if type(value).__str__ is not object.__str__:
            return str(value)
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    match value:
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case set() | frozenset():
            # Sorted, so that outputs can be compared.
            return sorted((plain(each) for each in value), key=str)
        case list() | tuple():
            return [plain(each) for each in value]
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case Path():
            return str(value)
        case _:
            return value
