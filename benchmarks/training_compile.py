"""What `torch.compile` would give to training on a CPU: `python -m benchmarks.training_compile`.

Two rows of 256 tokens through the decoder, forth and back, on one core: with the program's own layers, with plain LoRA
layers in bfloat16 and transformers' attention written out, and with those compiled. Needs a C++ compiler.
"""

import time
from collections.abc import Callable

import torch
import typer
from peft.helpers import disable_input_dtype_casting
from transformers import AutoModelForCausalLM

from benchmarks.checks import print_figures, write_checks
from schemas.config import ModelSection
from tasks.engines.models import resolve_model
from tasks.training.lora import fresh_adapter
from tasks.training.loss import autocast
from tasks.training.packing import hidden_states
from tasks.training.tuned import make_tuned

ROWS, LENGTH = 2, 256


def speed(states: Callable[[], torch.Tensor], passes: int) -> dict[str, float]:
    """Seconds of the first pass, and tokens a CPU second of the fastest of those behind the second."""

    def step() -> float:
        began = time.process_time()
        states().float().square().mean().backward()
        return time.process_time() - began

    began = time.perf_counter()
    step()
    first = time.perf_counter() - began
    step()
    return {
        "first pass, s": first,
        "tokens per CPU second": ROWS * LENGTH / min(step() for _ in range(passes)),
    }


def main(model: str = ModelSection().name, passes: int = 6) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    section = ModelSection(name=model, device="cpu")
    ids = torch.randint(0, 1000, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    tuned = make_tuned(section, None, seed=0)
    plain = AutoModelForCausalLM.from_pretrained(
        str(resolve_model(section)), dtype=torch.bfloat16, attn_implementation="eager"
    )
    adapted = fresh_adapter(plain, section, seed=0).to(torch.bfloat16)
    decoder = adapted.get_base_model().get_decoder()
    compiled = torch.compile(decoder)

    def ours() -> torch.Tensor:
        with autocast(tuned.model, tuned.dtype):
            return hidden_states(tuned.model, ids.tolist(), 0)[0]

    with disable_input_dtype_casting(tuned.model):
        figures = {"ours": speed(ours, passes)}
    figures["plain"] = speed(lambda: decoder(input_ids=ids, use_cache=False).last_hidden_state, passes)
    figures["plain, compiled"] = speed(
        lambda: compiled(input_ids=ids, use_cache=False).last_hidden_state, passes
    )
    print_figures("training through a decoder, one core", figures)
    write_checks("training_compile", [], figures=figures)


if __name__ == "__main__":
    typer.run(main)
