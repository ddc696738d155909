"""Tables as Parquet files: written with a schema stamp, digested, read back in any version."""
