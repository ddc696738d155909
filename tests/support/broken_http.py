"""A model server that breaks HTTP in the ways that servers do."""

import json
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SAID = {"role": "assistant", "content": "Thought: halves are quick\nAction: [5]"}
ANSWER = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": SAID}]}).encode()
FAULTS = ("429 with Retry-After", "500", "reset", "hang", "cut body", "slow drip", "wrong JSON")
RETRY_AFTER = 1  # seconds
DRIP = 0.1  # seconds between two bytes


@dataclass
class BrokenServer:
    """Answers `whole` requests, breaks the next `broken` ones in one way, and answers all others.

    Attributes:
        asked: when each request came, monotonic seconds.
    """

    fault: str
    port: int = 0
    whole: int = 0
    broken: float = 0
    asked: list[float] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def answer(self, connection: socket.socket) -> None:
        """Answer one request, or break it."""
        self.asked.append(time.monotonic())
        if self.whole > 0:
            self.whole -= 1
            return connection.sendall(_reply(ANSWER))
        if self.broken <= 0:
            return connection.sendall(_reply(ANSWER))
        self.broken -= 1
        match self.fault:
            case "429 with Retry-After":
                connection.sendall(_reply(b"{}", "429 Too Many Requests", f"Retry-After: {RETRY_AFTER}\r\n"))
            case "500":
                connection.sendall(_reply(b"{}", "500 Internal Server Error"))
            case "reset":  # with this option, closing sends RST
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case "hang":
                self.closing.wait(60)
            case "cut body":
                connection.sendall(_reply(ANSWER)[: -len(ANSWER) // 2])
            case "slow drip":
                for byte in _reply(ANSWER):
                    if self.closing.wait(DRIP):
                        break
                    connection.sendall(bytes([byte]))
            case "wrong JSON":
                connection.sendall(_reply(b'{"choices": [{"message": "5"}, 7]}'))


def _reply(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}Connection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def serving(fault: str) -> Iterator[BrokenServer]:
    """Such a server on a free port of this machine."""
    server = BrokenServer(fault)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (header := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = header.decode("latin-1").partition(":")
                length = int(value) if name.lower() == "content-length" else length
            self.rfile.read(length)
            try:
                server.answer(self.connection)
            except OSError:
                return  # the client has given up

    class Threads(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close = True, False

    with Threads(("127.0.0.1", 0), Handler) as listening:
        server.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            listening.shutdown()
            thread.join()
