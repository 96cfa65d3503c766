"""Engine processes: DuckDB instances that run clients' SQL, in processes that may die."""
