"""Ports of this machine, for the servers that the program starts."""

import socket


def free_port(preferred: int, address: str = "127.0.0.1") -> int:
    """The preferred port of an address of this machine if it is free, else any free one.

    Raises:
        OSError: there is none.
    """
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free port on {address}, or it is no IPv4 address of this machine")
