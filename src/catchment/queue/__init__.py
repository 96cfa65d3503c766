"""The Duckling Queue: small writes in, durable at once; large Parquet out, exactly once."""
