UPDATE dq_meta SET last_flushed_seq = ? WHERE table_schema = ? AND table_name = ?
