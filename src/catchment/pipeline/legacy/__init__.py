"""The legacy import: hive folders of Parquet files become tables of the lake, and then a backup."""
