"""A small S3 server that honours conditional puts and breaks the requests that a test chooses.

It keeps objects in memory and speaks the part of S3 that `storage.objects` uses: GET, HEAD, PUT with If-None-Match and
If-Match, multipart uploads, listings in pages, DELETE of one and of many. Source: the API reference of Amazon S3.
"""

import hashlib
import socket
import struct
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from storage.store import Store

BUCKET, KEY, SECRET = "bucket", "test-key", "test-secret"
URL = f"s3://{BUCKET}/some/place"
Host = Callable[[str], Store]
"""The store of URL as a host of some name sees it: each has a mirror of its own."""
Kind = Literal["lost answer", "500 after it is done", "500", "503", "reset", "cut body", "slow"]
SLOW = 0.5  # seconds
_ERRORS = {
    403: "InvalidAccessKeyId", 404: "NoSuchKey", 412: "PreconditionFailed", 500: "InternalError", 503: "SlowDown",
}  # fmt: skip


@dataclass
class Fault:
    """Breaks the next `times` requests of a method whose key ends so.

    `lost answer` and `500 after it is done` carry the request out; the client does not hear of it.
    """

    kind: Kind
    method: str
    key: str
    times: int = 1


@dataclass
class Stored:
    content: bytes
    modified: datetime

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class S3Server:
    """Where it listens, what it holds, and what it was asked.

    Attributes:
        objects: by key.
        asked: every request as 'METHOD key', in order of arrival.
        faults: what to break.
        page: keys in one page of a listing.
        honours_conditions: whether If-None-Match and If-Match count.
        watch: called before a request is carried out and before it is answered, with what is done by then.
    """

    port: int = 0
    objects: dict[str, Stored] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    page: int = 1000
    honours_conditions: bool = True
    watch: Callable[[str, bool], None] = lambda request, done: None
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a client reaches it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        }  # fmt: skip

    def methods(self) -> Counter[str]:
        """How many requests of each method it was asked."""
        return Counter(request.partition(" ")[0] for request in self.asked)

    def fault(self, request: str) -> Fault | None:
        """The fault that a request meets, used up by one."""
        with self.lock:
            self.asked.append(request)
            for fault in self.faults:
                if fault.times > 0 and request.startswith(fault.method) and request.endswith(fault.key):
                    fault.times -= 1
                    return fault
        return None

    def answer(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Carry a request out; one at a time, so that a condition and its put are one step."""
        with self.lock:
            if method == "POST":
                return self._post(key, query, body)
            if method == "PUT" and "uploadId" in query:
                self.uploads[query["uploadId"]][int(query["partNumber"])] = body
                return Answer(headers={"ETag": Stored(body, datetime.now(UTC)).etag})
            if method == "PUT":
                return self._put(key, headers, body)
            if method == "DELETE":
                self.objects.pop(key, None)
                return Answer(204)
            return self._list(query) if not key else self._get(key, headers.get("Range"))

    def _put(self, key: str, headers: Mapping[str, str], body: bytes) -> Answer:
        there = self.objects.get(key)
        if self.honours_conditions and headers.get("If-None-Match") == "*" and there is not None:
            return Answer(412)
        wanted = headers.get("If-Match")
        if self.honours_conditions and wanted is not None and (there is None or there.etag != wanted):
            return Answer(412)
        self.objects[key] = Stored(body, datetime.now(UTC))
        return Answer(headers={"ETag": self.objects[key].etag})

    def _get(self, key: str, asked: str | None) -> Answer:
        there = self.objects.get(key)
        if there is None:
            return Answer(404)
        if asked is not None:  # the rest of a body that was cut
            first, last = (
                int(n) if n else len(there.content) - 1 for n in asked.removeprefix("bytes=").split("-")
            )
            shown = f"bytes {first}-{last}/{len(there.content)}"
            more = {
                "ETag": there.etag,
                "Last-Modified": format_datetime(there.modified, True),
                "Content-Range": shown,
            }
            return Answer(206, there.content[first : last + 1], more)
        return Answer(
            200, there.content, {"ETag": there.etag, "Last-Modified": format_datetime(there.modified, True)}
        )

    def _list(self, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after, rows, last = query.get("continuation-token", ""), [], ""
        shown: set[str] = set()
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            rest, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            name = prefix + rest + delimiter if found else key
            if name <= after or name in shown:
                continue
            if len(shown) == self.page:
                last = max(shown)
                break
            shown.add(name)
            rows.append(_folder(name) if found else _row(name, self.objects[key]))
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if last else ""
        cut = str(bool(last)).lower()
        return Answer(body=_xml("ListBucketResult", f"<IsTruncated>{cut}</IsTruncated>{more}{''.join(rows)}"))

    def _post(self, key: str, query: Mapping[str, str], body: bytes) -> Answer:
        if "delete" in query:
            names = [e.text or "" for e in ElementTree.fromstring(body).iter() if e.tag.endswith("Key")]
            for name in names:
                self.objects.pop(name, None)
            rows = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
            return Answer(body=_xml("DeleteResult", rows))
        if "uploads" in query:
            upload = str(len(self.uploads))
            self.uploads[upload] = {}
            said = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return Answer(body=_xml("InitiateMultipartUploadResult", said))
        parts = self.uploads.pop(query["uploadId"])
        self.objects[key] = Stored(b"".join(parts[number] for number in sorted(parts)), datetime.now(UTC))
        said = f"<Key>{escape(key)}</Key><ETag>{escape(self.objects[key].etag)}</ETag>"
        return Answer(body=_xml("CompleteMultipartUploadResult", said))


def _row(key: str, there: Stored) -> str:
    modified = there.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified><ETag>{escape(there.etag)}</ETag>"
        f"<Size>{len(there.content)}</Size></Contents>"
    )


def _folder(name: str) -> str:
    return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"


def _xml(root: str, content: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{root}>{content}</{root}>'.encode()


@contextmanager
def serving_s3(also: socket.socket | None = None) -> Iterator[S3Server]:
    """Such a server on a free port of this machine, with one empty bucket.

    Args:
        also: a second socket, already listening, that leads to the same bucket.
    """
    server = S3Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            bucket, _, key = unquote(url.path).lstrip("/").partition("/")
            query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            request = f"{self.command} {key or query.get('prefix', '')}"
            fault = server.fault(request)
            if fault is None or self._goes_on(fault):
                server.watch(request, False)
                answer = self._refused(bucket) or server.answer(self.command, key, query, self.headers, body)
                server.watch(request, True)
                if fault is not None and fault.kind == "lost answer":
                    self.close_connection = True
                elif fault is not None and fault.kind == "500 after it is done":
                    self._reply(Answer(500))
                elif fault is not None and fault.kind == "cut body":
                    self._reply(answer, sent=len(answer.body) // 2)
                    self.close_connection = True
                else:
                    self._reply(answer)

        def _goes_on(self, fault: Fault) -> bool:
            """Whether the request is carried out in spite of a fault."""
            if fault.kind == "slow":
                time.sleep(SLOW)
            elif fault.kind == "reset":  # with this option, closing sends RST
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                return False
            elif fault.kind in ("500", "503"):
                self._reply(Answer(int(fault.kind)))
                return False
            return True

        def _refused(self, bucket: str) -> Answer | None:
            if f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
                return Answer(403)
            missing = _xml("Error", "<Code>NoSuchBucket</Code>")
            return None if bucket == BUCKET else Answer(404, missing)

        def _reply(self, answer: Answer, sent: int | None = None) -> None:
            body = answer.body
            if answer.status >= 400 and not body:
                body = _xml("Error", f"<Code>{_ERRORS[answer.status]}</Code>")
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD" and answer.status != 204:
                self.wfile.write(body[:sent])

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

        def log_message(self, format: str, *args: object) -> None:
            return

    class Threads(ThreadingHTTPServer):
        daemon_threads, block_on_close = True, False

        def handle_error(self, request: object, client_address: object) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):  # the client has gone
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    listeners = [Threads(("127.0.0.1", 0), Handler)]
    server.port = listeners[0].server_address[1]
    if also is not None:
        second = Threads(also.getsockname(), Handler, bind_and_activate=False)
        second.socket.close()
        second.socket = also
        listeners.append(second)
    threads = [threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True) for one in listeners]
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        for one, thread in zip(listeners, threads, strict=True):
            one.shutdown()
            thread.join()
            one.server_close()
