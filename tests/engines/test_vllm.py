"""vLLM's processes end with their owner, also when it is killed; and it serves full checkpoints."""

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message
from tasks.engines.backends import build_engine
from tasks.engines.protocol import Adapter, Engine, EngineDied, Request, Sampling, ScoreRequest
from tasks.engines.reaper import watch
from tests.support.processes import all_end

OWNER = """
import asyncio, sys
from pathlib import Path
from schemas.config import EngineSection, ModelSection
from tasks.engines.backends import build_engine

async def hold():
    build_engine(EngineSection(backend="vllm"), ModelSection(name=sys.argv[1], dtype="bfloat16"), Path(sys.argv[2]))
    print("up", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(hold())
"""


def test_watched_processes_end_when_the_watch_is_closed_and_others_stay() -> None:
    first, second = (psutil.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2))
    open_watch, closed = watch([first]), watch([second])
    closed.communicate()
    assert all_end([second], 15)
    assert first.is_running()  # though its own watch began before
    open_watch.communicate()
    assert all_end([first], 15)


@pytest.mark.long
@pytest.mark.vllm
def test_a_killed_owner_leaves_no_process_behind(real_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen(
        [sys.executable, str(script), str(real_model), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert owner.stdout is not None
    assert any(line.strip() == "up" for line in owner.stdout)
    below = psutil.Process(owner.pid).children(recursive=True)
    assert len(below) >= 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert all_end(below, 10)


@pytest.mark.long
@pytest.mark.vllm
def test_a_full_checkpoint_is_played_without_a_tokenizer_beside_it(real_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    trained = tmp_path / "adapter"
    trained.mkdir()
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(real_model / file, trained)
    question = (Message(role="user", content="Name a number."),)

    async def play() -> str:
        model = ModelSection(name=str(real_model), dtype="bfloat16", context_length=256, train="full")
        engine = build_engine(EngineSection(backend="vllm", max_batch=2), model, tmp_path)
        adapter = Adapter("policy@00000", trained, "digest")
        answer = await engine.generate(Request(question, Sampling(temperature=0.0, max_tokens=6), adapter))
        await engine.close()
        return answer.text

    assert asyncio.run(play())


async def dies_as_an_engine(engine: Engine) -> None:
    """Its process killed, it fails the stage, not one row after the other."""
    cores = [p for p in psutil.Process().children(recursive=True) if "EngineCore" in " ".join(p.cmdline())]
    question = (Message(role="user", content="Name a number."),)
    endless = Request(question, Sampling(max_tokens=1500), regex="[0-9]{400}")
    asked = asyncio.create_task(engine.generate(endless))
    await engine.generate(
        Request(question, Sampling(max_tokens=1))
    )  # came later, so the endless one is under way
    for core in cores:
        core.kill()
    with pytest.raises(EngineDied, match="Run the stage again"):
        await asked


@pytest.mark.long
@pytest.mark.vllm
def test_many_scores_at_once_beside_generation_are_those_of_one_alone(
    real_model: Path, real_adapter: Adapter, tmp_path: Path
) -> None:
    pytest.importorskip("vllm")

    def messages(number: int) -> tuple[Message, ...]:
        return (
            Message(role="user", content=f"Guess a number. {'It is small. ' * (number % 7)}Turn {number}"),
        )

    async def both() -> None:
        engine = build_engine(
            EngineSection(backend="vllm", max_batch=8),
            ModelSection(name=str(real_model), dtype="bfloat16", device="cpu"),
            tmp_path,
        )
        try:
            requests = [
                ScoreRequest(messages(n), ("Future:", f" found after {n} turns"), (None, real_adapter)[n % 2])
                for n in range(12)
            ]
            writing = [
                engine.generate(Request(messages(n), Sampling(max_tokens=24, seed=n))) for n in range(12)
            ]
            together, _ = await asyncio.gather(
                asyncio.gather(*(engine.score(r) for r in requests)), asyncio.gather(*writing)
            )
            for request, scores in zip(requests[:4], together, strict=False):
                alone = await engine.score(request)
                for one, other in zip(alone.segments, scores.segments, strict=True):
                    assert one == pytest.approx(other, abs=0.3)  # bfloat16, in another batch
            await dies_as_an_engine(engine)
        finally:
            await engine.close()

    asyncio.run(both())
