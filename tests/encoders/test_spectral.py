"""Encodings of the spectrum against numpy's eigenvectors, their invariances, and the published checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, batch_of, equal_values, from_networkx, graph_of, randomize_, refusals, relative_error

import tg_lpe
from tg_lpe import Encoder, Encoding, GraphTransformer
from tg_lpe.encoders import HeatKernel, ResistiveEmbedding, SpectralEncoder, SpectralKernel
from tg_lpe.graph.eigenspaces import bottom_eigenvectors, eigenspaces
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors
from tg_lpe.testing.encoder_test_case import GRAPH, EncoderTestCase

M = 5


def spaces_of(graph: Graph, normalization: str | None, k: int) -> list[tuple[float, np.ndarray]]:
    """Eigenvalue and eigenvectors of each whole eigenspace that the first ``k`` eigenvectors touch."""
    if not graph.num_nodes:
        return []
    matrix = graph.published_laplacian(normalization)
    values, vectors = np.linalg.eigh(matrix)
    gap = 1e-6 * (1.0 if normalization else np.diag(matrix).max(initial=0.0))
    return [(values[space].mean(), vectors[:, space]) for space in equal_values(values, gap) if space[0] < k]


class SpectrumTestCase(EncoderTestCase):
    learned = True
    normalization: str | None = "sym"
    tolerance = 1e-6

    def tokens(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        """Of the nodes ``[num_nodes, num_spaces, 2]`` and undirected edges ``[num_edges, num_spaces, 3]``."""
        node, edge = np.zeros((graph.num_nodes, 0, 2)), np.zeros((len(graph.edges), 0, 3))
        for value, vectors in spaces_of(graph, self.normalization, M):
            p = vectors @ vectors.T
            rows = [(np.sqrt(max(p[i, i], 0.0)), value) for i in range(graph.num_nodes)]
            node = np.concatenate([node, np.array(rows).reshape(-1, 1, 2)], axis=1)
            rows = [(np.linalg.norm(vectors[i] - vectors[j]), p[i, j], value) for i, j in graph.edges]
            edge = np.concatenate([edge, np.array(rows).reshape(-1, 1, 3)], axis=1)
        return node, edge


class TestEigenspaces(SpectrumTestCase):
    def make(self) -> Encoder:
        return SpectralEncoder(4, 2, M, num_layers=1, heads=2, feedforward_channels=2, normalization=self.normalization)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        encoder: Any = self.double()
        node, edge = (torch.from_numpy(tokens) for tokens in self.tokens(graph))
        nets = (encoder.node_net, node), (encoder.edge_net, edge)
        with torch.no_grad():
            return tuple(net(rows, torch.zeros(rows.shape[:2], dtype=torch.bool)).numpy() for net, rows in nets)  # type: ignore[return-value]


class TestDeepSet(TestEigenspaces):
    def make(self) -> Encoder:
        return SpectralEncoder(3, 2, M, net="deep_set")


class TestKernel(SpectrumTestCase):
    def make(self) -> Encoder:
        return SpectralKernel(4, 2, M, hidden_channels=3, normalization=self.normalization)

    def variable(self, values: np.ndarray) -> np.ndarray:
        """Return the variable of the polynomial filters, between -1 and 1."""
        return 1 - values

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        encoder: Any = self.double()
        node, edge = self.tokens(graph)
        with torch.no_grad():
            values = np.array([value for value, _ in spaces_of(graph, self.normalization, M)])
            polynomials = torch.from_numpy(np.polynomial.chebyshev.chebvander(self.variable(values), 16))
            f, edge_filters = encoder.node_net(polynomials).numpy(), encoder.edge_net(polynomials).numpy()
        at_edges = edge[:, :, 1] @ edge_filters[:, :2] + edge[:, :, 0] ** 2 @ edge_filters[:, 2:]
        return node[:, :, 0] ** 2 @ f, at_edges


class TestCombinatorialKernel(TestKernel):
    normalization = None
    test_gradients = None

    def variable(self, values: np.ndarray) -> np.ndarray:
        return (1 - values) / (1 + values)


class TestEigenvectorTokens(SpectrumTestCase):
    """The published tokens: of the edges alone, which do not depend on signs, where no eigenvalue repeats."""

    def make(self) -> Encoder:
        return SpectralEncoder(2, 2, M, num_layers=1, heads=1, feedforward_channels=2, tokens="eigenvectors")

    def simple(self, graph: Graph) -> bool:
        whole = spaces_of(graph, "sym", M + 1)
        apart = np.diff([value for value, _ in whole]).min(initial=1.0) > 1e-4
        return bool(all(vectors.shape[1] == 1 for _, vectors in whole) and apart)

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        edge = encoding.edge if encoding.edge is None or self.simple(graph) else encoding.edge[:, :0]
        return Encoding(encoding.node[:, :0], edge)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        net: Any = self.double().edge_net
        rows = torch.from_numpy(self.tokens(graph)[1])
        with torch.no_grad():
            edge = net(rows, torch.zeros(rows.shape[:2], dtype=torch.bool)).numpy()
        return np.zeros((graph.num_nodes, 0)), edge if self.simple(graph) else edge[:, :0]


def test_a_large_graph_of_one_large_eigenspace() -> None:
    """A star of 600 nodes has the eigenvalues 0, 1 and 600; the eigenspace of 1 has 598 dimensions."""
    leaves = torch.arange(1, 600)
    found = eigenspaces(tg_lpe.Graph(torch.stack([leaves * 0, leaves])), M, normalization=None)
    torch.testing.assert_close(found.values[0, :2], torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-9)
    expected = torch.full((600,), 1 - 1 / 599, dtype=torch.float64).index_fill(0, torch.tensor([0]), 0.0)
    torch.testing.assert_close(found.node[:, 1].square(), expected, rtol=0, atol=1e-9)


def test_edges_alone() -> None:
    """The published edge encoding leaves the nodes out."""
    alone, both = SpectralEncoder(0, 4, M), SpectralEncoder(4, 4, M)
    alone.edge_net.load_state_dict(both.edge_net.state_dict())
    got, expected = encode(alone.eval(), GRAPH), encode(both.eval(), GRAPH)
    assert got.node.shape == (6, 0) and torch.equal(got.edge, expected.edge)
    beside = {"pe_options": {"merge": "concat"}}
    model = GraphTransformer(encoder=alone, hidden_channels=8, heads=2, num_layers=1, **beside)
    assert model.node_embedding.rows.weight.size(1) == 8 and model.edge_embedding.rows.weight.size(1) == 4
    index, _ = GRAPH.both_ways()
    assert model(None, index, num_nodes=6).shape == (1, 1)


def encode(encoder: Encoder, graph: Graph, **more: Any) -> Encoding:
    with torch.no_grad():
        return encoder(None, graph_of(graph), **more)


def path(n: int) -> Graph:
    return from_networkx(nx.path_graph(n))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 9])
def test_a_cut_eigenspace_is_completed(k: int) -> None:
    """The star has the eigenvalues 0, 1 (eight times) and 2."""
    found = eigenspaces(graph_of(from_networkx(nx.star_graph(9))), k)
    assert int(found.values.isfinite().sum()) == min(k, 2)
    if k > 1:
        assert found.values[0, 1] == pytest.approx(1.0)
        assert float(found.node[:, 1].square().sum()) == pytest.approx(8.0)
    assert bool((found.node[:, 2:] == 0).all() and (found.product[:, 2:] == 0).all())


def test_a_chain_of_close_eigenvalues_is_one_eigenspace() -> None:
    """Each is close to the next and the last far from the first: more columns are needed than are computed at first."""
    pairs = 30
    graph = Graph(2 * pairs, [(2 * i, 2 * i + 1) for i in range(pairs)], [0.5 + 2e-7 * i for i in range(pairs)])
    found = eigenspaces(graph_of(graph), pairs + 1, normalization=None)
    assert int(found.values.isfinite().sum()) == 2
    torch.testing.assert_close(found.node[:, 1].square(), torch.full((2 * pairs,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("which", ["bottom", "top"])
def test_null_vectors_and_nodes_without_edges(which: str) -> None:
    graph, step = Graph(4, [(0, 1), (0, 2)], [1.0, 1.0]), 1 if which == "bottom" else -1
    vectors, values = laplacian_eigenvectors(graph_of(graph), 5, keep_null=True, which=which)
    expected = np.linalg.eigvalsh(graph.published_laplacian("sym"))[::step]
    np.testing.assert_allclose(values[0, :4].numpy(), expected, atol=1e-12)
    assert bool(values[0, 4].isnan()) and bool((vectors[:, 4] == 0).all())
    np.testing.assert_allclose(
        graph.published_laplacian("sym") @ vectors[:, :4].numpy(), vectors[:, :4].numpy() * expected, atol=1e-12
    )
    _, values = laplacian_eigenvectors(graph_of(graph), 4, normalization=None, keep_null=True, which=which)
    np.testing.assert_allclose(values[0].numpy(), [0, 0, 1, 3][::step], atol=1e-12)


def test_the_published_tokens_tell_edges_of_a_ring_apart() -> None:
    """All are alike, and have one encoding by eigenspaces: repeated eigenvalues leave a choice of eigenvectors."""
    ring = from_networkx(nx.cycle_graph(6))
    for tokens, differ in (("eigenvectors", True), ("eigenspaces", False)):
        encoder = randomize_(SpectralEncoder(num_eigenpairs=6, tokens=tokens)).double().eval()
        edge = encode(encoder, ring).edge
        assert (relative_error(edge, edge[:1].expand_as(edge)) > 1e-6) == differ


def test_rows_of_norm_one() -> None:
    graph = from_networkx(nx.barbell_graph(5, 3))
    vectors, _ = bottom_eigenvectors(graph_of(graph), 4, row_norm=True)
    plain, _ = bottom_eigenvectors(graph_of(graph), 4)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(13, dtype=torch.float64))
    torch.testing.assert_close(vectors * plain.norm(dim=1, keepdim=True), plain)
    spaces = eigenspaces(graph_of(graph), 4, row_norm=True)
    torch.testing.assert_close(spaces.node.square().sum(1), torch.ones(13, dtype=torch.float64))
    few = path(3)
    assert relative_error(eigenspaces(graph_of(few), 4, row_norm=True).node, eigenspaces(graph_of(few), 4).node) < 1e-12


@pytest.mark.parametrize(("f", "k"), [(2, 8), (3, 8), (2, 16)])
def test_published_number_of_parameters(f: int, k: int) -> None:
    """A layer of width ``k`` with a hidden width of 2048 has ``4 k^2 + 4105 k + 2048``."""
    widths = {"out_channels": k if f == 2 else 0, "edge_out_channels": k if f == 3 else 0}
    encoder = SpectralEncoder(**widths, num_layers=3, feedforward_channels=2048)
    assert sum(p.numel() for p in encoder.parameters()) == (f + 1) * k + 3 * (4 * k**2 + 4105 * k + 2048)


test_arguments = refusals(
    SpectralEncoder,
    ({"num_eigenpairs": 0}, "num_eigenpairs must"),
    ({"out_channels": 6}, "out_channels must"),
    ({"net": "deep_set", "heads": 3}, "heads="),
    ({"net": "deep_set", "dropout": 0.5}, "dropout="),
    ({"num_layers": 0}, "num_layers must"),
)


def test_many_components() -> None:
    parts = nx.disjoint_union_all([nx.path_graph(9), *([nx.path_graph(2)] * 40), nx.empty_graph(30)])
    graph = graph_of(from_networkx(parts))
    found = eigenspaces(graph, 5)
    assert found.values[0, 0] == 0 and bool(found.values[0, 1:].isnan().all())
    expected = torch.cat([graph.laplacian_diagonal(torch.ones(1).double())[:9] / 16, torch.full((80,), 0.5)]).sqrt()
    torch.testing.assert_close(found.node[:89, 0], expected)
    assert not bool(found.node[89:].any()), "a node without edges has the eigenvalue 1"
    torch.testing.assert_close(found.product[8:, 0], torch.full((40,), 0.5).double())


def test_edges_of_weight_zero_join_no_null_vectors() -> None:
    index = torch.tensor([[0, 2, 1], [1, 3, 2]])
    found = eigenspaces(tg_lpe.Graph(index, 4, edge_weight=torch.tensor([1.0, 1.0, 0.0])), 2)
    edge = (tg_lpe.Graph(index, 4).tail == 1).nonzero().item()
    torch.testing.assert_close(found.product[edge], torch.tensor([0.0, 0.0]).double())
    torch.testing.assert_close(found.distance[edge], torch.tensor([1.0, 0.0]).double())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "dynamic"),
    [(partial(SpectralEncoder, num_layers=1), None), (HeatKernel, True), (ResistiveEmbedding, None)],
    ids=["SpectralEncoder", "HeatKernel", "ResistiveEmbedding"],
)
def test_encoders_in_a_compiled_model(make: Callable[[], Encoder], dynamic: bool | None) -> None:
    """Sizes of components are read on the host, where SciPy solves: the compiler leaves them alone."""
    torch._dynamo.reset()
    model = GraphTransformer(encoder=make(), hidden_channels=8, heads=2, num_layers=1).eval()
    compiled = torch.compile(model, backend="eager", dynamic=dynamic)
    for sizes in ((4, 5, 6), (7, 3)):
        batched = batch_of([from_networkx(nx.cycle_graph(n)) for n in sizes])
        index, batch = batched.edge_index, batched.arguments()["batch"]
        with torch.no_grad():
            torch.testing.assert_close(compiled(None, index, None, batch), model(None, index, None, batch))
