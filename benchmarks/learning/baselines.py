"""The baselines on FrozenLake that are no part of the proof, one seed each: figures without bars.

    python -m benchmarks.learning.baselines

Figures go to benchmarks/out/baselines.json.
"""

from collections.abc import Sequence
from dataclasses import replace

import typer

from benchmarks.checks import OUT, finish, machine, print_figures
from benchmarks.learning.lake_run import Job, Measured
from benchmarks.learning.learning_curve import CORES, Processes, clean, curves, job, run_jobs
from benchmarks.learning.measured_run import at_steps, final

DATA = OUT / "baselines"


def baseline_jobs() -> dict[str, Job]:
    """NLAC's settings for one seed; what differs is what an algorithm is, and what self_distillation needs to be a
    fair baseline. React evaluates the untrained model once."""
    at_once = {"from_iteration": 0}  # no critic to train alone
    four = {**at_once, "futures": 4, "states": 256}
    often = {"epochs": 16}
    without_critic = (
        # With NLAC's 1,024 states and 2 epochs the first two iterations make 24 updates, after which 4% of the
        # policy's texts are actions, and by the third 244,000 steps have brought a success of .03. So: 64 updates,
        # 72%, and .21 after 54,000 steps (seed 0).
        job(
            "self_distillation-0", 0, data=DATA, algorithm="self_distillation", improvement=four, policy=often
        ),
        job("react-0", 0, 1, DATA, algorithm="react", improvement=at_once, evaluation={"every": 1}),
    )
    jobs = (
        job("nlql-0", 0, data=DATA, algorithm="nlql"),
        *(replace(j, critic_measured=()) for j in without_critic),
    )
    return {one.name.removesuffix("-0"): one for one in jobs}


def baseline_figures(measured: Sequence[Measured], steps: int) -> dict[str, float]:
    """Where a baseline ends, and where it stands once it has used `steps` environment steps, simulated ones counted."""
    then = at_steps(measured, steps)
    return {
        "iterations": len(measured),
        "environment_steps": measured[-1].environment_steps,
        "simulated_steps": measured[-1].simulated_steps,
        "sampled_success": final(measured, "sampled_success"),
        "optimal_states": final(measured, "optimal_states"),
        "compared_at_steps": steps,
        "iterations_then": len(then),
        "sampled_success_then": final(then, "sampled_success"),
    }


def main(processes: Processes = CORES) -> None:
    """Run them and compare at the environment steps that nlql uses, which collects as many episodes as NLAC and
    simulates none."""
    clean(DATA)
    runs = run_jobs(baseline_jobs(), processes)
    steps = runs["nlql"][-1].environment_steps
    figures = {name: baseline_figures(measured, steps) for name, measured in runs.items()}
    print_figures(f"Baselines ({machine()})", figures)
    finish("baselines", "Baselines", [], baselines=figures, curves=curves(runs))


if __name__ == "__main__":
    typer.run(main)
