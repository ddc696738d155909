"""Commands over a bucket, as a user calls them: sql, verify, runs copy, and what a URL that can't be used is told."""

from typer.testing import CliRunner, Result

from flows.cli.main import app

URL = "s3://bucket/some/place"


def nlac(*words: str, **env: str | None) -> Result:
    return CliRunner().invoke(app, [*words], env={"NLAC_DATA": None, **env})
