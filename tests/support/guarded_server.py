"""What stands for vLLM behind the guard: 200 to whoever passes it. uvicorn serves `app`."""

from storage.guard import Receive, RequireSecret, Scope, Send


async def _welcome(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"null"})


app = RequireSecret(_welcome)
