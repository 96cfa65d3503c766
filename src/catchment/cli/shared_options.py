"""Options that several commands share, declared once as the fields of a dataclass."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def takes(options: type[T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that are the fields of `options`, as one value in its first place.

    A field's type is `Annotated[…, typer.Option(…)]`, or `typer.Argument`, as of a parameter. In
    the help, the command's own parameters come after the fields, and those of every command last.
    """
    hints = get_type_hints(options, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)  # type: ignore[arg-type]
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own_hints = get_type_hints(function, include_extras=True)
        _, *own = inspect.signature(function).parameters.values()

        @functools.wraps(function)
        def command(**given: Any) -> None:
            value = options(**{parameter.name: given.pop(parameter.name) for parameter in shared})
            function(value, **given)

        keyword_only = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own_hints[each.name]) for each in own
        ]
        every = [*shared, *keyword_only]
        # `catchment legacy` has two homes, and the lake's is the one that every command has.
        home = "lake_home" if any(each.name == "lake_home" for each in every) else "home"
        ordered = sorted(every, key=lambda each: each.name in (home, "as_json"))
        command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in ordered}
        return command

    return decorate
