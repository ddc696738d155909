"""The program's stages with a stopwatch: what benchmarks/iteration_seconds.py deploys in their place.

Every process writes `<data>/.timing/<flow run>.json`: a list of {name, begin, end}, seconds since the epoch. Where
intervals overlap, within a thread or between threads, the one that began last is what the process was at.
"""

import time

LOADED = time.time()  # before anything of the program is imported

import atexit  # noqa: E402
import builtins  # noqa: E402
import functools  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import threading  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import psutil  # noqa: E402

INSTANT = "NLAC_BENCHMARK_INSTANT"
"""Set: training takes no time (`benchmarks.instant`)."""
HEAVY = {
    "mlflow": "MLflow: import", "sqlalchemy": "MLflow: import", "torch": "engine: imports", "peft": "engine: imports",
    "transformers": "engine: imports", "xgrammar": "engine: imports", "vllm": "engine: imports",
}  # fmt: skip

intervals: list[dict[str, Any]] = []
_importing = threading.local()


@contextmanager
def interval(name: str) -> Iterator[None]:
    """Note how long something takes."""
    entry = {"name": name, "begin": time.time()}
    intervals.append(entry)
    try:
        yield
    finally:
        entry["end"] = time.time()


def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is noted under a name."""
    if inspect.iscoroutinefunction(work):

        @functools.wraps(work)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with interval(name):
                return await work(*args, **kwargs)

        return awaited

    @functools.wraps(work)
    def called(*args: Any, **kwargs: Any) -> Any:
        with interval(name):
            return work(*args, **kwargs)

    return called


def watch(owner: object, attribute: str, name: str) -> None:
    """Note every call of a function of a module or class."""
    setattr(owner, attribute, timed(name, getattr(owner, attribute)))


_import = builtins.__import__


def _timed_import(name: str, *args: Any, **kwargs: Any) -> Any:
    kind = HEAVY.get(name.partition(".")[0])
    if kind is None or getattr(_importing, "now", False):
        module = _import(name, *args, **kwargs)
        if name == "tasks.training.trainer" and hasattr(module, "make_tuned"):
            watch(module, "make_tuned", "engine: start")
        return module
    _importing.now = True
    try:
        with interval(kind):
            return _import(name, *args, **kwargs)
    finally:
        _importing.now = False


def _write() -> None:
    folder = Path(os.environ["NLAC_DATA"]) / ".timing"
    folder.mkdir(parents=True, exist_ok=True)
    run = os.environ["PREFECT__FLOW_RUN_ID"]
    (folder / f"{run}.json").write_text(json.dumps([i for i in intervals if "end" in i]))


with interval("program: imports"):
    if os.environ.get(INSTANT):
        from benchmarks.instant import install_trainer

        install_trainer()
    from flows import iteration as _iteration
    from flows import stages as _stages
    from flows.reporting import Reporter
    from storage import mlflow_bridge, store
    from tasks import context, pipeline, prompting, running

intervals.append({"name": "process: start, Prefect", "begin": psutil.Process().create_time(), "end": LOADED})
builtins.__import__ = _timed_import
for _method in ("start_stage", "finish_stage", "fail_stage", "ensure_logged", "finish_iteration", "url"):
    watch(mlflow_bridge.Bridge, _method, "MLflow: logging")
watch(_stages, "publish_result", "Prefect: artifacts")
watch(Reporter, "publish", "Prefect: artifacts")
for _name in ("decide", "resolve", "begin_iteration"):
    watch(_stages, _name, "store: decide, check")
watch(_iteration, "decide", "store: decide, check")
watch(_iteration, "check_config", "store: decide, check")
watch(store.Committed, "check", "store: decide, check")
watch(running, "commit_output", "commit")
watch(context, "build_engine", "engine: start")
watch(prompting, "shared_chat_tokenizer", "engine: tokenizer")
for _stage in pipeline.STAGES.values():
    object.__setattr__(_stage, "run", timed("compute", _stage.run))
for _function in [_iteration.iteration, *(v for v in vars(_stages).values() if hasattr(v, "fn"))]:
    _function.fn = timed("flow", _function.fn)
    globals()[_function.fn.__name__] = _function
atexit.register(_write)
