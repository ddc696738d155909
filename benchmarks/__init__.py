"""Measurements of the program, each one command that prints a table and writes `benchmarks/out/NAME.json`.

    learning/   does it learn: the proof on FrozenLake, its controls, baselines and ablations
    training/   LoRA training beside TRL, and on a GPU
    inference/  rollouts that wait for their environment, one engine for all stages
    overhead/   what the pipeline costs beside the work
    reliability/ what is lost when processes are killed
    data/       replay, SQL, commits and histories over ten million transitions

Nothing here computes anything of the algorithm, and nothing of the program imports it.
"""

from tasks.imports import allow_imports

allow_imports(["benchmarks"])  # some have an environment of their own
