"""Files of the buffer: a DuckDB file with numbered rows, its journal, and failures of both."""
