"""Column types, as ODBC and JDBC describe them."""

from dataclasses import dataclass

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("type_name", pa.string(), nullable=False),
        pa.field("data_type", pa.int32(), nullable=False),
        pa.field("column_size", pa.int32()),
        pa.field("literal_prefix", pa.string()),
        pa.field("literal_suffix", pa.string()),
        pa.field("create_params", pa.list_(pa.field("item", pa.string(), nullable=False))),
        pa.field("nullable", pa.int32(), nullable=False),
        pa.field("case_sensitive", pa.bool_(), nullable=False),
        pa.field("searchable", pa.int32(), nullable=False),
        pa.field("unsigned_attribute", pa.bool_()),
        pa.field("fixed_prec_scale", pa.bool_(), nullable=False),
        pa.field("auto_increment", pa.bool_()),
        pa.field("local_type_name", pa.string()),
        pa.field("minimum_scale", pa.int32()),
        pa.field("maximum_scale", pa.int32()),
        pa.field("sql_data_type", pa.int32(), nullable=False),
        pa.field("datetime_subcode", pa.int32()),
        pa.field("num_prec_radix", pa.int32()),
        pa.field("interval_precision", pa.int32()),
    ]
)

# ODBC's numbers.
_CHAR, _DECIMAL, _INTEGER, _SMALLINT, _REAL, _DOUBLE = 1, 3, 4, 5, 7, 8
_DATETIME, _VARCHAR, _DATE, _TIME, _TIMESTAMP = 9, 12, 91, 92, 93
_VARBINARY, _BIGINT, _TINYINT, _BIT = -3, -5, -6, -7
_NULLABLE = 1
_SEARCHABLE_BASIC, _SEARCHABLE_FULL = 2, 3


@dataclass(frozen=True, slots=True)
class _Kind:
    """One type; `radix` is 10 if its size counts digits, 2 if bits, None if it is not a number."""

    name: str
    code: int
    size: int | None
    radix: int | None = None
    quote: str | None = "'"
    unsigned: bool | None = None
    parameters: tuple[str, ...] | None = None
    scale_max: int | None = None
    subcode: int | None = None

    def row(self) -> dict[str, object]:
        is_text = self.code == _VARCHAR
        return {
            "type_name": self.name,
            "data_type": self.code,
            "column_size": self.size,
            "literal_prefix": self.quote,
            "literal_suffix": self.quote,
            "create_params": self.parameters,
            "nullable": _NULLABLE,
            "case_sensitive": is_text,
            "searchable": _SEARCHABLE_FULL if is_text else _SEARCHABLE_BASIC,
            "unsigned_attribute": self.unsigned,
            "fixed_prec_scale": False,
            "auto_increment": None if self.radix is None else False,
            "local_type_name": self.name,
            "minimum_scale": None if self.scale_max is None else 0,
            "maximum_scale": self.scale_max,
            "sql_data_type": self.code if self.subcode is None else _DATETIME,
            "datetime_subcode": self.subcode,
            "num_prec_radix": self.radix,
            "interval_precision": None,
        }


def _whole(name: str, code: int, digits: int, *, unsigned: bool = False) -> _Kind:
    return _Kind(name, code, digits, radix=10, quote=None, unsigned=unsigned, scale_max=0)


_KINDS = (
    _Kind("BOOLEAN", _BIT, 1, quote=None),
    _whole("TINYINT", _TINYINT, 3),
    _whole("SMALLINT", _SMALLINT, 5),
    _whole("INTEGER", _INTEGER, 10),
    _whole("BIGINT", _BIGINT, 19),
    _whole("UTINYINT", _SMALLINT, 3, unsigned=True),
    _whole("USMALLINT", _INTEGER, 5, unsigned=True),
    _whole("UINTEGER", _BIGINT, 10, unsigned=True),
    _whole("UBIGINT", _DECIMAL, 20, unsigned=True),
    _whole("HUGEINT", _DECIMAL, 39),
    _Kind(
        "DECIMAL",
        _DECIMAL,
        38,
        radix=10,
        quote=None,
        unsigned=False,
        parameters=("precision", "scale"),
        scale_max=38,
    ),
    _Kind("FLOAT", _REAL, 24, radix=2, quote=None, unsigned=False),
    _Kind("DOUBLE", _DOUBLE, 53, radix=2, quote=None, unsigned=False),
    _Kind("VARCHAR", _VARCHAR, None),
    _Kind("JSON", _VARCHAR, None),
    _Kind("UUID", _CHAR, 36),
    _Kind("BLOB", _VARBINARY, None),
    _Kind("DATE", _DATE, 10, subcode=1),
    _Kind("TIME", _TIME, 15, subcode=2, scale_max=6),
    _Kind("TIMESTAMP", _TIMESTAMP, 26, subcode=3, scale_max=6),
    _Kind("TIMESTAMP WITH TIME ZONE", _TIMESTAMP, 32, subcode=5, scale_max=6),
)


def table(code: int | None) -> pa.Table:
    """Return the types with a code, or all of them, ordered by code and name."""
    kinds = sorted((kind for kind in _KINDS if code in (None, kind.code)), key=lambda kind: (kind.code, kind.name))
    return pa.Table.from_pylist([kind.row() for kind in kinds], schema=SCHEMA)
