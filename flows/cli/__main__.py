"""`python -m flows.cli` is `nlac`."""

from flows.cli.main import main

main()
