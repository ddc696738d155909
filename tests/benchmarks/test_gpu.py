"""The benchmark of a GPU, where there is none."""

import asyncio
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from schemas.config import ModelSection


def test_without_a_gpu_it_says_so_and_writes_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "finish", lambda *args, **kwargs: written.append(args))
    gpu.main()
    assert "no CUDA GPU on this machine" in capsys.readouterr().out
    assert written == []


@pytest.mark.slow
def test_a_model_of_random_weights_has_the_shape_of_another_and_generates(
    tiny_model: Path, tmp_path: Path
) -> None:
    same, shallow = tmp_path / "same", tmp_path / "shallow"
    gpu.write_random(tiny_model, same)
    gpu.write_random(tiny_model, shallow, {"num_hidden_layers": 1})
    assert gpu.weights_of(same) == gpu.weights_of(tiny_model)
    layers, head = gpu.weights_of(tiny_model)
    assert gpu.weights_of(shallow) == (layers // 2, head)
    section = ModelSection(name=str(same), device="cpu", dtype="float32")
    assert asyncio.run(gpu.generated_per_second(section, at_once=3, tokens=5)) > 0
