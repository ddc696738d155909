"""SQL over all committed data: DuckDB views, their catalog, and rendered results."""
