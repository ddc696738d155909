"""What a test asks of the processor."""

import pytest
import torch

computes_long = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "AVX2",
    reason="computes for three to thirty minutes on a processor with AVX2 alone",
)
