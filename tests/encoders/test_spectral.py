"""Encodings of the spectrum against numpy's eigenvectors, their invariances, and the published checks."""

from __future__ import annotations

import itertools
import re
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from encoder_test_case import GRAPH, EncoderTestCase
from helpers import Graph, batch_of, few, from_networkx, graphs, randomize_, relative_error
from hypothesis import given
from torch import Tensor, nn

from tg_lpe import Encoder, Encoding, GraphTransformer, Incidence
from tg_lpe.encoders import SpectralEncoder, SpectralKernel
from tg_lpe.graph import eigenspaces as eigenspaces_module
from tg_lpe.graph.eigenspaces import bottom_eigenvectors, eigenspaces
from tg_lpe.graph.spectral import laplacian_eigenvectors

M = 5


def laplacian(graph: Graph, normalization: str | None) -> np.ndarray:
    """As published: ones on the diagonal of the normalised Laplacian, also of nodes without edges."""
    combinatorial = graph.laplacian()
    if normalization is None:
        return combinatorial
    degree = np.diag(combinatorial)
    scale = 1 / np.sqrt(np.where(degree > 0, degree, 1.0))
    return np.eye(graph.num_nodes) - scale[:, None] * (np.diag(degree) - combinatorial) * scale


def spaces_of(graph: Graph, normalization: str | None, k: int) -> list[tuple[float, np.ndarray]]:
    """Eigenvalue and eigenvectors of each whole eigenspace that the first ``k`` eigenvectors touch."""
    if not graph.num_nodes:
        return []
    matrix = laplacian(graph, normalization)
    values, vectors = np.linalg.eigh(matrix)
    gap = 1e-6 * (1.0 if normalization else np.diag(matrix).max(initial=0.0))
    starts = [i for i in range(len(values)) if i == 0 or values[i] - values[i - 1] > gap]
    ends = [*starts[1:], len(values)]
    return [
        (values[first:last].mean(), vectors[:, first:last])
        for first, last in zip(starts, ends, strict=True)
        if first < k
    ]


def incidence(graph: Graph) -> Incidence:
    return Incidence(**batch_of([graph]).arguments())


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
        return SpectralKernel(4, 2, M, hidden_channels=3)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        encoder: Any = self.double()
        node, edge = self.tokens(graph)
        with torch.no_grad():
            values = np.array([value for value, _ in spaces_of(graph, "sym", M)])
            polynomials = torch.from_numpy(np.polynomial.chebyshev.chebvander(1 - values, 16))
            f, edge_filters = encoder.node_net(polynomials).numpy(), encoder.edge_net(polynomials).numpy()
        at_edges = edge[:, :, 1] @ edge_filters[:, :2] + edge[:, :, 0] ** 2 @ edge_filters[:, 2:]
        return node[:, :, 0] ** 2 @ f, at_edges


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


@few
@given(graph=graphs())
def test_combinatorial_laplacian(graph: Graph) -> None:
    found = eigenspaces(incidence(graph), M, normalization=None)
    p = [vectors @ vectors.T for _, vectors in spaces_of(graph, None, M)]
    values = [value for value, _ in spaces_of(graph, None, M)]
    scale = max(values, default=0.0)
    np.testing.assert_allclose(found.values[0, : len(values)].numpy(), values, atol=1e-9 * max(scale, 1.0))
    for column, projector in enumerate(p):
        edges = np.array([projector[edge] for edge in graph.edges]).reshape(-1)
        np.testing.assert_allclose(found.node[:, column].square().numpy(), np.diag(projector), atol=1e-6)
        np.testing.assert_allclose(found.product[:, column].numpy(), edges, atol=1e-6)


def test_a_large_graph_of_one_large_eigenspace() -> None:
    """A star of 600 nodes has the eigenvalues 0, 1 and 600; that of 1 has 598 dimensions."""
    leaves = torch.arange(1, 600)
    found = eigenspaces(Incidence(torch.stack([leaves * 0, leaves])), M, normalization=None)
    torch.testing.assert_close(found.values[0, :2], torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-9)
    expected = torch.full((600,), 1 - 1 / 599, dtype=torch.float64).index_fill(0, torch.tensor([0]), 0.0)
    torch.testing.assert_close(found.node[:, 1].square(), expected, rtol=0, atol=1e-9)


def test_edges_alone() -> None:
    """The published edge encoding leaves the nodes out."""
    alone, both = SpectralEncoder(0, 4, M), SpectralEncoder(4, 4, M)
    alone.edge_net.load_state_dict(both.edge_net.state_dict())
    got, expected = encode(alone.eval(), GRAPH), encode(both.eval(), GRAPH)
    assert got.node.shape == (6, 0) and torch.equal(got.edge, expected.edge)
    model = GraphTransformer(encoder=alone, hidden_channels=8, heads=2, num_layers=1, pe_merge="concat")
    assert model.node_embedding.rows.weight.size(1) == 8 and model.edge_embedding.rows.weight.size(1) == 4
    index, _ = GRAPH.both_ways()
    assert model(None, index, num_nodes=6).shape == (1, 1)


def spectral(**options: Any) -> SpectralEncoder:
    return randomize_(SpectralEncoder(**{"num_eigenpairs": 6, "feedforward_channels": 16, **options})).double().eval()


def encode(encoder: Encoder, graph: Graph, **more: Any) -> Encoding:
    with torch.no_grad():
        return encoder.encode(incidence(graph), **more)


def named(encoder: SpectralEncoder | SpectralKernel, **spectrum: Tensor) -> dict[str, Tensor]:
    """As ``precompute`` calls what stands at nodes and edges."""
    return {f"{level}_spectrum_{encoder.kind}": values for level, values in spectrum.items()}


def path(n: int) -> Graph:
    return from_networkx(nx.path_graph(n))


def test_all_signs_leave_the_edges_unchanged() -> None:
    """2^6 choices of signs; the published node tokens change with one."""
    encoder, graph = spectral(tokens="eigenvectors"), path(9)
    found = encoder.precompute(incidence(graph))
    vectors = found["node_spectrum_eigenvectors_sym"]
    tail, head = incidence(graph).edge_index
    expected = encode(encoder, graph)
    for signs in itertools.product((1.0, -1.0), repeat=6):
        flipped = vectors * torch.tensor(signs)
        edge = torch.cat([(flipped[tail] - flipped[head]).abs(), flipped[tail] * flipped[head]], dim=1)
        got = encode(encoder, graph, precomputed=found | named(encoder, node=flipped, edge=edge))
        assert torch.equal(got.edge, expected.edge)
    one = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0])
    moved = encode(encoder, graph, precomputed=found | named(encoder, node=vectors * one)).node
    assert float((moved - expected.node).abs().max()) > 0.01


def test_signs_are_drawn_anew_for_each_graph_and_call() -> None:
    encoder, graph = spectral(tokens="eigenvectors"), path(9)
    generator = torch.Generator().manual_seed(0)
    batch = Incidence(**batch_of([graph] * 8).arguments())
    with torch.no_grad():
        nodes = torch.stack([encoder.encode(batch, generator=generator).node for _ in range(2)])
    rows = nodes.reshape(16, -1)
    assert len({tuple(row.round(decimals=6).tolist()) for row in rows}) > 8
    still = spectral(tokens="eigenvectors", flip_signs=False)
    assert torch.equal(encode(still, graph, generator=generator).node, encode(still, graph).node)
    whole = spectral()
    assert torch.equal(encode(whole, graph, generator=generator).node, encode(whole, graph).node)


def rotated(graph: Graph, angle: float) -> tuple[Tensor, Tensor]:
    """Published edge tokens of ``C_6`` in a rotated basis of its two-dimensional eigenspaces."""
    vectors, _ = bottom_eigenvectors(incidence(graph), 6)
    c, s = np.cos(angle), np.sin(angle)
    turn = torch.eye(6, dtype=torch.float64)
    for first in (1, 3):
        turn[first : first + 2, first : first + 2] = torch.tensor([[c, -s], [s, c]])
    vectors = vectors @ turn
    tail, head = incidence(graph).edge_index
    return vectors, torch.cat([(vectors[tail] - vectors[head]).abs(), vectors[tail] * vectors[head]], dim=1)


def test_a_change_of_basis_moves_the_published_form_alone() -> None:
    graph = from_networkx(nx.cycle_graph(6))
    published, ours = spectral(tokens="eigenvectors"), spectral()
    found = published.precompute(incidence(graph))
    before, after = (
        encode(published, graph, precomputed=found | named(published, node=v, edge=e))
        for v, e in (rotated(graph, 0.0), rotated(graph, 0.7))
    )
    assert float((before.edge - after.edge).abs().max()) > 1e-3
    # All nodes of a ring are alike, and all edges: so must their encodings be.
    encoding = encode(ours, graph)
    assert relative_error(encoding.node, encoding.node[:1].expand(6, -1)) < 1e-12
    assert relative_error(encoding.edge, encoding.edge[:1].expand(12, -1)) < 1e-12
    assert float((before.edge - before.edge[:1]).abs().max()) > 1e-3


def test_eigenspaces_are_eigenvectors_where_no_eigenvalue_repeats() -> None:
    graph = path(8)
    published, ours = spectral(tokens="eigenvectors"), spectral()
    assert relative_error(encode(ours, graph).edge, encode(published, graph).edge) < 1e-12
    kernel = SpectralKernel(num_eigenpairs=8)
    assert kernel.precompute(incidence(graph))["node_spectrum_eigenspaces_sym"].square().sum(1).allclose(torch.ones(8))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 9])
def test_a_cut_eigenspace_is_completed(k: int) -> None:
    """The star has the eigenvalues 0, 1 (eight times) and 2."""
    found = eigenspaces(incidence(from_networkx(nx.star_graph(9))), k)
    assert int(found.values.isfinite().sum()) == min(k, 2)
    if k > 1:
        assert found.values[0, 1] == pytest.approx(1.0)
        assert float(found.node[:, 1].square().sum()) == pytest.approx(8.0)
    assert bool((found.node[:, 2:] == 0).all() and (found.product[:, 2:] == 0).all())


def test_a_large_multiplicity_in_a_batch() -> None:
    """More eigenvectors are needed for one graph; the others stay as they are."""
    star, ring = from_networkx(nx.star_graph(60)), from_networkx(nx.cycle_graph(7))
    together = eigenspaces(Incidence(**batch_of([ring, star]).arguments()), 3)
    alone = eigenspaces(incidence(ring), 3)
    assert relative_error(together.node[:7], alone.node) < 1e-12
    assert float(together.node[7:, 1].square().sum()) == pytest.approx(59.0)


def test_a_chain_of_close_eigenvalues_is_one_eigenspace() -> None:
    """Each is close to the next and the last far from the first: more columns are needed than are computed at first."""
    pairs = 30
    graph = Graph(2 * pairs, [(2 * i, 2 * i + 1) for i in range(pairs)], [0.5 + 2e-7 * i for i in range(pairs)])
    found = eigenspaces(incidence(graph), pairs + 1, normalization=None)
    assert int(found.values.isfinite().sum()) == 2
    torch.testing.assert_close(found.node[:, 1].square(), torch.full((2 * pairs,), 0.5, dtype=torch.float64))


def test_null_vectors_and_nodes_without_edges() -> None:
    graph = Graph(4, [(0, 1), (0, 2)], [1.0, 1.0])
    vectors, values = laplacian_eigenvectors(incidence(graph), 5, keep_null=True)
    expected = np.linalg.eigvalsh(laplacian(graph, "sym"))
    np.testing.assert_allclose(values[0, :4].numpy(), expected, atol=1e-12)
    assert bool(values[0, 4].isnan()) and bool((vectors[:, 4] == 0).all())
    np.testing.assert_allclose(
        laplacian(graph, "sym") @ vectors[:, :4].numpy(), vectors[:, :4].numpy() * expected, atol=1e-12
    )
    _, values = laplacian_eigenvectors(incidence(graph), 4, normalization=None, keep_null=True)
    np.testing.assert_allclose(values[0].numpy(), [0, 0, 1, 3], atol=1e-12)
    with pytest.raises(ValueError, match="keep_null=True counts from the bottom of the spectrum, got which='top'"):
        laplacian_eigenvectors(incidence(graph), 4, which="top", keep_null=True)


def test_a_grounded_component_has_no_null_vector() -> None:
    plain = incidence(Graph(4, [(0, 1), (2, 3)], [1.0, 1.0]))
    graph = plain.with_conductances(plain.conductance, torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    dense = np.array([[2.0, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, -1], [0, 0, -1, 1]])
    vectors, values = laplacian_eigenvectors(graph, 4, normalization=None, keep_null=True)
    np.testing.assert_allclose(values[0].numpy(), np.linalg.eigvalsh(dense), atol=1e-12)
    np.testing.assert_allclose(dense @ vectors.numpy(), vectors.numpy() * values[0].numpy(), atol=1e-12)


def test_rows_of_norm_one() -> None:
    graph = from_networkx(nx.barbell_graph(5, 3))
    vectors, _ = bottom_eigenvectors(incidence(graph), 4, row_norm=True)
    plain, _ = bottom_eigenvectors(incidence(graph), 4)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(13, dtype=torch.float64))
    torch.testing.assert_close(vectors * plain.norm(dim=1, keepdim=True), plain)
    spaces = eigenspaces(incidence(graph), 4, row_norm=True)
    torch.testing.assert_close(spaces.node.square().sum(1), torch.ones(13, dtype=torch.float64))
    few = path(3)
    assert (
        relative_error(eigenspaces(incidence(few), 4, row_norm=True).node, eigenspaces(incidence(few), 4).node) < 1e-12
    )


def ends_of(graph: Graph, m: int) -> Tensor:
    """Sorted encoding of a graph's nodes by eigenvalues alone: entries of eigenvectors are set to one."""
    encoder = spectral(num_eigenpairs=m)
    found = encoder.precompute(incidence(graph))
    there = found[f"graph_eigenvalues_{encoder.kind}"].isfinite().to(torch.float64).expand(graph.num_nodes, -1)
    return encode(encoder, graph, precomputed=found | named(encoder, node=there)).node[0]


def test_eigenvalues_alone_tell_apart_what_colour_refinement_does_not() -> None:
    """Decalin and bicyclopentyl are alike to 1-WL; K_1,3 and C_4 have one spectrum under ``"sym"``."""
    decalin = nx.cycle_graph(10)
    decalin.add_edge(0, 5)
    bicyclopentyl = nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(5))
    bicyclopentyl.add_edge(0, 5)
    pair = [from_networkx(graph) for graph in (decalin, bicyclopentyl)]
    assert relative_error(ends_of(pair[0], 1), ends_of(pair[1], 1)) < 1e-12
    assert float((ends_of(pair[0], 3) - ends_of(pair[1], 3)).abs().max()) > 1e-3
    star, square = from_networkx(nx.star_graph(3)), from_networkx(nx.cycle_graph(4))
    assert relative_error(ends_of(star, 4), ends_of(square, 4)) < 1e-9


def test_the_kernel_form_is_a_gram_read_out() -> None:
    """With all eigenpairs and ``f(lambda) = (1 - lambda)^t``: the entries of ``(I - L)^t``."""

    class Powers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unit = nn.Parameter(torch.ones(1))

        def forward(self, polynomials: Tensor) -> Tensor:
            powers = torch.cat([polynomials[..., 1:2] ** t for t in range(4)], dim=2)
            return torch.cat([powers, torch.zeros_like(powers)], dim=2)

    encoder = SpectralKernel(8, 4, num_eigenpairs=12).double()
    encoder.node_net, encoder.edge_net = Powers().double(), Powers().double()
    for graph in (GRAPH, from_networkx(nx.barbell_graph(4, 2)), from_networkx(nx.cycle_graph(6))):
        walk = np.eye(graph.num_nodes) - laplacian(graph, "sym")
        powers = np.stack([np.linalg.matrix_power(walk, t) for t in range(4)], -1)
        got = encode(encoder, graph)
        np.testing.assert_allclose(got.node[:, :4].numpy(), np.einsum("iit->it", powers), atol=1e-12)
        edges = np.array([powers[u, v] for u, v in incidence(graph).edge_index.T.tolist()])
        np.testing.assert_allclose(got.edge.numpy(), edges, atol=1e-12)


def test_layers_start_as_copies() -> None:
    layers = SpectralEncoder(num_layers=3).node_net.layers
    first = layers[0].state_dict()
    assert all(torch.equal(first[name], values) for layer in layers for name, values in layer.state_dict().items())


@pytest.mark.parametrize(("f", "k"), [(2, 8), (3, 8), (2, 16)])
def test_published_number_of_parameters(f: int, k: int) -> None:
    """A layer of width ``k`` with a hidden width of 2048 has ``4 k^2 + 4105 k + 2048``."""
    widths = {"out_channels": k if f == 2 else 0, "edge_out_channels": k if f == 3 else 0}
    encoder = SpectralEncoder(**widths, num_layers=3, feedforward_channels=2048)
    assert sum(p.numel() for p in encoder.parameters()) == (f + 1) * k + 3 * (4 * k**2 + 4105 * k + 2048)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_eigenpairs": 0}, "num_eigenpairs must be an integer of at least 1, got 0"),
        ({"out_channels": -1}, "out_channels must be an integer of at least 0, got -1"),
        ({"out_channels": 0, "edge_out_channels": 0}, "nothing would be encoded"),
        ({"out_channels": 6}, "out_channels must be divisible by heads=4, got 6"),
        ({"tokens": "pairs"}, "tokens must be one of ('eigenspaces', 'eigenvectors'), got 'pairs'"),
        ({"normalization": "rw"}, "normalization must be one of (None, 'sym'), got 'rw'"),
        ({"net": "deep_set", "heads": 3}, "heads=3 would have no effect with net='deep_set'"),
        ({"net": "deep_set", "dropout": 0.5}, "dropout=0.5 would have no effect with net='deep_set'"),
        ({"net": "mlp"}, "net must be one of ('transformer', 'deep_set'), got 'mlp'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"num_layers": 0}, "num_layers must be an integer of at least 1, got 0"),
    ],
)
def test_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SpectralEncoder(**options)


def test_many_components_take_no_more_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, solve = [], eigenspaces_module.laplacian_eigenvectors
    monkeypatch.setattr(
        eigenspaces_module, "laplacian_eigenvectors", lambda graph, k, **o: asked.append(k) or solve(graph, k, **o)
    )
    parts = nx.disjoint_union_all([nx.path_graph(9), *([nx.path_graph(2)] * 40), nx.empty_graph(30)])
    graph = incidence(from_networkx(parts))
    found = eigenspaces(graph, 5)
    assert asked == [5 + eigenspaces_module.SPARE]
    assert found.values[0, 0] == 0 and bool(found.values[0, 1:].isnan().all())
    expected = torch.cat([graph.laplacian_diagonal(torch.ones(1).double())[:9] / 16, torch.full((80,), 0.5)]).sqrt()
    torch.testing.assert_close(found.node[:89, 0], expected)
    assert not bool(found.node[89:].any()), "a node without edges has the eigenvalue 1"
    torch.testing.assert_close(found.product[8:, 0], torch.full((40,), 0.5).double())


def test_edges_of_weight_zero_join_no_null_vectors() -> None:
    index = torch.tensor([[0, 2, 1], [1, 3, 2]])
    found = eigenspaces(Incidence(index, 4, edge_weight=torch.tensor([1.0, 1.0, 0.0])), 2)
    edge = (Incidence(index, 4).tail == 1).nonzero().item()
    torch.testing.assert_close(found.product[edge], torch.tensor([0.0, 0.0]).double())
    torch.testing.assert_close(found.distance[edge], torch.tensor([1.0, 0.0]).double())


def test_filters_without_normalisation_are_those_of_a_bounded_variable() -> None:
    encoder = SpectralKernel(2, 0, 4, normalization=None, num_polynomials=5).double()
    values = torch.tensor([[0.0, 0.5, 3.0, 1e6]]).double()
    z = ((1 - values) / (1 + values)).numpy()
    np.testing.assert_allclose(
        encoder._polynomials(values).numpy(), np.polynomial.chebyshev.chebvander(z, 4), atol=1e-12
    )


def test_kernels_in_full_precision_under_autocast() -> None:
    encoder = randomize_(SpectralKernel(4, 3, M))
    index, _ = GRAPH.both_ways()
    expected = encoder.encode(Incidence(index, 6))
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder.encode(Incidence(index, 6))
    assert torch.equal(found.node, expected.node) and torch.equal(found.edge, expected.edge)


@pytest.mark.parametrize("dynamic", [None, True])
def test_eigenvectors_in_a_compiled_model(dynamic: bool | None) -> None:
    """Sizes of components are read on the host: the compiler leaves them alone."""
    torch._dynamo.reset()
    model = GraphTransformer(encoder=SpectralEncoder(4, 4, M), hidden_channels=8, heads=2, num_layers=1).eval()
    compiled = torch.compile(model, backend="eager", dynamic=dynamic)
    for sizes in ((4, 5, 6), (7, 3)):
        batched = batch_of([from_networkx(nx.cycle_graph(n)) for n in sizes])
        index, batch = batched.edge_index, batched.arguments()["batch"]
        with torch.no_grad():
            torch.testing.assert_close(compiled(None, index, None, batch), model(None, index, None, batch))
