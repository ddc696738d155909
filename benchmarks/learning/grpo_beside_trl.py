"""GRPO on a task of one turn, here and by TRL's GRPOTrainer, at the same settings: do our seeds lie among theirs?

    python -m benchmarks.learning.grpo_beside_trl

A prompt names a cell of a 4x4 board, and a word pays 1 if it is a cell of the same row. The model is the untrained
word model of FrozenLake, one for each seed. Both sides play four prompts eight times, take two steps on the 32 rows,
and do that `ROUNDS` times. Ours goes through its stages, and leaves out the rows of groups without spread; one batch
holds all rows, so that both sides take as many steps all the same. Ends non-zero where the median of our seeds lies
outside the range of TRL's. Needs TRL: pip install -c constraints.txt -e '.[benchmarks]'. Figures go to
benchmarks/out/grpo_beside_trl.json.
"""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import typer

from benchmarks.checks import OUT, Check, check, finish, print_figures
from schemas.config import Config
from schemas.rows import Split
from storage.store import Store
from tasks.environments.base import ActionFormat, Step, Task
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.frozen_lake.word_model import make_word_model
from tasks.pipeline.iterations import run_iteration

PROMPTS = ("r0c0", "r1c1", "r2c2", "r3c3")
GROUP, BATCH, PASSES, RATE = 8, 32, 2, 2e-3
ROUNDS, LAST, SEEDS = 40, 5, 5
DATA = OUT / "grpo_beside_trl"
PAID = {"whole": "mean reward of all rounds", "end": f"mean reward of the last {LAST}"}


def reward(prompt: str, answer: str) -> float:
    """1 where the answer begins with a cell of the prompt's row."""
    return float(answer.strip()[:2] == prompt[:2])


class SameRow:
    """One turn: name a cell of the row."""

    name = "same_row"
    instructions = ""
    action_format = ActionFormat(r"[\s\S]*", "any text")
    templates: Mapping[str, Path] = {"policy": FrozenLake().templates["policy"]}
    replayable, markov = True, True

    def tasks(self, split: Split) -> Sequence[Task]:
        """A prompt each."""
        return [Task(f"{split}/{n}", split, n) for n in range(len(PROMPTS) if split != "validation" else 0)]

    async def reset(self, task: Task) -> str:
        """The prompt."""
        self._prompt = PROMPTS[task.seed]
        return self._prompt

    async def step(self, action: str) -> Step:
        """The one turn."""
        paid = reward(self._prompt, action)
        return Step("", paid, done=True, success=bool(paid))

    def validate(self) -> list[str]:
        """Nothing to check."""
        return []


def configuration(model: Path, seed: int) -> Config:
    """Of our side."""
    return Config.model_validate(
        {
            "run": f"grpo-{seed}",
            "algorithm": "grpo",
            "seed": seed,
            "model": {
                "name": str(model.resolve()), "train": "full", "dtype": "float32", "device": "cpu",
                "context_length": 64,
            },
            "engines": {"local": {"backend": "transformers", "max_batch": 64, "continuous": False}},
            "roles": {"all": {"engine": "local", "structured": False}, "policy": {"max_tokens": 1}},
            "environment": {"name": "benchmarks.learning.grpo_beside_trl:SameRow", "reward": "game"},
            "rollout": {"episodes": len(PROMPTS), "repeats": GROUP, "max_steps": 1},
            "policy": {
                "batch_rows": BATCH, "micro_batch_rows": BATCH, "epochs": PASSES, "learning_rate": RATE,
            },
            "evaluation": {"episodes": 4, "every": 1000, "baseline": False},
        }
    )  # fmt: skip


def ours(seed: int, rounds: int, data: Path) -> list[float]:
    """Mean reward of each round, of our stages."""
    store, paid = Store(data / "nlac"), []
    config = configuration(make_word_model(data / f"model-{seed}", seed), seed)
    for number in range(rounds):
        results = asyncio.run(run_iteration(store, config, number))
        made = {result.committed.manifest.stage: result.committed.manifest for result in results}
        paid.append(made["rollout"].metrics["mean_reward"])
    return paid


def theirs(seed: int, rounds: int, data: Path) -> list[float]:
    """The same of TRL's trainer."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    model = make_word_model(data / f"model-{seed}", seed)
    paid: list[float] = []

    def rewards(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        asked = [chat[-1]["content"].removeprefix("act ") for chat in prompts]
        said = [
            reward(prompt, answer[0]["content"]) for prompt, answer in zip(asked, completions, strict=True)
        ]
        paid.append(mean(said))
        return said

    chats = [[{"role": "user", "content": f"act {prompt}"}] for prompt in PROMPTS]
    rows = len(PROMPTS) * GROUP
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        reward_funcs=rewards,
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_list([{"prompt": chat} for chat in chats]),
        args=GRPOConfig(
            output_dir=str(data / f"trl-{seed}"), seed=seed, use_cpu=True, bf16=False, report_to="none",
            save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
            per_device_train_batch_size=BATCH, steps_per_generation=rows // BATCH, num_generations=GROUP,
            num_iterations=PASSES, max_steps=rounds * PASSES * rows // BATCH, max_completion_length=1,
            learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
            loss_type="grpo", scale_rewards="group", epsilon=0.2, beta=0.0, temperature=1.0, top_p=1.0, top_k=0,
        ),
    )  # fmt: skip
    trainer.train()
    return paid[:rounds]


def summarise(paid: Sequence[float]) -> dict[str, float]:
    """The figures of a run that sides are compared by."""
    return {"whole": mean(paid), "end": mean(paid[-LAST:])}


def among_theirs(sides: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Check]:
    """Whether the median of our seeds lies in the range of TRL's, for each figure."""
    checks = []
    for figure in PAID:
        our, their = ([run[figure] for run in sides[side]] for side in ("nlac", "trl"))
        checks += [
            check(f"{figure}_above_trl_lowest", median(our) - min(their), ">=", 0),
            check(f"{figure}_below_trl_highest", median(our) - max(their), "<=", 0),
        ]
    return checks


def main(
    seeds: Annotated[int, typer.Option(help="of each side")] = SEEDS,
    rounds: Annotated[int, typer.Option(help="of playing and training")] = ROUNDS,
) -> None:
    """Run both sides, seed by seed."""
    shutil.rmtree(DATA, ignore_errors=True)
    curves = {
        side: [run(seed, rounds, DATA) for seed in range(seeds)]
        for side, run in (("nlac", ours), ("trl", theirs))
    }
    sides = {side: [summarise(paid) for paid in runs] for side, runs in curves.items()}
    figures = {f"{side} {seed}": run for side, runs in sides.items() for seed, run in enumerate(runs)}
    print_figures("mean reward of all rounds, and of the last", figures)
    finish("grpo_beside_trl", "GRPO beside TRL", among_theirs(sides), curves=curves)


if __name__ == "__main__":
    typer.run(main)
