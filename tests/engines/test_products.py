"""Products by oneDNN are those of torch up to rounding, and so are their gradients."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tasks.engines.products import (
    Product,
    add_product,
    by_onednn,
    in_float16,
    in_order,
    multiply,
    packed,
    product,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_that_of_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 24).to(dtype), torch.randn(7, 24).to(dtype)
    assert_close(product(x, weight), x @ weight.T)
    grad = torch.randn(10, 7).to(dtype)
    assert_close(product(grad, weight.T), grad @ weight)  # a transposed weight, as in a backward pass
    some = torch.randn(10, 9).to(dtype)[:, 2:6]  # columns of a larger matrix
    assert_close(product(grad.T, some.T), grad.T @ some)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_added_in_place(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    out, x, weight = torch.randn(5, 7).to(dtype), torch.randn(5, 4).to(dtype), torch.randn(7, 4).to(dtype)
    expected = torch.addmm(out, x, weight.T)
    assert add_product(out, x, weight) is out
    assert_close(out, expected)


@pytest.mark.parametrize("of_x", [True, False])
@pytest.mark.parametrize("of_weight", [True, False])
def test_gradients_of_a_product_are_those_of_a_linear_layer(of_x: bool, of_weight: bool) -> None:
    torch.manual_seed(0)
    x, weight, grad = torch.randn(2, 5, 24), torch.randn(7, 24), torch.randn(2, 5, 7)
    found = []
    for compute in (Product.apply, torch.nn.functional.linear):
        leaves = x.clone().requires_grad_(of_x), weight.clone().requires_grad_(of_weight)
        if of_x or of_weight:
            compute(*leaves).backward(grad)
        found.append([leaf.grad for leaf in leaves])
    for ours, theirs, asked in zip(*found, (of_x, of_weight), strict=True):
        assert (ours is not None) == asked
        assert_close(ours, theirs)


def test_an_ordered_weight_multiplies_like_the_weight() -> None:
    x, weight, bias = torch.randn(3, 24), torch.randn(7, 24), torch.randn(7)
    ordered = in_order(weight)
    assert (ordered is not None) == by_onednn(weight)
    if ordered is not None:
        assert_close(multiply(x, ordered, bias), torch.nn.functional.linear(x, weight, bias))
    assert in_order(weight.double()) is None


@pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines or not by_onednn(torch.zeros(1)),
    reason="torch has no FBGEMM beside MKL here",
)
def test_a_weight_is_packed_in_float16_only_where_that_holds_it_exactly() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(7, 24).bfloat16().float(), torch.randn(7)
    for shape in ((1, 24), (2, 40, 24), (2, 5, 48)):
        x = torch.randn(shape)[..., :24]
        for some in (bias, None):
            assert in_float16(weight, some) is not None
            layer = packed(weight, some)
            assert layer is not None
            assert_close(layer(x), torch.nn.functional.linear(x, weight, some))
            kept = packed(weight, some, any_place=True)
            assert isinstance(kept, partial) and kept.func is multiply
    for value in (1 + 2**-11, 2.0**16, 2.0**-25):
        other = weight.clone()
        other[0, 0] = value
        assert in_float16(other) is None
        layer = packed(other, bias)
        assert layer is not None
        assert_close(layer(x), torch.nn.functional.linear(x, other, bias), rtol=1e-5, atol=1e-5)
    assert in_float16(weight.bfloat16()) is None and packed(weight.double(), None) is None
