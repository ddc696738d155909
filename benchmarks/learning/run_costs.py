"""What a run's policy has cost, from what its stages committed. The view `comparison` says the same in SQL."""

from dataclasses import dataclass

from storage.store import Store
from tasks.pipeline.iterations import frozen_config
from tasks.pipeline.registry import stages_of

EVALUATION = "evaluation"  # measures a policy and is no part of its making


@dataclass(frozen=True)
class Costs:
    """Of all stages of some iterations but evaluation.

    Attributes:
        generated_tokens: written by models, and by the rules that play roles.
        trained_tokens: of the rows of all optimizer steps.
        seconds: of computing.
    """

    generated_tokens: int
    trained_tokens: int
    seconds: float


def run_costs(store: Store, run: str, iteration: int) -> Costs:
    """The costs of iterations 0..iteration, which are finished. A manifest counts all tokens of its stage; those
    trained on are the ones of its optimizer steps."""
    tokens, trained, seconds = 0, 0, 0.0
    for number in range(iteration + 1):
        config = frozen_config(store, run, number)
        assert config is not None, f"iteration {number} of {run} was begun"
        for stage in stages_of(config, number):
            made = None if stage == EVALUATION else store.committed(run, stage, number)
            if made is None:
                continue
            tokens += made.manifest.tokens
            seconds += made.manifest.seconds
            if "training_steps" in made.manifest.tables:
                trained += made.scan("training_steps").select("tokens").sum().collect().item() or 0
    return Costs(tokens - trained, trained, seconds)
