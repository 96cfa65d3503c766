DELETE FROM dq_meta WHERE table_schema = ? AND table_name = ? AND version = ?
