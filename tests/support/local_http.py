"""A real HTTP server whose answers a test decides, for faults that clients meet."""

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class LocalHttp:
    """Where the server listens, and every request that it got, as 'METHOD path', with its body; and the
    Authorization headers of all."""

    port: int
    asked: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    credentials: set[str | None] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def answering(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[LocalHttp]:
    """A server that answers with a status and a body of JSON or HTML; `answer` is given 'METHOD path'."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = f"{self.command} {self.path}"
            local.asked.append(request)
            local.bodies.append(body)
            local.credentials.add(self.headers.get("Authorization"))
            status, reply = answer(request)
            self.send_response(status)
            kind = "text/html" if reply.startswith(b"<") else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = do_PATCH = do_PUT = _do

        def log_message(self, format: str, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        local = LocalHttp(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield local
        finally:
            server.shutdown()
            thread.join()
