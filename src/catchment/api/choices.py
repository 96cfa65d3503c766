"""Values of enumerations, which callers may give as text."""

from enum import StrEnum
from typing import TypeVar

from catchment.errors import InputError

Choice = TypeVar("Choice", bound=StrEnum)


def one_of(kind: type[Choice], value: Choice | str) -> Choice:
    """Return the member of the enumeration that the value is or names; InputError if there is none."""
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"{value!r} is not one of {', '.join(kind)}.") from None
