"""Learned conductances against their definition, one directed edge at a time in numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import few, graphs, listings, normal, randomize_, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe import Graph
from tg_lpe.nn.conductances import LearnedConductances

EDGES = torch.tensor([[0, 1, 1, 2, 3, 3], [1, 0, 2, 1, 3, 2]])  # (0, 1) and (1, 2) both ways, (2, 3) once, a loop
NODE_TYPES = torch.tensor([2, 0, 1, 2, 0])
EDGE_TYPES = torch.tensor([0, 1, 2, 2, 1, 0])
KINDS = ("types", "features", "nothing")


def softplus(value: Any) -> np.ndarray:
    return np.logaddexp(0.0, np.asarray(value, dtype=np.float64))


def positive(num_filters: int = 3, edges: str = "types", nodes: str = "types", **options: Any) -> LearnedConductances:
    edge_options = {"types": {"num_edge_types": 3}, "features": {"edge_dim": 2}, "nothing": {}}[edges]
    node_options = {"types": {"num_node_types": 3}, "features": {"in_channels": 2}, "nothing": {}}[nodes]
    return randomize_(LearnedConductances(num_filters, **edge_options, **node_options, **options)).double()


def raw_rows(state: dict[str, Tensor], name: str, feature: Tensor | None, num_rows: int) -> np.ndarray:
    """Values before softplus, ``[num_rows, num_filters]``, from the parameters called ``name``."""
    table = state[f"{name}.table"].numpy()
    if f"{name}.weight" in state:
        return np.stack([table[0] + state[f"{name}.weight"].numpy().T @ row for row in feature.numpy()])
    return np.stack([table[0 if feature is None else int(feature.view(-1)[i])] for i in range(num_rows)])


def features(kind: str, types: Tensor, seed: int) -> Tensor | None:
    return {"types": types, "features": normal(types.numel(), 2, seed=seed), "nothing": None}[kind]


@few
@given(st.data(), st.sampled_from(KINDS), st.sampled_from(KINDS), st.booleans(), st.booleans())
def test_against_numpy(data: st.DataObject, edges: str, nodes: str, weighted: bool, ground: bool) -> None:
    part = data.draw(graphs(min_nodes=1, exponents=(-5.0, 5.0)))
    index, weight = data.draw(listings(part))
    n, m = part.num_nodes, index.size(1)
    model = positive(edges=edges, nodes=nodes, ground=ground)
    state = model.state_dict()
    x, edge_attr = features(nodes, torch.arange(n) % 3, 1), features(edges, torch.arange(m) % 3, 2)
    graph = Graph(index, n, edge_weight=weight if weighted else None)
    w, q = model(graph, x, edge_attr)
    if not ground:
        assert q is None
    else:
        assert relative_error(q, softplus(raw_rows(state, "ground", x, n)).T) < 1e-13
    given = dict(zip(part.edges, part.weights, strict=True)) if weighted else dict.fromkeys(part.edges, 1.0)
    if edges == "nothing":
        assert (w is None) == (not weighted)
        expected = np.array([[given[e] for e in part.edges]] * 3)
    elif not part.edges:
        expected = np.zeros((3, 0))
    else:
        raw = raw_rows(state, "edge", edge_attr, m)
        rows = {e: [] for e in part.edges}
        for (u, v), row in zip(index.T.tolist(), softplus(raw), strict=True):
            if u != v:
                rows[min(u, v), max(u, v)].append(row)
        expected = np.stack([given[e] * np.mean(rows[e], axis=0) for e in part.edges], axis=1)
    if w is not None:
        assert relative_error(w, expected) < 1e-12


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


@pytest.mark.parametrize("kind", ["types", "features"])
def test_gradients(kind: str) -> None:
    model = positive(2, kind, kind)
    x, edge_attr = features(kind, NODE_TYPES, 1), features(kind, EDGE_TYPES, 2)
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == (2 if kind == "types" else 4)

    def of(both: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        graph = Graph(EDGES, 5, edge_weight=both[[0, 0, 1, 1, 3, 2]])
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (graph, x, edge_attr))

    given = torch.tensor([0.5, 2.0, 1.5, 7.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(of, [t.detach().clone().requires_grad_() for t in (given, *model.parameters())])


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
