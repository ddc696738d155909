"""Secrets that a test plants, and the search for them."""

import base64

KEY = "sk-planted-key"
SECRETS = (KEY, "pa%40ss-planted", "pa@ss-planted", base64.b64encode(b"reader:pa@ss-planted").decode())
URL = "http://reader:pa%40ss-planted@127.0.0.1:9/v1"
REMOTE = {
    "backend": "openai", "base_url": URL, "model": "m", "api_key_env": "PLANTED_KEY",
    "options": {"max_retries": 0, "timeout_s": 5},
}  # fmt: skip
"""An engine that is given them all; nobody listens at its address, so every request fails."""


def leaks(content: bytes, *more: str) -> list[str]:
    """Which of the planted secrets, and of further ones, stand in a content."""
    return [secret for secret in (*SECRETS, *more) if secret.encode() in content]
