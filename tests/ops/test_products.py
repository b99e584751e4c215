"""Linear maps by our own product."""

from __future__ import annotations

import pytest
import torch
from helpers import normal
from ops_support import needs_cpu

from tg_lpe.nn.linear import Linear
from tg_lpe.ops import cpu, products
from tg_lpe.ops.products import compiled_product

pytestmark = needs_cpu


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (7, 300, 65), (100, 33, 128), (5, 0, 3), (0, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_product(rows: int, inner: int, columns: int, dtype: torch.dtype) -> None:
    a, b = normal(rows, inner, dtype=dtype), normal(inner, columns, seed=1, dtype=dtype)
    bias = normal(columns, seed=2, dtype=dtype)
    tolerance = {"rtol": 0.0, "atol": 1e3 * torch.finfo(dtype).eps}  # of sums of up to 300 products
    for left in (a, a.mT.contiguous().mT):
        for right in (b, b.mT.contiguous().mT):
            torch.testing.assert_close(compiled_product(left, right, None), a @ b, **tolerance)
            torch.testing.assert_close(compiled_product(left, right, bias), torch.addmm(bias, a, b), **tolerance)


def test_a_row_is_the_same_in_every_batch_and_on_all_threads(threads: None) -> None:
    a, b = torch.randn(4001, 96), torch.randn(96, 80)
    whole = compiled_product(a, b, None)
    assert torch.equal(compiled_product(a[13:14], b, None), whole[13:14])
    for count in (1, 2):
        torch.set_num_threads(count)
        assert torch.equal(compiled_product(a, b, None), whole)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_has_the_gradients_of_torch(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Second ones too."""
    monkeypatch.setattr(products, "processor_suits", lambda: True)
    linear = Linear(20, 30, bias=bias)
    found = []
    for off in (False, True):
        x = torch.randn(100, 20, generator=torch.Generator().manual_seed(0), requires_grad=True)
        inputs = [x, *linear.parameters()]
        with cpu.switched_off() if off else torch.enable_grad():
            out = linear(x)
            first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
            second = torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs)
        found.append((out, *first, *second))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_refuses_matrices_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="cannot multiply"):
        compiled_product(torch.ones(2, 3), torch.ones(2, 3), None)
    with pytest.raises(ValueError, match="bias must be"):
        compiled_product(torch.ones(2, 3), torch.ones(3, 2), torch.ones(3))
