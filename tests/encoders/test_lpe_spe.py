"""LPE and SPE agree with dense algebra and have the documented invariances."""

from __future__ import annotations

import warnings
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, LargestTensor, batch_of, few, from_networkx, graph_of, graphs, randomize_, refusals
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import tg_lpe
from tg_lpe import Encoder, Encoding
from tg_lpe.encoders import LPE, SPE, LaplacianEigenvectors, SignNet, SpectralEncoder, SpectralKernel
from tg_lpe.graph.eigenspaces import outer_eigenvectors
from tg_lpe.testing.encoder_test_case import GRAPH, EncoderTestCase

M = 5
SYMMETRIC = [nx.petersen_graph(), nx.cycle_graph(6), nx.complete_graph(5), nx.star_graph(4), nx.path_graph(4)]


def spectrum(graph: Graph, normalization: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return eigenvalues, eigenvectors, and the number of the eigenspace of each."""
    if not graph.num_nodes:
        return np.zeros(0), np.zeros((0, 0)), np.zeros(0, int)
    matrix = graph.published_laplacian(normalization)
    values, vectors = np.linalg.eigh(matrix)
    size = 1.0 if normalization == "sym" else np.diag(matrix).max()
    return values, vectors, np.cumsum(np.diff(values, prepend=values[0]) > 1e-6 * size)


class TestLPE(EncoderTestCase):
    both_ends = False
    learned = True
    tolerance = 1e-6

    def make(self) -> Encoder:
        return LPE(2, M)

    def is_settled(self, graph: Graph) -> bool:
        """Whether no eigenvalue repeats and each eigenvector has a canonical sign: else the order of nodes decides."""
        values, vectors, _ = spectrum(graph, "sym")
        cubes = np.abs((vectors**3).sum(0)) > 1e-3 * (np.abs(vectors) ** 3).sum(0)
        last = len(values) if self.both_ends else M
        return bool(np.diff(values[: last + 1]).min(initial=1.0) > 1e-3 and cubes[:last].all())

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        return encoding if self.is_settled(graph) else Encoding(encoding.node[:, :0])

    def columns(self, n: int) -> list[int]:
        """Which of the eigenpairs of ``n`` nodes are read, in ascending order of eigenvalues."""
        return [*range(n)][:M]

    def oracle(self, graph: Graph) -> tuple[np.ndarray, None]:
        encoder: Any = self.double()
        values, vectors, _ = spectrum(graph, "sym")
        vectors = vectors * np.where((vectors**3).sum(0) < 0, -1.0, 1.0)
        node = torch.zeros(graph.num_nodes, 2, dtype=torch.float64)
        with torch.no_grad():
            for j, column in enumerate(self.columns(graph.num_nodes)):
                value = torch.full((graph.num_nodes,), max(values[column], 0.0), dtype=torch.float64)
                pair = torch.stack([torch.from_numpy(vectors[:, column]), value + encoder.epsilon[j]], 1)
                node += encoder.phi(pair)
            return self.invariant(graph, Encoding(encoder.rho(node))).node.numpy(), None


class TestLPEWithManyEigenpairs(TestLPE):
    """More than most graphs have."""

    test_gradients = None

    def make(self) -> Encoder:
        return LPE(2, 12)

    def is_settled(self, graph: Graph) -> bool:
        return graph.num_nodes <= M and super().is_settled(graph)


class TestLPEOfBothEnds(TestLPE):
    """Three of the smallest eigenvalues, the two largest."""

    both_ends = True
    test_gradients = None

    def make(self) -> Encoder:
        return LPE(2, M, num_largest=2)

    def columns(self, n: int) -> list[int]:
        return [*range(n)][: M - 2] + [*range(M - 2, n)][::-1][:2]


@few
@example([from_networkx(nx.complete_graph(9)), from_networkx(nx.star_graph(8))], 6, 3, "sym")
@example([from_networkx(nx.star_graph(6)), from_networkx(nx.complete_bipartite_graph(4, 5))], 8, 4, None)
@example([from_networkx(nx.disjoint_union(nx.complete_graph(5), nx.empty_graph(2)))], 6, 3, "sym")
@example([from_networkx(nx.from_edgelist([(0, 2), (1, 3)])), from_networkx(nx.empty_graph(9))], 4, 3, "sym")
@given(st.lists(graphs(), max_size=4), st.integers(2, 12), st.integers(1, 11), st.sampled_from(["sym", None]))
def test_eigenpairs_of_both_ends(parts: list[Graph], k: int, num_largest: int, normalization: str | None) -> None:
    """No eigenpair twice, and none left out."""
    num_largest = min(num_largest, k - 1)
    batched = batch_of(parts)
    graph = tg_lpe.Graph(**batched.arguments())
    vectors, values = outer_eigenvectors(graph, k, num_largest, normalization=normalization)
    assert vectors.shape == (batched.num_nodes, k) and values.shape == (len(parts), k)
    for part, v, got in zip(parts, batched.split(vectors), values.numpy(), strict=True):
        v, there = v.numpy(), np.isfinite(got)
        assert not v[:, ~there].any()
        np.testing.assert_allclose(v.T @ v, np.diag(there.astype(float)), atol=1e-8)
        if not part.num_nodes:
            continue
        every, _, _ = spectrum(part, normalization)
        matrix = part.published_laplacian(normalization)
        size = max(1.0, np.abs(matrix).max())
        np.testing.assert_allclose(matrix @ v, v * np.nan_to_num(got), atol=2e-6 * size)
        ends = [*every[: k - num_largest], *every[k - num_largest :][::-1][:num_largest]]
        np.testing.assert_allclose(got[there], ends, atol=1e-6 * size)


class TestSPE(EncoderTestCase):
    learned = True
    normalization: str | None = "sym"
    num_eigenpairs = M
    tolerance = 1e-6

    def make(self) -> Encoder:
        return SPE(2, self.num_eigenpairs, num_filters=2, filter_channels=2, normalization=self.normalization)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, None]:
        encoder: Any = self.double()
        n, m = graph.num_nodes, self.num_eigenpairs
        values, vectors, space = spectrum(graph, self.normalization)
        kept = len(values) if len(values) <= m else int((space < space[m]).sum())
        q = torch.zeros(n, n, 2, dtype=torch.float64)
        adjacency = torch.from_numpy(np.diag(np.diag(graph.laplacian())) - graph.laplacian())
        with torch.no_grad():
            for value, vector in zip(values[:kept], torch.from_numpy(vectors[:, :kept]).T, strict=True):
                response = encoder.phi(torch.tensor([max(value, 0.0)], dtype=torch.float64))
                q += torch.outer(vector, vector).unsqueeze(2) * response
            summed = (1 + encoder.epsilon) * q + torch.einsum("uw,wvc->uvc", adjacency, q)
            return encoder.second(encoder.first(summed).relu().sum(1)).numpy(), None


class TestCombinatorialSPE(TestSPE):
    normalization = None
    test_gradients = None


class TestSPEWithManyEigenpairs(TestSPE):
    num_eigenpairs = 12
    test_gradients = None


@few
@given(data=st.data())
def test_spe_depends_on_no_basis(data: st.DataObject) -> None:
    encoder: Any = randomize_(SPE(4, M, num_filters=3)).double()
    symmetric = st.sampled_from([from_networkx(nx.relabel.convert_node_labels_to_integers(g)) for g in SYMMETRIC])
    graph = data.draw(st.one_of(symmetric, graphs(min_nodes=2, exponents=(0.0, 0.0))))
    batch = graph_of(graph)
    with torch.no_grad():
        expected = encoder(None, batch).node
        found = encoder.precompute(batch)
        values, vectors = found[f"graph_eigenvalues_{encoder.kind}"][0], found[f"node_spectrum_{encoder.kind}"]
        turned, there = torch.zeros_like(vectors), values.isfinite()
        for value in torch.unique((values[there] * 1e6).round()):
            columns = ((values * 1e6).round() == value).nonzero().flatten()
            draw = torch.randn(2 * [len(columns)], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            turned[:, columns] = -vectors[:, columns] @ torch.linalg.qr(draw).Q
        assert there.sum() < 2 or not torch.allclose(turned, vectors)
        got = encoder(None, batch, precomputed={**found, f"node_spectrum_{encoder.kind}": turned}).node
        assert float((got - expected).abs().max()) <= 1e-10 * max(1.0, float(expected.abs().max()))


TOKENS = {"num_eigenpairs": 3, "tokens": "eigenvectors"}


@pytest.mark.parametrize(
    "encoder",
    [LPE(16, 3), LaplacianEigenvectors(3, 0), SpectralEncoder(4, 0, **TOKENS)],
    ids=["LPE", "plain", "san"],
)
@pytest.mark.parametrize("is_precomputed", [False, True])
def test_random_signs(encoder: Encoder, is_precomputed: bool) -> None:
    graph = graph_of(GRAPH, GRAPH)
    randomize_(encoder).double().eval()
    precomputed = encoder.precompute(graph) if is_precomputed else None

    def encode(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        with torch.no_grad():
            return encoder(None, graph, generator=generator, precomputed=precomputed).node

    torch.testing.assert_close(*encode(None).split(6))
    drawn = {tuple(encode(seed)[:6].flatten().tolist()) for seed in range(60)}
    assert len(drawn) == 8, "each column has its own sign"
    assert any(not torch.allclose(*out.split(6)) for out in map(encode, range(5))), "each graph has its own signs"


def test_signs_may_be_kept() -> None:
    encoder, graph = randomize_(SpectralEncoder(4, 0, flip_signs=False, **TOKENS)), graph_of(GRAPH)
    signs = [encoder(None, graph, generator=torch.Generator().manual_seed(seed)).node for seed in range(5)]
    assert not encoder.has_signs and all(torch.equal(out, encoder(None, graph).node) for out in signs)


test_refusals = refusals(LPE, ({"num_eigenpairs": 6, "num_largest": 6}, "num_largest must"))


def test_spe_says_where_little_is_left() -> None:
    star, path = from_networkx(nx.star_graph(60)), from_networkx(nx.path_graph(60))
    edges = from_networkx(nx.from_edgelist([(0, 1), (2, 3), (4, 5)]))
    for parts, k in (((star, path), 8), ((edges,), 2)):
        with pytest.warns(UserWarning, match="num_eigenpairs"):
            SPE(4, num_eigenpairs=k).precompute(graph_of(*parts))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part, k in ((path, 8), (star, 64), (edges, 3)):
            SPE(4, num_eigenpairs=k).precompute(graph_of(part))


@pytest.mark.parametrize(
    "make",
    [
        lambda m: LPE(8, m),
        lambda m: LPE(8, m, num_largest=4),
        lambda m: SignNet(8, m),
        lambda m: SpectralEncoder(8, 8, m),
        lambda m: SpectralKernel(8, 8, m),
    ],
)
def test_small_graphs_do_not_pay_for_absent_eigenpairs(make: Any) -> None:
    """Encode paths of six nodes, of which 40 eigenpairs are wanted, as if six were; beside a longer path, equally."""
    short, long = from_networkx(nx.path_graph(6)), from_networkx(nx.path_graph(50))
    entries, paths = [], graph_of(*[short] * 30)
    for m in (6, 40):
        encoder = randomize_(make(m)).double().eval()
        precomputed = encoder.precompute(paths)
        with LargestTensor() as seen, torch.no_grad():
            encoding = encoder(None, paths, precomputed=precomputed)
        entries.append(seen.total)
    assert entries[1] < 1.5 * entries[0]
    with torch.no_grad():
        beside = encoder(None, graph_of(*[short] * 30, long))
    for found, expected in zip(beside, encoding, strict=True):
        if expected is not None:
            torch.testing.assert_close(found[: len(expected)], expected)


@pytest.mark.parametrize("cls", [LPE, SPE, SignNet])
def test_edge_weights_get_no_gradient(cls: type[LPE | SPE | SignNet]) -> None:
    index, weight = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]), torch.linspace(0.5, 1.5, 6).double()
    encoder = cls(4, num_eigenpairs=5).double()
    node = encoder(None, index, edge_weight=weight.requires_grad_(), num_nodes=5).node
    assert torch.autograd.grad(node.sin().sum(), weight, allow_unused=True)[0] is None
    assert node.requires_grad
    torch.testing.assert_close(encoder(None, index, edge_weight=weight.detach(), num_nodes=5).node, node)
