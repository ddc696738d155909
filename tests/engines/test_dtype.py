"""Which type of weights `model.dtype: auto` is on a machine."""

import sys
from pathlib import Path

import pytest

from schemas.config import ModelSection
from tasks.engines.dtype import Choice, Dtype, choose_dtype, faster, on_gpu
from tasks.engines.models import ModelError
from tests.support.probe import stand_in_probe

MEASURED = Choice(dtype="bfloat16", reason="measured")


@pytest.fixture
def model(tiny_checkpoint: Path) -> ModelSection:
    return ModelSection(name=str(tiny_checkpoint), device="cpu")


@pytest.mark.parametrize(
    ("seconds", "chosen", "ratio"),
    [
        ({"float32": 1.0, "bfloat16": 3.64}, "float32", "3.6 times as fast as bfloat16"),
        ({"float32": 8.0, "bfloat16": 1.0}, "bfloat16", "8.0 times as fast as float32"),
        ({"float32": 1.0, "bfloat16": 1.0}, "bfloat16", "1.0 times as fast as float32"),
    ],
)
def test_a_cpu_takes_the_faster_type(seconds: dict[Dtype, float], chosen: str, ratio: str) -> None:
    choice = faster(seconds, "in products of a test")
    assert (choice.dtype, choice.reason) == (chosen, f"{ratio} in products of a test")


def test_a_gpu_takes_bfloat16_where_it_has_it() -> None:
    assert on_gpu("NVIDIA H100", True).dtype == "bfloat16"
    without = on_gpu("Tesla T4", False)
    assert without.dtype == "float32" and "Tesla T4" in without.reason


def test_a_named_type_is_taken_without_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert choose_dtype(ModelSection(dtype="bfloat16")) == Choice(dtype="bfloat16", reason="as configured")


def test_a_probe_is_remembered_for_its_processor_threads_and_model(
    model: ModelSection, byte_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stand_in_probe(tmp_path, MEASURED):
        assert choose_dtype(model, tmp_path / "cache") == MEASURED
    monkeypatch.setattr(sys, "executable", "/bin/false")  # another probe would fail
    assert choose_dtype(model, tmp_path / "cache") == MEASURED
    other = model.model_copy(update={"name": str(byte_checkpoint)})
    with pytest.raises(ModelError, match=r"model\.dtype: .* set it to float32 or bfloat16"):
        choose_dtype(other, tmp_path / "cache")
    with monkeypatch.context() as patch, pytest.raises(ModelError):
        patch.setenv("OMP_NUM_THREADS", "7")
        choose_dtype(model, tmp_path / "cache")
    monkeypatch.setattr("tasks.engines.dtype._processor", lambda: {"name": "another", "flags": "amx_bf16"})
    with pytest.raises(ModelError):
        choose_dtype(model, tmp_path / "cache")


def test_a_broken_or_unwritable_cache_costs_a_probe(model: ModelSection, tmp_path: Path) -> None:
    with stand_in_probe(tmp_path, MEASURED):
        choose_dtype(model, tmp_path / "cache")
        (kept,) = (tmp_path / "cache" / "dtype").iterdir()
        kept.write_text("{")
        assert choose_dtype(model, tmp_path / "cache") == MEASURED
        (tmp_path / "file").write_text("no folder")
        assert choose_dtype(model, tmp_path / "file") == MEASURED
