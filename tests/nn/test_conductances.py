"""Learned conductances: where they start, and far from there; values are those of the Gram transformer's tests."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import normal, randomize_
from torch import Tensor

from tg_lpe import Graph
from tg_lpe.nn.conductances import LearnedConductances


def test_start() -> None:
    """The first filter is a random walk; the conductances of the others are log-normal as documented."""
    torch.manual_seed(0)
    model = LearnedConductances(2001, num_edge_types=4, num_node_types=3)
    w, q = (torch.nn.functional.softplus(part.table) for part in (model.edge, model.ground))
    torch.testing.assert_close(w[:, 0], torch.ones(4))
    torch.testing.assert_close(q[:, 0], torch.full((3,), 0.01))
    for values, median, spread in ((w[:, 1:], 1.0, 0.5), (q[:, 1:], 0.1, 1.0)):
        logs = values.detach().double().log().numpy().ravel()
        assert abs(logs.mean() - math.log(median)) < 5 * spread / math.sqrt(logs.size)
        assert abs(logs.std() / spread - 1) < 5 / math.sqrt(2 * logs.size)
    linear = LearnedConductances(3, edge_dim=2, in_channels=5)
    torch.testing.assert_close(torch.nn.functional.softplus(linear.edge.table[0, 0]), torch.tensor(1.0))


@pytest.mark.parametrize("options", [{}, {"edge_dim": 2, "in_channels": 2}], ids=["types", "features"])
def test_gradients(options: dict[str, int]) -> None:
    """With respect to the weights of the edges, too, one of which is listed both ways."""
    model = randomize_(LearnedConductances(2, **(options or {"num_edge_types": 3, "num_node_types": 3}))).double()
    edges, kinds = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 3]]), torch.tensor([0, 1, 2, 2])
    x, edge_attr = (normal(4, 2), normal(4, 2, seed=1)) if options else (kinds.flip(0), kinds)
    names, values = zip(*model.named_parameters(), strict=True)

    def of(weight: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        given = Graph(edges, 4, edge_weight=weight[[0, 0, 1, 2]]), x, edge_attr
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), given)

    inputs = torch.tensor([0.5, 2.0, 7.0], dtype=torch.float64), *values
    assert torch.autograd.gradcheck(of, [value.detach().clone().requires_grad_() for value in inputs])


def test_conductances_stay_positive_where_training_runs_away() -> None:
    model = LearnedConductances(2, num_edge_types=2, num_node_types=1)
    with torch.no_grad():
        model.edge.table.copy_(torch.tensor([[-80.0, 80.0], [0.0, 1e4]]))
        model.ground.table.fill_(-80.0)
    graph = Graph(torch.tensor([[0, 1], [1, 2]]), 3)
    w, q = model(graph, torch.zeros(3, dtype=torch.int64), torch.tensor([0, 1]))
    assert (w > 0).all() and w.isfinite().all() and (q > 0).all()
    (w.log().sum() + q.log().sum()).backward()
    assert model.edge.table.grad.isfinite().all() and model.ground.table.grad.isfinite().all()
