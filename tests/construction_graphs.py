"""Graphs for the tests of all lemmas, each with its spectrum from networkx's Laplacian and numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, from_networkx, normal
from torch import Tensor

import tg_lpe
from tg_lpe.app.molecules import ZINC_VOCABULARY, smiles_to_data
from tg_lpe.theory.efficient import Weights

WEIGHTED_PATH_SEED = 14613
"""Resistances of a path of ten nodes with eigenvalues from 0.039 to 9.7: the layer counts of ERRATA item 1."""


def one_over_resistance(seed: int) -> Callable[[int], float]:
    """Conductances of resistances ``exp(u)`` with ``u`` uniform in [-2, 2], edge by edge."""
    generator = np.random.default_rng(seed)
    return lambda number: float(np.exp(generator.uniform(-2, 2)))


def csl(num_nodes: int, skip: int) -> nx.Graph:
    return nx.circulant_graph(num_nodes, [1, skip])


def molecule(smiles: str) -> Graph:
    data = smiles_to_data(smiles, ZINC_VOCABULARY)
    graph = nx.Graph(data.edge_index.T.tolist())
    graph.add_nodes_from(range(data.num_nodes))
    return Graph(data.num_nodes, sorted({(min(e), max(e)) for e in graph.edges}), [1.0] * graph.number_of_edges())


class Case:
    """A graph, its eigenvalues, and the matrices that follow from them."""

    def __init__(self, name: str, graph: Graph) -> None:
        self.name, self.graph = name, graph
        self.laplacian = torch.from_numpy(graph.laplacian())
        self.values, self.vectors = np.linalg.eigh(graph.laplacian())
        self.null = graph.num_components()
        self.lambda_min, self.lambda_max = float(self.values[self.null]), float(self.values[-1])

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @cached_property
    def b(self) -> Tensor:
        """``B``, ``[n, num_edges]``."""
        return torch.from_numpy(self.graph.incidence())

    @cached_property
    def incidence(self) -> tg_lpe.Graph:
        return tg_lpe.Graph(self.graph.edge_index(), self.num_nodes, edge_weight=self.graph.edge_weight())

    def function(self, of: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        """A function of the Laplacian that is zero on its null space, ``[n, n]``."""
        vectors = self.vectors[:, self.null :]
        return torch.from_numpy((vectors * of(self.values[self.null :])) @ vectors.T)

    @cached_property
    def inverse(self) -> Tensor:
        """``L^+``."""
        return self.function(lambda values: 1 / values)

    @cached_property
    def root(self) -> Tensor:
        """``sqrt(L^+)``."""
        return self.function(lambda values: values**-0.5)

    @cached_property
    def projection(self) -> Tensor:
        """``I^``."""
        return self.function(np.ones_like)

    def demands(self, k: int = 3) -> Tensor:
        """Demands of zero sum on each component; the first belongs to the smallest non-zero eigenvalue."""
        psi = self.projection @ normal(self.num_nodes, k)
        psi[:, 0] = torch.from_numpy(self.vectors[:, self.null])
        return psi


def _pieces() -> nx.Graph:
    """A weighted triangle with a tail, a path and a lone node."""
    return nx.disjoint_union_all([nx.lollipop_graph(3, 2), nx.path_graph(4), nx.empty_graph(1)])


WEIGHTED_PATH = Case("weighted path", from_networkx(nx.path_graph(10), one_over_resistance(WEIGHTED_PATH_SEED)))
COMPLETE = Case("weighted complete", from_networkx(nx.complete_graph(10), one_over_resistance(1)))
CASES = [
    Case("complete", from_networkx(nx.complete_graph(10))),
    COMPLETE,
    Case("csl", from_networkx(csl(10, 4))),
    Case("weighted csl", from_networkx(csl(10, 2), one_over_resistance(2))),
    Case("path", from_networkx(nx.path_graph(10))),
    WEIGHTED_PATH,
    Case("random", from_networkx(nx.gnp_random_graph(12, 0.3, seed=3), one_over_resistance(3))),
    Case("pieces", from_networkx(_pieces(), one_over_resistance(4))),
    Case("caffeine", molecule("CN1C=NC2=C1C(=O)N(C(=O)N2C)C")),
    Case("naphthalene", molecule("c1ccc2ccccc2c1")),
    Case("two molecules", molecule("CCO.c1ccccc1")),
]
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def column_norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=0)


def spectral_norm(x: Tensor) -> float:
    return float(torch.linalg.matrix_norm(x.detach(), 2))


def angle(phi: Tensor, span: np.ndarray) -> float:
    """Return the sine of the largest angle between the span of ``phi`` and the span of orthonormal columns ``span``."""
    q, _ = torch.linalg.qr(phi)
    wanted = torch.from_numpy(span.copy())
    return spectral_norm(q - wanted @ (wanted.mT @ q))


def random_weights(shape: tuple[int, ...], width: int, seed: int = 0) -> Weights:
    """Random weights of eq. (7), so small that a few layers do not overflow."""
    scalars = [0.3 * normal(*shape, 1, seed=seed + number).squeeze(-1) for number in range(4)]
    return Weights(*scalars, *(0.3 * normal(*shape, width, width, seed=seed + 4 + number) for number in range(4)))
