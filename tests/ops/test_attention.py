"""Attention over edges, compiled and by operations of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ops_support import needs_cpu, same_with_any_threads
from torch import Tensor

from tg_lpe.ops import attention, cpu
from tg_lpe.ops.segment import RowGroups

NODES, EDGES = 40, 130
Rows = tuple[Tensor, Tensor, Tensor]


def sample(
    channels: int, dtype: torch.dtype, nodes: int = NODES, edges: int = EDGES
) -> tuple[Rows, RowGroups, RowGroups]:
    """Rows and ends of edges; the last nodes have none, and some scores are cut off."""
    generator = torch.Generator().manual_seed(0)
    target, source = (torch.randint(nodes - 2, (edges,), generator=generator) for _ in range(2))
    widths = (nodes, channels), (nodes, 2 * channels), (edges, channels)
    query, key_value, edge = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in widths)
    rows = tuple(x.to(dtype).requires_grad_() for x in (4 * query, key_value, edge))
    return rows, RowGroups(source, nodes, is_sorted=False), RowGroups(target.sort().values, nodes, is_sorted=True)


@needs_cpu
@pytest.mark.parametrize(("channels", "heads"), [(64, 8), (104, 8), (24, 2), (130, 1), (60, 3), (8, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("read", [lambda out, score: (out, score), lambda out, _: (out,), lambda _, score: (score,)])
def test_compiled(channels: int, heads: int, dtype: torch.dtype, read: Callable[..., tuple[Tensor, ...]]) -> None:
    """Values and gradients equal torch's in float64, rounded once."""
    rows, source, target = sample(channels, dtype)
    found = read(*attention.edge_attention(*rows, source, target, heads))
    grads = torch.autograd.grad(found, rows, [torch.ones_like(x) for x in found], materialize_grads=True)
    exact = tuple(x.detach().double().requires_grad_() for x in rows)
    with cpu.switched_off():
        expected = read(*attention.edge_attention(*exact, source, target, heads))
    wanted = torch.autograd.grad(expected, exact, [torch.ones_like(x) for x in expected], materialize_grads=True)
    for got, want in zip(found + grads, expected + wanted, strict=True):
        assert got.dtype == dtype
        error = (got.double() - want).norm() / want.norm().clamp(min=1e-3)
        assert error < {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]


@needs_cpu
def test_gradients_are_differentiable() -> None:
    rows, source, target = sample(18, torch.float64, 6, 9)

    def attend(*given: Tensor) -> tuple[Tensor, Tensor]:
        return attention.edge_attention(*given, source, target, 2)

    assert torch.autograd.gradcheck(attend, rows) and torch.autograd.gradgradcheck(attend, rows, fast_mode=True)


@needs_cpu
def test_threads_change_no_bit(threads: None) -> None:
    rows, source, target = sample(32, torch.float32, 3000, 9000)
    same_with_any_threads(lambda: attention.edge_attention(*rows, source, target, 4))


@needs_cpu
def test_refuses_edges_to_nodes_that_are_not_there() -> None:
    rows, source, target = sample(16, torch.float32)
    source.index[3] = NODES
    with pytest.raises(ValueError, match="edges must be sorted by target"):
        attention.edge_attention(*rows, source, target, 2)


def test_dropout() -> None:
    rows, source, target = sample(16, torch.float32)
    torch.manual_seed(0)
    found, _ = attention.edge_attention(*rows, source, target, 2, dropout=0.5)
    torch.manual_seed(0)
    with cpu.switched_off():
        again, _ = attention.edge_attention(*rows, source, target, 2, dropout=0.5)
    assert torch.equal(found, again) and not torch.equal(found, attention.edge_attention(*rows, source, target, 2)[0])
