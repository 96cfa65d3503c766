CREATE TABLE IF NOT EXISTS {lake}._catchment.dead_letters (
    id           VARCHAR NOT NULL,
    unit_id      VARCHAR NOT NULL,
    producer     VARCHAR NOT NULL,
    seq          BIGINT NOT NULL,
    table_schema VARCHAR NOT NULL,
    table_name   VARCHAR NOT NULL,
    reason       VARCHAR NOT NULL,
    "row"        VARCHAR NOT NULL,
    buried_at    TIMESTAMP NOT NULL
)
