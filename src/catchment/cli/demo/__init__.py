"""`catchment demo`: the whole product in a minute, on real servers, with writers that never stop."""

from catchment.cli.demo.command import demo

__all__ = ["demo"]
