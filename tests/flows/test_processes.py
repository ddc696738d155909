"""Finding processes by what they do."""

import os
import socket

from flows.stack.processes import listens


def test_only_the_process_that_listens_on_a_port_is_said_to() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not listens(os.getpid(), port)
        server.listen()
        assert listens(os.getpid(), port)
