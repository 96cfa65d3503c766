SELECT 1 FROM {metadata}.ducklake_data_file WHERE table_id = ? AND end_snapshot IS NULL LIMIT 1
