"""Training all weights: what differs from adapters, and that nothing else does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from schemas.config import ModelSection, TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.engines.local.adapters import AdapterPool, load_model
from tasks.engines.protocol import Adapter
from tasks.training.adapters import adapter_digest
from tasks.training.data import encode
from tasks.training.records import TrainingError, TrainingResult
from tests.support.tiny_rows import CRITICS, by_hand, train_tiny

SECTION = TrainingSection(batch_rows=4, micro_batch_rows=2, learning_rate=0.003)
FILES = ["config.json", "generation_config.json", "model.safetensors"]


@pytest.fixture
def full(model_section: ModelSection) -> ModelSection:
    return model_section.model_copy(update={"train": "full"})


def run(model: ModelSection, out: Path, section: TrainingSection = SECTION, **changes: Any) -> TrainingResult:
    return train_tiny(model, out, section, **({"tau": 0.25} | changes))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_full_run_leaves_ordinary_float32_checkpoints_the_same_bytes_each_time(
    full: ModelSection, tmp_path: Path, dtype: str
) -> None:
    section = full.model_copy(update={"dtype": dtype})
    for out in ("a", "b"):
        run(section, tmp_path / out)
        torch.rand(3)  # the process's random state plays no part
    for folder in ("adapter", "target"):
        assert sorted(path.name for path in (tmp_path / "a" / folder).iterdir()) == FILES
        for file in FILES:
            one, other = (tmp_path / out / folder / file for out in ("a", "b"))
            assert one.read_bytes() == other.read_bytes()
        assert {value.dtype for value in weights(tmp_path / "a" / folder).values()} == {torch.float32}
    assert (tmp_path / "a" / "optimizer.pt").read_bytes() == (tmp_path / "b" / "optimizer.pt").read_bytes()


def test_all_weights_move_and_tied_ones_are_one(full: ModelSection, tmp_path: Path) -> None:
    run(full, tmp_path)
    before, after = weights(Path(full.name)), weights(tmp_path / "adapter")
    assert before.keys() == after.keys() and "lm_head.weight" not in after
    assert all(not torch.equal(before[name], after[name]) for name in after)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_the_target_is_the_average_by_hand_and_resumes(full: ModelSection, tmp_path: Path) -> None:
    """One step from the model, then one from what it left: theta_bar = .75 theta_bar + .25 theta each time."""
    rows = {"main": CRITICS[:4], "other": [], "mix": 0.0}
    run(full, tmp_path / "one", **rows)
    left = {name: tmp_path / "one" / folder for name, folder in (("start", "adapter"), ("target", "target"))}
    run(full, tmp_path / "two", **rows, **left)
    start, first, second = (
        weights(p) for p in (Path(full.name), tmp_path / "one" / "adapter", tmp_path / "two" / "adapter")
    )
    for name, value in weights(tmp_path / "two" / "target").items():
        expected = 0.75 * (0.75 * start[name] + 0.25 * first[name]) + 0.25 * second[name]
        torch.testing.assert_close(value, expected)


def test_a_break_with_carried_state_equals_no_break(full: ModelSection, tmp_path: Path) -> None:
    """Two epochs of one batch equal one and one."""
    rows = {"main": CRITICS[:4], "other": [], "mix": 0.0}
    section = SECTION.model_copy(update={"epochs": 2, "warmup_steps": 3, "weight_decay": 0.01})
    once = section.model_copy(update={"epochs": 1})
    whole = run(full, tmp_path / "whole", section, **rows)
    first = run(full, tmp_path / "first", once, **rows)
    at = tmp_path / "first"
    carried = {"start": at / "adapter", "target": at / "target", "optimizer": at / "optimizer.pt"}
    second = run(full, tmp_path / "second", once, **rows, **carried)
    losses = [step.loss for step in (*first.steps, *second.steps)]
    assert losses == pytest.approx([step.loss for step in whole.steps], rel=1e-5)
    for folder in ("adapter", "target"):
        apart = weights(tmp_path / "second" / folder)
        for name, value in weights(tmp_path / "whole" / folder).items():
            torch.testing.assert_close(apart[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_engine_plays_the_trained_weights_without_a_tokenizer_beside_them(
    full: ModelSection, chat: ChatTokenizer, tmp_path: Path, in_place: bool
) -> None:
    """On a GPU in the place of the model's own, which come back when they are asked for."""
    run(full, tmp_path)
    folder = tmp_path / "adapter"
    base = load_model(full.name, None, torch.float32, "cpu", "sdpa")
    pool = AdapterPool(base, merge=False, in_place=in_place)
    row = encode(CRITICS[1], chat, 256)
    trained = Adapter("policy@00000", folder, adapter_digest(folder))
    for asked, weights in ((trained, folder), (None, Path(full.name)), (trained, folder)):
        with pool.under(asked) as model, torch.inference_mode():
            played = by_hand(model, row)
            assert (model is base) == (in_place or asked is None)
        expected = by_hand(AutoModelForCausalLM.from_pretrained(weights), row)
        torch.testing.assert_close(played, expected, rtol=1e-4, atol=1e-5)


def test_a_digest_of_a_checkpoint_is_of_its_weights_and_configuration(
    full: ModelSection, tmp_path: Path
) -> None:
    run(full, tmp_path)
    assert adapter_digest(tmp_path / "adapter") != adapter_digest(tmp_path / "target")
    config, before = tmp_path / "adapter" / "config.json", adapter_digest(tmp_path / "adapter")
    text = config.read_text()
    config.write_text(text.replace('"transformers_version": "', '"transformers_version": "0'))
    assert adapter_digest(tmp_path / "adapter") == before
    config.write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.5'))
    assert adapter_digest(tmp_path / "adapter") != before


def test_the_other_form_is_refused_both_ways_and_as_a_target(
    full: ModelSection, model_section: ModelSection, tmp_path: Path
) -> None:
    run(full, tmp_path / "full")
    run(model_section, tmp_path / "lora")
    for section, other, fitting, form in (
        (full, tmp_path / "lora", tmp_path / "full", "lora"),
        (model_section, tmp_path / "full", tmp_path / "lora", "full"),
    ):
        with pytest.raises(TrainingError, match=rf"set model\.train back to {form}"):
            run(section, tmp_path / "out", start=other / "adapter")
        with pytest.raises(TrainingError, match=rf"set model\.train back to {form}"):
            run(section, tmp_path / "out", start=fitting / "adapter", target=other / "target")
        with pytest.raises(TrainingError, match="optimizer: reset"):
            run(section, tmp_path / "out", optimizer=other / "optimizer.pt")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_another_model_or_a_torn_one_is_refused(full: ModelSection, tmp_path: Path) -> None:
    run(full, tmp_path)
    config = tmp_path / "adapter" / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.5'))
    with pytest.raises(TrainingError, match=r"not of model\.name .* rms_norm_eps"):
        run(full, tmp_path / "out", start=tmp_path / "adapter")
    config.write_text(text)
    file = tmp_path / "adapter" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(TrainingError, match=r"adapter: this checkpoint can't be read"):
        run(full, tmp_path / "out", start=tmp_path / "adapter")


def test_bfloat16_training_keeps_changes_below_bfloat16_resolution(
    full: ModelSection, tmp_path: Path
) -> None:
    section = SECTION.model_copy(update={"learning_rate": 1e-6})
    run(full.model_copy(update={"dtype": "bfloat16"}), tmp_path, section)
    moved = weights(tmp_path / "adapter")["model.layers.0.mlp.up_proj.weight"]
    start = weights(Path(full.name))["model.layers.0.mlp.up_proj.weight"]
    assert 0 < (moved - start).abs().max() < 1e-5


def test_the_rate_is_the_sections_times_its_share_of_the_iteration(
    full: ModelSection, tmp_path: Path
) -> None:
    """From 1 in iteration 2 to .1 in iteration 12: .55 halfway. It stays the same within a stage."""
    section = SECTION.model_copy(update={"decay_from": 2, "decay_until": 12, "warmup_steps": 2})
    shares = [section.lr_scale(iteration) for iteration in (0, 2, 7, 12, 20)]
    assert shares == pytest.approx([1.0, 1.0, 0.55, 0.1, 0.1])
    result = run(full, tmp_path, section, lr_scale=shares[2])
    assert [step.learning_rate for step in result.steps] == pytest.approx([0.55 * 0.0015, 0.55 * 0.003])
