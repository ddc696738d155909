"""A data root named by a URL: a folder of this machine, or the mirror of a bucket.

    file:///srv/data           the folder
    s3://bucket/prefix         a bucket, or a part of one; this machine keeps a mirror of it

The mirror is a folder below NLAC_MIRROR, else below the user's cache. It holds the file ORIGIN, which names the URL. So
it is a data root too: whoever opens it opens the bucket.
"""

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from schemas.load import ConfigError

ORIGIN = ".origin"
"""File of a mirror that holds the URL of what it mirrors."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FORMS = "a data root is a folder, file:///FOLDER or s3://BUCKET/PREFIX"


def folder_of(url: str) -> Path:
    """The folder of this machine that a data root's URL stands for; that of a bucket is made.

    Raises:
        ConfigError: the URL is of another kind, or holds what it must not.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.hostname in (None, "localhost") and parts.path:
        return Path(unquote(parts.path)).resolve()
    if parts.scheme == "s3":
        return _mirror(checked_s3(url))
    raise ConfigError(
        f"data root {url.partition('://')[0]}://...: {_FORMS}; choose one with --data or NLAC_DATA"
    )


def checked_s3(url: str) -> str:
    """An `s3://` URL in its one spelling: without a slash at the end.

    Raises:
        ConfigError: it names no bucket, or holds more than bucket and prefix.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            f"data root s3://...: {_FORMS}, and nothing else; credentials and endpoint come from the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)"
        )
    names = parts.path.strip("/").split("/")
    if not _BUCKET.fullmatch(parts.netloc) or (names != [""] and not all(name.strip(".") for name in names)):
        raise ConfigError(f"data root {url}: not the name of a bucket and a prefix; {_FORMS}")
    return f"s3://{parts.netloc}" + "".join(f"/{name}" for name in names if name)


def url_of(root: Path) -> str | None:
    """The URL of the bucket that a data root mirrors; None: it mirrors none."""
    try:
        return (root / ORIGIN).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _mirror(url: str) -> Path:
    """The mirror of a bucket on this machine; those of equal buckets on two servers are two."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "nlac" / "mirrors"
    home = Path(os.environ.get("NLAC_MIRROR") or cache).expanduser().resolve()
    server = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    digest = hashlib.sha256(f"{server} {url}".encode()).hexdigest()[:12]
    folder = home / f"{url.rpartition('/')[2]}-{digest}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / ORIGIN).exists():
        aside = folder / f"{ORIGIN}.{os.getpid()}"
        aside.write_text(f"{url}\n", encoding="utf-8")
        aside.replace(folder / ORIGIN)
    return folder
