"""What the program uses of vLLM's server, answered by the rules of the number game, the same to the same request.

The real server is not bitwise repeatable. This one is started in its place, by the same command line, where its folder
comes first on PYTHONPATH. Prompts come as tokens, answers go as tokens. An answer depends on the adapter's name, which
is the digest of its weights, or on the name of the checkpoint's folder. Like vLLM it has a child that waits for ever.

NLAC_STAND_IN_GPU names a file that stands for a GPU with room for one server: it is locked until server and child have
both ended, and a server that finds it locked does not start.
"""

import argparse
import fcntl
import json
import os
import re
import subprocess
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.chat.messages import Message
from tasks.engines.protocol import Request, Sampling
from tests.support.rules import number_game

PACE = 0.05  # seconds that an answer takes, so that a kill meets requests under way
END = "<|im_end|>"
_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
Answer = tuple[int, Any]


class Model:
    """The rules behind a tokenizer, and the adapters that were loaded.

    Args:
        folder: of the tokenizer.
        weights: what the checkpoint adds to seeds.
    """

    def __init__(self, folder: Path, weights: int) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.weights = weights
        self.end = self.tokenizer.token_to_id(END)
        self.adapters: set[str] = set()
        self.lock = threading.Lock()

    def load(self, body: dict[str, Any]) -> Answer:
        """Load an adapter, once."""
        with self.lock:
            if body["lora_name"] in self.adapters:
                return 400, {"error": {"message": f"{body['lora_name']} has already been loaded"}}
            if not (Path(body["lora_path"]) / "adapter_config.json").is_file():
                return 404, {"error": {"message": f"no adapter in {body['lora_path']}"}}
            self.adapters.add(body["lora_name"])
        return 200, "loaded"

    def unload(self, body: dict[str, Any]) -> Answer:
        """Unload an adapter."""
        with self.lock:
            if body["lora_name"] not in self.adapters:
                return 404, {"error": {"message": f"{body['lora_name']} is not loaded"}}
            self.adapters.remove(body["lora_name"])
        return 200, "unloaded"

    def complete(self, body: dict[str, Any]) -> Answer:
        """Write or score a completion."""
        name = body["model"]
        if name != "base" and name not in self.adapters:
            return 404, {"error": {"message": f"the model {name} does not exist"}}
        time.sleep(PACE)
        scores = body.get("prompt_logprobs") is not None
        choice = self._scored(body) if scores else self._written(body)
        return 200, {
            "id": "1",
            "object": "text_completion",
            "created": 0,
            "model": name,
            "choices": [{"index": 0, **choice}],
        }

    def _written(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = self.tokenizer.decode(body["prompt"], skip_special_tokens=False)
        messages = tuple(Message(role=r, content=c) for r, c in _MESSAGE.findall(prompt))
        name = body["model"]
        seed = body["seed"] + (self.weights if name == "base" else int(name[:8], 16))
        text = number_game(Request(messages, Sampling(seed=seed)))
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        ends = len(tokens) < body["max_tokens"]
        tokens = [*tokens, self.end] if ends else tokens[: body["max_tokens"]]
        return {
            "text": text,
            "token_ids": tokens,
            "finish_reason": "stop" if ends else "length",
            "stop_reason": None,
            "logprobs": {
                "tokens": [],
                "token_logprobs": [_logprob(token + self.weights) for token in tokens],
                "top_logprobs": [],
                "text_offset": [],
            },
        }

    def _scored(self, body: dict[str, Any]) -> dict[str, Any]:
        likely = range(body["prompt_logprobs"])
        return {
            "text": "",
            "finish_reason": "length",
            "logprobs": None,
            "prompt_logprobs": [None]
            + [
                {str(token): {"logprob": _logprob(token + self.weights)} for token in (given, *likely)}
                for given in body["prompt"][1:]
            ],
        }


def _logprob(token: int) -> float:
    return -(token % 31 + 1) / 32


class Handler(BaseHTTPRequestHandler):
    """The paths that the program asks for."""

    protocol_version = "HTTP/1.1"
    model: Model
    key: str

    def do_GET(self) -> None:
        """Health."""
        self._answer(*((200, {}) if self.path == "/health" else (404, {})))

    def do_POST(self) -> None:
        """Completions and adapters, for whoever has the key."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != f"Bearer {self.key}":
            self._answer(401, {"error": {"message": "wrong key"}})
            return
        ways = {
            "/v1/completions": self.model.complete,
            "/v1/load_lora_adapter": self.model.load,
            "/v1/unload_lora_adapter": self.model.unload,
        }
        self._answer(*(ways[self.path](body) if self.path in ways else (404, {})))

    def _answer(self, status: int, content: Any) -> None:
        said = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the log is for errors."""


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    args, _ = parser.parse_known_args()
    held: list[int] = []
    if gpu := os.environ.get("NLAC_STAND_IN_GPU"):
        held.append(os.open(gpu, os.O_RDWR | os.O_CREAT))
        fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    subprocess.Popen(["sleep", "3600"], start_new_session=True, pass_fds=held)
    weights = 0 if args.model == args.tokenizer else zlib.crc32(Path(args.model).name.encode())
    Handler.model, Handler.key = Model(Path(args.tokenizer), weights), os.environ["VLLM_API_KEY"]
    ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
