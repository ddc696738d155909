"""ASGI middleware that asks every request for a secret; for servers of other programs on 127.0.0.1.

MLflow has no authentication, and vLLM's own leaves most of its paths open. `SECRET` in the environment of such a server
holds the secret. All that needs none is whether the server lives (GET /health).
"""

import base64
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

SECRET = "NLAC_SERVER_SECRET"
"""Variable of a guarded server: a token, or "user:password", for which a browser asks."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequireSecret:
    """Answers 401 without the secret, and 403 to a page of another origin, for which a browser may send it along.

    The secret comes as a bearer token (RFC 6750) or, with user and password, as basic credentials (RFC 7617).

    Args:
        app: the application to guard.

    Raises:
        KeyError: `SECRET` is not set, so that nothing is served unguarded.
    """

    def __init__(self, app: App) -> None:
        self._app, secret = app, os.environ[SECRET].encode()
        self._accepted = (b"Bearer " + secret, b"Basic " + base64.b64encode(secret))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        status = self._refusal(scope)
        if status is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"www-authenticate", b'Basic realm="nlac"')] if status == 401 else []
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    def _refusal(self, scope: Scope) -> int | None:
        if scope["type"] not in ("http", "websocket"):
            return None
        if (scope.get("method"), scope["path"]) == ("GET", "/health"):
            return None
        headers = dict(scope["headers"])
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        if origin is not None and origin != b"http://" + host:
            return 403
        given = headers.get(b"authorization", b"")
        return None if any([hmac.compare_digest(given, accepted) for accepted in self._accepted]) else 401
