"""Milliseconds of a step of decoding and of reading a prompt on a CPU: how threads wait, how weights are packed.

    python -m benchmarks.inference.decoding_step measure [--dtype float32] [--rounds 3]

SmolLM2-135M without an adapter; rows hold 400 tokens, as in the default run's stages. Each setting is a process of its
own, and the settings take turns; medians over the rounds of the fastest of 20 steps. The limits on instructions of
`benchmarks.overhead.laptop` stand in for other processors.

    sleeping    threads that wait for each other sleep at once (OMP_WAIT_POLICY=PASSIVE)
    spinning    they wait as long as libgomp's own choice is
    plain       as shipped, but weights are not packed
    ordered     as shipped, but weights are packed by oneDNN alone, in their own type

decoding_step_vs_*: the step of 8 rows in that setting, to the step as shipped.
"""

import json
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from benchmarks.checks import check, finish, print_figures
from benchmarks.processes import run_module
from schemas.config import ModelSection
from tasks.thread_waits import SPINS

Dtype = Literal["float32", "bfloat16"]
SHORT = {"GOMP_SPINCOUNT": str(SPINS)}
SETTINGS: dict[str, dict[str, str]] = {
    "shipped": SHORT, "sleeping": {"OMP_WAIT_POLICY": "PASSIVE"}, "spinning": {}, "plain": SHORT, "ordered": SHORT
}  # fmt: skip
HELD, STEPS = 400, 20
ROWS = (1, 8, 16)
READ = (4, 200)  # prompts, tokens of each
READING = f"reading {READ[0]} x {READ[1]}"

app = typer.Typer(add_completion=False)


@app.command(hidden=True)
def once(setting: str, dtype: Dtype, out: Path) -> None:
    """Measure one setting in this process; the figures are written as JSON."""
    import torch

    from tasks.engines.local.adapters import load_model
    from tasks.engines.local.attention import register
    from tasks.engines.local.kv_cache import KVCache
    from tasks.engines.local.packed_weights import pack
    from tasks.engines.models import resolve_model

    model = load_model(resolve_model(ModelSection()), None, getattr(torch, dtype), "cpu", register())
    if setting != "plain":
        pack(model, any_place=setting == "ordered")
    torch.manual_seed(0)
    figures = {}

    def fastest(cache: KVCache, tokens: torch.Tensor, known: int, times: int) -> float:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            if known:
                cache.decode(model, [known] * len(tokens), tokens)
            else:
                cache.prefill(model, range(len(tokens)), [0] * len(tokens), tokens)
            taken.append(time.perf_counter() - began)
        return 1000 * min(taken)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randint(model.config.vocab_size, shape)

    with torch.inference_mode():
        for rows in ROWS:
            figures[f"{rows} rows"] = fastest(KVCache(model, rows), drawn(rows, 1), HELD, STEPS)
        figures[READING] = fastest(KVCache(model, READ[0]), drawn(*READ), 0, STEPS // 4)
    out.write_text(json.dumps(figures))


@app.command()
def measure(dtype: Dtype = "bfloat16", rounds: Annotated[int, typer.Option(min=1)] = 3) -> None:
    """Measure all settings in turn, and print their medians."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        os.environ.pop(name, None)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with TemporaryDirectory() as folder:
        out, log = Path(folder) / "figures.json", Path(folder) / "log"
        for _ in range(rounds):
            for setting, environment in SETTINGS.items():
                run_module(__spec__.name, "once", setting, dtype, out, log=log, environment=environment)
                for what, milliseconds in json.loads(out.read_text()).items():
                    found[setting][what].append(milliseconds)
    medians = {
        setting: {what: statistics.median(all_rounds) for what, all_rounds in of.items()}
        for setting, of in found.items()
    }
    print_figures(f"ms in {dtype}", {setting: medians[setting] for setting in SETTINGS})
    shipped = medians["shipped"]["8 rows"]
    others = [setting for setting in SETTINGS if setting != "shipped"]
    checks = [
        check(f"decoding_step_vs_{setting}_{dtype}", medians[setting]["8 rows"] / shipped, ">=", 0.95)
        for setting in others
    ]
    finish("decoding_step", "A step of decoding", checks, medians=medians)


if __name__ == "__main__":
    app()
