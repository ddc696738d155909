"""A stage against a server that breaks HTTP: it goes on when the server heals, and is interrupted while it does not."""

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.reliability.small_run import run_config
from schemas.config import Config
from storage.store import Store
from storage.verify import verify
from tasks.engines import openai
from tasks.pipeline.runner import run_stage
from tasks.runtime.stage import StageInterrupted
from tests.support.broken_http import RETRY_AFTER, serving

TIMEOUT = 3.0  # seconds for a whole answer
RETRIES = 2


def played_on(port: int) -> Config:
    """An evaluation whose policy is on the server."""
    options = {"max_retries": RETRIES, "timeout_s": TIMEOUT}
    remote = {"backend": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "model": "m", "max_batch": 2}
    rules = {"backend": "scripted", "rules": "benchmarks.reliability.small_run:player"}
    return run_config(
        algorithm="react",
        engines={"rules": rules, "remote": {**remote, "options": options}},
        roles={"policy": {"engine": "remote", "structured": False}},
        evaluation={"episodes": 4, "baseline": False},
    )


def break_http(folder: Path, fault: str) -> dict[str, Any]:
    """Run a stage against a server that breaks, first for a while and then for good.

    Raises:
        AssertionError: the stage did not do what it should.
    """
    with serving(fault) as server:
        config, store = played_on(server.port), Store(folder / "data")

        def play(force: bool) -> dict[str, str]:
            made = asyncio.run(run_stage(store, config, "evaluation", 0, force=force)).committed
            return {name: entry.digest for name, entry in made.manifest.tables.items()}

        undisturbed, needed = play(False), len(server.asked)
        server.asked.clear()
        server.whole, server.broken = 3, 2
        began = time.monotonic()
        assert play(True) == undisturbed, f"{fault}: two broken answers changed what was committed"
        passing = {"requests more": len(server.asked) - needed, "seconds": round(time.monotonic() - began, 1)}
        if fault == "429 with Retry-After":
            waited = min(
                later - earlier for earlier, later in zip(server.asked[3:5], server.asked[5:7], strict=True)
            )
            assert waited >= RETRY_AFTER, f"asked again after {waited} s"
        committed = store.committed(config.run, "evaluation", 0)
        server.asked.clear()
        server.whole, server.broken = 6, float("inf")
        began = time.monotonic()
        try:
            play(True)
        except StageInterrupted as interrupted:
            said = str(interrupted)
        else:
            raise AssertionError(f"{fault}: an outage was committed as data")
        lasting = {"requests": len(server.asked), "seconds": round(time.monotonic() - began, 1), "said": said}
        most = 6 + (openai.UNANSWERED + config.engines["remote"].max_batch) * (RETRIES + 1)
        assert len(server.asked) <= max(most, 6 + 4 * (RETRIES + 1)), (
            f"{fault}: asked {len(server.asked)} times"
        )
        assert store.committed(config.run, "evaluation", 0) == committed and verify(store) == []
        server.asked.clear()
        server.broken = 0
        assert play(True) == undisturbed and len(server.asked) == needed - 6, f"{fault}: answers were lost"
    return {"passing": passing, "lasting": lasting}
