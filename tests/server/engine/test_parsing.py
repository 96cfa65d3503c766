"""DuckDB's parser as the server uses it where no engine runs."""

from pathlib import Path

import duckdb
import pytest

from catchment.server.engine.parsing import LocalParser


@pytest.mark.parametrize(
    "text", ["IMPORT DATABASE '{}'", "PRAGMA import_database('{}')", "PREPARE p AS IMPORT DATABASE '{}'"]
)
def test_files_that_duckdb_reads_to_parse_a_statement_stay_closed(text: str, tmp_path: Path) -> None:
    (tmp_path / "schema.sql").write_text("hunter2 is the password;", encoding="utf-8")
    (tmp_path / "load.sql").touch()
    with pytest.raises(duckdb.Error) as refused:
        LocalParser().statements(text.format(tmp_path))
    assert "hunter2" not in str(refused.value)
