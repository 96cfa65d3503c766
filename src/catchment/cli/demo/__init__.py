"""`catchment demo`: the product in a minute, on two real servers."""

from catchment.cli.demo.command import demo

__all__ = ["demo"]
