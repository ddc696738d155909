"""What the corrector and the token loss are worth where the backup is a language model: GuessTheNumber, three seeds.

    python -m benchmarks.critic_ablations [--seeds 3] [--data DIR]

SmolLM2-135M warm-started as by `benchmarks.guess_number`, whose data root this takes and fills where it is empty. For
each seed its policy plays once; then, for each variant, the same transitions go through bellman-targets, cot-correction
and critic-sft, and the critic that comes out is asked about the same steps of the warm-started policy's evaluation.
Figures are means over seeds, with the least and the largest; no bars. They go to benchmarks/out/critic_ablations.json.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from benchmarks.checks import OUT, machine, write_checks
from benchmarks.guess_number import configured, demonstrated
from benchmarks.guess_number_measures import critic_fidelity
from benchmarks.lake_run import measuring
from schemas.config import Config
from storage.store import Committed, Store
from tasks.export import committed_adapter, export_policy, find_policy
from tasks.iterations import run_iteration, run_stages

VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "no-corrector": {"correction": {"enabled": False}},
    "token-kl": {"backup": {"loss": "token_kl"}},
}
STAGES = ("bellman-targets", "cot-correction", "critic-sft")
LABELS = ("leak_before", "leak_after")


async def warm_started(store: Store, data: Path, file: Path) -> tuple[Path, Committed]:
    """A checkpoint of the warm-started model, and its evaluation."""
    react = configured(file, run="guess-number-react", algorithm="react")
    await run_iteration(store, react, 0)
    checkpoint = data / "warm-started"
    if not checkpoint.exists():
        export_policy(find_policy(store, react.run), checkpoint, merge=True)
    played = store.committed(react.run, "evaluation", 0)
    assert played is not None
    return checkpoint, played


async def measured(
    store: Store, config: Config, changes: dict[str, Any], name: str, played: Committed
) -> dict[str, float]:
    """One variant with one seed: what its labels leak, and what its critic foresees."""
    content = config.model_dump()
    replay = {**content["replay"], "from_runs": [config.run]}
    content |= {"run": name, "rollout": {**content["rollout"], "source": "none"}, "replay": replay}
    for section, values in changes.items():
        content[section] = {**content[section], **values}
    variant = Config.model_validate(content)
    trained = await run_stages(store, variant, STAGES)
    corrected = store.committed(variant.run, "cot-correction", 0)
    assert corrected is not None
    async with measuring(store, variant, 0, committed_adapter(trained, "critic")) as ctx:
        fidelity = await critic_fidelity(ctx, played)
    return asdict(fidelity) | {name: corrected.manifest.metrics[name] for name in LABELS}


async def experiment(data: Path, file: Path, seeds: int) -> None:
    """Every variant with every seed, then a table."""
    store = Store(data)
    checkpoint, played = await warm_started(store, data, file)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for seed in range(seeds):
        content = configured(file, run=f"play-{seed}", seed=seed).model_dump()
        content["model"]["name"] = str(checkpoint)
        content["warm_start"]["file"] = None
        config = Config.model_validate(content)
        await run_stages(store, config, ("rollout",))
        for name, changes in VARIANTS.items():
            found[name].append(await measured(store, config, changes, f"{name}-{seed}", played))
            print(
                f"{name}, seed {seed}: " + ", ".join(f"{k} {v:.3f}" for k, v in found[name][-1].items()),
                flush=True,
            )
    figures = list(found["whole"][0])
    print(f"\n{machine()}\n\n| variant | {' | '.join(figures)} |\n|{'---|' * (len(figures) + 1)}")
    for name, runs in found.items():
        columns = [[run[figure] for run in runs] for figure in figures]
        print(
            f"| {name} | " + " | ".join(f"{mean(c):.3f} ({min(c):.3f}-{max(c):.3f})" for c in columns) + " |"
        )
    print(f"written to {write_checks('critic_ablations', [], ablations=found)}")


def main(
    seeds: Annotated[int, typer.Option(min=1, help="how many")] = 3,
    data: Annotated[Path, typer.Option(help="data root, that of benchmarks.guess_number")] = OUT
    / "guess_number",
) -> None:
    """Run the variants; started again, it goes on where it stopped."""
    data = data.resolve()
    asyncio.run(experiment(data, demonstrated(data), seeds))


if __name__ == "__main__":
    typer.run(main)
