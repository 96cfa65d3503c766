"""Writes `docs/reference/` and the example of a settings file from the code, so that they cannot fall behind it; run by
`make docs`.
"""

import ast
import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from catchment.cli.main import command_line
from catchment.cli.schema import EXIT_DIVERGED
from catchment.errors import EXIT_FAILED, EXIT_NEEDS_YOU, EXIT_STOPPED, CatchmentError
from catchment.foundation import faults
from catchment.foundation.event_catalogue import AROUND, IDS, VERBS
from catchment.foundation.settings import FILE_NAME, Settings, declared
from catchment.server.sql_forms import FORMS, Form
from catchment.status.keys import KEYS
from catchment.web.metric_catalogue import METRICS
from catchment.web.metrics import PROCESS, MetricInfo

REFERENCE = Path(__file__).parent / "reference"
RETRIES = Path(__file__).parent / "retries.toml"
SOURCE = Path(__file__).parents[1] / "src" / "catchment"
EXAMPLE = Path(__file__).parents[1] / "deploy" / FILE_NAME
PROGRAM = "catchment"
_NOTICE = "<!-- Written by docs/generate.py from the code. Do not edit; run `make docs`. -->"


def pages() -> dict[str, str]:
    """Every page of the reference, by its file name."""
    return {
        "cli.md": cli_page(),
        "crash-points.md": crash_points_page(),
        "logs.md": logs_page(),
        "metrics.md": metrics_page(),
        "modules.md": modules_page(),
        "retries.md": retries_page(),
        "settings.md": settings_page(),
        "sql.md": sql_page(),
        "status.md": status_page(),
    }


def settings_page() -> str:
    """The page about settings."""
    groups: dict[str, list[tuple[str, str, str, str]]] = {}
    for each in declared():
        row = (_code(each.variable), _code(each.default), each.unit, each.help)
        groups.setdefault(each.group, []).append(row)
    return _page(
        "Settings",
        f"Each setting is an environment variable, or a key in `{FILE_NAME}` in the home. The key is the variable's",
        "name in small letters and without its prefix: `CATCHMENT_LOG_LEVEL` is `log_level`. The environment wins over",
        "the file. The home itself is given by the environment or by `--home`, which wins; it cannot be in the file.",
        "",
        "An unknown variable that starts with `CATCHMENT_` is refused, and so is an unknown key in the file. A process",
        "keeps the settings that it started with. `catchment settings` prints this list.",
        *(
            line
            for group, rows in groups.items()
            for line in ("", f"## {group}", "", *_table(("variable", "default", "unit", "what it is"), rows))
        ),
    )


def settings_example() -> str:
    """A settings file in which every setting is a comment: `#name = default`, or `##name = ""` where it has none."""
    lines = [
        "# Every setting, at its default. Written by docs/generate.py from the code: do not edit, run `make docs`.",
        f"# Copy what you need into `{FILE_NAME}` in the home. A variable of the environment wins over the file.",
        '# `#name = value` is what holds without the line. `##name = ""` is a setting that has no value by itself.',
    ]
    for each in declared():
        # The file cannot say where it lies.
        if each.name != "home":
            unit = f" In {each.unit}." if each.unit else ""
            lines += ["", f"# {each.help}{unit}", _assignment(each.name)]
    return "\n".join(lines) + "\n"


def _assignment(name: str) -> str:
    default = Settings.model_fields[name].default
    # What JSON writes for text, numbers, truth and an empty table is TOML too.
    return f'##{name} = ""' if default is None else f"#{name} = {json.dumps(default)}"


def cli_page() -> str:
    """The page about the command line."""
    return _page(
        "Command line",
        "Data goes to stdout, everything else to stderr. With `--json`, stdout holds exactly one JSON value, for an",
        "error too.",
        "",
        "## Exit codes",
        "",
        *_table(("code", "meaning"), _exit_codes()),
        "",
        *(line for name, command in commands() for line in _command(name, command)),
        "## Errors",
        "",
        "With `--json`, `error` is one of these names; `message` says what happened, `hint` what to do next.",
        "",
        *_table(("error", "exit code", "meaning"), _errors(CatchmentError)),
    )


def crash_points_page() -> str:
    """The page about crash points."""
    return _page(
        "Crash points",
        "A crash point is a named place between two effects. It does nothing unless a test arms it. The crash tests",
        "kill a process at each of them, resume, and check that nothing is lost and nothing is stored twice.",
        "",
        *_table(
            ("point", "when it is reached", "after a kill here"),
            ((_code(name), point.reached, point.after_kill) for name, point in faults.POINTS.items()),
        ),
    )


def modules_page() -> str:
    """The page about modules: the first sentence of each."""
    return _page(
        "Modules",
        "Every module below `src/catchment/`, by package, with the first sentence of its docstring. The layers and",
        "the entry points are in [ARCHITECTURE.md](../../ARCHITECTURE.md).",
        *(
            line
            for package, rows in _modules()
            for line in ("", f"## {package}", "", *_table(("module", "what it is"), rows))
        ),
    )


def _modules() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    packages: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "__init__.py" or path.stem.endswith("_pb2"):
            continue
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = " ".join(said.partition("\n\n")[0].split())
        name = path.relative_to(SOURCE)
        packages.setdefault(str(name.parent), []).append((_code(str(name)), first))
    for package, rows in packages.items():
        yield ("top level" if package == "." else f"`{package}/`"), rows


def retries_page() -> str:
    """The page about retries."""
    defaults = {each.name: f"{each.default} {each.unit}".rstrip() + f" (`{each.variable}`)" for each in declared()}
    declared_retries = tomllib.loads(RETRIES.read_text(encoding="utf-8"))["retry"]
    rows = [tuple(cell.format(**defaults) for cell in row.values()) for row in declared_retries]
    return _page(
        "Retries",
        "Waits between attempts are randomised: each lasts between half and all of the time in the table. Operations",
        "that are not listed are not retried. How the queue behaves while the lake is unreachable is in",
        "[its how-to](../howto/buffer-small-writes.md#when-the-lake-is-away).",
        "",
        "When the attempts are used up, the operation ends with an error: every state in which a process can end is",
        "one from which the next run can continue, and waiting longer would hide the fault.",
        "",
        *_table(("operation", "attempts", "backoff", "on exhaustion"), rows),
    )


def logs_page() -> str:
    """The page about the log."""
    around = ", ".join(_code(name) for name in AROUND)
    verbs = (
        (_code(verb), each.level, f"{each.means} {each.act}".rstrip(), ", ".join(map(_code, each.ids)))
        for verb, each in VERBS.items()
    )
    return _page(
        "Logs",
        "The log goes to stderr. On a terminal it is for a person; elsewhere every line is one JSON object:",
        "`CATCHMENT_LOG_JSON` says otherwise. `CATCHMENT_LOG_LEVEL` is the least level that is logged.",
        "[How to follow a request or a move](../howto/serve.md#logs) has examples.",
        "",
        "A JSON line begins with `at` (UTC), `level` and `action`, which is one of the verbs below; then come ids,",
        "then further facts. Verbs and ids are kept from version to version; further facts may come. What a library",
        "logs has the library's name for its `action`, and a `message`. No value is longer than 4,000 letters.",
        "",
        "Statements are not in the log, nor are errors that repeat them, unless `CATCHMENT_LOG_SQL` is set: who may",
        "read the log need not be one who may read tables. Catchment itself writes no password there, and no token; in",
        "texts of others, say of a driver, stars stand for what has the form of one, such as `password=…`.",
        "",
        "## Ids",
        "",
        f"Whatever is done for a call, a flush, a delivery or a move has its ids, whatever the verb: {around}.",
        "",
        *_table(("id", "what it is"), ((_code(name), said) for name, said in IDS.items())),
        "",
        "## Verbs",
        "",
        *_table(("verb", "level", "what it means, and what to do", "ids"), verbs),
    )


def metrics_page() -> str:
    """The page about metrics."""
    process = ", ".join(_code(name) for name in PROCESS)
    return _page(
        "Metrics",
        "`catchment serve` offers these at `/metrics` of its web port, 4215, in Prometheus's format. Users and roles",
        "are those of the server: give Prometheus a user of role `reader`. On loopback without users, nobody has to",
        "log in.",
        "",
        "Counters and histograms are of the process, and begin at 0 with it. What is said of lake, imports and tenants",
        "is at most `CATCHMENT_STATUS_SECONDS_MAX` old. A part that cannot be asked has no samples:",
        "`catchment_part_available` says which.",
        "",
        "[deploy/alerts.yml](../../deploy/alerts.yml) has alert rules, and",
        "[deploy/grafana-dashboard.json](../../deploy/grafana-dashboard.json) a dashboard.",
        "",
        *(line for each in METRICS for line in _metric(each)),
        "## The process",
        "",
        f"Of the process itself: {process}.",
    )


def _metric(metric: MetricInfo) -> Iterator[str]:
    labels = f", by {', '.join(_code(label) for label in metric.labels)}" if metric.labels else ""
    yield from (f"## `{metric.name}`", "", f"A {metric.kind}{labels}. {metric.help}", "")
    yield from (f"- **How to read it:** {metric.read}", f"- **What to do:** {metric.act}", "")


def status_page() -> str:
    """The page about the status."""
    return _page(
        "Status",
        "One value says how everything stands. `catchment status --json` prints it, and the server answers with it at",
        "`/status.json` of its web port. A part whose source is away says so in `unavailable`; the others are there",
        "all the same. Users who are not admins see neither SQL nor paths, nor names of others, nor texts of errors.",
        "",
        "Keys are kept from version to version; further ones may come. `[]` stands for every entry of a list.",
        "",
        *_table(("key", "what it is"), ((_code(key), said) for key, said in KEYS.items())),
    )


def sql_page() -> str:
    """The page about the SQL that clients may use."""
    return _page(
        "SQL",
        "What clients of `catchment serve` may run, by examples over a table `t (a INTEGER, b VARCHAR)` and a table",
        "`nested (s STRUCT (x INTEGER))` of a lake called `lake`. It is DuckDB's SQL, but for what would reach beyond",
        "the tables of the lake and the session itself. What is refused is refused with the reason that stands here.",
        "",
        "A role may do what the roles before it may: reader, writer, admin. A statement within another one, in a",
        "macro, a view, a PREPARE or an EXPLAIN, is judged as it would be by itself.",
        "",
        "The virtual column `filename` shows where the server keeps a row's file. No statement reads a file by its",
        "name, and DuckLake has this column to find the rows of a file, so it is left as it is.",
        "",
        *(line for title, forms in FORMS.items() for line in _forms(title, forms)),
    )


def _forms(title: str, forms: tuple[Form, ...]) -> Iterator[str]:
    rows = []
    for form in forms:
        who = "refused" if form.least is None else form.least.name.lower()
        tenants = "refused" if form.least is None or not form.tenants else form.least.name.lower()
        rows.append((_code(form.example), who, tenants, " ".join(filter(None, (form.note, form.reason)))))
    yield from (f"## {title}", "", *_table(("example", "users of the lake", "users of a tenant", "why"), rows), "")


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Every command that can be run, with its full name, in the order of `--help`."""
    return _below(PROGRAM, command_line())


def main() -> None:
    """Write every page."""
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    EXAMPLE.write_text(settings_example(), encoding="utf-8")


def _below(name: str, group: TyperGroup) -> Iterator[tuple[str, TyperCommand]]:
    for each in group.commands.values():
        if each.hidden:
            continue
        if isinstance(each, TyperGroup):
            yield from _below(f"{name} {each.name}", each)
        elif isinstance(each, TyperCommand):
            yield f"{name} {each.name}", each


def _command(name: str, command: TyperCommand) -> Iterator[str]:
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    options = [each for each in command.params if isinstance(each, TyperOption) and not each.hidden]
    yield from (f"## `{name}`", "", command.help or "", "")
    yield from ("```", " ".join([name, "[OPTIONS]", *map(_placeholder, arguments)]), "```", "")
    if arguments:
        yield from _table(("argument", "what it is"), ((_code(_placeholder(a)), a.help or "") for a in arguments))
        yield ""
    yield from _table(("option", "default", "what it does"), ((_option(o), _default(o), o.help or "") for o in options))
    yield ""


def _placeholder(argument: TyperArgument) -> str:
    shown = (argument.name or "").upper() + ("…" if argument.nargs == -1 else "")
    return shown if argument.required else f"[{shown}]"


def _option(option: TyperOption) -> str:
    if option.is_flag:
        return _code(" / ".join([*option.opts, *option.secondary_opts]))
    return _code(f"{' / '.join(option.opts)} {_values(option)}")


def _values(option: TyperOption) -> str:
    if isinstance(option.default, Enum):
        return "|".join(str(each.value) for each in type(option.default))
    if option.min is not None and option.max is not None:
        return f"{option.min}..{option.max}"
    return (option.name or "").upper()


def _default(option: TyperOption) -> str:
    if option.is_flag or option.default is None or option.default == "":
        return ""
    return _code(str(option.default.value if isinstance(option.default, Enum) else option.default))


def _exit_codes() -> Iterator[tuple[str, str]]:
    yield "0", "done"
    yield str(EXIT_FAILED), "failed; what was committed before stays, and the same command may be run again"
    yield (
        str(EXIT_NEEDS_YOU),
        "needs something from you, and says what: another input, another setting, an installation",
    )
    yield str(EXIT_DIVERGED), "`catchment schema` only: scripts have diverged, or are in error; a person must look"
    yield str(EXIT_STOPPED), "stopped by Ctrl-C; what was committed before stays, and the same command may be run again"


def _errors(kind: type[CatchmentError]) -> Iterator[tuple[str, str, str]]:
    for each in kind.__subclasses__():
        if each.__module__ == kind.__module__:
            yield _code(each.__name__), str(each.exit_code), str(each())
            yield from _errors(each)


def _page(title: str, *lines: str) -> str:
    return "\n".join([f"# {title}", "", _NOTICE, "", *lines]).rstrip("\n") + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        yield _row(row)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    main()
