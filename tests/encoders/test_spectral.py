"""Encodings of the spectrum against numpy's eigenvectors, their invariances, and the published checks."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, batch_of, few, from_networkx, graphs, randomize_, relative_error
from hypothesis import given
from pages import ROOT
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from tg_lpe import Encoder, Encoding, GraphTransformer, Incidence
from tg_lpe.data import GraphSplits
from tg_lpe.encoders import SpectralEncoder, SpectralKernel
from tg_lpe.encoders import spectral as spectral_module
from tg_lpe.encoders.precompute import PREFIX
from tg_lpe.graph import eigenspaces as eigenspaces_module
from tg_lpe.graph.eigenspaces import bottom_eigenvectors, eigenspaces
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors
from tg_lpe.testing.encoder_test_case import GRAPH, EncoderTestCase
from tg_lpe.training import JointTraining, TrainConfig, build_model, make_task

M = 5
ERRATA = (ROOT / "docs" / "theory" / "errata_spectral_attention.md").read_text(encoding="utf-8")


def spaces_of(graph: Graph, normalization: str | None, k: int) -> list[tuple[float, np.ndarray]]:
    """Eigenvalue and eigenvectors of each whole eigenspace that the first ``k`` eigenvectors touch."""
    if not graph.num_nodes:
        return []
    matrix = graph.published_laplacian(normalization)
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


def spectral(scale: float = 0.5, **options: Any) -> SpectralEncoder:
    encoder = SpectralEncoder(**{"num_eigenpairs": 6, "feedforward_channels": 16, **options})
    return randomize_(encoder, scale=scale).double().eval()


def encode(encoder: Encoder, graph: Graph, **more: Any) -> Encoding:
    with torch.no_grad():
        return encoder.encode(incidence(graph), **more)


def named(encoder: SpectralEncoder | SpectralKernel, **spectrum: Tensor) -> dict[str, Tensor]:
    """As ``precompute`` calls what stands at nodes and edges."""
    return {f"{level}_spectrum_{encoder.kind}": values for level, values in spectrum.items()}


def path(n: int) -> Graph:
    return from_networkx(nx.path_graph(n))


def changed(solve: Callable[..., Any], matrix: Tensor) -> Callable[..., Any]:
    """A solver that returns the eigenvectors times a matrix."""

    def solver(graph: Incidence, k: int, **options: Any) -> tuple[Tensor, Tensor]:
        vectors, values = solve(graph, k, **options)
        width = vectors.size(1)
        others = torch.eye(max(width - len(matrix), 0), dtype=torch.float64)
        return vectors @ torch.block_diag(matrix, others)[:width, :width], values

    return solver


def encode_with(matrix: Tensor, encoder: Encoder, graph: Graph, module: ModuleType, name: str) -> Encoding:
    """The encoding, where the solver of that name in that module finds eigenvectors times a matrix."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, changed(getattr(module, name), matrix))
        return encode(encoder, graph)


def test_all_signs_leave_the_edges_unchanged() -> None:
    """2^6 choices of signs and swapped ends; the published node tokens change with one sign."""
    encoder, graph = spectral(tokens="eigenvectors"), path(9)
    expected = encode(encoder, graph)
    outs = [
        encode_with(torch.diag(torch.tensor(signs).double()), encoder, graph, spectral_module, "bottom_eigenvectors")
        for signs in itertools.product((1.0, -1.0), repeat=6)
    ]
    assert all(torch.equal(out.edge, expected.edge) for out in outs)
    for flipped in range(6):
        assert relative_error(outs[2**flipped].node, expected.node) > 0.007
    index = graph.edge_index()
    for ends in (index, index.flip(0)):
        with torch.no_grad():
            assert torch.equal(encoder.encode(Incidence(ends, 9)).edge, expected.edge[: index.size(1)])
    assert torch.equal(*expected.edge.chunk(2))


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


@pytest.mark.parametrize("flip_signs", [True, False])
def test_a_step_of_training_sees_signs_of_its_own(flip_signs: bool) -> None:
    """Also of eigenvectors that were precomputed; each graph has signs of its own, and evaluation has none."""
    index, _ = path(9).both_ways()
    data = [Data(edge_index=index, num_nodes=9, y=torch.tensor([0.5])) for _ in range(3)]
    splits, task = GraphSplits.of(data, data, data, level="graph"), make_task({"name": "regression"})
    torch.manual_seed(0)
    encoder = SpectralEncoder(4, 0, 6, tokens="eigenvectors", flip_signs=flip_signs)
    model = build_model(splits.spec, task, encoder, hidden_channels=8, heads=2, num_layers=1)
    training = JointTraining(TrainConfig(precision="float32"), model, splits, task, progress=False)
    seen: list[Tensor] = []
    model.encoder.node_net.register_forward_pre_hook(lambda _, given: seen.append(given[0][..., 0].detach().clone()))
    batch, generator = Batch.from_data_list(list(training.train_set)), torch.Generator().manual_seed(0)
    plain = batch[f"{PREFIX}node_spectrum_{encoder.kind}"]
    model.train()
    losses = [training.loss(batch, generator).item() for _ in range(4)]
    assert len(seen) == 4 and all(torch.equal(entries.abs(), plain.abs()) for entries in seen)
    drawn = torch.stack([entries[9 * graph] * plain[9 * graph] > 0 for entries in seen for graph in range(3)])
    assert len(drawn.unique(dim=0)) > 8 if flip_signs else bool(drawn.all())
    assert len(set(losses)) == (4 if flip_signs else 1)
    with torch.no_grad():
        training.predict(batch)
    assert torch.equal(seen[-1], plain)


@pytest.mark.parametrize("tokens", ["eigenvectors", "eigenspaces"])
def test_a_set_of_tokens_of_one_node_or_edge(tokens: str) -> None:
    """Neither padding nor the order of tokens changes an encoding, nor do the tokens of another node or edge."""
    graph = path(9)
    encoder, longer = (spectral(tokens=tokens, num_eigenpairs=m) for m in (9, 20))
    expected, found = encode(encoder, graph), encoder.precompute(incidence(graph))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    permuted = {name: rows.unflatten(1, (-1, 9))[..., order].flatten(1) for name, rows in found.items()}
    for got in (encode(longer, graph), encode(encoder, graph, precomputed=permuted)):
        for rows, wanted in zip(got, expected, strict=True):
            torch.testing.assert_close(rows, wanted, rtol=0, atol=4e-14)
    node, edge = (found[f"{level}_spectrum_{encoder.kind}"].clone() for level in ("node", "edge"))
    node[0], edge[[0, 8]] = node[0].flip(0) + 0.3, edge[[0, 8]].flip(1) + 0.3
    moved = encode(encoder, graph, precomputed=found | named(encoder, node=node, edge=edge))
    for rows, wanted, ones in ((moved.node, expected.node, [0]), (moved.edge, expected.edge, [0, 8])):
        is_one = torch.zeros(len(rows), dtype=torch.bool).index_fill(0, torch.tensor(ones), True)
        assert torch.equal(rows[~is_one], wanted[~is_one])
        assert float((rows - wanted)[is_one].abs().amax(1).min()) > 0.01


def pairs_rotated(angle: float, with_null: bool) -> Tensor:
    """For ``C_6``, whose eigenvalues 1/2 and 3/2 have two eigenvectors each; 0, if it is there, and 2 have one."""
    c, s = np.cos(angle), np.sin(angle)
    turn, one = torch.tensor([[c, -s], [s, c]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    return torch.block_diag(*[one] * with_null, turn, turn, one)


def test_a_change_of_basis_moves_the_published_form_alone() -> None:
    graph = from_networkx(nx.cycle_graph(6))
    published, ours, kernel = spectral(tokens="eigenvectors"), spectral(), randomize_(SpectralKernel(8, 8, 6)).double()
    for solve, with_null in ((bottom_eigenvectors, True), (laplacian_eigenvectors, False)):
        turn = pairs_rotated(0.8, with_null)
        vectors, values = changed(solve, turn)(incidence(graph), len(turn))
        there = graph.published_laplacian("sym") @ vectors.numpy()
        np.testing.assert_allclose(there, (vectors * values).numpy(), rtol=0, atol=1e-14)  # still eigenvectors
        assert float((vectors - solve(incidence(graph), len(turn))[0]).abs().max()) > 0.1
    before, after = (
        encode(published, graph),
        [
            encode_with(pairs_rotated(angle, True), published, graph, spectral_module, "bottom_eigenvectors")
            for angle in (0.4, 0.8, 1.2)
        ],
    )
    assert max(float((out.edge - before.edge).abs().max()) for out in after) > 0.02
    assert max(float((out.node - before.node).abs().max()) for out in after) > 0.02
    assert max(float((out.edge - out.edge[:1]).abs().max()) for out in after) > 0.05
    for encoder in (ours, kernel):
        expected, turn = encode(encoder, graph), pairs_rotated(0.8, False)
        for got in (expected, encode_with(turn, encoder, graph, eigenspaces_module, "laplacian_eigenvectors")):
            for rows, wanted in zip(got, expected, strict=True):
                assert relative_error(rows, wanted) < 2e-14
                # All nodes of a ring are alike, and all edges: so must their encodings be.
                assert relative_error(rows, wanted[:1].expand(len(rows), -1)) < 2e-14


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


@pytest.mark.parametrize("which", ["bottom", "top"])
def test_null_vectors_and_nodes_without_edges(which: str) -> None:
    graph, step = Graph(4, [(0, 1), (0, 2)], [1.0, 1.0]), 1 if which == "bottom" else -1
    vectors, values = laplacian_eigenvectors(incidence(graph), 5, keep_null=True, which=which)
    expected = np.linalg.eigvalsh(graph.published_laplacian("sym"))[::step]
    np.testing.assert_allclose(values[0, :4].numpy(), expected, atol=1e-12)
    assert bool(values[0, 4].isnan()) and bool((vectors[:, 4] == 0).all())
    np.testing.assert_allclose(
        graph.published_laplacian("sym") @ vectors[:, :4].numpy(), vectors[:, :4].numpy() * expected, atol=1e-12
    )
    _, values = laplacian_eigenvectors(incidence(graph), 4, normalization=None, keep_null=True, which=which)
    np.testing.assert_allclose(values[0].numpy(), [0, 0, 1, 3][::step], atol=1e-12)


@pytest.mark.parametrize("which", ["bottom", "top"])
def test_a_grounded_component_has_no_null_vector(which: str) -> None:
    plain = incidence(Graph(4, [(0, 1), (2, 3)], [1.0, 1.0]))
    graph = plain.with_conductances(plain.conductance, torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    dense = np.array([[2.0, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, -1], [0, 0, -1, 1]])
    vectors, values = laplacian_eigenvectors(graph, 4, normalization=None, keep_null=True, which=which)
    expected = np.linalg.eigvalsh(dense)[:: 1 if which == "bottom" else -1]
    np.testing.assert_allclose(values[0].numpy(), expected, atol=1e-12)
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


def by_values(graph: Graph, m: int, normalization: str | None = "sym") -> Tensor:
    """Encoding of a graph's nodes by the published tokens, whose entries of eigenvectors have the weight zero."""
    encoder = spectral(scale=1.0, num_eigenpairs=m, tokens="eigenvectors", normalization=normalization)
    with torch.no_grad():
        encoder.node_net.linear.weight[:, 0] = 0
    node = encode(encoder, graph).node
    assert relative_error(node, node[:1].expand(graph.num_nodes, -1)) < 1e-14
    return node[0]


def test_eigenvalues_alone_tell_apart_what_colour_refinement_does_not() -> None:
    """Decalin and bicyclopentyl are alike to 1-WL; K_1,3 and C_4 have one spectrum under ``"sym"``."""
    decalin = nx.cycle_graph(10)
    decalin.add_edge(0, 5)
    bicyclopentyl = nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(5))
    bicyclopentyl.add_edge(0, 5)
    pair = [from_networkx(graph) for graph in (decalin, bicyclopentyl)]
    assert relative_error(by_values(pair[0], 1), by_values(pair[1], 1)) < 1e-14
    for m in range(2, 11):
        assert float((by_values(pair[0], m) - by_values(pair[1], m)).abs().max()) > 0.01
    star, square = from_networkx(nx.star_graph(3)), from_networkx(nx.cycle_graph(4))
    assert relative_error(by_values(star, 4), by_values(square, 4)) < 1e-14
    assert float((by_values(star, 4, None) - by_values(square, 4, None)).abs().max()) > 0.18


@pytest.mark.parametrize(("row", "normalization"), [("D - A", None), ("I - D^-1/2 A D^-1/2", "sym")])
def test_graphs_that_share_their_spectrum(row: str, normalization: str | None) -> None:
    """What the page of misprints prints: all graphs of 4 to 7 nodes, eigenvalues compared to eight decimals."""
    printed = re.search(rf"^\| `{re.escape(row)}` \| (.*) \|$", ERRATA, flags=re.MULTILINE)
    atlas, found = nx.graph_atlas_g(), []
    for n in range(4, 8):
        parts = [from_networkx(graph) for graph in atlas if len(graph) == n]
        _, values = bottom_eigenvectors(Incidence(**batch_of(parts).arguments()), n, normalization=normalization)
        expected = np.linalg.eigvalsh(np.stack([graph.published_laplacian(normalization) for graph in parts]))
        np.testing.assert_allclose(values.numpy(), expected, atol=1e-13)
        counts = Counter(tuple(spectrum) for spectrum in expected.round(8).tolist())
        found.append(f"{sum(count for count in counts.values() if count > 1)} of {len(parts):,}")
    assert printed is not None and printed[1].split(" | ") == found


def test_repeated_eigenvalues_of_molecules(shared_data: Path) -> None:
    """What the page of misprints prints of ZINC-12k's test molecules."""
    arrays = dict(np.load(shared_data / "zinc12k" / "test.npz"))
    ends = arrays["num_bonds"].astype(np.int64).cumsum()
    bonds = [np.sort(rows, 0).T.tolist() for rows in np.split(arrays["bonds"], ends[:-1], axis=1)]
    parts = [
        Graph(int(n), sorted(map(tuple, pairs)), [1.0] * len(pairs))
        for n, pairs in zip(arrays["num_nodes"], bonds, strict=True)
    ]
    _, values = bottom_eigenvectors(Incidence(**batch_of(parts).arguments()), 30)
    equal = values.diff(dim=1) < 1e-8  # NaN, where there is no eigenvalue, is not
    shares = (equal[:, :9].any(1), equal.any(1), equal[:, 9])
    printed = re.search(r"Eigenvalues repeat often\..*?\n\n", ERRATA, flags=re.DOTALL)
    assert printed is not None and "1,000" in printed[0] and len(parts) == 1000
    assert re.findall(r"(\d+) %", printed[0]) == [f"{100 * float(share.double().mean()):.0f}" for share in shares]


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
        walk = np.eye(graph.num_nodes) - graph.published_laplacian("sym")
        powers = np.stack([np.linalg.matrix_power(walk, t) for t in range(4)], -1)
        got = encode(encoder, graph)
        np.testing.assert_allclose(got.node[:, :4].numpy(), np.einsum("iit->it", powers), rtol=0, atol=9e-15)
        edges = np.array([powers[u, v] for u, v in incidence(graph).edge_index.T.tolist()])
        np.testing.assert_allclose(got.edge.numpy(), edges, rtol=0, atol=9e-15)


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
        ({"num_eigenpairs": 0}, "num_eigenpairs must"),
        ({"out_channels": -1}, "out_channels must"),
        ({"out_channels": 0, "edge_out_channels": 0}, "nothing would be encoded"),
        ({"out_channels": 6}, "out_channels must"),
        ({"tokens": "pairs"}, "tokens must"),
        ({"normalization": "rw"}, "normalization must"),
        ({"net": "deep_set", "heads": 3}, "heads="),
        ({"net": "deep_set", "dropout": 0.5}, "dropout="),
        ({"net": "mlp"}, "net must"),
        ({"dropout": 1.0}, "dropout must"),
        ({"num_layers": 0}, "num_layers must"),
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


@pytest.mark.slow
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
