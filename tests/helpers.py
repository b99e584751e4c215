"""The graphs of :mod:`tg_lpe.testing` for all tests, and what several test files make of them or of an encoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data, InMemoryDataset

import tg_lpe
from tg_lpe import AddPositionalEncoding, Encoder, Encoding, LinearTransformerPE
from tg_lpe.encoders import HeatKernel, Inputs, RandomWalk, ResistiveEmbedding
from tg_lpe.nn.attention import GLOBAL_ATTENTIONS, HybridLayer
from tg_lpe.testing.attention_test_case import CHANNELS, HEADS
from tg_lpe.testing.graphs import (  # noqa: F401
    Batched,
    Graph,
    batch_of,
    corner_cases,
    few,
    fewer,
    from_networkx,
    graphs,
    listings,
    log_uniform,
    normal,
    randomize_,
    relative_error,
)
from tg_lpe.transforms import AddEffectiveResistance, AddLaplacianEigenvectors


def refusals(function: Callable[..., Any], *rows: tuple[Any, ...]) -> Callable[..., None]:
    """Return a test that a function refuses each row: arguments, the error (ValueError if absent), what its text names.

    Arguments are a tuple, or a dictionary of keywords. An identifier as the text is matched as a whole word.
    """

    @pytest.mark.parametrize(
        ("arguments", "error", "name"),
        [pytest.param(row[0], row[1] if len(row) > 2 else ValueError, row[-1], id=f"{row[-1]}") for row in rows],
    )
    def test(arguments: Any, error: type[Exception], name: str) -> None:
        with pytest.raises(error, match=rf"\b{name}\b" if name.isidentifier() else name):
            function(**arguments) if isinstance(arguments, dict) else function(*arguments)

    return test


def unparsed(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Return the error message of a command line that does not parse."""
    from tg_lpe.app.cli import main

    with pytest.raises(SystemExit):
        main(command)
    return capsys.readouterr().err


def graph_of(*parts: Graph) -> tg_lpe.Graph:
    """Return graphs of the tests as one batch of the library."""
    return tg_lpe.Graph(**batch_of(list(parts)).arguments())


def data_of(graph: Graph, **more: Any) -> Data:
    """Return a graph of the tests as one of PyG's, with its weights."""
    index, weight = graph.both_ways()
    return Data(edge_index=index, edge_weight=weight, num_nodes=graph.num_nodes, **more)


def pseudo_inverse(graph: Graph) -> np.ndarray:
    """Return ``L^+``, component by component: numpy cannot tell a small eigenvalue from zero if weights span orders."""
    out, laplacian = np.zeros((graph.num_nodes, graph.num_nodes)), graph.laplacian()
    for part in nx.connected_components(graph.networkx()) if graph.num_nodes else ():
        own = np.ix_(sorted(part), sorted(part))
        n = len(part)
        shift = np.full((n, n), np.trace(laplacian[own]) / n**2) if n > 1 else np.ones((1, 1))
        centred = np.eye(n) - 1 / n
        out[own] = centred @ np.linalg.inv(laplacian[own] + shift) @ centred
    return out


def transitions(adjacency: np.ndarray) -> np.ndarray:
    """Return ``D^-1 A``, with a row of zeros for a node that no edge leaves."""
    degree = adjacency.sum(1)
    return adjacency / np.where(degree > 0, degree, 1.0)[:, None]


def attention_of(name: str = "primal", seed: int = 0, heads: int = HEADS, **options: Any) -> tuple[Any, Any]:
    """Return an attention over all nodes in float64 with random weights, and the shared state of its layers."""
    attention = GLOBAL_ATTENTIONS[name](CHANNELS, heads, **options)
    shared = HybridLayer(CHANNELS, heads, global_attention=name, global_options=options).shared()
    return randomize_(attention, seed, 0.7).double(), randomize_(shared, seed + 1, 0.7).double()


def equal_values(values: np.ndarray, gap: float = 1e-4) -> list[list[int]]:
    """Return the positions of sorted values, those of neighbours that differ by at most ``gap`` in one group."""
    starts = np.flatnonzero(np.abs(np.diff(values)) > gap) + 1
    return [group.tolist() for group in np.split(np.arange(len(values)), starts) if group.size]


def rook_and_shrikhande() -> tuple[nx.Graph, nx.Graph]:
    """Return two strongly regular graphs of 16 nodes with the same parameters, which 3-WL does not tell apart."""
    torus = [(a, b) for a in range(4) for b in range(4)]
    steps = ((0, 1), (1, 0), (1, 1))
    shrikhande = nx.Graph(((a, b), ((a + x) % 4, (b + y) % 4)) for a, b in torus for x, y in steps)
    pair = nx.line_graph(nx.complete_bipartite_graph(4, 4)), shrikhande
    return nx.convert_node_labels_to_integers(pair[0]), nx.convert_node_labels_to_integers(pair[1])


class LargestTensor(TorchDispatchMode):
    """Records the number of entries of the largest tensor, and of all that are neither views nor changed in place."""

    largest = total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {one.untyped_storage()._cdata for one in args if isinstance(one, Tensor)}
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.numel())
                self.total += one.numel() * (one.untyped_storage()._cdata not in known)
        return out


class Degrees(Encoder):
    """An encoder as a user writes one: weighted degrees, and at edges their sum; it cannot leave the edges out."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.out_channels = self.edge_out_channels = 1

    def encode(self, graph: tg_lpe.Graph, inputs: Inputs) -> Encoding:
        node = self.scale * graph.laplacian_diagonal(torch.empty(0)).unsqueeze(1)
        edge = node[graph.edge_index].sum(0) * (graph.edge_index[0] != graph.edge_index[1]).unsqueeze(1)
        return Encoding(node, edge)


def heat_pe(**options: Any) -> AddPositionalEncoding:
    """The transform of a computed encoding of nodes and edges, which writes ``pe``."""
    return AddPositionalEncoding(HeatKernel(), **options)


def resistive_pe(k: int, **options: Any) -> AddPositionalEncoding:
    """The transform of a computed encoding of nodes, which writes ``pe``."""
    return AddPositionalEncoding(ResistiveEmbedding(k), **options)


TRANSFORMS = (
    lambda **options: AddPositionalEncoding(Degrees(), "pe", "edge_pe", **options),
    lambda **options: AddPositionalEncoding(RandomWalk(steps=4), "pe", "edge_pe", **options),
    lambda **options: LinearTransformerPE(k=8, attr_name="pe", **options),
    lambda **options: AddLaplacianEigenvectors(3, attr_name="pe", **options),
    lambda **options: heat_pe(edge_attr_name="edge_pe", **options),
    lambda **options: resistive_pe(3, **options),
    lambda **options: AddEffectiveResistance(attr_name="edge_pe", **options),
)
"""Makers of transforms, which write ``pe`` or ``edge_pe`` or both."""


class Stored(InMemoryDataset):
    """A dataset in memory made of a list."""

    def __init__(self, elements: Sequence[Data], transform: Callable[[Data], Data] | None = None) -> None:
        super().__init__(None, transform)
        self.data, self.slices = self.collate(list(elements))


def assert_same_run(one: Path, other: Path) -> None:
    """Check that two run folders have the same metrics, except times, results and weights, bit by bit."""
    rows = [
        [{**json.loads(line), "seconds": 0, "graphs_per_second": 0} for line in (folder / "metrics.jsonl").open()]
        for folder in (one, other)
    ]
    assert rows[0] == rows[1] and rows[0]
    for name in ("result.json", "model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
