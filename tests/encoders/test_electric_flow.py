"""Electric flow against dense algebra, networkx and the layers of Lemma 1."""

from __future__ import annotations

from itertools import combinations

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, from_networkx, pseudo_inverse, refusals
from scipy.sparse.linalg import spsolve
from torch import Tensor

import tg_lpe
from tg_lpe import Encoder, LinearTransformer
from tg_lpe.encoders import ElectricFlow
from tg_lpe.graph.flow import electric_potentials
from tg_lpe.testing.encoder_test_case import GRAPH, EncoderTestCase

PATH = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
DEMANDS = torch.tensor([[1.0, 0.3], [0.0, -2.0], [0.5, 0.0], [-2.0, 0.7], [0.0, 1.0], [0.2, 0.0]], dtype=torch.float64)


class TestElectricFlow(EncoderTestCase):
    tolerance = 1e-6
    ground = 0.0

    def make(self) -> Encoder:
        return ElectricFlow((1, 0))

    def features(self, encoder: Encoder, graph: Graph) -> Tensor:
        """Unbalanced demands: degrees, and sums of weights."""
        return torch.stack([self.degrees(graph).double(), torch.from_numpy(np.diag(graph.laplacian()).copy())], 1)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        inverse = pseudo_inverse(graph)
        if self.ground:
            inverse = np.linalg.inv(graph.laplacian() + self.ground * np.eye(graph.num_nodes))
        v = inverse @ self.features(self.make(), graph).numpy()[:, [1, 0]]
        index, weight = (values.numpy() for values in graph.listing())
        return v, weight[:, None] * (v[index[0]] - v[index[1]])


class TestGroundedFlow(TestElectricFlow):
    ground = 0.25

    def make(self) -> Encoder:
        return ElectricFlow((1, 0), ground=0.25)


class TestLearnedFlow(EncoderTestCase):
    learned = True

    def make(self) -> Encoder:
        return ElectricFlow(num_edge_types=2)

    features = TestElectricFlow.features


@pytest.mark.parametrize("ground", [0.0, 0.5])
def test_gradients_of_weights_and_demands(ground: float) -> None:
    """Also second ones, over two components, with an edge of weight zero in one and one between them."""
    edges = torch.tensor([[0, 0, 1, 2, 4, 3], [1, 2, 2, 3, 5, 4]])
    weight = torch.tensor([1.0, 2.0, 0.0 if not ground else 0.5, 0.3, 4.0, 0.0], dtype=torch.float64)
    encoder = ElectricFlow((0, 1), ground=ground).double()
    within = torch.arange(5)

    def encode(demands: Tensor, values: Tensor) -> Tensor:
        graph = tg_lpe.Graph(edges, 6).with_conductances(weight.index_copy(0, within, values))
        return torch.cat([part.flatten() for part in encoder(demands, graph)[:2]])

    values = torch.tensor([1.0, 2.0, 0.4, 0.3, 4.0], dtype=torch.float64, requires_grad=True)
    demands = DEMANDS.clone().requires_grad_()
    assert torch.autograd.gradcheck(encode, (demands, values))
    assert torch.autograd.gradgradcheck(encode, (demands, values))
    at_zero = weight.clone().requires_grad_()
    flow = ElectricFlow((0, 1)).double()(DEMANDS, tg_lpe.Graph(edges, 6).with_conductances(at_zero))
    flow.node.square().sum().backward()
    assert at_zero.grad is not None and at_zero.grad.isfinite().all()


def test_units_between_all_pairs_as_networkx() -> None:
    """Their voltages are resistances, and what flows through a node is its current-flow betweenness."""
    graph, pairs = GRAPH.networkx(), list(combinations(range(6), 2))
    demands = torch.zeros(6, 15)
    for column, (source, sink) in enumerate(pairs):
        demands[source, column], demands[sink, column] = 1.0, -1.0
    index, weight = GRAPH.both_ways()
    flow = ElectricFlow([*range(15)]).double()(demands, index, edge_weight=weight)
    for column, (source, sink) in enumerate(pairs):
        resistance = nx.resistance_distance(graph, source, sink, "weight", invert_weight=False)
        assert float(flow.node[source, column] - flow.node[sink, column]) == pytest.approx(resistance, rel=1e-12)
    through = torch.zeros(6, 15).double().index_add(0, index[0], flow.edge.abs()) / 2
    between = through.masked_fill(demands != 0, 0.0).sum(1) / 10  # pairs of other nodes
    expected = nx.current_flow_betweenness_centrality(graph, weight="weight")
    np.testing.assert_allclose(between, [expected[node] for node in range(6)], rtol=1e-9)


def test_large_components_have_a_sparse_factor() -> None:
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(40, 40), ordering="sorted")
    graph = from_networkx(grid, lambda number: 1.0 + number % 7)
    index, weight = graph.both_ways()
    b = torch.randn(1600, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight.requires_grad_()
    v = electric_potentials(tg_lpe.Graph(index, 1600, edge_weight=weight), b)
    laplacian = nx.laplacian_matrix(graph.networkx(), nodelist=range(1600)).astype(float).tocsc()
    expected = np.zeros((1600, 2))
    expected[1:] = spsolve(laplacian[1:, 1:], (b - b.mean(0)).numpy()[1:])
    np.testing.assert_allclose(v.detach(), expected - expected.mean(0), atol=1e-10)
    (power,) = torch.autograd.grad((v * b).sum(), weight)  # of b^T L^+ b: minus the squared drops, over two listings
    drops = (v[index[0]] - v[index[1]]).square().sum(1)
    torch.testing.assert_close(power, -drops.detach() / 2)


def test_layers_from_features_compute_it() -> None:
    """Lemma 1 as :class:`LinearTransformer`: ``v <- v + step (b - L v)`` with columns ``[b, v]``."""
    options = {"probes": "features", "in_channels": 2, "diagonal": False, "degree_scaling": False, "normalize": False}
    encoder = LinearTransformer(2, num_blocks=1, num_loops=1000, independent_scaling=False, **options).double()
    step = 0.1
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
        for name in ("alpha_q", "alpha_k"):
            getattr(encoder, name).fill_(1.0)
        encoder.w_v[0, 1, 1], encoder.w_r[0, 1, 0] = -step, step
        encoder.probes.linear.weight[0, 0] = encoder.readout.weight[0, 1] = 1.0
    graph = tg_lpe.Graph(GRAPH.both_ways()[0], 6, edge_weight=GRAPH.both_ways()[1])
    b = DEMANDS - DEMANDS.mean(0)
    v = ElectricFlow().double()(b, graph).node
    torch.testing.assert_close(encoder(b, graph).node[:, :1], v, atol=1e-9, rtol=1e-9)


FAR_APART = torch.tensor([1e-12, 1.0, 1e12, 1e-12, 1.0], dtype=torch.float64)
CHAIN = torch.stack([torch.arange(300), torch.arange(1, 301)])
NEARLY_CUT = torch.ones(300, dtype=torch.float64).index_fill(0, torch.tensor([9]), 1e-17)
test_refusals = refusals(
    lambda x=None, edge_weight=None, edges=PATH, **options: ElectricFlow(**options)(x, edges, edge_weight=edge_weight),
    ({"columns": ()}, "columns must be numbers of columns of x, such as"),
    ({"columns": (-1,)}, "got .-1,."),
    ({"columns": (0, 1), "edge_out_channels": 1}, "edge_out_channels must be 2, or 0 for no currents, got 1"),
    ({"columns": (2,), "x": DEMANDS}, r"x must have a column for each of columns=.2., .* got \[6, 2\]"),
    ({"num_edge_types": 2, "x": DEMANDS}, "edge types must be int64"),
    ({}, "x must have a column .* got None"),
    ({"x": DEMANDS / 0.0}, "finite"),
    ({"x": DEMANDS, "edge_weight": FAR_APART}, "would miss demands by more than 1e-06 of the largest"),
    ({"x": torch.arange(301.0), "edges": CHAIN, "edge_weight": NEARLY_CUT}, "differs by a factor of 1e.17"),
)


def test_gradients_that_overflow_pass() -> None:
    """A scaler of losses finds them, and leaves the step out."""
    demands = DEMANDS.clone().requires_grad_()
    (ElectricFlow()(demands, PATH).node * float("inf")).sum().backward()
    assert demands.grad is not None and not demands.grad.isfinite().all()


def test_later_changes_of_the_list_of_columns_change_nothing() -> None:
    columns = [0]
    encoder = ElectricFlow(columns)
    columns.append(1)
    assert encoder(DEMANDS, PATH).node.shape == (6, 1)
