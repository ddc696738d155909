"""An S3 bucket, through obstore: conditional puts, and one clear error where the bucket can't be used.

A put whose answer was lost is told from one that was refused by reading back: what is there is what was put, or not.
Credentials and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_REGION, AWS_ENDPOINT_URL), and are written nowhere.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from schemas.load import ConfigError
from storage.committed import Unreachable

if TYPE_CHECKING:
    from obstore.store import S3Store

PART = 16 << 20  # bytes; a larger file goes up in parts of this size
RETRIES, RETRY_SECONDS = 6, 60.0
STALLED_SECONDS = 30  # without a byte; the request is sent again
PUTS = 2  # of one object, by us; the library sends each again as often as RETRIES says


@dataclass(frozen=True)
class Found:
    """A small object."""

    content: bytes
    etag: str | None


@dataclass(frozen=True)
class Listed:
    """An object of a listing; `key` is relative to the data root."""

    key: str
    bytes: int
    modified: datetime
    etag: str | None


class Objects:
    """The objects below an `s3://` URL.

    Args:
        url: bucket and prefix, checked by `schemas.data_url`.

    Raises:
        ConfigError: obstore is not installed, or the environment holds no credentials.
    """

    def __init__(self, url: str) -> None:
        self.url, self._answered = url, False
        with self._named():
            self._store = self._open(urlsplit(url).netloc, urlsplit(url).path.strip("/"))
        self._answered = (
            False  # once it has answered, a server that can't be reached is away, and not the wrong one
        )

    def _open(self, bucket: str, prefix: str) -> "S3Store":
        try:
            from obstore.store import S3Store
        except ModuleNotFoundError:
            raise ConfigError(
                f"data root {self.url}: needs the package obstore; install nlac with it: pip install 'nlac[s3]'"
            ) from None
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
        return S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": "5s",
                "read_timeout": f"{STALLED_SECONDS}s",
                "timeout": "1h",  # of a whole request, which may bring gigabytes
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        )

    def get(self, key: str) -> Found | None:
        """A small object; None where there is none."""
        import obstore

        with self._named(key):
            try:
                found = obstore.get(self._store, key)
                return Found(bytes(found.bytes()), found.meta["e_tag"])
            except FileNotFoundError as error:
                self._bucket_is_there(error)
                return None

    def put(self, key: str, content: bytes, replaces: str | None) -> bool:
        """Put a small object on a condition.

        Args:
            key: the object.
            content: its content.
            replaces: ETag of what it replaces; None: there must be none yet.

        Returns:
            Whether it is there now. False: another writer was first.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

        for attempt in range(PUTS):
            with self._named(key):
                try:
                    obstore.put(self._store, key, content, mode={"e_tag": replaces} if replaces else "create")
                    return True
                except (AlreadyExistsError, PreconditionError):
                    pass  # by another writer, or by this put: its answer was lost, and the library sent it again
                except FileNotFoundError as error:
                    self._bucket_is_there(error)  # else what it replaces is gone
                except GenericError:
                    if attempt == PUTS - 1:
                        raise
            there = self.get(key)
            if there is not None and there.content == content:
                return True
            if (there.etag if there else None) != replaces:
                return False
        return False

    def upload(self, key: str, path: Path) -> None:
        """Put a file, in the place of what is there."""
        import obstore

        with self._named(key):
            obstore.put(self._store, key, path, chunk_size=PART)

    def stream(self, key: str) -> Iterator[bytes] | None:
        """The content of an object, piece by piece; None where there is none."""
        import obstore

        with self._named(key):
            try:
                found = obstore.get(self._store, key)
            except FileNotFoundError as error:
                self._bucket_is_there(error)
                return None
        return self._pieces(key, iter(found.stream(min_chunk_size=1 << 20)))

    def _pieces(self, key: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        with self._named(key):
            yield from pieces

    def digest(self, key: str) -> tuple[int, str] | None:
        """Size and sha256 of an object; None where there is none."""
        pieces = self.stream(key)
        if pieces is None:
            return None
        digest, size = hashlib.sha256(), 0
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
        return size, digest.hexdigest()

    def listing(self, folder: str = "") -> list[Listed]:
        """Every object below a folder, by key; a request for each thousand."""
        import obstore

        with self._named(folder):
            pages = obstore.list(self._store, folder or None)
            found = [
                Listed(o["path"], o["size"], o["last_modified"], o["e_tag"]) for page in pages for o in page
            ]
        return sorted(found, key=lambda one: one.key)

    def names(self, folder: str = "") -> list[str]:
        """The folders in a folder, without hidden ones, sorted."""
        import obstore

        with self._named(folder):
            found = obstore.list_with_delimiter(self._store, folder or None)["common_prefixes"]
        names = (prefix.rstrip("/").rpartition("/")[2] for prefix in found)
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; a request for each thousand."""
        import obstore

        if keys:
            with self._named(keys[0]):
                obstore.delete(self._store, list(keys))

    def _bucket_is_there(self, error: FileNotFoundError) -> None:
        if "NoSuchBucket" in str(error):
            raise error

    @contextmanager
    def _named(self, key: str = "") -> Iterator[None]:
        """Turn the library's errors into one line with a remedy."""
        try:
            yield
            self._answered = True
        except Exception as error:
            if not (isinstance(error, FileNotFoundError) or type(error).__module__.startswith("obstore")):
                raise
            said = " ".join(str(error).partition("\n\nDebug source")[0].split())
            if not self._answered and (refusal := _refusal(said, type(error).__name__)):
                raise ConfigError(f"data root {self.url}: {refusal}") from error
            raise Unreachable(f"{self.url}/{key}: {said}; run the command again") from error


def _refusal(said: str, kind: str) -> str | None:
    """Why a bucket can't be used as the data root, and what to do; None where the fault may pass."""
    if "NoSuchBucket" in said:
        return "no such bucket; make it, or correct the URL in --data or NLAC_DATA"
    if "Missing AccessKeyId" in said or "169.254.169.254" in said:
        return "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or "403 Forbidden" in said:
        return (
            "access is refused; correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or let "
            f"them read, write, list and delete below it ({said})"
        )
    if "error sending request" in said or "client error (Connect)" in said:
        return f"its server can't be reached; correct AWS_ENDPOINT_URL and AWS_REGION ({said})"
    return None
