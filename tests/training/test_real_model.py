"""Training SmolLM2-135M itself."""

from pathlib import Path

import pytest

from schemas.config import LoraSection, ModelSection, TrainingSection
from tasks.engines.dtype import Dtype
from tests.support.tiny_rows import train_tiny

pytestmark = [pytest.mark.model, pytest.mark.long]


def test_a_few_steps_fit_the_rows_better(real_model: Path, fast_dtype: Dtype, tmp_path: Path) -> None:
    model = ModelSection(
        name=str(real_model), dtype=fast_dtype, context_length=256, lora=LoraSection(r=4, alpha=8)
    )
    section = TrainingSection(batch_rows=8, micro_batch_rows=8, learning_rate=1e-3, epochs=3)
    result = train_tiny(model, tmp_path / "out", section, tau=0.25)
    losses = [step.loss for step in result.steps]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert result.target_moved == pytest.approx(1 - 0.75**3)
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").stat().st_size > 0
