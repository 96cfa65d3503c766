"""The Python interface: everything that the command line does, as typed calls.

`catchment.open` returns a `Catchment`; its parts are one module each.
"""
