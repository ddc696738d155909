"""The clipped-ratio loss beside TRL's GRPOTrainer: the same single-turn rows, loss and gradients in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.config import ModelSection, PolicyGradientSection, TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.training.clipped_ratio import ClippedRatio, make_clipped_ratio
from tasks.training.data import Encoded
from tasks.training.job import PolicyGradient
from tasks.training.loss import label_logprobs
from tasks.training.optimizer import Optimizer
from tasks.training.step import take_step
from tasks.training.trainable import make_trainable
from tests.support.tiny_rows import encoded, gradients, sampled

BUDGET = 8  # tokens of the longest completion
ROWS = [
    sampled(1, (5, 9, 40, 77, 30), 1.3),
    sampled(2, (7, 8), -0.4),
    sampled(3, (50, 51, 52, 53), -1.1),
    sampled(4, (60, 61, 62, 63, 64, 65, 66), 0.7),
]


@pytest.fixture(scope="module")
def theirs(
    byte_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[PolicyGradientSection], Any]:
    """TRL's trainer, over the same checkpoint."""
    pytest.importorskip(
        "trl", reason="TRL is not installed: pip install -c constraints.txt -e '.[benchmarks]'"
    )
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    out, prompts = str(tmp_path_factory.mktemp("trl")), Dataset.from_list([{"prompt": "Guess!"}] * 4)

    def of(section: PolicyGradientSection) -> Any:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(byte_checkpoint, dtype=torch.float32),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            processing_class=AutoTokenizer.from_pretrained(byte_checkpoint),
            train_dataset=prompts,
            args=GRPOConfig(
                output_dir=out, use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=4,
                num_generations=4, max_completion_length=BUDGET, loss_type=section.normalisation,
                importance_sampling_level=section.level, epsilon=section.clip_low, epsilon_high=section.clip_high,
                beta=0.0, temperature=1.0, gradient_checkpointing=False,
            ),
        )  # fmt: skip
        trainer.use_vllm = section.importance_cap is not None  # the weights are among the inputs
        trainer.vllm_importance_sampling_correction = True
        trainer.model.eval()  # one batch, without accumulation
        return trainer

    return of


def inputs(rows: list[Encoded], ours: ClippedRatio, cap: float | None) -> dict[str, Any]:
    """Prompts padded on the left and completions on the right, as TRL has them."""
    width, longest = max(len(r.prompt_ids) for r in rows), max(len(r.label_ids) for r in rows)

    def padded(values: Any, to: int, fill: float, *, left: bool = False) -> list[Any]:
        padding = [fill] * (to - len(values))
        return [*padding, *values] if left else [*values, *padding]

    given = {
        "prompt_ids": [padded(r.prompt_ids, width, 0, left=True) for r in rows],
        "prompt_mask": [padded([1] * len(r.prompt_ids), width, 0, left=True) for r in rows],
        "completion_ids": [padded(r.label_ids, longest, 0) for r in rows],
        "completion_mask": [padded([1] * len(r.label_ids), longest, 0) for r in rows],
        "advantages": [r.sampled.advantage for r in rows if r.sampled],
        "old_per_token_logps": [padded(ours.old[r.row_id], longest, 0.0) for r in rows],
        "num_items_in_batch": sum(len(r.label_ids) for r in rows),
    }
    tensors = {name: torch.tensor(value) for name, value in given.items()}
    if cap is not None:
        engine = [padded(r.sampled.logprobs, longest, 0.0) for r in rows if r.sampled]
        weights = (tensors["old_per_token_logps"] - torch.tensor(engine)).exp().clamp(max=cap)
        tensors["importance_sampling_ratio"] = weights
    return tensors


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalisation": "dapo", "clip_high": 0.28},
        {"normalisation": "dr_grpo"},
        {"level": "sequence", "clip_low": 0.05, "clip_high": 0.1},
        {"importance_cap": 0.02},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "grpo",
)
def test_loss_and_gradients_are_those_of_trl(
    settings: dict[str, Any],
    theirs: Callable[[PolicyGradientSection], Any],
    model_section: ModelSection,
    chat: ChatTokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Old log-probabilities lie up to 0.4 to either side of today's, so that some ratios are clipped."""
    section = PolicyGradientSection.model_validate(settings)
    trainable = make_trainable(model_section.model_copy(update={"train": "full"}), None, 0)
    rows = encoded(chat, ROWS)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        now = label_logprobs(trainable.model, rows)
    old = {
        row.row_id: tuple((values + 0.8 * torch.rand(len(values), generator=noise) - 0.4).tolist())
        for row, values in zip(rows, now, strict=True)
    }
    ours = make_clipped_ratio(PolicyGradient(section, BUDGET), rows, old)
    assert ours is not None
    optimizer = Optimizer(trainable.parameters, TrainingSection(), None)
    monkeypatch.setattr(optimizer, "step", lambda: None)
    monkeypatch.setattr(optimizer, "clip", lambda: 1.0)
    record = take_step(trainable, optimizer, rows, 0, 4, None, ours)
    assert record.clipped_share
    mine = gradients(trainable)

    trl = theirs(section)
    expected = trl._compute_loss(trl.model, inputs(rows, ours, section.importance_cap))
    expected.backward()
    assert record.loss == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in trl.model.named_parameters():
        assert parameter.grad is not None
        assert (mine[name] - parameter.grad).norm() <= 1e-5 * parameter.grad.norm(), name
