"""The sessions layout: one DuckDB file per session, delivered once it is sealed."""
