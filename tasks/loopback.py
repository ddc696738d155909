"""Requests to servers of our own, on 127.0.0.1 or a host of the stack; never through a proxy (`http_proxy`)."""

import urllib.request
from http.client import HTTPResponse


def open_loopback(request: str | urllib.request.Request, seconds: float) -> HTTPResponse:
    """The answer of such a server; closed by the caller.

    Args:
        request: an address, or a whole request.
        seconds: time limit.

    Raises:
        OSError: no answer, or (urllib.error.HTTPError) one that is an error.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer: HTTPResponse = opener.open(request, timeout=seconds)
    return answer
