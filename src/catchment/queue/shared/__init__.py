"""The shared layout: one DuckDB file for all sessions."""
