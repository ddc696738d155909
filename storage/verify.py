"""Checking all current files against their manifests."""

from storage.committed import StoreError
from storage.parquet.footers import TableError
from storage.store import Store


def verify(store: Store) -> list[str]:
    """Check every current folder's files by sha256; gives one line per fault, which names the file."""
    faults = []
    for run in store.runs():
        for iteration in store.iterations(run):
            try:
                stages = store.current(run, iteration).stages
            except StoreError as error:
                faults.append(str(error))
                continue
            for stage in stages:
                try:
                    committed = store.committed(run, stage, iteration)
                    if committed is not None:
                        committed.check(content=True)
                        for table in committed.manifest.tables:
                            committed.scan(table)
                except (StoreError, TableError) as error:
                    faults.append(str(error))
    return faults
