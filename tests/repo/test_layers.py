"""Imports go down the layers only, and some names are imported or used in one place only."""

import ast
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module

import catchment
from catchment.queue import buffer_factory
from tests.repo.source_tree import ROOT, Module, imports, modules

# From the top down; packages on one line do not import each other.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"cli"}),
    # The front door. It asks the server that runs on the same home, if there is one.
    frozenset({"api"}),
    frozenset({"server"}),
    # Served beside the server, which tells it who calls.
    frozenset({"web"}),
    frozenset({"app", "spark_daemon", "status", "doctor", "testing"}),
    # Copies the history of tenants, too.
    frozenset({"pipeline"}),
    frozenset({"tenants"}),
    # Catchment's own database: migrated by `schema`, used by the packages of tenants and users.
    # Beside it, Flight's messages and headers, for servers and their clients.
    frozenset({"control", "flight_protocol"}),
    frozenset({"queue", "schema"}),
    frozenset({"lake"}),
    frozenset({"foundation", "errors"}),
)

# The rooms of the server, from the top down.
SERVER_ROOMS: tuple[frozenset[str], ...] = (
    # Composes the others; beside it, clients of a running server.
    frozenset({"flight_server", "local_client", "status_client"}),
    frozenset({"web_auth"}),
    frozenset({"flight"}),
    frozenset({"sessions"}),
    frozenset({"shards"}),
    frozenset({"sql"}),
    frozenset({"engine"}),
    frozenset({"access", "encoding", "statement_log"}),
    frozenset({"values", "memory"}),
)

LAYOUT_PACKAGES = frozenset(
    layout.__module__.removeprefix("catchment.").rpartition(".")[0] for layout in buffer_factory.LAYOUTS.values()
)

ONLY_IN: dict[str, tuple[str, ...]] = {
    "pyspark": ("pipeline", "api.front_door"),
    "py4j": ("pipeline",),
    "pyarrow.flight": (),
    "grpc": ("server", "tenants.transport"),
    "argon2": ("server.access.users",),
    "prometheus_client": ("web.metrics",),
    "starlette": ("web",),
    "jinja2": ("web.pages",),
    "uvicorn": ("web.web_server",),
    "rich": ("cli",),
    "typer": ("cli",),
    "time": ("foundation.clock",),
    # Locks on files; and how much has arrived on a socket.
    "fcntl": ("foundation.files", "server.engine.frames"),
    "shutil": ("foundation.files", "pipeline.java"),
    "pydantic": ("foundation.settings",),
    "pydantic_settings": ("foundation.settings",),
    # A layout is known to the factory alone; everything else uses the contract.
    **{f"catchment.{package}": (package, "queue.buffer_factory") for package in LAYOUT_PACKAGES},
}

# What a command may import wholly; of all else, values only.
FOR_COMMANDS = ("catchment.api", "catchment.cli", "catchment.errors", "catchment.foundation")

CALLS_ONLY_IN: dict[str, tuple[str, ...]] = {
    "os.environ": ("foundation.settings",),
    "os.getenv": ("foundation.settings",),
    "os.fsync": ("foundation.files",),
    "os.rename": ("foundation.files",),
    "os.replace": ("foundation.files",),
    "os.link": ("foundation.files",),
    "datetime.now": ("foundation.clock",),
    "datetime.utcnow": (),
    "sys.stdout": ("cli.output",),
    "sys.stderr": ("cli.output",),
}


def _level(name: str) -> int:
    top = name.partition(".")[0]
    # `from catchment import …` is the front door.
    top = "api" if top in catchment.__all__ else top
    found = [level for level, names in enumerate(LAYERS) if top in names]
    assert found, f"{name} is in no layer: say in this test where it belongs"
    return found[0]


def _is_in(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def _named(modules: tuple[Module, ...]) -> list[Module]:
    return [module for module in modules if module.name != "__init__"]


def _may_import(module: str, other: str) -> bool:
    if module.partition(".")[0] == other.partition(".")[0]:
        return True
    below = _level(other) > _level(module)
    foundation = _level(other) == _level(module) == len(LAYERS) - 1
    composition = _level(other) == _level(module) == _level("app")
    return below or foundation or composition


def test_a_module_imports_only_from_its_own_package_and_from_layers_below() -> None:
    upwards = [
        f"{module.name} imports {imported}, which is not below it"
        for module in _named(modules())
        for imported in imports(module)
        if imported.startswith("catchment.") and not _may_import(module.name, imported.removeprefix("catchment."))
    ]
    assert upwards == []


def test_a_room_of_the_server_imports_only_from_rooms_below() -> None:
    levels = {room: level for level, rooms in enumerate(SERVER_ROOMS) for room in rooms}
    prefix = "catchment.server."
    upwards = [
        f"{module.name} imports {imported}, which is not below it"
        for module in _named(modules())
        if module.name.startswith("server.") and module.name != "server.__init__"
        for imported in imports(module)
        if imported.startswith(prefix)
        for own, other in [(module.name.split(".")[1], imported.removeprefix(prefix).partition(".")[0])]
        if own != other and levels[own] >= levels[other]
    ]
    assert upwards == []


def test_libraries_with_one_home_are_imported_there_only() -> None:
    astray = [
        f"{library} is for {places}, not for {module.name}"
        for module in _named(modules())
        for imported in imports(module)
        for library, places in ONLY_IN.items()
        if _is_in(imported, (library,)) and not _is_in(module.name, places)
    ]
    assert astray == []


def test_effects_with_one_home_are_used_there_only() -> None:
    astray = [
        f"{effect} is for {places}, not for {module.name}"
        for module in _named(modules())
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        for effect, places in CALLS_ONLY_IN.items()
        if f"{node.value.id}.{node.attr}" == effect and not _is_in(module.name, places)
    ]
    assert astray == []


def test_no_module_imports_itself_through_others_not_even_for_types() -> None:
    """Packages are left out: an `__init__` names modules of its package, which import each other."""
    own = {module.name: module for module in modules() if module.path.name != "__init__.py"}
    graph = {
        name: {imported.removeprefix("catchment.") for imported in imports(module)} & own.keys() - {name}
        for name, module in own.items()
    }
    while ready := {name for name, others in graph.items() if not others & graph.keys()}:
        graph = {name: others for name, others in graph.items() if name not in ready}
    assert graph == {}


def test_the_command_line_uses_the_front_door_errors_and_values_only() -> None:
    """Product logic is in `catchment.open(…)`; below it, a command may name values of reports."""
    astray = [
        f"{module.name} imports {name} from {source}"
        for module in modules()
        if _is_in(module.name, ("cli",)) and not _is_in(module.name, ("cli.demo",))
        for source, name in _imported_at_run_time(module.tree)
        if source != "catchment" and not _is_in(source, FOR_COMMANDS) and not _is_value(source, name)
    ]
    assert astray == []


def test_examples_use_the_front_door_only() -> None:
    astray = [
        f"{path.relative_to(ROOT)} imports {name} from {source}"
        for path in (ROOT / "examples").glob("*/*.py")
        for source, name in _imported_at_run_time(ast.parse(path.read_text(encoding="utf-8")))
        if source not in ("catchment", "catchment.errors")
    ]
    assert astray == []


def _imported_at_run_time(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names of the product that a module imports at run time, with their modules."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "catchment":
            yield from ((node.module or "", alias.name) for alias in node.names)
        yield from _imported_at_run_time(node)


def _is_value(source: str, name: str) -> bool:
    """Whether it is a frozen fact, an enumeration, a contract or a constant."""
    found = getattr(import_module(source), name, None)
    is_plain = isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))
    return is_plain or getattr(found, "_is_protocol", False) or name.isupper()
