"""Libraries for a bucket, side by side, and the requests that the store makes of it.

    python -m benchmarks.data.object_stores      # s3fs is measured where it is installed

pyarrow is not among them: its file system has no conditional put. A small S3 server in a process of its own answers on
this machine (tests/support/s3_server.py), so a latency is the library's and the server's, without a network. Writes
benchmarks/out/object_stores.json.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from statistics import median

from schemas.load import data_root
from storage.sql.views import connect
from storage.store import Store
from tests.support.committed import commit_rows
from tests.support.rows import episode
from tests.support.s3_server import BUCKET, URL, S3Server, serving_s3

SMALL, LARGE, TIMES, ROUNDS = b"x" * 4096, 64 << 20, 300, 3
OUT = Path("benchmarks/out/object_stores.json")
COMMIT = "commit of 1 file"
SERVE = """
import json, sys
from tests.support.s3_server import serving_s3
with serving_s3() as server:
    print(json.dumps(server.environment), flush=True)
    sys.stdin.read()
"""

Calls = tuple[Callable[[str, bytes], object], Callable[[str], bytes]]
"""(put, get) of a library."""


def obstore_calls() -> Calls:
    import obstore
    from obstore.store import S3Store

    store = S3Store(BUCKET, client_options={"allow_http": True})
    return (lambda key, content: obstore.put(store, key, content)), (
        lambda key: bytes(obstore.get(store, key).bytes())
    )


def s3fs_calls() -> Calls:
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    return (lambda key, content: files.pipe_file(f"{BUCKET}/{key}", content)), (
        lambda key: files.cat_file(f"{BUCKET}/{key}")
    )


LIBRARIES = {
    "obstore": (obstore_calls, "obstore.store", ["obstore"]),
    "s3fs": (s3fs_calls, "s3fs", ["s3fs", "fsspec", "aiobotocore", "botocore", "jmespath", "wrapt", "aioitertools"]),
}  # fmt: skip


@contextmanager
def own_server() -> Iterator[None]:
    """A server in a process of its own; the environment leads to it."""
    server = subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    os.environ.update(json.loads(server.stdout.readline()))
    try:
        yield
    finally:
        server.stdin.close()
        server.wait()


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def library(name: str) -> dict[str, float] | None:
    """What one library takes; None where it is not installed."""
    made, module, packages = LIBRARIES[name]
    try:
        put, get = made()
    except ModuleNotFoundError:
        return None
    large = os.urandom(LARGE)
    put("small", SMALL), get("small")
    importing = [sys.executable, "-c", f"import {module}"]
    nothing = [sys.executable, "-c", ""]
    return {
        "put_ms": 1e3 * median(seconds(lambda: put("small", SMALL)) for _ in range(TIMES)),
        "get_ms": 1e3 * median(seconds(lambda: get("small")) for _ in range(TIMES)),
        "put_mb_per_s": LARGE / 1e6 / median(seconds(lambda: put("large", large)) for _ in range(ROUNDS)),
        "get_mb_per_s": LARGE / 1e6 / median(seconds(lambda: get("large")) for _ in range(ROUNDS)),
        "import_s": min(seconds(lambda: subprocess.run(importing, check=True)) for _ in range(ROUNDS))
        - min(seconds(lambda: subprocess.run(nothing, check=True)) for _ in range(ROUNDS)),
        "installed_mb": sum(map(installed, packages)) / 1e6,
    }


def installed(package: str) -> int:
    """Bytes of a package's files."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return 0
    return sum(Path(str(f.locate())).stat().st_size for f in files if Path(str(f.locate())).exists())


def requests(iterations: int, folder: Path) -> dict[str, int]:
    """The requests of a run's next commit, of finding all its rollouts, and of a query, after some iterations."""
    with serving_s3() as server:
        os.environ.update(server.environment)

        def host(name: str) -> Store:
            os.environ["NLAC_MIRROR"] = str(folder / f"{iterations}-{name}")
            return Store(data_root(URL))

        store = host("writer")
        for number in range(iterations):
            commit_rows(store, "rollout", number, {"episodes": [episode()]})
        made = {COMMIT: counted(server, lambda: commit_rows(store, "refinement", 0, {"episodes": []}))}
        numbers = range(iterations)

        def find(store: Store) -> None:
            for number in numbers:
                store.committed("trial", "rollout", number)

        other = host("other")
        made["find all rollouts, a new process"] = counted(server, lambda: find(other))
        made["find them again"] = counted(server, lambda: find(other))
        made["query, a new mirror"] = counted(server, lambda: connect(host("reader")))
        made["query again"] = counted(server, lambda: connect(host("reader")))
        return made


def counted(server: S3Server, call: Callable[[], object]) -> int:
    server.asked.clear()
    call()
    return len(server.asked)


def main() -> None:
    with own_server():
        libraries = {name: found for name in LIBRARIES if (found := library(name)) is not None}
    with tempfile.TemporaryDirectory() as folder:
        grown = {count: requests(count, Path(folder)) for count in (1, 10, 100)}
    for name, figures in libraries.items():
        print(f"{name:<9}" + "  ".join(f"{what} {value:.3g}" for what, value in figures.items()))
    for count, made in grown.items():
        print(f"{count:>4} iterations  " + "  ".join(f"{what}: {number}" for what, number in made.items()))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"libraries": libraries, "requests": grown}, indent=2) + "\n")


if __name__ == "__main__":
    main()
