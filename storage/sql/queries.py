"""A question to the views: one statement that reads."""

import duckdb

READS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


class QueryRefused(Exception):
    """The text is not one statement that reads."""


def ask(database: duckdb.DuckDBPyConnection, text: str) -> duckdb.DuckDBPyRelation:
    """The relation of one SELECT or EXPLAIN, as DuckDB's own parser tells them: VALUES, DESCRIBE, SHOW and SUMMARIZE
    are SELECT too. It runs when it is read.

    Args:
        database: from `storage.sql.views.connect`.
        text: the SQL.

    Raises:
        QueryRefused: no statement, several, or another kind.
        duckdb.Error: the SQL is wrong.
    """
    statements = database.extract_statements(text)
    if not statements:
        raise QueryRefused("the query is empty; `nlac sql` alone lists the tables")
    kinds = ", ".join(statement.type.name for statement in statements)
    if len(statements) > 1 or statements[0].type not in READS:
        raise QueryRefused(f"a query is one SELECT or EXPLAIN, this is {kinds}; --unsafe runs any SQL")
    return database.sql(statements[0])
