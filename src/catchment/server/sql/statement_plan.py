"""Plans a client's text: queue writes, fresh reads, queue commands, or plain SQL.

Catchment's names are found by parsing. Only these names are replaced; the rest of a statement stays
as the client wrote it. A captured INSERT runs, with its columns, defaults and casts, on an empty
temporary table of the target's shape, and the rows that it returns are enqueued.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import pairwise

from sqlglot import exp

from catchment.errors import InputError, NotSupportedError
from catchment.foundation import sql
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.server.sql import sql_tokens as scanner
from catchment.server.sql import time_travel
from catchment.server.sql.sql_tokens import Token
from catchment.server.sql.syntax import parse

QUEUE = "duckling_queue"
FRESH = "catchment_fresh"
BOUND = "catchment_bound"
_PLANS_MAX = 2_000
_DIGITS_MAX = 6
# Longer texts are not cached: a cached one takes many times its length.
_CACHED_CHARACTERS_MAX = 2_000
# An INSERT of constants into the queue. Such statements differ only in their constants, each of
# which is one token; so the plan of one statement is valid for all with the same beginning.
_BLANK_CHARACTERS = " \t\n\r\f"
_BLANKS = rf"[{_BLANK_CHARACTERS}]*+"
_CONSTANT = rf"{_BLANKS}(?:NULL|TRUE|FALSE|'(?:[^'\0\ud800-\udfff]++|'')*+'|-?\d++(?:\.\d++)?){_BLANKS}"
_ROW = rf"{_BLANKS}\({_CONSTANT}(?:,{_CONSTANT})*+\){_BLANKS}"
_ROWS = re.compile(rf"(VALUES{_ROW}(?:,{_ROW})*+);?+{_BLANKS}", re.I | re.A)
_BEGINNING = re.compile(rf"INSERT INTO {QUEUE}\.[\w.]+{_BLANKS}(?:\([\w \t\n\r\f,]*+\){_BLANKS})?", re.I | re.A)
_SAMPLE = "VALUES (NULL)"
_READS_TABLES = frozenset({"select", "from", "table", "with", "returning", "conflict", "by", "default", "as"})


_SHOWS = frozenset({"describe", "desc", "show", "summarize"})
_IF_NOT_EXISTS = ["if", "not", "exists"]
_CREATE_MODIFIERS = frozenset({"or", "replace", "temp", "temporary"})
_DATA_CLAUSES = (["with", "no", "data"], ["with", "data"])
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_NAMED_VERBS = frozenset({"prepare", "execute", "deallocate"})
_PRAGMAS: dict[tuple[str, ...], str] = {
    ("show_tables",): "SHOW TABLES",
    ("show_tables_expanded",): "SHOW ALL TABLES",
    ("version",): "SELECT * FROM pragma_version()",
    ("database_list",): (
        "SELECT database_oid AS seq, database_name AS name, path AS file FROM duckdb_databases() WHERE NOT internal"
    ),
}


class QueueCommand(Enum):
    """A command of the queue."""

    FLUSH = "flush"
    STATUS = "status"


_COMMANDS = {
    ("pragma", QUEUE, ".", "flush"): QueueCommand.FLUSH,
    ("pragma", QUEUE, ".", "flush", "(", ")"): QueueCommand.FLUSH,
    ("call", "duckling_queue_flush", "(", ")"): QueueCommand.FLUSH,
    ("call", "duckling_queue_status", "(", ")"): QueueCommand.STATUS,
    ("select", "*", "from", "duckling_queue_status", "(", ")"): QueueCommand.STATUS,
    ("from", "duckling_queue_status", "(", ")"): QueueCommand.STATUS,
}


class Rescue(Enum):
    """An operation on rows whose table was dropped."""

    COUNT = "stranded"
    EXPORT = "export"
    REDIRECT = "redirect"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class RescueCommand:
    """A call of `duckling_queue_stranded`, `_export`, `_redirect` or `_discard`."""

    action: Rescue
    table: TableId
    into: TableId | None


_RESCUE = re.compile(
    rf"CALL\s+{QUEUE}_(stranded|export|redirect|discard)\s*\(\s*'((?:[^']|'')+)'\s*(?:,\s*'((?:[^']|'')+)'\s*)?\)", re.I
)


@dataclass(frozen=True, slots=True)
class Bulk:
    """An INSERT of one row of values with parameters, rewritten as a SELECT from the bound rows."""

    text: str
    parameters: int
    # The named columns, () if none are named; None if the row contains more than parameters.
    plain_columns: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Plain:
    """A statement for DuckDB, subject to the SQL policy."""

    text: str
    tokens: tuple[Token, ...]
    bulk: Bulk | None = None
    # The table that it creates for queued rows; refused if the queue could not accept them.
    queued: TableId | None = None

    @property
    def returns(self) -> bool:
        """Whether it returns the rows that it changes."""
        return any(token.is_name and token.text == "returning" for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Capture:
    """Rows for the queue: `before` and `after` are the text around the name of the target."""

    table: TableId
    before: str
    after: str
    columns: tuple[str, ...]
    source: str
    bulk: Bulk | None = None

    def into(self, target: str, *, bulk: bool = False, returning: str = "*") -> str:
        """Return the statement with another target, and with a RETURNING clause."""
        text = self.bulk.text if bulk and self.bulk is not None else self.before + "{}" + self.after
        head, _, tail = text.partition("{}")
        # On a line of its own: the statement may end in a comment.
        return f"{head}{target}{tail}\nRETURNING {returning}"


@dataclass(frozen=True, slots=True)
class CreateThroughQueue:
    """A table that is created through the queue.

    `definition` is the statement's text between the table's name and AS, `columns` are the names in
    it if it contains only names, and `source` is the query after AS, or None. Its rows are for the
    queue, unless the statement contains WITH NO DATA.
    """

    table: TableId
    definition: str
    columns: tuple[str, ...]
    source: str | None
    has_rows: bool
    if_not_exists: bool

    def named(self, target: str) -> str:
        """Return the statement that creates the table under that name, without rows."""
        query = "" if self.source is None else f" AS FROM ({self.source}\n) LIMIT 0"
        return f"CREATE TABLE {target}{self.definition}{query}"


@dataclass(frozen=True, slots=True)
class FreshRead:
    """A query that reads buffered rows: `parts` is its text around the names of their tables.

    If a table is `own`, only the session's own buffered rows are read; otherwise the table together
    with all buffered rows.
    """

    text: str
    tokens: tuple[Token, ...]
    tables: tuple[TableId, ...]
    parts: tuple[str, ...]
    aliases: tuple[str | None, ...]
    own: tuple[bool, ...]

    def with_sources(self, source: Callable[[TableId, bool], str]) -> str:
        """Return the query with each table replaced by `source(table, is_own)`."""
        out = self.parts[0]
        for table, alias, is_own, part in zip(self.tables, self.aliases, self.own, self.parts[1:], strict=True):
            as_named = "" if alias is None else f" AS {sql.identifier(alias)}"
            out += f"({source(table, is_own)}){as_named}{part}"
        return out


@dataclass(frozen=True, slots=True)
class NamedStatement:
    """A statement that a session stores by name: PREPARE, EXECUTE or DEALLOCATE.

    `text` is the statement to store, or a SELECT of the arguments of an execution.
    """

    verb: str
    name: str
    text: str = ""


Step = Plain | Capture | CreateThroughQueue | FreshRead | QueueCommand | NamedStatement | RescueCommand


def plan(text: str, schema: str = DEFAULT_SCHEMA) -> tuple[Step, ...]:
    """Return the steps of a text, one per statement; `schema` is the queue's default schema."""
    constants = _plan_constants(text, schema)
    if constants is not None:
        return (constants,)
    return _cached(text, schema) if len(text) <= _CACHED_CHARACTERS_MAX else _plan(text, schema)


def _plan_constants(text: str, schema: str) -> Capture | None:
    """Plan an INSERT of only constants into the queue like an earlier one with the same beginning;
    None for any other statement.
    """
    beginning = _BEGINNING.match(text)
    if beginning is None or beginning.end() > _CACHED_CHARACTERS_MAX:
        return None
    rows = _ROWS.fullmatch(text, beginning.end())
    if rows is None:
        return None
    scanner.require_short_signs(text.encode())
    step = _cached(beginning[0] + _SAMPLE, schema)[0]
    if not isinstance(step, Capture) or step.source != _SAMPLE:
        return None
    values = rows[1].rstrip(_BLANK_CHARACTERS)
    return replace(step, source=values, after=step.after.removesuffix(_SAMPLE) + values)


@lru_cache(maxsize=_PLANS_MAX)
def _cached(text: str, schema: str) -> tuple[Step, ...]:
    return _plan(text, schema)


def _plan(text: str, schema: str) -> tuple[Step, ...]:
    try:
        source = text.encode()
    except UnicodeEncodeError:
        raise InputError("The statement is not valid Unicode.") from None
    if b"\0" in source:
        raise InputError("The statement contains a zero byte.")
    tokens = scanner.read(source)
    guarded = time_travel.guard_versions(source, tokens)
    if guarded != source:
        source, tokens = guarded, scanner.read(guarded)
    steps = tuple(_step(own.decode(), words, schema) for own, words in scanner.statements(source, tokens))
    if not steps:
        raise InputError("The text contains no statement.")
    return steps


def _step(text: str, tokens: tuple[Token, ...], schema: str) -> Step:
    if tokens[0].text in _NAMED_VERBS:
        return _named_statement(text, tokens)
    if tokens[0].text == "pragma" and (said := _pragma(text, tokens)) is not None:
        return Plain(said, scanner.read(said.encode()))
    named = {token.text for token in tokens if token.is_name}
    if QUEUE not in named and FRESH not in named and not any(name.startswith(f"{QUEUE}_") for name in named):
        return Plain(text, tokens, _bulk(text, tokens))
    command = _COMMANDS.get(tuple(token.text for token in tokens))
    if command is not None:
        return command
    if (rescue := _RESCUE.fullmatch(text.strip())) is not None:
        return _rescue(rescue)
    if _is_plain_insert(tokens):
        return _capture(text, tokens, schema)
    found = _create_through_queue(text, tokens, schema) or _shown(text, tokens, schema)
    return found or _parsed(text, tokens, schema)


def _rescue(found: re.Match[str]) -> RescueCommand:
    action = Rescue(found[1].casefold())
    table, into = (None if name is None else TableId.parse(name.replace("''", "'")) for name in found.groups()[1:])
    if table is None or (into is None) == (action is Rescue.REDIRECT):
        raise InputError(
            f"{QUEUE}_{action.value} requires {'two tables' if action is Rescue.REDIRECT else 'one table'}."
        )
    return RescueCommand(action, table, into)


def _pragma(text: str, tokens: tuple[Token, ...]) -> str | None:
    """Return the query that a PRAGMA stands for; None unless it only reads."""
    words = tuple(token.text for token in tokens[1:])
    if words[:2] == ("table_info", "(") and len(words) == 4 and (tokens[3].is_string or tokens[3].is_name):
        source = text.encode()
        given = source[tokens[3].start : tokens[4].start].decode().strip()
        return f"SELECT * FROM pragma_table_info({given if tokens[3].is_string else sql.literal(tokens[3].text)})"
    return _PRAGMAS.get(words)


def _named_statement(text: str, tokens: tuple[Token, ...]) -> NamedStatement:
    """Parse a PREPARE, EXECUTE or DEALLOCATE."""
    source, verb = text.encode(), tokens[0].text
    at = 2 if verb == "deallocate" and len(tokens) > 2 and tokens[1].text == "prepare" else 1
    if at >= len(tokens) or not tokens[at].is_name:
        raise InputError(f"{verb.upper()} requires the name of a prepared statement.")
    name, rest = tokens[at].text, tokens[at + 1 :]
    if verb == "prepare":
        begin = next((i for i, token in enumerate(rest) if token.text == "as" and not token.is_quoted), len(rest)) + 1
        if begin >= len(rest):
            raise InputError("PREPARE … AS requires a statement.")
        return NamedStatement(verb, name, source[rest[begin].start :].decode())
    if verb == "execute" and rest:
        return NamedStatement(verb, name, _arguments(source, rest))
    if rest:
        raise InputError(f"{verb.upper()} accepts nothing after the name.")
    return NamedStatement(verb, name)


def _arguments(source: bytes, tokens: tuple[Token, ...]) -> str:
    """Return a SELECT of the arguments in brackets, each with its name or its number."""
    if tokens[0].text != "(" or tokens[-1].text != ")" or len(tokens) < 3:
        raise InputError("EXECUTE requires its arguments in brackets.")
    depth, begins = 0, [1]
    for at, token in enumerate(tokens[1:-1], start=1):
        depth += _BRACKETS.get(token.text, 0)
        if token.text == "," and depth == 0:
            begins.append(at + 1)
    parts = []
    for number, (begin, end) in enumerate(pairwise([*begins, len(tokens)]), start=1):
        start, has_name = tokens[begin].start, tokens[begin].is_name and tokens[begin + 1].text == ":"
        name = tokens[begin].text if has_name else str(number)
        given = source[tokens[begin + 2].start if has_name else start : tokens[end - 1].start].decode()
        parts.append(f"({given}\n) AS {sql.identifier(name)}")
    return "SELECT " + ", ".join(parts)


def _is_plain_insert(tokens: tuple[Token, ...]) -> bool:
    """Whether it is INSERT INTO duckling_queue.t … VALUES …, the most frequent form."""
    words = [token.text for token in tokens[:4]]
    return words == ["insert", "into", QUEUE, "."] and not any(t.is_name and t.text in _READS_TABLES for t in tokens)


def _parsed(text: str, tokens: tuple[Token, ...], schema: str) -> Step:
    tree = parse(text)[0]
    tables = [node for node in tree.find_all(exp.Table) if not isinstance(node.this, exp.Func)]
    if isinstance(tree, exp.Insert) and tokens[0].text != "explain" and _is_in(_target(tree), QUEUE):
        _refuse_unsupported(tree)
        others = [table for table in tables if table is not _target(tree)]
        for name in (name for name in (FRESH, QUEUE) if any(_is_in(table, name) for table in others)):
            raise NotSupportedError(f"{name} can be read only by a query, not inside an INSERT.")
        return _capture(text, tokens, schema)
    read = [table for table in tables if _is_in(table, FRESH) or _is_in(table, QUEUE)]
    if not read:
        return Plain(text, tokens, _bulk(text, tokens))
    if isinstance(tree, exp.Query):
        return _fresh(text, tokens, read, schema)
    if any(_is_in(table, QUEUE) for table in read):
        raise NotSupportedError(
            f"{QUEUE} is append-only: it accepts INSERT INTO and CREATE TABLE {QUEUE}.<table>. Its rows are "
            "acknowledged, and can be changed, copied or dropped once they are in their table.",
            hint="`CALL duckling_queue_flush()` moves them there; then change or drop the table by its own name.",
        )
    raise NotSupportedError(f"{FRESH} can be read only by a query.")


def _shown(text: str, tokens: tuple[Token, ...], schema: str) -> FreshRead | None:
    """Plan a DESCRIBE, SHOW or SUMMARIZE of buffered rows; None for any other statement."""
    verb, body = tokens[0].text, text.encode()[tokens[1].start :].decode() if len(tokens) > 1 else ""
    if verb not in _SHOWS or not body:
        return None
    if tokens[1].text in (FRESH, QUEUE):
        body = f"SELECT * FROM {body}"
    inner = _parsed(body, scanner.read(body.encode()), schema)
    if not isinstance(inner, FreshRead):
        return None
    how = "SUMMARIZE " if verb == "summarize" else "DESCRIBE "
    whole = how + inner.text
    return replace(
        inner, text=whole, tokens=scanner.read(whole.encode()), parts=(how + inner.parts[0], *inner.parts[1:])
    )


def _target(insert: exp.Insert) -> exp.Table:
    found = insert.this.this if isinstance(insert.this, exp.Schema) else insert.this
    if not isinstance(found, exp.Table):
        raise InputError("The target of the INSERT must be a table.")
    return found


def _is_in(table: exp.Table, name: str) -> bool:
    parts = table.parts
    return len(parts) in (2, 3) and sql.fold(parts[0].name) == name


def _refuse_unsupported(insert: exp.Insert) -> None:
    for key, what in (("returning", "RETURNING"), ("conflict", "ON CONFLICT"), ("alternative", "INSERT OR …")):
        if insert.args.get(key):
            raise NotSupportedError(f"{what} is not possible on {QUEUE}: its rows reach their table later.")


def _fresh(text: str, tokens: tuple[Token, ...], tables: list[exp.Table], schema: str) -> FreshRead:
    if not all("start" in part.meta for table in tables for part in table.parts):
        raise InputError(f"{FRESH} and {QUEUE} must be followed by the name of a table.")
    tables = sorted(tables, key=lambda table: int(table.parts[0].meta["start"]))
    parts, at = [], 0
    for table in tables:
        parts.append(text[at : int(table.parts[0].meta["start"])])
        at = int(table.parts[-1].meta["end"]) + 1
    return FreshRead(
        text=text,
        tokens=tokens,
        tables=tuple(_table_id([part.name for part in table.parts[1:]], schema) for table in tables),
        parts=(*parts, text[at:]),
        aliases=tuple(None if table.alias else table.name for table in tables),
        own=tuple(_is_in(table, QUEUE) for table in tables),
    )


def _create_through_queue(text: str, tokens: tuple[Token, ...], schema: str) -> CreateThroughQueue | None:
    """Parse a CREATE TABLE duckling_queue.t; None for any other statement."""
    words = ["" if token.is_quoted else token.text for token in tokens]
    at = words.index("table") + 1 if words[0] == "create" and "table" in words else len(words)
    how = words[1 : at - 1]
    if_not_exists = words[at : at + 3] == _IF_NOT_EXISTS
    at += len(_IF_NOT_EXISTS) if if_not_exists else 0
    if at >= len(words) or tokens[at].text != QUEUE or not _CREATE_MODIFIERS.issuperset(how):
        return None
    if how:
        raise NotSupportedError(
            f"CREATE {' '.join(how).upper()} TABLE is not possible on {QUEUE}: its tables are the lake's, and "
            "acknowledged rows for them may still be buffered.",
            hint=f"Use CREATE TABLE {QUEUE}.<table>, or replace the table in the lake itself.",
        )
    source, names = text.encode(), _target_names(tokens, at)
    rest = tokens[names[-1] + 1 :]
    for other in (token.text for token in rest if token.is_name and token.text in (QUEUE, FRESH)):
        raise NotSupportedError(f"{other} can be read only by a query, not inside a CREATE TABLE.")
    start = rest[0].start if rest else len(source)
    query_at = _query_at(rest)
    clause = next((each for each in _DATA_CLAUSES if words[-len(each) :] == each), [])
    until = tokens[-len(clause)].start if clause else len(source)
    return CreateThroughQueue(
        table=_table_id([_spelled(source, tokens, i) for i in names[1:]], schema),
        definition=" " + source[start:query_at].decode(),
        columns=_columns(source, rest, 0)[0],
        source=None if query_at is None else source[query_at + len("as") : until].decode(),
        has_rows=query_at is not None and "no" not in clause,
        if_not_exists=if_not_exists,
    )


def _query_at(tokens: tuple[Token, ...]) -> int | None:
    """Return the position of the AS that is not inside brackets."""
    depth = 0
    for token in tokens:
        depth += _BRACKETS.get(token.text, 0)
        if depth == 0 and token.text == "as" and not token.is_quoted:
            return token.start
    return None


def _target_names(tokens: tuple[Token, ...], at: int) -> list[int]:
    """Return the positions of the parts of a target's name, beginning with the queue's."""
    names = [at]
    while names[-1] + 2 < len(tokens) and tokens[names[-1] + 1].text == ".":
        names.append(names[-1] + 2)
    if len(names) not in (2, 3) or not all(tokens[i].is_name for i in names):
        raise InputError(f"The target of the statement must be {QUEUE}.<table>.")
    return names


def _table_id(names: list[str], default: str) -> TableId:
    schema, name = names if len(names) == 2 else (default, *names)
    return TableId(schema, name)


def _capture(text: str, tokens: tuple[Token, ...], schema: str) -> Capture:
    """Parse an INSERT into the queue, split around its target."""
    source = text.encode()
    # Without INTO, there is no name after the last token.
    at = next((i for i, t in enumerate(tokens) if t.text == "into" and not t.is_quoted), len(tokens) - 1) + 1
    names = _target_names(tokens, at)
    spelled = [_spelled(source, tokens, i) for i in names[1:]]
    after = tokens[names[-1] + 1].start if names[-1] + 1 < len(tokens) else len(source)
    columns, begin = _columns(source, tokens, names[-1] + 1)
    capture = Capture(
        table=_table_id(spelled, schema),
        before=source[: tokens[at].start].decode(),
        after=" " + source[after:].decode(),
        columns=columns,
        source=source[begin:].decode(),
    )
    bulk = _bulk(text, tokens)
    if bulk is None:
        return capture
    spliced = bulk.text[: len(capture.before)] + "{} " + bulk.text[len(source[:after].decode()) :]
    return replace(capture, bulk=replace(bulk, text=spliced))


def _spelled(source: bytes, tokens: tuple[Token, ...], at: int) -> str:
    """Return a name as it is written, without its quotes."""
    start = tokens[at].start
    if tokens[at].is_quoted:
        end = start + 1
        while source[end : end + 2] == b'""' or source[end : end + 1] != b'"':
            end += 2 if source[end : end + 2] == b'""' else 1
        return source[start + 1 : end].replace(b'""', b'"').decode()
    # From the source, not from the token, which is folded: folding changes the length of some
    # letters.
    return scanner.word_at(source, start)


def _columns(source: bytes, tokens: tuple[Token, ...], at: int) -> tuple[tuple[str, ...], int]:
    """Return the columns that an INSERT names after its target, and the position of its source."""
    start = tokens[at].start if at < len(tokens) else len(source)
    if at >= len(tokens) or tokens[at].text != "(":
        return (), start
    names = []
    while at + 2 < len(tokens) and tokens[at + 1].is_name and tokens[at + 2].text in (",", ")"):
        names.append(_spelled(source, tokens, at + 1))
        at += 2
        if tokens[at].text == ")":
            following = tokens[at + 1].start if at + 1 < len(tokens) else len(source)
            return tuple(names), following
    return (), start


def _bulk(text: str, tokens: tuple[Token, ...]) -> Bulk | None:
    """Rewrite an INSERT of one row of parameters to SELECT from bound rows; None for any other."""
    if not tokens or tokens[0].text != "insert" or not any(token.text in "?$" and token.text for token in tokens):
        return None
    at = next((i for i, t in enumerate(tokens) if t.is_name and t.text == "values" and not t.is_quoted), None)
    if at is None or at + 1 >= len(tokens) or tokens[at + 1].text != "(":
        return None
    row = tokens[at + 2 : -1]
    if tokens[-1].text != ")" or not _is_one_row(row) or any(t.is_name and t.text in _READS_TABLES for t in row):
        return None
    source = text.encode()
    marks = _marks(source, row)
    if marks is None:
        return None
    out = scanner.replaced(
        source,
        [
            (tokens[at].start, row[0].start, b"SELECT "),
            *((token.start, end, f'{BOUND}."{number}"'.encode()) for token, end, number in marks),
            (tokens[-1].start, len(source), f" FROM temp.main.{BOUND}".encode()),
        ],
    )
    is_plain = all(t.text in ("?", "$", ",") and not t.is_string for t in row) and [m[2] for m in marks] == list(
        range(len(marks))
    )
    columns = _target_columns(source, tokens[:at]) if is_plain else None
    return Bulk(out.decode(), len({mark[2] for mark in marks}), columns)


def _target_columns(source: bytes, head: tuple[Token, ...]) -> tuple[str, ...] | None:
    at = next((i for i, token in enumerate(head) if token.text == "("), None)
    if at is None:
        return None if any(token.text == "by" for token in head) else ()
    columns, _ = _columns(source, head, at)
    return columns or None


def _is_one_row(row: tuple[Token, ...]) -> bool:
    depth = 0
    for token in row:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0:
            return False
    return depth == 0 and bool(row)


def _marks(source: bytes, row: tuple[Token, ...]) -> list[tuple[Token, int, int]] | None:
    """Return each parameter of a row with its end and its number; None if parameters have names."""
    found: list[tuple[Token, int, int]] = []
    for token in row:
        if token.is_string or token.text not in ("?", "$"):
            continue
        end = token.start + 1
        while source[end : end + 1].isdigit():
            end += 1
        digits = source[token.start + 1 : end]
        if (token.text == "$" and not digits) or len(digits) > _DIGITS_MAX:
            return None
        found.append((token, end, int(digits) - 1 if digits else len(found)))
    if len({mark[2] for mark in found}) != max((mark[2] for mark in found), default=-1) + 1:
        return None
    return found or None
