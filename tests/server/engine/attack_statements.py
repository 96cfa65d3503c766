"""Statements of a plain reader or writer that are meant to end the server, or to stop its work."""

import random
from collections.abc import Callable

# DuckDB overflows its stack, fails internally, ignores its interruption or exceeds its memory.
KNOWN = (
    "SELECT json_structure(repeat('[', 100000) || repeat(']', 100000)) AS x",
    "SELECT json_transform(repeat('[', 100000) || repeat(']', 100000), '\"JSON\"') AS x",
    "SELECT (repeat('[', 100000) || repeat(']', 100000))::JSON::VARIANT AS x",
    "CREATE TABLE attacked AS SELECT '12:00'::TIME_NS AS x",
    """
    WITH numbers AS (SELECT i AS x FROM range(1) t(i)),
    people AS (
        SELECT * FROM numbers WHERE x >= 5000
        UNION ALL SELECT * FROM numbers WHERE NOT EXISTS (SELECT 1 FROM numbers WHERE x >= 5000)
    )
    SELECT x, count() OVER () AS n FROM people ORDER BY x DESC LIMIT 5
    """,
    "SELECT levenshtein(repeat('a', 400000), repeat('b', 400000)) AS x",
    "SELECT length(lpad('a', 4000000000, 'b')) AS x",
    "SELECT length(repeat('ab', 2000000000)) AS x",
    "SELECT len(range(3000000000)) AS x",
    "SELECT bit_count(bitstring('1', 2000000000)) AS x",
    "SELECT list_sum(list_resize([1::HUGEINT], 400000000)) AS x",
    "SELECT length((repeat('9', 1000000)::BIGNUM)::VARCHAR) AS x",
)

_Make = Callable[[random.Random], str]


def generated(seed: int, number: int) -> list[str]:
    """Return so many different statements, of every family and in every form."""
    chance = random.Random(seed)
    found: dict[str, None] = {}
    families = [*_DEEP, *_WIDE, *_HUGE, *_SLOW, *_ODD]
    while len(found) < number:
        expression = families[len(found) % len(families)](chance)
        found[chance.choice(_FORMS).format(expression=expression, number=len(found))] = None
    return list(found)


_FORMS = (
    "SELECT {expression} AS x",
    "SELECT hash({expression}) AS x FROM range(5) r(i)",
    "EXPLAIN SELECT {expression} AS x",
    "CREATE TABLE attacked_{number} AS SELECT {expression} AS x",
    "CREATE TEMP TABLE attacked_{number} AS SELECT {expression} AS x",
    "CREATE VIEW attacked_{number} AS SELECT {expression} AS x",
    "INSERT INTO duckling_queue.attacked SELECT hash({expression})",
    "INSERT INTO attacked SELECT hash({expression})",
    "DELETE FROM attacked WHERE hash({expression}) = 1",
    "WITH w AS (SELECT {expression} AS x) SELECT count(*) FROM w",
    "PREPARE attacked_{number} AS SELECT {expression} AS x",
)


# Values at the edges of what functions take.
_EDGES = (-(2**63), -(2**31), -1, 0, 1, 255, 2**31 - 1, 2**32, 2**63 - 1, 2**64, 1e308)


def _nested(opening: str, inner: str, closing: str) -> _Make:
    def make(chance: random.Random) -> str:
        depth = _depth(chance)
        return f"{opening * depth}{inner}{closing * depth}"

    return make


def _deep_json(form: str) -> _Make:
    def make(chance: random.Random) -> str:
        depth = _depth(chance)
        return form.format(text=f"(repeat('{{\"a\":', {depth}) || '1' || repeat('}}', {depth}))")

    return make


def _at_edges(form: str) -> _Make:
    return lambda chance: form.format(number=chance.choice(_EDGES), other=chance.choice(_EDGES))


def _depth(chance: random.Random) -> int:
    return round(10 ** chance.uniform(1.5, 4.7))


def _size(chance: random.Random) -> int:
    return round(10 ** chance.uniform(6, 10.5))


_DEEP: list[_Make] = [
    _nested("(", "1", ")"),
    _nested("[", "1", "]"),
    _nested("{'a': ", "1", "}"),
    _nested("abs(", "1", ")"),
    _nested("(SELECT ", "1", ")"),
    _nested("CASE WHEN true THEN ", "1", " END"),
    _nested("list_transform([1], lambda x: ", "x", ")"),
    _nested("1 + ", "1", ""),
    _nested("'a' || ", "'a'", ""),
    _nested("NOT ", "true", ""),
    _nested("- ", "1", ""),
    _nested("EXISTS (SELECT 1 WHERE ", "true", ")"),
    _nested("(SELECT 1 UNION ALL ", "SELECT 1", ")"),
    _nested("", "NULL::INTEGER", "[]"),
    _nested("row(", "1", ")"),
    lambda chance: f"NULL::{'STRUCT(a ' * (depth := _depth(chance))}INTEGER{')' * depth}",
    *(
        _deep_json(form)
        for form in (
            "json_structure({text})",
            "json_keys({text})",
            "json_merge_patch({text}, {text})",
            "json_transform_strict({text}, json_structure({text}))",
            "json_extract({text}, '$..a')",
            "{text}::JSON::VARIANT",
            'from_json({text}, \'{{"a": "JSON"}}\')',
            "json_pretty({text})",
            "json_group_array({text})",
        )
    ),
]

_WIDE: list[_Make] = [
    lambda chance: f"1 IN ({', '.join(map(str, range(_depth(chance))))})",
    lambda chance: f"row({', '.join(map(str, range(_depth(chance))))})",
    lambda chance: f"{{{', '.join(f'a{i}: {i}' for i in range(_depth(chance)))}}}",
    lambda chance: f"concat({', '.join(['repeat(chr(97), 100000)'] * _depth(chance))})",
    lambda chance: f"CASE {' '.join(f'WHEN random() = {i} THEN {i}' for i in range(_depth(chance)))} END",
    lambda chance: f"(SELECT count(*) FROM (VALUES {', '.join(f'({i})' for i in range(_depth(chance)))}))",
    lambda chance: f"(SELECT count(*) FROM {', '.join(f'range(2) a{i}' for i in range(chance.randint(10, 90)))})",
    lambda chance: (
        f"(SELECT count(*) FROM (SELECT {(names := ', '.join(f'i + {i}' for i in range(chance.randint(8, 20))))} "
        f"FROM range(9) r(i) GROUP BY CUBE ({names})))"
    ),
    lambda chance: f"list_value({', '.join(['[[1], [2]]'] * _depth(chance))})",
]

_HUGE: list[_Make] = [
    lambda chance: f"length(repeat('ab', {_size(chance)}))",
    lambda chance: f"length(lpad('a', {_size(chance)}, 'b'))",
    lambda chance: f"length(rpad('a', {_size(chance)}, 'b'))",
    lambda chance: f"len(range({_size(chance)}))",
    lambda chance: f"len(generate_series(1, {_size(chance)}))",
    lambda chance: f"len(list_resize([1::HUGEINT], {_size(chance)}))",
    lambda chance: f"bit_count(bitstring('1', {_size(chance)}))",
    lambda chance: f"length(printf('%{_size(chance)}d', 1))",
    lambda chance: f"length(format('{{:>{_size(chance)}}}', 'x'))",
    lambda chance: f"length(bar(1, 0, 1, {_size(chance)}))",
    lambda chance: f"length((repeat('9', {min(_size(chance), 3_000_000)})::BIGNUM)::VARCHAR)",
    lambda chance: f"len(string_split(repeat('a,', {_size(chance)}), ','))",
    lambda chance: f"len(regexp_extract_all(repeat('ab', {_size(chance)}), 'a|b'))",
    lambda chance: f"(SELECT len(list(r.i)) FROM range({_size(chance)}) r(i))",
    lambda chance: f"(SELECT length(string_agg(repeat('x', 1000), '')) FROM range({_size(chance)}) r(i))",
    lambda chance: f"(SELECT count(DISTINCT hash(r.i)::VARCHAR) FROM range({_size(chance)}) r(i))",
    lambda chance: f"len(list_sort(list_transform(range({_size(chance)}), lambda x: x::VARCHAR)))",
    lambda chance: f"cardinality(map(range({_size(chance)}), range({_size(chance)})))",
]

_SLOW: list[_Make] = [
    *(
        lambda chance, name=name: f"{name}(repeat('a', {_size(chance) // 100}), repeat('b', {_size(chance) // 100}))"
        for name in ("levenshtein", "damerau_levenshtein", "jaccard", "jaro_winkler_similarity", "instr")
    ),
    lambda chance: (
        f"{'list_sum(list_transform(range(100), lambda x: ' * (depth := chance.randint(3, 60))}1{'))' * depth}"
    ),
    lambda chance: f"(SELECT sum(a.range * b.range) FROM range({_size(chance)}) a, range({_size(chance)}) b)",
    lambda _: "(WITH RECURSIVE w AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM w) SELECT max(x) FROM w)",
    lambda chance: (
        f"(SELECT sum(s) FROM (SELECT sum(i) OVER (ORDER BY i ROWS BETWEEN {_size(chance)} PRECEDING "
        "AND CURRENT ROW EXCLUDE CURRENT ROW) AS s FROM range(1000000) r(i)))"
    ),
    lambda chance: f"regexp_replace(repeat('a', {_size(chance) // 100}), '(a|b|ab)*$', 'x', 'g')",
    lambda chance: f"md5(list_sort(list_reverse(range({_size(chance)})))::VARCHAR)",
    lambda chance: (
        f"(SELECT count(*) FROM range({_size(chance)}) a(i) ASOF JOIN range({_size(chance)}) b(i) ON a.i >= b.i)"
    ),
]

_ODD: list[_Make] = [
    _at_edges(form)
    for form in (
        "list_slice([1, 2, 3], {number}, {other}, {number})",
        "struct_extract_at(row(1, 2), {number})",
        "array_extract('abc', {number})",
        "substring('abc', {number}, {other})",
        "chr({number})",
        "left('abc', {number})",
        "set_bit('0101'::BIT, {number}, {other})",
        "'0101'::BIT << {number}",
        "1::HUGEINT << {number}",
        "({number})::BIGINT % ({other})::BIGINT",
        "({number})::BIGINT // ({other})::BIGINT",
        "make_timestamp({number})",
        "make_date({number}, {other}, 1)",
        "DATE '2024-01-01' + INTERVAL ({number}) MONTH",
        "time_bucket(INTERVAL ({number}) DAY, TIMESTAMP '2024-01-01')",
        "generate_series(DATE '2024-01-01', DATE '9999-01-01', INTERVAL ({number}) DAY)",
        "strftime(make_timestamp({number}), repeat('%c', 10000))",
        "age(make_timestamp({number}), make_timestamp({other}))",
        "round(1.5, {number})",
        "to_base({number}, 2, {other})",
        "nextval('missing' || {number})",
        "(SELECT quantile_cont(i, 0.5) OVER (ORDER BY i ROWS {number} PRECEDING) FROM range(9) r(i) LIMIT 1)",
        "(SELECT lag(i, {number}) OVER () FROM range(9) r(i) LIMIT 1)",
        "(SELECT ntile({number}) OVER () FROM range(9) r(i) LIMIT 1)",
        "(SELECT i FROM range(9) r(i) LIMIT 1 OFFSET {number})",
        "(SELECT approx_quantile(i, {number}) FROM range(9) r(i))",
        "(SELECT count(*) FROM range({number}, {other}))",
        "(SELECT count(*) FROM (SELECT unnest([[1], [2]], recursive := true) FROM range(3)))",
        "(SELECT count(*) FROM (FROM range(9) r(i) USING SAMPLE reservoir(100 ROWS) REPEATABLE (1)))",
        "unhex(repeat('f', {number}))",
        "decode('\\xff'::BLOB)",
        "'{{\"a\": {number}}}'::JSON::STRUCT(a TINYINT)",
        "array_cosine_similarity([1, {number}]::DOUBLE[2], [1, {other}]::DOUBLE[2])",
        "['a', 'b'][{number}:{other}]",
        "'12:00'::TIME_NS",
        "'infinity'::TIMESTAMP_NS - make_timestamp({number})",
        "({number})::UNION(a TINYINT, b VARCHAR)",
        "enum_range(NULL::ENUM ('a', 'b'))[{number}]",
        "to_years({number})",
        "interval ({number}) microsecond * {other}",
    )
]
