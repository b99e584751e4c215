"""Every encoder of the package against dense algebra, with the tests of the common contract."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, equal_values, from_networkx, graph_of, pseudo_inverse, refusals, transitions
from scipy.sparse import csc_matrix, diags, eye
from scipy.sparse.linalg import splu
from torch import Tensor

import tg_lpe
from tg_lpe import Encoder, Encoding, GramTransformer, LinearTransformer
from tg_lpe.data.synthetic import random_regular_edges
from tg_lpe.encoders import (
    ENCODERS,
    RRWP,
    EffectiveResistance,
    HeatKernel,
    LaplacianEigenvectors,
    PersonalizedPageRank,
    Positions,
    RandomWalk,
    ResistiveEmbedding,
    ShortestPath,
    make_encoder,
)
from tg_lpe.ops.random import counter_normal
from tg_lpe.testing.encoder_test_case import GRAPH, EncoderTestCase
from tg_lpe.testing.positional_test_case import PositionalEncoderTestCase


def large_graph() -> tuple[nx.Graph, Tensor]:
    """A graph of more than 2,048 nodes with a small component and a node without edges, and its edges."""
    graph = nx.gnp_random_graph(2100, 0.001, seed=0)
    graph.add_edges_from([(2100, 2101), (2101, 2102), (2102, 2103)])
    graph.add_node(2104)
    return graph, torch.tensor(list(graph.edges)).T


def at_edges(matrix: np.ndarray, graph: Graph) -> np.ndarray:
    return np.array([matrix[edge] for edge in graph.edges]).reshape(len(graph.edges), *matrix.shape[2:])


class Eigenvectors(EncoderTestCase):
    """Projectors on the eigenspaces that lie within the first ``k`` columns as a whole."""

    normalization: str | None = "sym"
    which = "bottom"
    tolerance = 1e-6

    def make(self) -> Encoder:
        return LaplacianEigenvectors(4, normalization=self.normalization, which=self.which)

    def matrix(self, graph: Graph) -> np.ndarray:
        return graph.laplacian() if self.normalization is None else graph.normalized_laplacian()

    def spaces(self, graph: Graph) -> list[list[int]]:
        """Columns that span a whole eigenspace, by numpy's eigenvalues."""
        values = np.linalg.eigvalsh(self.matrix(graph))[graph.num_components() :]
        values = values[::-1] if self.which == "top" else values
        gap = 1e-4 * max(abs(values), default=1.0)
        return [space for space in equal_values(values, gap) if space[-1] < 4]

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        v = encoding.node
        if self.normalization == "rw":  # converted to those of the symmetric matrix
            degree = torch.from_numpy(np.diag(graph.laplacian()).copy()).to(v)
            v = v * degree.sqrt().unsqueeze(-1)
            v = v / torch.linalg.vector_norm(v, dim=0).clamp(min=1e-300)
        parts = [v[:, space] @ v[:, space].mT for space in self.spaces(graph)]
        return Encoding(torch.cat(parts, dim=1) if parts else v[:, :0], None)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        _, vectors = np.linalg.eigh(self.matrix(graph))
        null = graph.num_components()
        order = np.arange(null, graph.num_nodes)
        order = order[::-1] if self.which == "top" else order
        parts = [vectors[:, order[space]] @ vectors[:, order[space]].T for space in self.spaces(graph)]
        return (np.concatenate(parts, axis=1) if parts else np.zeros((graph.num_nodes, 0))), None

    test_values_of_corner_cases = PositionalEncoderTestCase.test_values_of_corner_cases


class TestLaplacianEigenvectors(Eigenvectors):
    pass


class TestCombinatorialEigenvectors(Eigenvectors):
    normalization = None


class TestRandomWalkEigenvectors(Eigenvectors):
    normalization = "rw"


class TestTopEigenvectors(Eigenvectors):
    which = "top"


class TestPositions(PositionalEncoderTestCase):
    def make(self, seed: int = 0) -> Encoder:
        return Positions(4, seed=seed, pair_out_channels=None)

    test_pairs = None  # where an eigenspace is split at column k, its rotation decides

    def test_pairs_of_corner_cases(self) -> None:
        """Projectors on the first eigenspaces; an edge is the pair of its ends, and components are orthogonal."""
        path = nx.path_graph(9)
        graph, encoder = from_networkx(nx.disjoint_union(path, path)), self.double()
        _, vectors = np.linalg.eigh(Graph(9, graph.edges[:8], [1.0] * 8).normalized_laplacian())
        inner = np.kron(np.eye(2), 9 / 4 * vectors[:, 1:5] @ vectors[:, 1:5].T)
        length = np.diag(inner)
        expected = np.stack([inner, length[:, None] + length - 2 * inner], -1)
        encoding, values = self.run_pairs(encoder, [graph])
        np.testing.assert_allclose(values.view(18, 18, 2), expected, atol=1e-6)
        index = graph.both_ways()[0]
        self.close(self.run_pairs(encoder, [graph], index)[1], encoding.edge)
        self.check_pairs(encoder, [graph, GRAPH], list(range(24)))


class TestLoopedPositions(PositionalEncoderTestCase):
    learned = True
    loops = 3

    def make(self, seed: int = 0) -> Encoder:
        return Positions(4, loops=self.loops, seed=seed)

    def test_values_of_corner_cases(self) -> None:
        self.loops = 6  # fewer do not reach the eigenvectors of all of them
        super().test_values_of_corner_cases()


class TestRandomWalk(EncoderTestCase):
    tolerance = 1e-11

    def make(self) -> Encoder:
        return RandomWalk(5)

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        symmetric = np.diag(np.diag(graph.laplacian()) > 0) - graph.normalized_laplacian()
        return np.stack([np.linalg.matrix_power(symmetric, step) for step in range(1, 6)], -1)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        powers = self.pair_oracle(graph)
        return np.einsum("iit->it", powers), at_edges(powers, graph)


def symmetric(values: np.ndarray) -> np.ndarray:
    """The geometric mean of both directions."""
    return np.sqrt(values * values.transpose(1, 0, 2))


class TestRRWP(EncoderTestCase):
    def make(self) -> Encoder:
        return RRWP(5)

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        walk = transitions(nx.to_numpy_array(graph.networkx()))
        return np.stack([np.linalg.matrix_power(walk, step) for step in range(5)], -1)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        values = self.pair_oracle(graph)
        return np.einsum("iit->it", values), at_edges(symmetric(values), graph)


class TestShortestPath(EncoderTestCase):
    def make(self) -> Encoder:
        return ShortestPath(4)

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        out = np.zeros((graph.num_nodes, graph.num_nodes, 7))
        distances = dict(nx.all_pairs_shortest_path_length(graph.networkx()))
        for u, v in np.ndindex(*out.shape[:2]):
            out[u, v, min(distances[u][v], 5) if v in distances[u] else 6] = 1.0
        return out

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        return self.pair_oracle(graph).sum(1), None

    def test_nodes_of_graphs_whose_pairs_are_too_many(self) -> None:
        graph, index = large_graph()
        got = ShortestPath(4).double()(None, tg_lpe.Graph(index, graph.number_of_nodes())).node
        for node in (0, 7, 2100, 2104):
            near = nx.single_source_shortest_path_length(graph, node)
            counts = np.bincount([min(hops, 5) for hops in near.values()], minlength=7)
            counts[6] = len(graph) - len(near)
            assert got[node].tolist() == counts.tolist()


class TestPersonalizedPageRank(EncoderTestCase):
    def make(self) -> Encoder:
        return PersonalizedPageRank((0.1, 0.5))

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        walk = transitions(nx.to_numpy_array(graph.networkx()))
        walk = walk + np.diag(walk.sum(1) == 0)
        systems = [np.eye(graph.num_nodes) - (1 - alpha) * walk for alpha in (0.1, 0.5)]
        return np.stack([a * np.linalg.inv(system) for a, system in zip((0.1, 0.5), systems, strict=True)], -1)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        values = self.pair_oracle(graph)
        return np.einsum("iit->it", values), at_edges(symmetric(values), graph)

    def test_as_networkx_iterates(self) -> None:
        graph = Graph(7, GRAPH.edges, GRAPH.weights)  # the last node has no edge
        found = self.run_pairs(self.double(), [graph])[1].view(7, 7, 2)[:, :, 0]
        for node in range(7):
            ranks = nx.pagerank(graph.networkx(), 0.9, {node: 1.0}, 400, 1e-13, dangling={node: 1.0})
            np.testing.assert_allclose(found[node], [ranks[other] for other in range(7)], atol=1e-10)

    def test_nodes_and_edges_of_graphs_whose_pairs_are_too_many(self) -> None:
        """Against the systems of some columns."""
        graph, index = large_graph()
        weight = (1 + index.sum(0) % 3).double()
        encoder, number = PersonalizedPageRank((0.05, 0.9999)).double(), len(graph)
        got = encoder(None, tg_lpe.Graph(index, number, edge_weight=weight))
        ends = torch.cat([index, index.flip(0)], 1)
        adjacency = csc_matrix((weight.repeat(2), tuple(ends)), (number, number))
        degree = np.ravel(adjacency.sum(1))
        walk = diags(1 / np.maximum(degree, 1)) @ adjacency + diags((degree == 0).astype(float))
        edges = torch.tensor([0, 5, 17, index.size(1) - 1])
        nodes = [*index[:, edges].flatten().tolist(), 2104]
        for channel, alpha in enumerate((0.05, 0.9999)):
            columns = alpha * splu((eye(number) - (1 - alpha) * walk).tocsc()).solve(np.eye(number)[:, nodes])
            expected = columns[nodes, range(9)]
            np.testing.assert_allclose(got.node[nodes, channel], expected, rtol=1e-10)
            means = np.sqrt(columns[nodes[:4], range(4, 8)] * columns[nodes[4:8], range(4)])
            np.testing.assert_allclose(got.edge[edges, channel], means, rtol=1e-10)

    def test_probabilities_below_rounding(self) -> None:
        """None is negative, so that edges have no roots of negative numbers."""
        square = Graph(5, [(0, 1), (0, 3), (1, 2), (2, 3), (2, 4)], [1.0, 1e-20, 1e-20, 1.0, 1e-20])
        encoding, pairs = self.run_pairs(PersonalizedPageRank((0.05, 0.15)).double(), [square])
        assert bool((encoding.edge >= 0).all()) and bool((pairs >= 0).all())


class TestHeatKernel(EncoderTestCase):
    def make(self) -> Encoder:
        return HeatKernel((0.0, 0.3, 2.0), pair_out_channels=None)

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        if not graph.num_nodes:
            return np.zeros((0, 0, 3))
        values, vectors = np.linalg.eigh(graph.laplacian())
        return np.stack([(vectors * np.exp(-s * values)) @ vectors.T for s in (0.0, 0.3, 2.0)], -1)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        kernels = self.pair_oracle(graph)
        return np.einsum("iit->it", kernels), at_edges(kernels, graph)


class TestEffectiveResistance(EncoderTestCase):
    tolerance = 1e-6

    def make(self) -> Encoder:
        return EffectiveResistance(pair_out_channels=None)

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        inverse, out = pseudo_inverse(graph), np.zeros((graph.num_nodes, graph.num_nodes, 2))
        for part in nx.connected_components(graph.networkx()):
            own = np.ix_(sorted(part), sorted(part))
            resistance = np.diag(inverse)[:, None] + np.diag(inverse) - 2 * inverse
            out[own] = np.stack([resistance[own], np.ones_like(resistance[own])], -1)
        return out

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        inverse = pseudo_inverse(graph)
        resistance = np.diag(inverse)[:, None] + np.diag(inverse) - 2 * inverse
        mean = np.zeros(graph.num_nodes)
        for part in nx.connected_components(graph.networkx()):
            own = sorted(part)
            mean[own] = resistance[np.ix_(own, own)].mean(1)
        return mean, at_edges(resistance, graph)

    def test_an_edge_of_weight_zero(self) -> None:
        """Within a component it has a resistance; between two it counts as absent, and its resistance is infinite."""
        graph = Graph(5, [(0, 1), (0, 2), (1, 2), (3, 4)], [1.0, 0.0, 3.0, 0.0])
        edge = self.alone(self.double(), graph).edge
        assert edge is not None and edge[:4, 0].tolist() == pytest.approx([1.0, 4 / 3, 1 / 3, 0.0])


class TestResistiveEmbedding(EncoderTestCase):
    tolerance = 1e-6

    def make(self) -> Encoder:
        return ResistiveEmbedding(3)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        directions = counter_normal(0, max(len(graph.edges), 1), 3, torch.zeros((), dtype=torch.float64)).numpy()
        return pseudo_inverse(graph) @ graph.incidence() @ directions[: len(graph.edges)] / 3**0.5, None

    def test_relabelling(self) -> None:
        """The directions depend on the index of an edge. Distances are equivariant in the limit of many columns."""
        path = from_networkx(nx.path_graph(6))
        x = ResistiveEmbedding(20000).double()(None, tg_lpe.Graph(path.edge_index(), 6)).node
        distance = torch.cdist(x, x).square()
        expected = torch.arange(6.0).unsqueeze(1) - torch.arange(6.0)
        np.testing.assert_allclose(distance, expected.abs(), atol=0.2)

    def test_another_generator_other_directions(self) -> None:
        encoder = self.double()
        first, second = (
            self.run(encoder, GRAPH, *GRAPH.both_ways(), generator=torch.Generator().manual_seed(seed)).node
            for seed in (0, 1)
        )
        assert not torch.allclose(first, second)


class TestGramTransformer(EncoderTestCase):
    learned = True

    def make(self) -> Encoder:
        return GramTransformer(3, 2, 2, 3, num_node_types=3, num_edge_types=2, pair_out_channels=2)


class TestGramTransformerOfFeatures(EncoderTestCase):
    """Real features: degrees at nodes, ones at edges."""

    learned = True

    def make(self) -> Encoder:
        return GramTransformer(3, 2, num_filters=2, num_layers=3, basis="chebyshev", in_channels=1, edge_dim=1)

    def features(self, encoder: Encoder, graph: Graph) -> torch.Tensor:
        return super().features(encoder, graph).to(encoder.readout.weight.dtype).unsqueeze(1)

    def kinds(self, encoder: Encoder, edge_index: torch.Tensor) -> torch.Tensor:
        return torch.ones(edge_index.size(1), 1, dtype=encoder.readout.weight.dtype)


class TestEstimatedGramTransformer(EncoderTestCase):
    equivariant = False  # random signs follow the index of a node
    learned = True

    def make(self) -> Encoder:
        return GramTransformer(3, 2, num_filters=2, num_layers=3, probes="rademacher", num_probes=3)


class TestPlainGramTransformer(TestRandomWalk):
    """Without learned conductances, its read-outs are return probabilities."""

    def make(self) -> Encoder:
        return GramTransformer(num_filters=1, num_layers=5, conductances="fixed", pair_out_channels=None)

    def double(self) -> Encoder:
        return self.make().double().eval()


class TestLinearTransformer(EncoderTestCase):
    learned = True
    tolerance = 1e-6
    update_incidence = False

    def make(self) -> Encoder:
        options = {"k": 2, "num_loops": 1, "out_channels": 3, "probes": "features", "num_node_types": 3}
        return LinearTransformer(**options, update_incidence=self.update_incidence)


class TestLinearTransformerWithUpdatedIncidence(TestLinearTransformer):
    update_incidence = True


class TestLinearTransformerFromTheIdentity(EncoderTestCase):
    learned = True

    def make(self) -> Encoder:
        types = {"num_node_types": 3, "num_edge_types": 2}
        return LinearTransformer(5, 3, 2, 2, "identity", num_filters=2, edge_out_channels=2, **types)

    def test_the_scale_of_weights_does_not_matter(self) -> None:
        encoder, (index, weight) = self.double(), GRAPH.both_ways()
        expected = self.run(encoder, GRAPH, index, weight)
        for scale in (1e-30, 1e30):
            self.close(self.run(encoder, GRAPH, index, scale * weight).edge, expected.edge)


class TestRandomLinearTransformer(EncoderTestCase):
    equivariant = False  # random probes follow the index of a node
    learned = True
    tolerance = 1e-6

    def make(self) -> Encoder:
        return LinearTransformer(k=2, num_loops=1)


def test_signs_do_not_depend_on_the_order_of_the_nodes() -> None:
    encoder, graph = LaplacianEigenvectors(5).double(), GRAPH
    for seed in range(10):
        label = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        index, weight = graph.both_ways()
        expected = encoder(None, tg_lpe.Graph(index, 6, edge_weight=weight)).node
        got = encoder(None, tg_lpe.Graph(label[index], 6, edge_weight=weight)).node[label]
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        drawn = encoder(None, graph_of(graph), generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(drawn.node.abs(), encoder(None, graph_of(graph)).node.abs())
        assert torch.equal(drawn.edge, encoder(None, graph_of(graph)).edge), "edges depend on no sign"


test_refusals = refusals(
    lambda cls, *arguments, **options: cls(*arguments, **options),
    ((RRWP, 1), "steps must"),
    *(((PersonalizedPageRank, alphas), "alphas must") for alphas in ((), (1.0,))),
    *(((HeatKernel, times), "times must") for times in ((), (-1.0,), (math.inf,), (math.nan,))),
    *(((HeatKernel, times), TypeError, "times must") for times in (1.0, "ab")),
    ({"cls": EffectiveResistance, "edge_out_channels": 3}, "must be 1, or 0 for no edge encoding, got 3"),
)


@pytest.mark.parametrize("name", sorted(set(ENCODERS) - {"Combined", "Whitened"}))
@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
def test_made_on_meta(name: str, assign: bool) -> None:
    """With weights afterwards."""
    expected = make_encoder({"class": name}).eval()
    with torch.device("meta"):
        encoder = make_encoder({"class": name}).eval()
    if not assign:
        encoder.to_empty(device="cpu")
    encoder.load_state_dict(expected.state_dict(), assign=assign)
    graph, x = tg_lpe.Graph(GRAPH.both_ways()[0], 6), torch.arange(6.0)
    assert torch.equal(encoder(x, graph).node, expected(x, graph).node)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ("GramTransformer", "LinearTransformer", "LPE", "RPEARL", "SPE", "SignNet")),
        *((name, {}) for name in ("PPGN", "SpectralKernel")),
        ("Positions", {"k": 4, "pair_out_channels": None}),
        ("Positions", {"k": 4, "loops": 3, "pair_out_channels": None}),
        ("FromTransform", {"transform": "AddRandomWalkPE", "options": {"walk_length": 4}}),
    ],
    ids=str,
)
def test_autocast_changes_no_bit(name: str, options: dict) -> None:
    """Of a component too large for dense algebra, within a model in half precision as well."""
    encoder = make_encoder({"class": name, **options}).eval()
    edge_index = random_regular_edges(300, 4, torch.Generator().manual_seed(0))
    graph, pairs = tg_lpe.Graph(edge_index, 300), edge_index.flip(0)

    def run() -> list[torch.Tensor | None]:
        with torch.no_grad():
            return [*encoder(None, graph, pairs=pairs if encoder.pair_out_channels else None)]

    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        found = run()
    for got, wanted in zip(found, expected, strict=True):
        assert got is wanted is None or torch.equal(got, wanted)
