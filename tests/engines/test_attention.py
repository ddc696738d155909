"""The grouped attention gives what the library's gives."""

import pytest
import torch
from torch import nn

from tasks.engines.local.attention import grouped_sdpa


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("positions", [1, 5])
@pytest.mark.parametrize(("heads", "groups"), [(9, 3), (4, 4), (8, 1)])
def test_it_equals_attention_written_out(
    positions: int, heads: int, groups: int, dtype: torch.dtype, error: float
) -> None:
    torch.manual_seed(0)
    rows, context, width = 3, 11, 16
    query = torch.randn(rows, heads, positions, width)
    key, value = torch.randn(2, rows, groups, context, width)
    hidden = torch.zeros(rows, 1, positions, context, dtype=torch.bool)
    hidden[1, :, :, :4] = True  # left padding of one row
    layer = nn.Module()
    layer.num_key_value_groups = heads // groups
    layer.is_causal = False
    found, _ = grouped_sdpa(layer, query.to(dtype), key.to(dtype), value.to(dtype), ~hidden, scaling=0.3)
    assert found.dtype == dtype

    k, v = (t.repeat_interleave(heads // groups, dim=1) for t in (key, value))
    products = (query @ k.transpose(-1, -2) * 0.3).masked_fill(hidden, float("-inf"))
    expected = (products.softmax(-1) @ v).transpose(1, 2)
    torch.testing.assert_close(found.float(), expected, rtol=10 * error, atol=error)
