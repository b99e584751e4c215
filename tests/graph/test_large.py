"""Encodings of larger graphs agree with dense algebra; their cost, and their warnings beforehand."""

from __future__ import annotations

import cProfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import LargestTensor
from ops_support import needs_cpu

from tg_lpe import Encoder, Graph, encoders
from tg_lpe.encoders import (
    CycleCounts,
    DirectedWalk,
    PersonalizedPageRank,
    RandomWalk,
    ShortestPath,
    SpectralKernel,
)
from tg_lpe.graph import progress
from tg_lpe.graph.heat import heat_kernel_entries
from tg_lpe.graph.progress import Progress
from tg_lpe.graph.random_walks import random_walk_probabilities
from tg_lpe.graph.resistance import effective_resistances
from tg_lpe.models import GraphTransformer, TupleTransformer
from tg_lpe.nn import _util

TIMES = (0.0, 0.5, 4.0, 16.0)
SMALL: dict[str, Any] = {"hidden_channels": 1, "heads": 1, "num_layers": 1}
SOFTMAX: dict[str, Any] = {"attention": "hybrid", "attention_options": {"global_attention": "softmax"}}


def random_graph(num_nodes: int, weighted: bool = False, loops: int = 0, seed: int = 0) -> Graph:
    """A random graph of mean degree 6."""
    rng = np.random.default_rng(seed)
    pairs = np.unique(np.sort(rng.integers(num_nodes, size=(3 * num_nodes, 2))), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    weights = torch.from_numpy(rng.uniform(0.1, 3.0, len(pairs))) if weighted else None
    nodes = torch.from_numpy(rng.integers(num_nodes, size=loops))
    index = torch.cat([torch.from_numpy(pairs).T, nodes.expand(2, -1)], 1)
    if weights is not None:
        weights = torch.cat([weights, torch.ones(loops).double()])
    return Graph(index, num_nodes, edge_weight=weights, reduce="add")


def laplacian(graph: Graph) -> np.ndarray:
    incidence = graph.dense(torch.float64).numpy()
    return incidence @ incidence.T


def graphs() -> dict[str, Graph]:
    """Several components and isolated nodes come with mean degree 6; a path has few and far nodes."""
    path = torch.stack([torch.arange(999), torch.arange(1, 1000)])
    return {
        "random": random_graph(1000),
        "weighted, loops": random_graph(1000, weighted=True, loops=20),
        "path": Graph(path, 1000),
        "two parts": Graph(path[:, path[0] != 399], 1000),
    }


@pytest.mark.parametrize("name", graphs())
def test_agrees_with_dense_algebra(name: str) -> None:
    graph = graphs()[name]
    matrix = laplacian(graph)
    tail, head = graph.tail.numpy(), graph.head.numpy()
    values, vectors = np.linalg.eigh(matrix)
    kernels = [(vectors * np.exp(-s * values)) @ vectors.T for s in TIMES]
    for method in ("auto", "iterative"):
        nodes, edges = heat_kernel_entries(graph, TIMES, method=method)
        for number, kernel in enumerate(kernels):
            np.testing.assert_allclose(nodes[:, number], kernel.diagonal(), atol=1e-9)
            np.testing.assert_allclose(edges[:, number], kernel[tail, head], atol=1e-9)


@pytest.mark.parametrize("hubs", [0, 3])
@pytest.mark.parametrize("steps", [4, 9])
def test_walks_of_large_graphs(steps: int, hubs: int) -> None:
    """Also with neighbours of many nodes, and with isolated nodes."""
    graph = random_graph(3000, weighted=True)
    if hubs:
        far = torch.stack([torch.arange(3), torch.full((3,), 3000)])
        ends = torch.cat([far, torch.cartesian_prod(torch.arange(hubs), torch.arange(hubs, 3000, 2)).T], 1)
        graph = Graph(torch.cat([torch.stack([graph.tail, graph.head]), ends], 1), 3100)
    expected = random_walk_probabilities(graph, steps, method="iterative")
    for got, truth in zip(random_walk_probabilities(graph, steps), expected, strict=True):
        torch.testing.assert_close(got, truth, rtol=1e-12, atol=1e-14)


@needs_cpu
@pytest.mark.filterwarnings("error")
def test_what_warns_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOWN_AFTER", 1e4)
    with pytest.raises(UserWarning, match="faster: fewer steps"):
        RandomWalk(60).precompute(random_graph(40_000))
    with pytest.raises(UserWarning, match="; faster"):
        effective_resistances(random_graph(70_000))
    node = torch.arange(60_000)
    star = Graph(torch.stack([0 * node, node]))
    with pytest.raises(UserWarning, match="minutes; faster: LPE"):
        SpectralKernel(num_eigenpairs=200).precompute(star)  # one eigenspace has 59,999 dimensions
    RandomWalk(4).precompute(Graph(torch.stack([node, node.roll(1)])))


@pytest.mark.parametrize(
    ("make", "tokens", "faster"),
    [
        (lambda: GraphTransformer(attention="gps", **SMALL), 1, "'primal'"),
        (lambda: GraphTransformer(**SOFTMAX, **SMALL), 1, "'primal'"),
        (lambda: TupleTransformer(k=1, s=1, **SMALL), 1, "'local'"),
        (lambda: TupleTransformer(k=2, s=1, **SMALL), 3, "'local'"),
    ],
    ids=["gps", "softmax", "nodes", "pairs"],
)
def test_layers_that_compute_all_pairs_warn_of_many(make: Callable[[], Any], tokens: int, faster: str) -> None:
    """Of 16,500 nodes or tokens, and not of half as many; ``tokens`` are those of a node of a path."""
    for number in (16_500, 8_000):
        num_nodes = number // tokens
        path = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            make()(None, path, num_nodes=num_nodes)
        messages = [str(warning.message) for warning in caught if "computes all" in str(warning.message)]
        assert len(messages) == (number == 16_500), messages
        assert all(faster in message for message in messages)


UNFORESEEN = ["LaplacianEigenvectors", "Positions", "EffectiveResistance", "ElectricFlow", "ResistiveEmbedding"]
UNFORESEEN += ["GramTransformer", "LPE", "SignNet", "RPEARL", "SPE", "DirectedWalk", "HeatKernel"]
UNFORESEEN += ["PersonalizedPageRank", "ShortestPath"]
SIZES = {"SPE": 2_000, "Positions": 40_000, "ShortestPath": 2_500, "HeatKernel": 4_100, "PersonalizedPageRank": 2_500}


@needs_cpu
@pytest.mark.parametrize("name", UNFORESEEN)
def test_what_takes_a_minute_on_a_hub_names_what_is_faster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ten seconds and a minute are no time here; every unit of the work is counted."""
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0)
    monkeypatch.setattr(progress, "WARNED_AFTER", 0)
    leave = Progress.__exit__
    monkeypatch.setattr(Progress, "__exit__", lambda self, *words: done.append(self) or leave(self, *words))
    monkeypatch.setattr(_util, "CHUNK", 2**20)
    size, options, done = SIZES.get(name, 8_000), {"times": (1e-3,)} if name == "HeatKernel" else {}, list[Progress]()
    star = torch.stack([torch.zeros(size - 1, dtype=torch.int64), torch.arange(1, size)])
    with pytest.warns(UserWarning, match="this graph is large, and takes .*; faster: "), torch.no_grad():
        getattr(encoders, name)(**options)(torch.zeros(size, 1), star, num_nodes=size)
    assert done and all(work._total in (None, pytest.approx(work._done)) for work in done)


def test_progress_is_shown_by_the_clock(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """After ten seconds a bar; a warning before the work, after ten seconds or after a minute, by what is known."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Progress(100, " parts") as short:
            short.update(50)
        with pytest.raises(UserWarning, match="takes about 3 hours; faster: Linear"):
            Progress(seconds=10_000)
    assert not capsys.readouterr().err
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.01)
    monkeypatch.setattr(progress, "WARNED_AFTER", 0.009)
    is_known = pytest.warns(UserWarning, match=r"takes about \d+ minutes; faster: fewer parts")
    with is_known as caught, Progress(1000, " parts", "fewer parts") as known:
        known.update(100)
        time.sleep(0.03)
        known.update(200)
        known.update(1)
    assert "300/1.00k" in (shown := capsys.readouterr().err) and len(caught) == 1
    assert shown.endswith("\r"), "the bar is gone"
    with pytest.warns(UserWarning, match="takes more than a minute; faster"), Progress(unit=" layers") as clock:
        time.sleep(0.5)
    assert "layers" in capsys.readouterr().err and not clock.is_alive()


CHUNKED = encoders.LPE(3, 4), encoders.SignNet(3, 4), encoders.RPEARL(3, 4), encoders.SPE(3, 4)


@pytest.mark.parametrize("encoder", [*CHUNKED, encoders.SpectralEncoder(4, 4)], ids=lambda encoder: type(encoder))
def test_chunks_are_the_whole(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = torch.stack([torch.arange(80), torch.arange(1, 81)]), []
    graph = Graph(path[:, path[0] != 49], batch=torch.arange(81) // 50)
    for limit in (2**27, 5_000):
        monkeypatch.setattr(_util, "CHUNK", limit)
        encoding = encoder.double()(None, graph)
        loss = sum(part.square().sum() for part in encoding if part is not None)
        found.append([encoding.node, *torch.autograd.grad(loss, [*encoder.parameters()], allow_unused=True)])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-11)


@needs_cpu
def test_walks_of_a_graph_have_the_same_bits_in_any_batch() -> None:
    half = random_graph(10000)
    index = torch.stack([half.tail, half.head])
    number = torch.arange(4).repeat_interleave(torch.tensor([3, 10000, 1, 10000]))
    batch = Graph(torch.cat([index + 3, index + 10004], 1), len(number), batch=number)
    (alone, at_edges), (nodes, edges) = (random_walk_probabilities(graph, 3) for graph in (half, batch))
    assert torch.equal(edges, at_edges.repeat(2, 1))
    assert torch.equal(torch.cat([nodes[3:10003], nodes[10004:]]), alone.repeat(2, 1)) and not nodes[:3].any()


@needs_cpu
@pytest.mark.parametrize(("encoder", "number"), [(RandomWalk(2), 150_000), (CycleCounts((3, 4)), 20_000)])
def test_tensors_of_all_nodes_are_not_made_for_each_thousand(encoder: Encoder, number: int) -> None:
    """On a ring, the entries of all tensors grow with the number of nodes, not with its square."""
    entries = []
    for num_nodes in (number, 4 * number):
        node = torch.arange(num_nodes)
        graph = Graph(torch.stack([node, node.roll(1)]))
        with LargestTensor() as seen:
            encoder.precompute(graph)
        entries.append(seen.total)
    assert entries[1] < 5 * entries[0]


@pytest.mark.parametrize(
    ("encoder", "size", "most"),
    [
        (DirectedWalk(2), 260, 400),
        (encoders.MagneticLaplacian(2), 520, 200),
        (ShortestPath(2), 2050, 40),
        (PersonalizedPageRank((0.9,)), 2050, 200),
    ],
)
def test_small_graphs_beside_a_large_one_are_not_taken_one_by_one(encoder: Encoder, size: int, most: int) -> None:
    """300 pentagons have their rows, for few calls of functions each."""

    def rings(count: int, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
        node = torch.arange(count * nodes)
        graph = node // nodes
        return torch.stack([node, graph * nodes + (node + 1) % nodes]), graph

    def calls(graph: Graph) -> tuple[int, dict[str, torch.Tensor]]:
        profile = cProfile.Profile()
        tensors = profile.runcall(encoder.precompute, graph)
        return sum(entry.callcount for entry in profile.getstats()), tensors

    (small, batch), (large, _) = rings(300, 5), rings(1, size)
    both = torch.cat([small, large + 1500], 1), torch.cat([batch, torch.full((size,), 300)])
    alone, _ = calls(Graph(large, size))
    beside, tensors = calls(Graph(both[0], batch=both[1]))
    assert beside - alone < 300 * most
    for name, expected in encoder.precompute(Graph(small, batch=batch)).items():
        torch.testing.assert_close(tensors[name][: len(expected)], expected, rtol=1e-5, atol=1e-6)
