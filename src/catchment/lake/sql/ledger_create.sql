-- The ledger is in the lake itself: a DuckDB transaction can write to one database only, and the
-- record of a delivery must commit with the delivery.
CREATE SCHEMA {lake}._catchment;

CREATE TABLE {lake}._catchment.producers (
    producer   VARCHAR NOT NULL,
    epoch      BIGINT NOT NULL,
    seq        BIGINT NOT NULL,
    updated_at TIMESTAMP NOT NULL
);

CREATE TABLE {lake}._catchment.deliveries (
    unit_id      VARCHAR NOT NULL,
    producer     VARCHAR NOT NULL,
    epoch        BIGINT NOT NULL,
    seq_first    BIGINT NOT NULL,
    seq_last     BIGINT NOT NULL,
    table_schema VARCHAR NOT NULL,
    table_name   VARCHAR NOT NULL,
    table_uuid   VARCHAR NOT NULL,
    mode         VARCHAR NOT NULL,
    rows         BIGINT NOT NULL,
    bytes        BIGINT NOT NULL,
    digest       VARCHAR,
    source       VARCHAR NOT NULL,
    job_id       VARCHAR NOT NULL,
    delivered_at TIMESTAMP NOT NULL
);
