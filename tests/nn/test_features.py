"""Integer features of one or several columns: embeddings, conductances and probes add up the rows of each column."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import normal, refusals

from tg_lpe import GramTransformer, Graph, GraphTransformer, LinearTransformer
from tg_lpe.encoders import Inputs
from tg_lpe.nn.conductances import LearnedConductances
from tg_lpe.nn.features import Feature
from tg_lpe.ops.checks import ValueChecks

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
X = torch.tensor([[4, 0], [1, 2], [0, 1], [2, 2]])
EDGE_ATTR = torch.tensor([[0, 1, 0], [0, 1, 0], [2, 0, 1], [2, 0, 1], [1, 1, 1], [1, 1, 1]])


@pytest.mark.parametrize("by_product", [False, True])
def test_rows_of_all_columns_are_added(by_product: bool) -> None:
    table = normal(8, 3).requires_grad_()
    found = Feature("x", (5, 3), None).product(X, table, by_product)
    expected = torch.stack([table[a] + table[5 + b] for a, b in X.tolist()])
    torch.testing.assert_close(found, expected)
    weight = normal(4, 3, seed=1)
    for mine, other in zip(
        *(torch.autograd.grad((out * weight).sum(), table) for out in (found, expected)), strict=True
    ):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("by_product", [False, True])
def test_one_column_may_be_flat(by_product: bool) -> None:
    table, types = normal(5, 2), torch.tensor([0, 4, 4])
    for feature in (types, types.unsqueeze(1)):
        assert torch.equal(Feature("x", 5, None).product(feature, table, by_product), table[types])


def checked(counts: Any, feature: torch.Tensor | None) -> None:
    Feature("x", counts, None).check(feature, 4, checks := ValueChecks())
    checks.run()


test_what_does_not_fit_is_refused = refusals(
    checked,
    (((5, 3), X[:, 0]), r"x types must be int64 \[4, 2\], got torch.int64 \[4\]"),
    (((5, 3), X.float()), r"x types must be int64 \[4, 2\], got torch.float32"),
    (((5, 3), None), r"x types must be int64 \[4, 2\], got None"),
    ((5, X), r"x types must be int64 \[4\] or \[4, 1\], got torch.int64 \[4, 2\]"),
    (((5, 2), X), r"x\[:, 1\] types must lie in 0..1, got 0..2"),
    (((4, 3), X), r"x\[:, 0\] types must lie in 0..3, got 0..4"),
    (((5, 3), -X), r"x\[:, 0\] types must lie in 0..4, got -4..0"),
    *(((counts, X), "numbers of x types must be integers from 1 to") for counts in ((), (3, 0), (3, True))),
)


def test_conductances_add_columns_before_softplus() -> None:
    torch.manual_seed(0)
    layer = LearnedConductances(2, (3, 2, 2), None, (5, 3), None)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    graph = Graph(EDGES, 4)
    w, q = layer(graph, X, EDGE_ATTR)
    rows = EDGE_ATTR + torch.tensor([0, 3, 5])
    raw = layer.edge.table[rows].sum(1)
    conducts = torch.nn.functional.softplus(raw)
    torch.testing.assert_close(graph.spread_to_directed(w.mT), conducts)
    ground = torch.nn.functional.softplus(layer.ground.table[X[:, 0]] + layer.ground.table[5 + X[:, 1]])
    torch.testing.assert_close(q.mT, ground)


def test_models_and_encoders_take_several_columns(tmp_path) -> None:
    torch.manual_seed(0)
    sizes = {"num_node_types": (5, 3), "num_edge_types": (3, 2, 2)}
    encoder = GramTransformer(num_layers=2, out_channels=2, edge_out_channels=2, **sizes)
    model = GraphTransformer(encoder=encoder, hidden_channels=8, num_layers=1, **sizes).eval()
    out = model(X, EDGES, EDGE_ATTR)
    model.save_pretrained(tmp_path)
    assert torch.equal(GraphTransformer.from_pretrained(tmp_path)(X, EDGES, EDGE_ATTR), out)
    probes = LinearTransformer(k=3, probes="features", num_node_types=(5, 3))
    table = probes.probes.embedding.weight
    expected = probes.encode(Graph(EDGES, 4), Inputs(), probes=table[X[:, 0]] + table[5 + X[:, 1]])
    assert torch.equal(probes(X, EDGES).node, expected.node)
