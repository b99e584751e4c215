"""Node numbers, edge lists, batch-mates and precision do not change an encoding; weights and structure do."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from helpers import batch_of, corner_cases, from_networkx, normal, randomize_, relative_error

import tg_lpe
from tg_lpe import LinearTransformer
from tg_lpe.encoders import Inputs

both_modes = pytest.mark.parametrize("update", [False, True], ids=["fixed", "updated"])


@pytest.mark.parametrize("weighted", [True, False])
def test_nan_does_not_spread_to_other_graphs_of_a_batch(weighted: bool) -> None:
    model = LinearTransformer(k=4).double()
    quiet = [from_networkx(nx.path_graph(6)), from_networkx(nx.cycle_graph(90), lambda i: 1.0 + i % 2)]
    loud = from_networkx(nx.random_regular_graph(3, 3000, seed=0), lambda i: 1e5)
    tiny = from_networkx(nx.star_graph(7), lambda i: 1e-5)
    batched = batch_of([tiny, quiet[0], loud, quiet[1], tiny])
    probes = normal(batched.num_nodes, 4)
    starts = batched.split(probes)
    expected = [
        model.encode(
            tg_lpe.Graph(g.edge_index(), g.num_nodes, edge_weight=g.edge_weight() if weighted else None),
            Inputs(),
            probes=p,
        ).node
        for g, p in zip(quiet, (starts[1], starts[3]), strict=True)
    ]
    for bad in (1e100, float("inf"), float("nan")):
        for start in (starts[0], starts[2], starts[4]):
            start.fill_(bad)  # views of probes
        got = batched.split(model.encode(tg_lpe.Graph(**batched.arguments(weighted)), Inputs(), probes=probes).node)
        assert relative_error(got[1], expected[0]) < 1e-10 and relative_error(got[3], expected[1]) < 1e-10


@both_modes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frozen_gives_the_same_bits(update: bool, dtype: torch.dtype) -> None:
    model = randomize_(LinearTransformer(k=4, update_incidence=update)).to(dtype)
    batched = batch_of([case for case in corner_cases() if case.num_nodes < 80], dtype)
    with_gradient = model(None, **batched.arguments()).node
    assert model.training and with_gradient.requires_grad
    with torch.no_grad():
        before = model(None, **batched.arguments()).node
    frozen = model.requires_grad_(False).eval()
    assert frozen is model and not model.training
    after = model(None, **batched.arguments()).node
    assert not after.requires_grad
    with torch.no_grad():
        assert torch.equal(before, model(None, **batched.arguments()).node)
    assert relative_error(after, with_gradient) < 100 * torch.finfo(dtype).eps  # the same steps, not in place
