"""Ports of this machine, for the servers that the program starts."""

import socket


def free_port(preferred: int) -> int:
    """The preferred port of 127.0.0.1 if it is free, else any free one.

    Raises:
        OSError: there is none.
    """
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")
