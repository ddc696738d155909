"""The guard before servers of other programs: nothing passes without the secret."""

import asyncio
import base64
from collections.abc import MutableMapping
from typing import Any

import pytest

from storage.guard import SECRET, RequireSecret, Scope


def sent(scope: Scope) -> list[MutableMapping[str, Any]]:
    """What a guarded application sends; alone it sends 200."""
    messages: list[MutableMapping[str, Any]] = []

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("a refused request is not read")

    asyncio.run(RequireSecret(app)(scope, receive, send))
    return messages


def status(path: str = "/", method: str = "GET", **headers: str) -> int:
    given = [(name.encode(), value.encode()) for name, value in {"host": "127.0.0.1:9", **headers}.items()]
    return int(sent({"type": "http", "method": method, "path": path, "headers": given})[0]["status"])


def test_only_the_secret_opens_any_path_but_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "nlac:drawn")
    basic = base64.b64encode(b"nlac:drawn").decode()
    assert status("/health") == 200
    assert [status("/health", "POST"), status("/health/"), status("//health"), status()] == [401] * 4
    wrong = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer nlac:drawn ",
        "bearer x",
        f"Basic {basic}=",
        "Basic bmxhYzp3cm9uZw==",
    ]
    assert [status(authorization=given) for given in wrong] == [401] * len(wrong)
    assert [status(authorization=given) for given in ("Bearer nlac:drawn", f"Basic {basic}")] == [200, 200]
    assert status(method="OPTIONS") == 401
    assert sent({"type": "websocket", "path": "/", "headers": []}) == [
        {"type": "websocket.close", "code": 1008}
    ]


def test_a_page_of_another_origin_is_refused_though_the_browser_sends_the_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECRET, "drawn")
    for origin in ("http://evil.example", "http://127.0.0.1:8", "https://127.0.0.1:9", "null"):
        assert status(authorization="Bearer drawn", origin=origin) == 403
    assert status(authorization="Bearer drawn", origin="http://127.0.0.1:9") == 200
    assert status(origin="http://127.0.0.1:9") == 401


def test_without_a_secret_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    with pytest.raises(KeyError, match=SECRET):
        status()
