"""What the pipeline costs beside the work: an iteration whose engines and trainer take no time.

python -m benchmarks.overhead.pipeline [--rounds 3] [--in-process-rounds 5]

The iteration is that of the default configuration: every size as shipped, real environment, prompts, tables, digests,
commits and MLflow. Only the roles are played by rules, and training writes files of the usual size at once
(`benchmarks.overhead.instant`). A warm-up of both sides comes first; then rounds alternate.

stage_overhead_ratio: through a Prefect server, work pools and workers started as `nlac up` starts them. Numerator: the
    time of `run_deployment("nlac/iteration")`, from the call to its return, divided by the number of stages. So it
    holds the dispatch of the iteration itself. Denominator: the time of `run_deployment` on an empty synchronous flow
    (stages are synchronous flows), by the same server, with the same polling. It is deployed on the same work pools,
    as often on each as the iteration has stages there, and runs one after the other, as stages do.
inprocess_overhead_ratio: numerator: `tasks.pipeline.iterations.run_iteration` (no Prefect, no MLflow) in this process,
    divided by the number of stages. Denominator: an empty synchronous Prefect flow called in this process, against the
    same server (about a second, Prefect's heartbeat thread). The warm-up has imported the libraries of both.

Both sides are medians over the rounds. Now and then a request finds the SQLite database of Prefect's server locked, and
Prefect's client waits some 2 s before it asks again. An iteration of eight stages always holds a few of these waits,
and the median of empty flows leaves them out. So the ratio of means is printed too; seconds are for orientation.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.checks import check, finish, print_figures
from benchmarks.overhead.instant import install_trainer, instant_config
from benchmarks.overhead.own_stack import deploy_empty, own_stack, redirect
from schemas.config import Config
from schemas.load import dump_config
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
from tasks.pipeline.registry import STAGES, stages_of

TRAINING = ("critic-sft", "policy-distillation")
GOALS = {
    "through server and workers": ("stage_overhead_ratio", 1.5),
    "in process": ("inprocess_overhead_ratio", 0.3),
}

Seconds = dict[str, list[float]]


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Wall seconds of one call."""
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def through_server(root: Path, config: Config, rounds: int) -> Seconds:
    """Seconds a stage of iterations through server and workers, and of empty flows dispatched the same way."""
    from prefect.client.orchestration import get_client
    from prefect.deployments.flow_runs import arun_deployment

    from flows.deployments.dispatch import POLL_SECONDS

    stages = stages_of(config, 0)
    pools = Counter(getattr(config.pools, STAGES[stage].pool) for stage in stages)
    file = root.parent / "instant.yaml"
    file.write_text(dump_config(config))
    async with get_client() as client:
        await redirect(
            client,
            {name: f"benchmarks/overhead/deployed_flows.py:{name.replace('-', '_')}" for name in TRAINING},
        )
        for pool in pools:
            await deploy_empty(client, pool, pool)

    async def deployment(name: str, **parameters: object) -> None:
        run = await arun_deployment(name, parameters=parameters, poll_interval=POLL_SECONDS)
        if run.state is None or not run.state.is_completed():
            raise SystemExit(f"{name} ended {run.state}; run again, nothing was measured")

    seconds: Seconds = {"iteration": [], "empty": []}
    for number in range(rounds + 1):
        spent = await timed(lambda n=number: deployment("nlac/iteration", config=str(file), iteration=n))
        empty = [await timed(lambda p=pool: deployment(f"empty/{p}")) for pool in pools.elements()]
        each = ", ".join(f"{s:.1f}" for s in empty)
        print(f"round {number}: iteration {spent:.1f} s, empty flows {each} s", flush=True)
        if number:  # the first round warms up
            seconds["iteration"].append(spent / len(stages))
            seconds["empty"] += empty
    return seconds


async def in_process(root: Path, config: Config, rounds: int) -> Seconds:
    """Seconds a stage of iterations in this process, and of empty synchronous flow runs in it."""
    from benchmarks.overhead.deployed_flows import empty

    install_trainer()
    store, stages = Store(root), stages_of(config, 0)
    seconds: Seconds = {"iteration": [], "empty": []}
    for number in range(rounds + 1):
        spent = await timed(lambda: run_iteration(store, config))
        flow = [await timed(lambda: asyncio.to_thread(empty)) for _ in range(2)]
        if number:
            seconds["iteration"].append(spent / len(stages))
            seconds["empty"] += flow
    return seconds


def figures(seconds: Seconds) -> dict[str, float]:
    """What is printed of one side by side."""
    stage, empty = seconds["iteration"], seconds["empty"]
    return {
        "a stage of the iteration, s": statistics.median(stage),
        "  fastest round": min(stage),
        "  slowest round": max(stage),
        "an empty flow, s": statistics.median(empty),
        "  fastest": min(empty),
        "  slowest": max(empty),
        "ratio": statistics.median(stage) / statistics.median(empty),
        "  of means": statistics.mean(stage) / statistics.mean(empty),
    }


def main(
    rounds: Annotated[int, typer.Option(min=0, help="timed rounds, after one to warm up; 0: none")] = 3,
    in_process_rounds: Annotated[int, typer.Option(min=0, help="the same in this process")] = 5,
    model: Annotated[
        str | None, typer.Option(help="whose tokenizer measures prompts; else the default")
    ] = None,
) -> None:
    """Compare, print, write benchmarks/out/overhead.json."""
    measured: dict[str, Seconds] = {}
    with own_stack() as root:
        if in_process_rounds:
            config = instant_config("here", model)
            measured["in process"] = asyncio.run(in_process(root, config, in_process_rounds))
        if rounds:
            config = instant_config("there", model)
            measured["through server and workers"] = asyncio.run(through_server(root, config, rounds))
    table = {name: figures(seconds) for name, seconds in measured.items()}
    checks = [
        check(name, table[side]["ratio"], "<=", goal) for side, (name, goal) in GOALS.items() if side in table
    ]
    print_figures("seconds", table)
    finish("overhead", "Pipeline overhead", checks, seconds=measured)


if __name__ == "__main__":
    typer.run(main)
