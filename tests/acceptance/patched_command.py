"""The command with other values for constants, for tests of limits that no setting changes.

    python -m tests.acceptance.patched_command CONSTANTS ARGUMENT…

CONSTANTS is a JSON object: the full name of each constant, in the module that reads it, and its
value for this process.
"""

import json
import sys
from collections.abc import Mapping
from importlib import import_module

from catchment.cli.main import main


def _patch(constants: Mapping[str, float]) -> None:
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        target = import_module(module)
        # A constant that has moved must not leave the test without its limit.
        assert hasattr(target, constant), name
        setattr(target, constant, value)


if __name__ == "__main__":
    _patch(json.loads(sys.argv.pop(1)))
    main()
