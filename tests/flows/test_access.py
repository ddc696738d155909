"""Who reaches the stack: nobody without its secret, no page of another origin, and the secret is found nowhere."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path

import pytest
import yaml

from flows.stack.environment import profiles_path
from flows.stack.private import stack_secret
from flows.stack.processes import marked_processes
from tests.support.planted import REMOTE, leaks
from tests.support.stack import CONFIG, FINAL, LocalStack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


def ask(
    stack: LocalStack,
    path: str,
    headers: Mapping[str, str] = {},
    method: str = "GET",
    body: bytes | None = None,
) -> tuple[int, Message]:
    """Status and headers of an answer."""
    request = urllib.request.Request(stack.api_url + path, body, dict(headers), method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def test_nothing_but_health_is_answered_without_the_secret(stack: LocalStack) -> None:
    assert ask(stack, "/health")[0] == 200
    wrong = {"Authorization": "Basic bmxhYzp3cm9uZw=="}
    for headers in ({}, wrong, {"Authorization": f"Bearer {stack_secret(stack.data)}"}):
        assert ask(stack, "/version", headers)[0] == 401
        assert ask(stack, "/work_pools/nlac-inference", headers)[0] == 401
    assert ask(stack, "/version", stack.secret_header)[0] == 200


def test_a_page_of_another_origin_gets_no_permission_and_can_change_nothing(stack: LocalStack) -> None:
    allowed = "Access-Control-Allow-Origin"
    preflight = {"Access-Control-Request-Method": "POST"}
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
        foreign = {"Origin": origin}
        assert allowed not in ask(stack, "/work_pools/filter", foreign | preflight, "OPTIONS")[1]
        assert allowed not in ask(stack, "/version", foreign | stack.secret_header)[1]
    own = {"Origin": stack.ui_url}
    assert ask(stack, "/version", own | stack.secret_header)[1][allowed] == stack.ui_url
    known = stack.secret_header | {"Content-Type": "application/json"}  # as a browser would send it along
    assert ask(stack, "/work_pools/filter", known, "POST", b"{}")[0] == 403, "without a CSRF token"


def test_other_users_of_the_machine_can_read_neither_data_nor_databases(stack: LocalStack) -> None:
    home = stack.data / ".stack"
    modes = {path: path.stat().st_mode & 0o777 for path in (stack.data, home, profiles_path(stack.data))}
    assert list(modes.values()) == [0o700, 0o700, 0o600]
    databases = list((home / "prefect").glob("prefect.db*"))
    assert databases and all(path.stat().st_mode & 0o077 == 0 for path in databases)


def test_secrets_are_in_no_command_line_log_or_database(stack: LocalStack, tmp_path: Path) -> None:
    config = tmp_path / "planted.yaml"
    roles = {**CONFIG["roles"], "policy": {"engine": "remote", "structured": False}}
    engines = {**CONFIG["engines"], "remote": REMOTE}
    model = yaml.safe_load(stack.config.read_text())["model"]
    config.write_text(
        yaml.safe_dump({**CONFIG, "run": "planted", "model": model, "engines": engines, "roles": roles})
    )
    secret = stack_secret(stack.data)
    own = (secret.partition(":")[2], stack.secret_header["Authorization"].partition(" ")[2])
    run = stack.start("rollout", config=str(config), iteration=0)
    commands: set[str] = set()

    def ended() -> bool:
        for process in marked_processes(stack.data):
            commands.add(" ".join(process.cmdline()))
        return stack.run(run)["state_type"] in FINAL

    wait_until(ended, 120, f"the end of {run}", every=0.5)
    assert any("prefect.engine" in command for command in commands), commands
    assert not leaks("\n".join(commands).encode(), *own)
    assert "reader:***@" in stack.run(run)["state"]["message"]
    files = [path for path in stack.data.rglob("*") if path.is_file()]
    assert any(path.name.startswith("prefect.db") for path in files)
    found = {path for path in files if leaks(path.read_bytes(), *own)}
    # The iteration's own configuration is what it runs with.
    assert found <= {profiles_path(stack.data), stack.store.iteration_dir("planted", 0) / "config.yaml"}
