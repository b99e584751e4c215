"""What may not change an encoding: labels, edge lists, batch-mates, precision; and what must."""

from __future__ import annotations

import copy

import networkx as nx
import pytest
import torch
from helpers import (
    Graph,
    batch_of,
    corner_cases,
    few,
    from_networkx,
    graphs,
    listings,
    normal,
    randomize_,
    relative_error,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tg_lpe import Incidence, LinearTransformer
from tg_lpe.testing import assert_permutation_equivariant

both_modes = pytest.mark.parametrize("update", [False, True], ids=["fixed", "updated"])
weighted_graphs = graphs(min_nodes=2, exponents=(-2.0, 2.0))
RING = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])


@both_modes
@few
@given(st.data())
def test_random_probes_are_equivariant_when_they_move_along(update: bool, data: st.DataObject) -> None:
    graph = data.draw(weighted_graphs)
    index, weight = data.draw(listings(graph))
    model = randomize_(LinearTransformer(k=4, update_incidence=update)).double()

    def encode(edge_index: Tensor, num_nodes: int, x: Tensor, edge_weight: Tensor) -> Tensor:
        return model.encode(Incidence(edge_index, num_nodes, edge_weight=edge_weight), probes=x).node

    n = graph.num_nodes
    assert_permutation_equivariant(encode, index, n, x=normal(n, 4), edge_weight=weight, rtol=1e-7, atol=1e-8, trials=2)


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
            Incidence(g.edge_index(), g.num_nodes, edge_weight=g.edge_weight() if weighted else None), probes=p
        ).node
        for g, p in zip(quiet, (starts[1], starts[3]), strict=True)
    ]
    for bad in (1e100, float("inf"), float("nan")):
        for start in (starts[0], starts[2], starts[4]):
            start.fill_(bad)  # views of probes
        got = batched.split(model.encode(Incidence(**batched.arguments(weighted)), probes=probes).node)
        assert relative_error(got[1], expected[0]) < 1e-10 and relative_error(got[3], expected[1]) < 1e-10


@both_modes
def test_a_generator_draws_anew_and_repeats_from_the_same_state(update: bool) -> None:
    model = LinearTransformer(k=4, update_incidence=update)
    generator = torch.Generator().manual_seed(1)
    first, second = (model(None, RING, generator=generator).node for _ in range(2))
    assert relative_error(first, second) > 0.1
    assert torch.equal(model(None, RING, generator=torch.Generator().manual_seed(1)).node, first)
    assert torch.equal(model(None, RING).node, model(None, RING).node)
    assert relative_error(model(None, RING).node, first) > 0.1


def test_the_generator_draws_the_same_for_a_graph_in_a_batch() -> None:
    model = LinearTransformer(k=4).double()
    batched = batch_of([from_networkx(nx.cycle_graph(6)), from_networkx(nx.path_graph(300)), Graph(0, [], [])])
    together = model(None, **batched.arguments(), generator=torch.Generator().manual_seed(3)).node
    for graph, rows in zip(batched.graphs, batched.split(together), strict=True):
        generator = torch.Generator().manual_seed(3)
        alone = model(None, graph.edge_index(), num_nodes=graph.num_nodes, generator=generator).node
        assert relative_error(rows, alone) < 1e-10


def test_seed_and_weights_matter() -> None:
    torch.manual_seed(0)
    model = LinearTransformer(k=4)
    other = LinearTransformer(k=4, seed=1)
    other.load_state_dict(model.state_dict())
    assert relative_error(model(None, RING).node, other(None, RING).node) > 0.1
    heavier = model(None, RING, edge_weight=torch.tensor([1.0, 1, 1, 1, 1, 9])).node
    assert relative_error(model(None, RING).node, heavier) > 1e-3


@both_modes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frozen_gives_the_same_bits(update: bool, dtype: torch.dtype) -> None:
    model = randomize_(LinearTransformer(k=4, update_incidence=update)).to(dtype)
    batched = batch_of(corner_cases(), dtype)
    with_gradient = model(None, **batched.arguments()).node
    assert model.training and with_gradient.requires_grad
    with torch.no_grad():
        before = model(None, **batched.arguments()).node
    frozen = model.freeze()
    assert frozen is model and not model.training
    after = model(None, **batched.arguments()).node
    assert not after.requires_grad
    with torch.no_grad():
        assert torch.equal(before, model(None, **batched.arguments()).node)
    assert relative_error(after, with_gradient) < 100 * torch.finfo(dtype).eps  # the same steps, not in place


@both_modes
def test_a_frozen_module_can_be_cast_and_moved(update: bool) -> None:
    model = randomize_(LinearTransformer(k=4, update_incidence=update))
    with torch.no_grad():  # with a gradient, other code computes the same up to rounding
        expected = copy.deepcopy(model).double()(None, RING).node
    frozen = model.freeze()
    products = frozen._layers()
    assert torch.equal(frozen.double()(None, RING).node, expected) and expected.dtype == torch.float64
    wrapped = nn.ModuleList([frozen]).float()  # also as a submodule
    assert torch.equal(wrapped[0](None, RING).node, copy.deepcopy(frozen)(None, RING).node)
    assert not any(p.requires_grad for p in frozen.parameters()) and not frozen.training
    assert frozen._layers() is frozen._layers() is not products, "formed anew, and once"
    assert frozen.to("meta")._layers()[0].residual.device.type == "meta"


def test_autocast_changes_no_bit() -> None:
    model = LinearTransformer(k=4, probes="features", in_channels=3)
    x = normal(6, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = model(x, RING).node
    assert inside.dtype == torch.float32 and torch.equal(inside, model(x, RING).node)
