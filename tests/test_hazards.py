"""Corner cases where a plausible implementation returns NaN, a stale value or the value of another graph."""

from __future__ import annotations

import torch

from tg_lpe import Graph, LinearTransformer
from tg_lpe.encoders import Inputs
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors

TRIANGLE = torch.tensor([[0, 1, 2], [1, 2, 0]])
RING = torch.stack([torch.arange(23), (torch.arange(23) + 1) % 23])


def test_gradients_past_zero_columns_are_finite() -> None:
    """A graph with fewer nodes than columns: its own eigenvectors as probes have columns of zeros."""
    graph = Graph(TRIANGLE, 3)
    probes = laplacian_eigenvectors(graph, 8)[0].float()
    assert (probes.norm(dim=0) == 0).any()
    model = LinearTransformer(k=8)
    model.encode(graph, Inputs(), probes=probes).node.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert any(p.grad.abs().sum() > 0 for p in model.parameters() if p.grad is not None)

    model = LinearTransformer(k=4, probes="features", in_channels=4)
    x = torch.randn(3, 4)
    x[:, 1] = 0
    torch.nn.init.zeros_(model.probes.linear.bias)
    with torch.no_grad():
        model.probes.linear.weight.copy_(torch.eye(4))
    model(x, TRIANGLE).node.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_training_after_inference_mode() -> None:
    model = LinearTransformer(k=1)
    with torch.inference_mode():
        model(None, RING)
    model(None, RING).node.sum().backward()
    assert model.readout.weight.grad is not None and model.readout.weight.grad.isfinite().all()
