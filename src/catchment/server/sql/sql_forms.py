"""Which SQL clients may use: one row per form of statement, with the required role or the refusal.

The reference page is generated from this table, and a test runs every row in sessions of every kind
of user.
"""

from dataclasses import dataclass

from catchment.server.values import Role

# Why statements that begin with these words are refused.
REASONS = {
    "attach": "Clients cannot attach databases; the server attaches the lake.",
    "detach": "Clients cannot detach databases; the server attaches the lake.",
    "copy": "Clients read and write tables, not the server's files.",
    "export": "Clients read and write tables, not the server's files.",
    "import": "Clients read and write tables, not the server's files.",
    "install": "Extensions are installed with the server.",
    "load": "Extensions are loaded by the server.",
    "update": "Extensions are installed with the server.",
    "force": "Extensions and checkpoints are managed by the server.",
    "checkpoint": "The server maintains the lake: `catchment lake maintain`.",
    "vacuum": "The server maintains the lake: `catchment lake maintain`.",
    "analyze": "DuckLake maintains statistics itself, and cannot analyze a single table.",
    "pragma": "A PRAGMA reads or changes the server's DuckDB.",
    "call": "The function changes the whole lake, or the server.",
}
_OTHER = "Clients of a server cannot use this kind of statement."
# Objects that cannot be created or dropped, by the word after CREATE or DROP.
OBJECT_REASONS = {
    "secret": "Secrets are managed by the server.",
    "type": "DuckLake has no user-defined types.",
    "sequence": "DuckLake has no sequences.",
    "index": "DuckLake has no indexes.",
    "trigger": "DuckLake has no triggers.",
}
SETTINGS_LOCKED = "The server's settings are locked."
FILES = "would be read as a file"
LISTS_IN_QUERIES = "Catalog lists can be read only by queries."
SCHEMAS_REFUSED = "A tenant's users can create, change and drop only tables, views and macros."


def reason(word: str) -> str:
    """Return the error message for a statement that begins with this word."""
    return f"{word.upper()}: {REASONS.get(word, _OTHER)}"


@dataclass(frozen=True, slots=True)
class Form:
    """A form of statement, by example, over `t (a INTEGER, b VARCHAR)` and `nested (s STRUCT (x
    INTEGER))`.
    """

    example: str
    # The minimum role; None if no role may use it.
    least: Role | None = Role.READER
    # A part of the error message, if no role may use it, or users of a tenant may not.
    reason: str = ""
    tenants: bool = True
    note: str = ""


def _refused(why: str, *examples: str) -> tuple[Form, ...]:
    return tuple(Form(example, None, why) for example in examples)


_W = Role.WRITER

FORMS: dict[str, tuple[Form, ...]] = {
    "Queries": (
        Form("SELECT * FROM t"),
        Form("FROM t AT (TIMESTAMP => now())", note="Time travel, by VERSION or TIMESTAMP."),
        Form("PIVOT t ON b USING count(*)"),
        Form("WITH p AS (PIVOT t ON b) SELECT count(*) FROM p"),
        Form("UNPIVOT t ON COLUMNS(* EXCLUDE a)"),
        Form(
            "SELECT * FROM query_table('t')",
            note="Checked as the table that it names, which must be a string constant.",
        ),
        Form("SELECT count(*) FROM catchment_fresh.t", note="Includes buffered rows."),
        Form("DESCRIBE catchment_fresh.t"),
        Form(
            "SELECT * FROM duckling_queue.t",
            None,
            "write-only",
            note="With `DUCKLING_QUEUE_LAYOUT=sessions`, the session's own buffered rows. Otherwise:",
        ),
        *_refused("A PIVOT inside a statement must list its values.", "EXPLAIN PIVOT t ON b USING count(*)"),
        *_refused(FILES, "SELECT * FROM 'x.parquet'", "INSERT INTO t SELECT a, b FROM (TABLE 'x.parquet')"),
        *_refused("reads files", "SELECT * FROM read_csv('x.csv')", "SELECT * FROM glob('*')"),
        *_refused("opens another database", "SELECT * FROM sqlite_scan('x.db', 't')"),
        *_refused("runs SQL from a string", "SELECT * FROM query('SELECT 1')"),
    ),
    "The catalog": (
        Form("DESCRIBE t"),
        Form("SUMMARIZE t"),
        Form("SHOW TABLES"),
        Form(
            "SHOW ALL TABLES",
            note="Lists omit `_catchment`, and show a tenant's users only their own schema.",
        ),
        Form("SHOW SCHEMAS"),
        Form("SHOW DATABASES"),
        Form("SELECT * FROM information_schema.tables"),
        Form("SELECT * FROM pg_catalog.pg_tables"),
        Form("SELECT * FROM duckdb_columns()", note="And `duckdb_tables`, `_views`, `_schemas`, `_constraints`, …"),
        Form("SELECT * FROM duckdb_databases()", note="Without paths."),
        Form("SELECT * FROM duckdb_functions()"),
        Form("SELECT * FROM duckdb_sequences()"),
        Form("SELECT * FROM duckdb_indexes()"),
        Form("SELECT * FROM duckdb_variables()"),
        Form("PRAGMA show_tables"),
        Form("PRAGMA table_info('t')"),
        Form("PRAGMA version"),
        Form("PRAGMA database_list", note="Without paths."),
        Form(
            "CREATE TEMP TABLE listed AS FROM duckdb_columns(); DROP TABLE listed",
            Role.ADMIN,
            LISTS_IN_QUERIES,
            tenants=False,
        ),
        Form(
            "SELECT * FROM _catchment.producers LIMIT 0",
            Role.ADMIN,
            "_catchment is reserved for Catchment.",
            tenants=False,
        ),
        *_refused(
            "The lake's metadata is not available to clients", "SELECT * FROM __ducklake_metadata_lake.ducklake_table"
        ),
        *_refused(
            "shows or changes the server itself", "SELECT * FROM duckdb_settings()", "SELECT * FROM duckdb_secrets()"
        ),
    ),
    "The lake": (
        Form("SELECT * FROM lake.snapshots()", note="A tenant's users see only changes of their own tables."),
        Form("SELECT * FROM ducklake_snapshots('lake')"),
        Form("SELECT * FROM lake.current_snapshot()"),
        Form("SELECT * FROM lake.table_info()"),
        Form("SELECT * FROM lake.table_changes('t', 12, 12)", note="And `table_insertions`, `table_deletions`."),
        Form(
            "BEGIN; CALL lake.set_commit_message(NULL, 'why'); INSERT INTO t VALUES (0, 'x'); ROLLBACK",
            _W,
            note="In a transaction.",
        ),
        *_refused("changes the whole lake", "CALL ducklake_expire_snapshots('lake', versions => [1])"),
        *_refused("changes the whole lake", "CALL lake.set_option('parquet_compression', 'zstd')"),
        *_refused("changes the whole lake, or shows its files", "SELECT * FROM ducklake_list_files('lake', 't')"),
        *_refused("changes the whole lake, or shows its files", "SELECT * FROM lake.options()"),
    ),
    "Explaining": (
        Form("EXPLAIN SELECT * FROM t"),
        Form("EXPLAIN (FORMAT json) SELECT * FROM t"),
        Form("EXPLAIN ANALYZE SELECT * FROM t"),
        Form("EXPLAIN INSERT INTO t VALUES (1, 'x')", _W),
        Form("EXPLAIN CREATE TABLE unmade AS FROM t", _W),
        *_refused("EXPLAIN ANALYZE runs its statement", "EXPLAIN ANALYZE INSERT INTO t VALUES (1, 'x')"),
    ),
    "Rows": (
        Form("INSERT INTO t VALUES (1, 'x')", _W),
        Form("INSERT INTO duckling_queue.t VALUES (1, 'x')", _W, note="Durable immediately, in the table later."),
        Form(
            "CREATE TABLE duckling_queue.queued AS FROM t; DROP TABLE queued",
            _W,
            note="Creates the table and enqueues the rows, if `DUCKLING_QUEUE_AUTO_CREATE_TABLES` is set.",
        ),
        *_refused("is not possible on duckling_queue", "CREATE OR REPLACE TABLE duckling_queue.t AS FROM t"),
        *_refused("append-only", "DROP TABLE duckling_queue.t", "DELETE FROM duckling_queue.t"),
        Form("UPDATE t SET b = 'y' WHERE a = -1", _W),
        Form("DELETE FROM t WHERE a = -1", _W),
        Form("MERGE INTO t USING (SELECT -1 AS a) s USING (a) WHEN MATCHED THEN DELETE", _W),
        Form("CREATE TEMP TABLE mine AS FROM t; TRUNCATE mine; DROP TABLE mine", _W),
        *_refused("COPY: Clients read and write tables", "COPY t TO 'x.csv'", "COPY t FROM 'x.csv'"),
    ),
    "Tables, views and macros": (
        Form("CREATE OR REPLACE TABLE made AS FROM t; DROP TABLE made", _W),
        Form("CREATE OR REPLACE VIEW seen AS FROM t; DROP VIEW seen", _W),
        Form("CREATE SCHEMA IF NOT EXISTS other; DROP SCHEMA other", _W, SCHEMAS_REFUSED, tenants=False),
        Form("CREATE OR REPLACE MACRO plus(x) AS x + 1; SELECT plus(1); DROP MACRO plus", _W),
        Form(
            "CREATE OR REPLACE MACRO low(n) AS TABLE SELECT * FROM t WHERE a < n; FROM low(1); DROP MACRO TABLE low", _W
        ),
        Form("CREATE OR REPLACE TEMP FUNCTION mine_too(x) AS x; DROP FUNCTION mine_too", _W),
        Form("ALTER TABLE t ADD COLUMN c INTEGER; ALTER TABLE t DROP COLUMN c", _W),
        Form("ALTER TABLE nested ADD COLUMN s.y INTEGER; ALTER TABLE nested DROP COLUMN s.y", _W),
        Form("ALTER TABLE nested RENAME COLUMN s.x TO z; ALTER TABLE nested RENAME COLUMN s.z TO x", _W),
        Form("ALTER TABLE t SET SORTED BY (b DESC NULLS LAST, a); ALTER TABLE t RESET SORTED BY", _W),
        Form("ALTER TABLE nested SET PARTITIONED BY (s); ALTER TABLE nested RESET PARTITIONED BY", _W),
        Form("COMMENT ON TABLE t IS 'x'; COMMENT ON TABLE t IS NULL", _W),
        Form("ANALYZE", note="Without a table. DuckLake maintains statistics itself."),
        *_refused("DuckDB already has a function upper.", "CREATE MACRO upper(x) AS x"),
        *_refused("reads files", "CREATE MACRO m(f) AS TABLE SELECT * FROM read_csv(f)"),
        *_refused("The name of a table must be a string constant.", "CREATE MACRO m(x) AS TABLE FROM query_table(x)"),
        *_refused(OBJECT_REASONS["type"], "CREATE TYPE mood AS ENUM ('good')"),
        *_refused(OBJECT_REASONS["sequence"], "CREATE SEQUENCE s"),
        *_refused(OBJECT_REASONS["index"], "CREATE INDEX i ON t (a)"),
        *_refused(OBJECT_REASONS["secret"], "CREATE SECRET s (TYPE s3)"),
        *_refused(REASONS["analyze"], "ANALYZE t"),
    ),
    "The session": (
        Form("USE lake", note="Users of a tenant stay in the tenant's schema.", tenants=False, reason="SET schema"),
        Form("SET schema = 'main'; RESET schema", tenants=False, reason="SET schema"),
        Form("RESET search_path"),
        Form("SET TimeZone = 'UTC'", note="For this session only, like all settings that clients may change."),
        Form("SET TIME ZONE 'UTC'; RESET TimeZone"),
        Form("SET default_null_order = 'nulls_first'; RESET default_null_order"),
        Form("SET enable_progress_bar = false"),
        Form("SELECT current_setting('TimeZone')"),
        Form("SET VARIABLE x = 1; SELECT getvariable('x'); RESET VARIABLE x"),
        Form("PREPARE p AS SELECT * FROM t WHERE a = $1; EXECUTE p(1); DEALLOCATE p"),
        Form("PREPARE w AS INSERT INTO t VALUES ($1, 'x'); EXECUTE w(1); DEALLOCATE w", _W),
        Form("BEGIN; SELECT 1; COMMIT"),
        *_refused(SETTINGS_LOCKED, "SET threads = 4", "SET GLOBAL TimeZone = 'UTC'", "RESET memory_limit"),
        *_refused("The server's settings are not available to clients.", "SELECT current_setting('temp_directory')"),
        *_refused("COPY: Clients read and write tables", "PREPARE p AS COPY t TO 'x.csv'"),
    ),
    "The server": (
        *_refused(REASONS["attach"], "ATTACH 'x.db'"),
        *_refused(REASONS["detach"], "DETACH lake"),
        *_refused(REASONS["install"], "INSTALL httpfs"),
        *_refused(REASONS["load"], "LOAD httpfs"),
        *_refused(REASONS["export"], "EXPORT DATABASE 'x'"),
        *_refused(REASONS["checkpoint"], "CHECKPOINT", "VACUUM"),
        *_refused(REASONS["pragma"], "PRAGMA enable_profiling", "PRAGMA storage_info('t')"),
        *_refused("Tables must be in the lake or temporary.", "CREATE TABLE memory.main.x (a INTEGER)"),
    ),
}
