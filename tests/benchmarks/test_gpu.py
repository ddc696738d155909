"""The benchmark of a GPU, where there is none."""

import pytest
import torch

from benchmarks.training import gpu


def test_without_a_gpu_it_says_so_and_writes_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "finish", lambda *args, **kwargs: written.append(args))
    gpu.main()
    assert "no CUDA GPU on this machine" in capsys.readouterr().out
    assert written == []
