"""Messages by the name of their type: commands and action bodies as they come in, results as they go out.

Flight SQL puts each of its messages into a `google.protobuf.Any`. Which session a client without a token means is seen
from the handle in its message.
"""

from typing import TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from catchment.errors import InputError, LimitError, NotSupportedError
from catchment.server.protocol import flight_pb2 as flight
from catchment.server.protocol import flight_sql_pb2 as sql
from catchment.server.values import IfExists, IngestTarget

M = TypeVar("M", bound=Message)
WithText = sql.CommandStatementQuery | sql.CommandStatementUpdate | sql.ActionCreatePreparedStatementRequest

_URL = "type.googleapis.com/"
_FLIGHT_SQL = "arrow.flight.protocol.sql."
_COMMANDS = (
    sql.CommandStatementQuery,
    sql.CommandStatementUpdate,
    sql.CommandPreparedStatementQuery,
    sql.CommandPreparedStatementUpdate,
    sql.CommandStatementIngest,
    sql.TicketStatementQuery,
    sql.CommandGetCatalogs,
    sql.CommandGetDbSchemas,
    sql.CommandGetTables,
    sql.CommandGetTableTypes,
    sql.CommandGetPrimaryKeys,
    sql.CommandGetExportedKeys,
    sql.CommandGetImportedKeys,
    sql.CommandGetCrossReference,
    sql.CommandGetXdbcTypeInfo,
    sql.CommandGetSqlInfo,
)
_BY_URL: dict[str, type[Message]] = {_URL + kind.DESCRIPTOR.full_name: kind for kind in _COMMANDS}
_HANDLES = ("prepared_statement_handle", "statement_handle", "transaction_id")
_IF_EXISTS = {
    sql.CommandStatementIngest.TableDefinitionOptions.TABLE_EXISTS_OPTION_FAIL: IfExists.FAIL,
    sql.CommandStatementIngest.TableDefinitionOptions.TABLE_EXISTS_OPTION_APPEND: IfExists.APPEND,
    sql.CommandStatementIngest.TableDefinitionOptions.TABLE_EXISTS_OPTION_REPLACE: IfExists.REPLACE,
}
_CREATE = {
    sql.CommandStatementIngest.TableDefinitionOptions.TABLE_NOT_EXIST_OPTION_CREATE: True,
    sql.CommandStatementIngest.TableDefinitionOptions.TABLE_NOT_EXIST_OPTION_FAIL: False,
}
# How queries begin, after blanks and brackets.
_READING = ("select", "from", "with", "values", "describe", "show", "summarize", "explain", "pivot", "unpivot", "table")
_BEFORE_WORDS = " \t\r\n\f("
_WORD_LETTERS_MAX = 256


def parse(kind: type[M], data: bytes) -> M:
    """A message of a known kind."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InputError(f"The message is no {kind.DESCRIPTOR.name}.") from None


def command(data: bytes) -> Message:
    """A command or a ticket, by the name that it carries."""
    packed = parse(AnyMessage, data)
    kind = _BY_URL.get(packed.type_url)
    if kind is not None:
        return parse(kind, packed.value)
    name = packed.type_url.removeprefix(_URL)
    if name.startswith(_FLIGHT_SQL):
        raise NotSupportedError(f"{name.removeprefix(_FLIGHT_SQL)} is not supported.")
    raise InputError("This is no command of Flight SQL.")


def described(descriptor: flight.FlightDescriptor) -> Message:
    """The command in a descriptor."""
    if descriptor.type != flight.FlightDescriptor.CMD:
        raise InputError(
            "This is no command of Flight SQL.",
            hint="Flights are not known by paths here, and an ingest of no rows says nothing at all in some drivers.",
        )
    return command(descriptor.cmd)


def body(kind: type[M], data: bytes) -> M:
    """An action's body: packed, as Flight SQL has it, or bare, as Flight itself has it."""
    packed = AnyMessage()
    try:
        packed.ParseFromString(data)
    except DecodeError:
        return parse(kind, data)
    return parse(kind, packed.value if packed.type_url == _URL + kind.DESCRIPTOR.full_name else data)


def pack(message: Message) -> bytes:
    """A message with its name."""
    packed = AnyMessage()
    packed.type_url = _URL + message.DESCRIPTOR.full_name
    packed.value = message.SerializeToString()
    return packed.SerializeToString()


def handle_in(message: Message) -> bytes:
    """The handle by which a session can be found, empty where there is none."""
    fields = message.DESCRIPTOR.fields_by_name
    return next((handle for name in _HANDLES if name in fields and (handle := getattr(message, name))), b"")


def text_in(message: WithText, bytes_max: int) -> str:
    """The text of a statement; LimitError where it is too long."""
    # No text has more bytes than four for each letter, and nearly all are far below the limit.
    if 4 * len(message.query) > bytes_max and len(message.query.encode()) > bytes_max:
        raise LimitError(f"The statement is longer than {bytes_max:,} bytes.", hint="Bind values, or ingest rows.")
    return message.query


def may_read(message: Message) -> bool:
    """Whether a query is one that reads, as far as its first word tells; one that is prepared is asked for to read."""
    if not isinstance(message, sql.CommandStatementQuery):
        return True
    return message.query[:_WORD_LETTERS_MAX].lstrip(_BEFORE_WORDS).casefold().startswith(_READING)


def transaction_in(message: WithText | sql.CommandStatementIngest) -> bytes | None:
    """The transaction that a statement belongs to; clients send an empty one for none."""
    return message.transaction_id or None


def ingest_target(message: sql.CommandStatementIngest) -> IngestTarget:
    """Where an ingest goes."""
    options = message.table_definition_options
    if options.if_exists not in _IF_EXISTS or options.if_not_exist not in _CREATE:
        raise InputError("The ingest does not say what to do if its table exists, and if it does not.")
    if not message.table:
        raise InputError("The ingest names no table.")
    return IngestTarget(
        catalog=message.catalog or None,
        schema=message.schema or None,
        table=message.table,
        create=_CREATE[options.if_not_exist],
        if_exists=_IF_EXISTS[options.if_exists],
        temporary=message.temporary,
    )
