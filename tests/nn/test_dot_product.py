"""Attention among tokens against torch's own, in every way that it is computed."""

from __future__ import annotations

import pytest
import torch
from helpers import relative_error
from torch import Tensor, nn
from torch.nn import functional

from tg_lpe.encoders.spectral import TokenTransformer
from tg_lpe.nn.dot_product import ROWS_AT_ONCE, dot_product_attention, token_attention


def tokens(num_rows: int, num_tokens: int, heads: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return queries, keys and values in float64, and a mask of absent tokens, never the first."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, num_tokens, 3, heads, width, generator=generator, dtype=torch.float64)
    absent = torch.rand(num_rows, num_tokens, generator=generator) < 0.4
    absent[:, :1] = False
    return rows, absent


def by_torch(rows: Tensor, absent: Tensor) -> Tensor:
    query, key, value = rows.permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(query, key, value, ~absent[:, None, None]).transpose(1, 2)


@pytest.mark.parametrize(
    ("num_rows", "num_tokens", "heads", "width"),
    [
        (1, 1, 1, 1),
        (7, 10, 4, 2),
        (ROWS_AT_ONCE + 3, 5, 2, 3),
        (2 * ROWS_AT_ONCE, 3, 1, 4),
        (5, 30, 2, 8),
        (0, 4, 2, 2),
    ],
)
def test_equals_torch_with_gradients(num_rows: int, num_tokens: int, heads: int, width: int) -> None:
    rows, absent = tokens(num_rows, num_tokens, heads, width)
    direction = torch.randn(num_rows, num_tokens, heads, width, dtype=torch.float64)
    found = []
    for attention in (token_attention, by_torch):
        leaf = rows.clone().requires_grad_()
        out = attention(leaf, absent)
        found.append((out.detach(), *torch.autograd.grad((out * direction).sum(), leaf)))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(40, 10, 4, 2), (6, 30, 2, 8)])
def test_bfloat16_is_float32_rounded(shape: tuple[int, int, int, int]) -> None:
    """Sums and exponentials are not in bfloat16, also under autocast."""
    rows, absent = tokens(*shape)
    low = rows.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got = token_attention(low, absent)
        query, key, value = low.permute(2, 0, 3, 1, 4)
        padded = dot_product_attention(query, key, value, ~absent[:, None, None]).transpose(1, 2)
    expected = by_torch(low.double(), absent)
    for found in (got, padded):
        assert found.dtype == torch.bfloat16
        assert (found.double() - expected).abs().max() <= 2**-8 * expected.abs().max()


@pytest.mark.parametrize("training", [True, False])
def test_layers_are_those_of_torch(training: bool) -> None:
    net = TokenTransformer(3, 8, 2, 4, 16, dropout=0.0).double().train(training)
    inputs = torch.randn(9, 10, 3, dtype=torch.float64)
    absent = tokens(9, 10, 1, 1)[1]
    layer = nn.TransformerEncoderLayer(8, 4, 16, 0.0, batch_first=True, dtype=torch.float64)
    reference = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    reference.layers.load_state_dict(net.layers.state_dict())
    expected = reference(net.linear(inputs), src_key_padding_mask=absent)
    expected = expected.masked_fill(absent.unsqueeze(2), 0.0).sum(1)
    assert relative_error(net(inputs, absent), expected) < 1e-12
