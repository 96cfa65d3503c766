"""Parse and pack messages by type name: incoming commands and action bodies, outgoing results.

Flight SQL wraps each of its messages in a `google.protobuf.Any`. If a client sends no token, its
session is identified by the handle in its message.
"""

from typing import TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from catchment.errors import InputError, LimitError, NotSupportedError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import MIB
from catchment.server.values import IfExists, IngestTarget

M = TypeVar("M", bound=Message)
WithText = sql.CommandStatementQuery | sql.CommandStatementUpdate | sql.ActionCreatePreparedStatementRequest

STATEMENT_BYTES_MAX = MIB
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
# First words of queries, after whitespace and parentheses.
_READING = ("select", "from", "with", "values", "describe", "show", "summarize", "explain", "pivot", "unpivot", "table")
_BEFORE_WORDS = " \t\r\n\f("
_WORD_CHARACTERS_MAX = 256


def parse(kind: type[M], data: bytes) -> M:
    """Parse a message of a known type."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InputError(f"The message is not a valid {kind.DESCRIPTOR.name}.") from None


def command(data: bytes) -> Message:
    """Parse a command or a ticket by the type name that it carries."""
    packed = parse(AnyMessage, data)
    kind = _BY_URL.get(packed.type_url)
    if kind is not None:
        return parse(kind, packed.value)
    name = packed.type_url.removeprefix(_URL)
    if name.startswith(_FLIGHT_SQL):
        raise NotSupportedError(f"{name.removeprefix(_FLIGHT_SQL)} is not supported.")
    raise InputError("This is not a Flight SQL command.")


def described(descriptor: flight.FlightDescriptor) -> Message:
    """Parse the command in a descriptor."""
    if descriptor.type != flight.FlightDescriptor.CMD:
        raise InputError(
            "This is not a Flight SQL command.",
            hint="Flights cannot be addressed by path. Some drivers send no command at all for an ingest without rows.",
        )
    return command(descriptor.cmd)


def body(kind: type[M], data: bytes) -> M:
    """Parse an action's body: packed, as in Flight SQL, or bare, as in Flight itself."""
    packed = AnyMessage()
    try:
        packed.ParseFromString(data)
    except DecodeError:
        return parse(kind, data)
    return parse(kind, packed.value if packed.type_url == _URL + kind.DESCRIPTOR.full_name else data)


def pack(message: Message) -> bytes:
    """Pack a message together with its type name."""
    packed = AnyMessage()
    packed.type_url = _URL + message.DESCRIPTOR.full_name
    packed.value = message.SerializeToString()
    return packed.SerializeToString()


def handle_in(message: Message) -> bytes:
    """Return the handle by which a session can be found, empty if there is none."""
    fields = message.DESCRIPTOR.fields_by_name
    return next((handle for name in _HANDLES if name in fields and (handle := getattr(message, name))), b"")


def text_in(message: WithText) -> str:
    """Return the text of a statement. Raises LimitError if it is too long."""
    # A text has at most four bytes per character, and nearly all texts are far below the limit.
    if 4 * len(message.query) > STATEMENT_BYTES_MAX and len(message.query.encode()) > STATEMENT_BYTES_MAX:
        raise LimitError(
            f"The statement is longer than {STATEMENT_BYTES_MAX:,} bytes.",
            hint="Bind parameters, or use bulk ingest.",
        )
    return message.query


def may_read(message: Message) -> bool:
    """Return whether a query reads, judging by its first word; a prepared query is assumed to read."""
    if not isinstance(message, sql.CommandStatementQuery):
        return True
    return message.query[:_WORD_CHARACTERS_MAX].lstrip(_BEFORE_WORDS).casefold().startswith(_READING)


def transaction_in(message: WithText | sql.CommandStatementIngest) -> bytes | None:
    """Return the transaction that a statement belongs to; clients send an empty one for none."""
    return message.transaction_id or None


def ingest_target(message: sql.CommandStatementIngest) -> IngestTarget:
    """Return the target of an ingest."""
    options = message.table_definition_options
    if options.if_exists not in _IF_EXISTS or options.if_not_exist not in _CREATE:
        raise InputError("The ingest does not specify what to do if its table exists or does not exist.")
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
