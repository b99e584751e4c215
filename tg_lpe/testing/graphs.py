"""Random graphs, corner cases and their dense matrices, for :class:`~tg_lpe.testing.EncoderTestCase`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import networkx as nx
import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

few = settings(deadline=None, suppress_health_check=list(HealthCheck))
"""Settings with the number of examples of hypothesis' current profile."""
fewer = settings(few, max_examples=max(1, few.max_examples // 3))


@dataclass
class Graph:
    """A simple graph with edge weights."""

    num_nodes: int
    edges: list[tuple[int, int]]
    """Distinct pairs of nodes, smaller index first, sorted."""
    weights: list[float]

    def networkx(self) -> nx.Graph:
        graph = nx.Graph()
        graph.add_nodes_from(range(self.num_nodes))
        graph.add_weighted_edges_from((u, v, w) for (u, v), w in zip(self.edges, self.weights, strict=True))
        return graph

    def edge_index(self) -> Tensor:
        """Return each edge once, int64 ``[2, num_edges]``, smaller index first."""
        return torch.tensor(self.edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()

    def edge_weight(self, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(self.weights, dtype=dtype)

    def both_ways(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        index, weight = self.edge_index(), self.edge_weight(dtype)
        return torch.cat([index, index.flip(0)], 1), torch.cat([weight, weight])

    def listing(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Return the edges as an encoder gets them, and their weights: here both ways."""
        return self.both_ways(dtype)

    def relabelled(self, label: Sequence[int]) -> Graph:
        """Return the graph in which node ``u`` is ``label[u]``."""
        rows = zip(self.edges, self.weights, strict=True)
        moved = sorted((min(label[u], label[v]), max(label[u], label[v]), w) for (u, v), w in rows)
        return Graph(self.num_nodes, [row[:2] for row in moved], [row[2] for row in moved])

    def incidence(self) -> np.ndarray:
        """Return ``B`` from networkx's oriented incidence matrix; columns are in the order of ``edges``."""
        if not self.edges:
            return np.zeros((self.num_nodes, 0))
        signs = nx.incidence_matrix(
            self.networkx(), nodelist=range(self.num_nodes), edgelist=self.edges, oriented=True
        ).toarray()
        return signs * np.sqrt(np.array(self.weights))

    def adjacency(self) -> np.ndarray:
        """Return ``A``, whose entry ``(u, v)`` is the weight of the edge from ``u`` to ``v``."""
        out, (index, weight) = np.zeros((self.num_nodes, self.num_nodes)), self.listing()
        out[tuple(index.numpy())] = weight.numpy()
        return out

    def laplacian(self) -> np.ndarray:
        if not self.num_nodes:
            return np.zeros((0, 0))
        return nx.laplacian_matrix(self.networkx(), nodelist=range(self.num_nodes)).toarray().astype(float)

    def normalized_laplacian(self) -> np.ndarray:
        laplacian = self.laplacian()
        degree = np.diag(laplacian)
        scale = np.where(degree > 0, 1 / np.sqrt(np.where(degree > 0, degree, 1.0)), 0.0)
        return scale[:, None] * laplacian * scale[None]

    def published_laplacian(self, normalization: str | None) -> np.ndarray:
        """Return ``L``, or ``I - D^-1/2 A D^-1/2`` with a diagonal one for nodes without edges."""
        laplacian = self.laplacian()
        return laplacian if normalization is None else self.normalized_laplacian() + np.diag(np.diag(laplacian) == 0)

    def num_components(self) -> int:
        return nx.number_connected_components(self.networkx()) if self.num_nodes else 0


@dataclass
class DirectedGraph(Graph):
    """A graph whose edges have directions."""

    arcs: list[tuple[int, int]]
    """Each edge in one direction or in both, in any order, some repeated."""

    def listing(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        weight = dict(zip(self.edges, self.weights, strict=True))
        index = torch.tensor(self.arcs, dtype=torch.int64).reshape(-1, 2).T.contiguous()
        return index, torch.tensor([weight[min(arc), max(arc)] for arc in self.arcs], dtype=dtype)

    def relabelled(self, label: Sequence[int]) -> DirectedGraph:
        moved = super().relabelled(label)
        arcs = [(label[u], label[v]) for u, v in self.arcs]
        return DirectedGraph(moved.num_nodes, moved.edges, moved.weights, arcs)


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: float(10.0**exponent))


@st.composite
def graphs(
    draw: st.DrawFn, max_nodes: int = 12, min_nodes: int = 0, exponents: tuple[float, float] | None = None
) -> Graph:
    """Draw a graph, maybe disconnected, with unit weights or weights whose powers of ten are in ``exponents``."""
    n = draw(st.integers(min_nodes, max_nodes))
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)]
    edges = sorted(draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * n))) if pairs else []
    weight = st.just(1.0) if exponents is None else log_uniform(*exponents)
    return Graph(n, edges, [draw(weight) for _ in edges])


@st.composite
def directed_graphs(draw: st.DrawFn, /, **options: Any) -> DirectedGraph:
    """Draw a graph as :func:`graphs`, and the directions of its edges."""
    graph, arcs = draw(graphs(**options)), []
    for u, v in graph.edges:
        arcs += draw(st.sampled_from([[(u, v)], [(v, u)], [(u, v), (v, u)], [(v, u), (v, u)]]))
    return DirectedGraph(graph.num_nodes, graph.edges, graph.weights, draw(st.permutations(arcs)))


@st.composite
def listings(draw: st.DrawFn, graph: Graph, both_ways: bool = False) -> tuple[Tensor, Tensor]:
    """Draw another list of the same edges, flipped, shuffled, repeated and with self-loops, and its weights.

    With ``both_ways``, each edge is listed in both directions at least once.
    """
    rows: list[tuple[int, int, float]] = []
    for (u, v), w in zip(graph.edges, graph.weights, strict=True):
        for _ in range(draw(st.integers(1, 3))):
            rows.append((u, v, w) if draw(st.booleans()) else (v, u, w))
        rows += [(u, v, w), (v, u, w)] if both_ways else []
    if graph.num_nodes:
        for _ in range(draw(st.integers(0, 3))):
            node = draw(st.integers(0, graph.num_nodes - 1))
            rows.append((node, node, draw(log_uniform(-2, 2))))
    rows = draw(st.permutations(rows))
    index = torch.tensor([row[:2] for row in rows], dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return index, torch.tensor([row[2] for row in rows], dtype=torch.float64)


@dataclass
class Batched:
    """A batch of graphs as in PyTorch Geometric."""

    graphs: list[Graph]
    edge_index: Tensor
    edge_weight: Tensor
    batch: Tensor

    @property
    def num_nodes(self) -> int:
        return self.batch.numel()

    def arguments(self, weighted: bool = True) -> dict[str, Any]:
        """Return keyword arguments of :class:`tg_lpe.Graph` and of encoders."""
        kwargs = {
            "edge_index": self.edge_index,
            "num_nodes": self.num_nodes,
            "batch": self.batch,
            "num_graphs": len(self.graphs),
        }
        return {**kwargs, "edge_weight": self.edge_weight} if weighted else kwargs

    def split(self, rows: Tensor) -> list[Tensor]:
        return list(rows.split([graph.num_nodes for graph in self.graphs]))


def batch_of(parts: list[Graph], dtype: torch.dtype = torch.float64) -> Batched:
    indices, weights = [torch.zeros(2, 0, dtype=torch.int64)], [torch.zeros(0, dtype=dtype)]
    batch: list[int] = []
    offset = 0
    for number, graph in enumerate(parts):
        index, weight = graph.listing(dtype)
        indices.append(index + offset)
        weights.append(weight)
        batch += [number] * graph.num_nodes
        offset += graph.num_nodes
    return Batched(parts, torch.cat(indices, 1), torch.cat(weights), torch.tensor(batch, dtype=torch.int64))


def from_networkx(graph: nx.Graph, weight: Callable[[int], float] = lambda i: 1.0) -> Graph:
    edges = sorted((min(e), max(e)) for e in nx.convert_node_labels_to_integers(graph).edges)
    return Graph(graph.number_of_nodes(), edges, [weight(i) for i in range(len(edges))])


def corner_cases() -> list[Graph]:
    """Return graphs that are empty, small, disconnected, of extreme weights, or larger than any dense bucket."""
    spread = [10.0 ** (i % 11 - 5) for i in range(200)]
    return [
        Graph(1, [], []),
        Graph(0, [], []),
        Graph(5, [], []),
        Graph(2, [(0, 1)], [1.0]),
        Graph(7, [(1, 2), (4, 6)], [1.0, 3.0]),
        from_networkx(nx.path_graph(9), lambda i: spread[i]),
        from_networkx(nx.random_regular_graph(3, 80, seed=1), lambda i: spread[i]),
        from_networkx(nx.cycle_graph(6)),
        from_networkx(nx.barbell_graph(40, 30)),
        from_networkx(nx.complete_graph(10), float),  # the first edge has weight zero
    ]


def randomize_(module: M, seed: int = 0, scale: float = 0.5) -> M:
    """Give all parameters distinct values, so that a wrong term in a formula changes the result."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
            sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.copy_(scale * noise * sign)
    return module


def uncalled_linears(module: nn.Module, run: Callable[[], object]) -> list[str]:
    """Return the names of trainable linear maps whose forward hooks a call of ``run`` does not run."""
    linears = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    called: list[nn.Module] = []
    for part in linears.values():
        part.register_forward_hook(lambda part, *_: called.append(part))
    run()
    return [name for name, part in linears.items() if part.weight.requires_grad and part not in called]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative_error(got: Tensor | np.ndarray, expected: Tensor | np.ndarray) -> float:
    """Return the largest deviation relative to the largest expected entry."""
    got, expected = (np.asarray(x.detach() if isinstance(x, Tensor) else x, dtype=np.float64) for x in (got, expected))
    assert got.shape == expected.shape, (got.shape, expected.shape)
    if got.size == 0:
        return 0.0
    assert np.isfinite(got).all(), "not finite"
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300))
