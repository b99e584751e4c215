"""Encoders of directed graphs against dense algebra."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import equal_values, randomize_, refusals, transitions
from numpy.polynomial.chebyshev import chebval
from torch import nn

import tg_lpe
from tg_lpe import Encoder, Encoding, GramTransformer
from tg_lpe.encoders import RRWP, DirectedWalk, MagneticLaplacian, RandomWalk
from tg_lpe.testing.encoder_test_case import EncoderTestCase
from tg_lpe.testing.graphs import DirectedGraph, Graph
from tg_lpe.testing.positional_test_case import PositionalEncoderTestCase


def weighted(graph: nx.DiGraph) -> DirectedGraph:
    arcs = [(int(u), int(v)) for u, v in graph.edges]
    edges = sorted({(min(arc), max(arc)) for arc in arcs})
    return DirectedGraph(len(graph), edges, [1.0 + number % 3 for number in range(len(edges))], arcs)


class Dense(EncoderTestCase):
    """Nodes, edges and pairs by dense algebra with the adjacency matrix."""

    def directed_oracle(self, adjacency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        node, pairs = self.directed_oracle(graph.adjacency())
        return node, pairs[tuple(graph.listing()[0].numpy())]

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        return self.directed_oracle(graph.adjacency())[1]


class TestDirectedWalk(Dense):
    def make(self) -> Encoder:
        return DirectedWalk(4)

    def directed_oracle(self, adjacency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        along, against = transitions(adjacency), transitions(adjacency.T)
        found = [np.linalg.matrix_power(walk, step) for walk in (along, against) for step in range(1, 5)]
        turns = along, along @ against, along @ against @ along, along @ against @ along @ against
        values = np.stack([*found, *turns], -1)
        return np.einsum("iit->it", values), values

    def test_a_large_graph(self) -> None:
        """Above 256 nodes matrices are sparse."""
        self.check_values(weighted(nx.gnp_random_graph(300, 0.02, seed=0, directed=True)))


class TestMagneticLaplacian(Dense):
    """Nodes by projectors on the eigenspaces that lie within the first ``k`` columns as a whole."""

    tolerance = 1e-6
    k, q, times = 4, (0.1, 0.25), (0.5, 3.0)

    def make(self) -> Encoder:
        return MagneticLaplacian(self.k, self.q, self.times)

    def spectra(self, adjacency: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, list[list[int]]]]:
        """Eigenvalues, eigenvectors and columns of eigenspaces."""
        weight, found = (adjacency + adjacency.T) / 2, []
        scale = 1 / np.sqrt(np.where(weight.any(1), weight.sum(1), 1.0))
        turns = (adjacency > 0).astype(float) - (adjacency.T > 0)
        for q in self.q:
            laplacian = np.eye(len(weight)) - scale[:, None] * weight * scale * np.exp(2j * np.pi * q * turns)
            values, vectors = np.linalg.eigh(laplacian)
            found.append((values, vectors, [space for space in equal_values(values) if space[-1] < self.k]))
        return found

    def directed_oracle(self, adjacency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        node, pairs = [np.zeros((len(adjacency), 0))], []
        for values, vectors, spaces in self.spectra(adjacency):
            node += [vectors[:, space] @ vectors[:, space].conj().T for space in spaces]
            heat = np.stack([(vectors * np.exp(-t * values)) @ vectors.conj().T for t in self.times], -1)
            pairs += [heat.real, heat.imag]
        node = np.concatenate(node, 1)
        return np.concatenate([node.real, node.imag], 1), np.concatenate(pairs, -1)

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        node = encoding.node
        parts = [node.new_zeros(len(node), 0) + 0j]
        for (_, _, spaces), columns in zip(self.spectra(graph.adjacency()), node.chunk(2, 1), strict=True):
            vectors = torch.complex(*columns.chunk(2, 1))
            parts += [vectors[:, space] @ vectors[:, space].mH for space in spaces]
        out = torch.cat(parts, 1)
        return encoding._replace(node=torch.cat([out.real, out.imag], 1))

    test_values_of_corner_cases = PositionalEncoderTestCase.test_values_of_corner_cases

    def test_columns_of_a_path_turn_step_by_step(self) -> None:
        """Up to phases, eigenvectors of a directed path equal those of the path; the middle entry is real."""
        index = torch.stack([torch.arange(6), torch.arange(1, 7)])
        node = MagneticLaplacian(3, 0.1).double()(None, index).node
        plain = MagneticLaplacian(3, 0.0).double()(None, index).node[:, :3]
        assert float(node[:, 3:].abs().max()) > 0.1
        phases = torch.exp(2j * np.pi * 0.1 * torch.arange(3.0, -4.0, -1, dtype=torch.float64))[:, None]
        turned = torch.complex(*node.chunk(2, 1)) / phases
        sign = torch.tensor([1, 1j, 1])  # the second is odd about the middle, so its weighted mean is imaginary
        found = (turned / sign).real * (turned / sign).real[0].sign() * plain[0].sign()
        self.close(found, plain)
        self.close((turned / sign).imag, torch.zeros(7, 3, dtype=torch.float64))

    @pytest.mark.parametrize("q", [0.05, 0.25])
    def test_phases_follow_the_nodes(self, q: float) -> None:
        index = torch.tensor(list(nx.gnp_random_graph(12, 0.2, seed=3, directed=True).edges)).T
        label = torch.randperm(12, generator=torch.Generator().manual_seed(0))
        encoder = MagneticLaplacian(12, q).double()
        self.close(encoder(None, label[index], num_nodes=12).node[label], encoder(None, index, num_nodes=12).node)

    @pytest.mark.parametrize("kind", ["random", "dense", "grid"])
    def test_graphs_that_are_solved_iteratively(self, kind: str) -> None:
        """Against dense algebra; the grid is narrow, so it is factored."""
        if kind == "random":
            made = nx.gnp_random_graph(520, 0.01, seed=0, directed=True)
            made.add_edges_from([(520, 521), (521, 522)])  # another component, and a node without edges
            made.add_node(523)
        elif kind == "dense":
            made = nx.gnp_random_graph(514, 0.3, seed=0, directed=True)
        else:
            made = nx.convert_node_labels_to_integers(nx.grid_2d_graph(16, 33, create_using=nx.DiGraph))
            made.remove_edges_from([arc for number, arc in enumerate(list(made.edges)) if number % 3 == 0])
        self.check_values(weighted(made))

    def test_each_column_belongs_to_one_component(self) -> None:
        """Equal eigenvalues of two components do not mix them, alone or beside a graph that is solved iteratively."""
        nodes = torch.randperm(18, generator=torch.Generator().manual_seed(0))
        parts = nx.disjoint_union(nx.path_graph(9), nx.path_graph(9))
        index = nodes[torch.tensor(list(parts.edges)).T]
        encoder = MagneticLaplacian(4, 0.1).double()
        alone = encoder(None, index, num_nodes=18)
        is_in_part = (alone.node[nodes].unflatten(0, (2, 9)).abs() > 1e-9).any(1)
        assert is_in_part.sum(0).tolist() == [1] * 8
        far = 18 + torch.stack([torch.arange(599), torch.arange(1, 600)])
        batch = (torch.arange(618) >= 18).long()
        beside = encoder(None, torch.cat([index, far], 1), batch=batch)
        self.close(beside.node[:18], alone.node)
        self.close(beside.edge[: index.size(1)], alone.edge)

    def test_repeated_eigenvalues_of_large_graphs(self) -> None:
        """Two copies of a graph, relabelled: the space of both is that of each."""
        arcs = torch.tensor(list(nx.gnp_random_graph(520, 0.01, seed=0, directed=True).edges)).T
        once = self.double()(None, tg_lpe.Graph(arcs, 520)).node
        twice = self.double()(None, tg_lpe.Graph(torch.cat([arcs, arcs + 520], 1), 1040)).node
        for one, two in zip(once.chunk(2, 1), twice.chunk(2, 1), strict=True):
            first, second = (torch.complex(*columns.chunk(2, 1)) for columns in (one[:, [0, 1, 4, 5]], two))
            expected = torch.block_diag(first @ first.mH, first @ first.mH)
            self.close(torch.view_as_real(second @ second.mH), torch.view_as_real(expected))

    def test_edges_of_large_graphs_are_refused(self) -> None:
        path = tg_lpe.Graph(torch.stack([torch.arange(2_999), torch.arange(1, 3_000)]))
        with pytest.raises(ValueError, match=r"up to 2,048 nodes, got 3,000; .* edge_out_channels=0"):
            MagneticLaplacian(2)(None, path)
        assert MagneticLaplacian(2, edge_out_channels=0)(None, path).node.shape == (3_000, 8)

    def test_wrong_eigenvectors_are_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        solve = np.linalg.eigh
        monkeypatch.setattr(np.linalg, "eigh", lambda matrix: (lambda values, v: (values, v.conj()))(*solve(matrix)))
        with pytest.raises(RuntimeError, match="residual"):
            self.make()(None, torch.tensor([[0, 1, 2], [1, 2, 0]]))


class TestDirectedGramTransformer(Dense):
    """Without learned conductances: powers of a Hermitian matrix."""

    basis, potential = "power", 0.1

    def make(self, **more: Any) -> Encoder:
        options = {"conductances": "fixed", "pair_out_channels": None, "basis": self.basis, **more}
        return GramTransformer(num_filters=1, num_layers=4, direction=self.potential, **options)

    def double(self) -> Encoder:
        return self.make().double().eval()

    def directed_oracle(self, adjacency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = np.maximum(adjacency, adjacency.T)
        degree = weight.sum(1)
        scale = 1 / np.sqrt(np.where(degree > 0, degree, 1.0))
        moduli = scale[:, None] * weight * scale
        turns = (adjacency > 0).astype(float) - (adjacency.T > 0)
        hermitian = moduli * np.exp(2j * np.pi * self.potential * turns)
        values, vectors = np.linalg.eigh(hermitian)
        found = []
        for order in range(1, 5):
            of_values = values**order if self.basis == "power" else chebval(values, np.eye(5)[order])
            found.append((vectors * of_values) @ vectors.conj().T)
        layers = np.stack(found, -1)
        currents = np.einsum("uv,uvt->ut", moduli, layers.imag)
        node = np.concatenate([np.einsum("iit->it", layers).real, currents], 1)
        return node, np.concatenate([layers.real, layers.imag], -1)

    def test_estimates_have_no_bias(self) -> None:
        index = torch.tensor(list(nx.gnp_random_graph(12, 0.2, seed=3, directed=True).edges)).T
        exact = self.make()(None, index, num_nodes=12)
        found = self.make(probes="rademacher", num_probes=20_000)(None, index, num_nodes=12)
        for one, other in zip(exact, found, strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=0.06)


class TestChebyshevGramTransformer(TestDirectedGramTransformer):
    basis, potential = "chebyshev", 0.25


class TestLearnedGramTransformer(EncoderTestCase):
    """Every edge in both directions; types of nodes and edges, linear maps."""

    learned = True

    def make(self) -> Encoder:
        types = {"num_node_types": 3, "num_edge_types": 2, "pair_out_channels": 2}
        return GramTransformer(3, 2, 2, 3, direction=0.1, **types)


def test_potential_zero_reads_no_directions() -> None:
    index = torch.tensor(list(nx.gnp_random_graph(12, 0.2, seed=3, directed=True).edges)).T
    types = torch.arange(index.size(1)) % 3
    plain = randomize_(GramTransformer(num_filters=2, num_layers=3, num_edge_types=3)).double()
    zero = GramTransformer(num_filters=2, num_layers=3, num_edge_types=3, direction=0).double()
    zero.load_state_dict(plain.state_dict())
    for one, other in zip(plain(None, index, types)[:2], zero(None, index, types)[:2], strict=True):
        torch.testing.assert_close(torch.cat([one, 0 * one], 1), other)


def test_gradients_of_learned_directions() -> None:
    index = torch.tensor(list(nx.gnp_random_graph(6, 0.3, seed=3, directed=True).edges)).T
    weight = torch.rand(index.size(1), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    encoder = GramTransformer(3, 2, 2, 3, direction=0.1, pair_out_channels=2).double()

    def encode(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        graph = tg_lpe.Graph(index, 6, edge_weight=w, reduce="mean")
        return tuple(encoder(None, graph, pairs=graph.pairs))

    assert torch.autograd.gradcheck(encode, weight.requires_grad_())
    assert torch.autograd.gradgradcheck(encode, weight)


test_out_of_range = refusals(
    lambda cls, num_nodes=2, **options: cls(**options)(None, torch.zeros(2, 0).long(), num_nodes=num_nodes),
    ({"cls": GramTransformer, "probes": "identity", "direction": 0.1, "num_nodes": 3000}, "2048 nodes, got 3000"),
    *(({"cls": MagneticLaplacian, "q": q}, "q must") for q in ((), -0.1)),
    ({"cls": MagneticLaplacian, "times": ()}, "times must"),
)


def test_pairs_of_one_of_two_large_graphs() -> None:
    """The other graph has no pair to read."""
    ring = torch.stack([torch.arange(300), (torch.arange(300) + 1) % 300])
    both = tg_lpe.Graph(torch.cat([ring, ring + 300], 1), 600, batch=torch.arange(600) // 300)
    pairs = torch.tensor([[300, 300, 599], [301, 302, 300]])
    expected = DirectedWalk(2)(None, tg_lpe.Graph(ring, 300), pairs=pairs - 300).pair
    assert torch.equal(DirectedWalk(2)(None, both, pairs=pairs).pair, expected)


# Tasks that no encoding solves without the directions of edges: every row has a mirror image of another class. Nodes
# are numbered at random. A linear map reads rows of an encoding alone, of nodes or of pairs of nodes.

Rows = list[tuple[int, int, int]]
"""Two nodes and a class."""


def path_ends(size: int, draw: Callable[[int], int]) -> tuple[list[tuple[int, int]], Rows]:
    """Both ends of a path; the class is whether edges leave or enter."""
    return [(u, u + 1) for u in range(size - 1)], [(0, 0, 0), (size - 1, size - 1, 1)]


def cycle_neighbours(size: int, draw: Callable[[int], int]) -> tuple[list[tuple[int, int]], Rows]:
    """Both neighbours of a node on a cycle; the class is whether it is the next."""
    u = draw(size)
    return [(v, (v + 1) % size) for v in range(size)], [(u, (u + 1) % size, 0), (u, (u - 1) % size, 1)]


def signed_distances(size: int, draw: Callable[[int], int]) -> tuple[list[tuple[int, int]], Rows]:
    """A root on a path, and a node up to three steps ahead or, its mirror image, behind; six classes."""
    steps = 1 + draw(3)
    root = draw(size - steps)
    mirror = size - 1 - root
    ends = [(root, root + steps, steps + 2), (mirror, mirror - steps, 3 - steps)]
    return path_ends(size, draw)[0], ends


def rows_of(encoder: Encoder, task: Callable, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of 300 graphs of five to 20 nodes, and their classes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    indices, pairs, classes, batch = [], [], [], []
    for number in range(300):
        size, begin = 5 + draw(16), len(batch)
        edges, found = task(size, draw)
        label = begin + torch.randperm(size, generator=generator)
        indices.append(label[torch.tensor(edges).T])
        pairs.append(label[torch.tensor(found)[:, :2].T])
        classes.append(torch.tensor(found)[:, 2])
        batch += [number] * size
    graph, of = tg_lpe.Graph(torch.cat(indices, 1), batch=torch.tensor(batch)), torch.cat(pairs, 1)
    rows = encoder(None, graph).node[of[0]] if task is path_ends else encoder(None, graph, pairs=of).pair
    return rows.detach().float(), torch.cat(classes)


def accuracy(encoder: Encoder, task: Callable) -> float:
    """Accuracy on 600 new rows of a linear map of them, each column in deviations, by least squares."""
    (x, y), (new_x, new_y) = (rows_of(encoder.double(), task, seed) for seed in (0, 1))
    scale = x.std(0).clamp(min=1e-4)
    x, new_x = (torch.cat([rows / scale, torch.ones(len(rows), 1)], 1).double() for rows in (x, new_x))
    weights = torch.linalg.pinv(x, rcond=1e-6) @ nn.functional.one_hot(y).double()
    return float(((new_x @ weights).argmax(1) == new_y).float().mean())


MAGNETIC_GRAM = partial(GramTransformer, direction=0.05, pair_out_channels=None)
TASKS = path_ends, cycle_neighbours, signed_distances


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("make", [DirectedWalk, MagneticLaplacian, MAGNETIC_GRAM])
def test_directed_encodings_solve_it(make: Callable[[], Encoder], task: Callable) -> None:
    assert accuracy(make(), task) >= 0.99


@pytest.mark.parametrize(
    ("make", "task"), [(RandomWalk, path_ends), (RRWP, cycle_neighbours), (RRWP, signed_distances)]
)
def test_others_guess(make: type[Encoder], task: Callable) -> None:
    """Of two mirror images with equal rows one is right at best."""
    assert accuracy(make(), task) <= 0.51
