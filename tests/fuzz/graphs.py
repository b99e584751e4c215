"""Graphs as users give them: of any form that a graph may have, or with one defect."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

NODE_TYPES, EDGE_TYPES = 5, 3
"""Categories of the integer features of random graphs."""

NODE_CHANNELS, EDGE_CHANNELS = 3, 2
"""Width of their real features."""


@dataclass(frozen=True)
class GraphInput:
    """A graph or batch, and features of all kinds that its nodes and edges may have.

    Attributes:
        edge_index: ``[2, num_directed_edges]``.
        num_nodes, num_graphs: counts.
        batch: graph of each node, ``[num_nodes]``; ``None`` for a single graph.
        edge_weight: ``[num_directed_edges]``, or ``None``.
        node_types: categories below :data:`NODE_TYPES`, int64 ``[num_nodes]``.
        node_features: ``[num_nodes, NODE_CHANNELS]``.
        edge_types: categories below :data:`EDGE_TYPES`, int64 ``[num_directed_edges]``.
        edge_features: ``[num_directed_edges, EDGE_CHANNELS]``.
        defect: what is wrong with it, a name in :data:`DEFECTS`; ``None`` for a graph that every function must take.
        blamed: arguments that are at fault, or what they hold; a refusal names one of these. Weights of more than 1e6
            may be refused in a graph without a defect.
    """

    edge_index: Any
    num_nodes: Any
    batch: Any
    num_graphs: Any
    edge_weight: Any
    node_types: Any
    node_features: Any
    edge_types: Any
    edge_features: Any
    defect: str | None = None
    blamed: tuple[str, ...] = ()

    def tensors(self) -> list[Tensor]:
        """All tensors in it."""
        values = (getattr(self, field.name) for field in fields(self))
        return [value for value in values if isinstance(value, Tensor)]


def random_graph(
    rng: Random, max_nodes: int = 300, max_graphs: int = 16, dtype: torch.dtype = torch.float32
) -> GraphInput:
    """A graph or batch that every function of the library must take.

    Graphs have no nodes to ``max_nodes``, most of them few, and no edges to all; there are paths, trees, several
    components and nodes without edges. Edges are listed in one or both directions, also repeatedly and with self-loops;
    weights spread over up to forty orders of magnitude, some of them zero. Indices are int64 or int32, and tensors need
    not be contiguous.

    Args:
        rng: the source of randomness.
        max_nodes: nodes of a graph, at most.
        max_graphs: graphs of a batch, at most.
        dtype: of features; weights may have another.
    """
    number = rng.choice((1, rng.randint(1, min(16, max_graphs)), rng.randint(1, max_graphs), max_graphs))
    sizes = [_size(rng, max_nodes) for _ in range(number)]
    generator = np.random.default_rng(rng.getrandbits(32))
    offsets = itertools.accumulate(sizes, initial=0)
    parts = [_edges(rng, generator, n) + offset for n, offset in zip(sizes, offsets, strict=False)]
    undirected = np.concatenate(parts, axis=1)
    weights = None
    if rng.random() < 0.7:
        weights = np.concatenate([_weights(rng, generator, part.shape[1]) for part in parts])
    order = _listing(rng, generator, undirected.shape[1])
    index = undirected[:, order]
    flipped = generator.random(len(order)) < rng.choice((0.0, 0.5, 1.0))
    index = np.where(flipped, index[::-1], index)
    if rng.random() < 0.6:  # the other direction too
        index, order = np.concatenate([index, index[::-1]], 1), np.concatenate([order, order])
    loops = generator.integers(0, max(sum(sizes), 1), rng.choice((0, 0, 3)) if sum(sizes) else 0)
    edge_index = torch.from_numpy(np.concatenate([index, np.stack([loops, loops])], 1))
    weight = None
    if weights is not None:
        weight = torch.from_numpy(np.concatenate([weights[order], np.ones(len(loops))]))
        weight = _form(rng, weight.to(rng.choice((torch.float32, torch.float64))))
    n, m = sum(sizes), edge_index.size(1)
    batch = None if number == 1 and rng.random() < 0.7 else torch.repeat_interleave(torch.tensor(sizes))
    scale = rng.choice((0, 2, 5))
    return GraphInput(
        _form(rng, edge_index.to(rng.choice((torch.int64, torch.int64, torch.int32)))),
        n,
        batch,
        number,
        weight,
        torch.from_numpy(generator.integers(0, NODE_TYPES, n)),
        _form(rng, _spread(generator, (n, NODE_CHANNELS), scale).to(dtype)),
        torch.from_numpy(generator.integers(0, EDGE_TYPES, m)),
        _form(rng, _spread(generator, (m, EDGE_CHANNELS), scale).to(dtype)),
        blamed=("edge_weight",) if weight is not None and bool((weight > 1e6).any()) else (),
    )


def malformed_graph(rng: Random, max_nodes: int = 300, dtype: torch.dtype = torch.float32) -> GraphInput:
    """A graph or small batch with one of the :data:`DEFECTS`, as :func:`random_graph` otherwise."""
    names = list(DEFECTS)
    while True:
        graph = random_graph(rng, max_nodes, 3, dtype)
        name = rng.choice(names)
        made = DEFECTS[name](rng, graph)
        if made is not None:
            changes, blamed = made
            return replace(graph, **changes, defect=name, blamed=(*blamed, *graph.blamed))


def _size(rng: Random, max_nodes: int) -> int:
    largest = rng.choice((12,) * 40 + (40,) * 9) if rng.random() < 0.99 else rng.choice((100, 100, 300))
    return rng.randint(0, min(largest, max_nodes))


def _edges(rng: Random, generator: np.random.Generator, n: int) -> np.ndarray:
    """Distinct pairs of ``n`` nodes, smaller index first."""
    kind = rng.choice(("random", "random", "tree", "path", "cycle", "star", "complete", "bipartite", "parts", "none"))
    if n < 2 or kind == "none":
        return np.zeros((2, 0), np.int64)
    later = np.arange(1, n)
    if kind == "tree":
        return np.stack([(generator.random(n - 1) * later).astype(np.int64), later])
    if kind == "path":
        return np.stack([later - 1, later])
    if kind == "cycle" and n > 2:
        return np.stack([np.append(later - 1, 0), np.append(later, n - 1)])
    if kind == "star":
        return np.stack([np.zeros(n - 1, np.int64), later])
    pairs = np.stack(np.triu_indices(n, 1))
    if kind == "complete":
        return pairs
    if kind == "bipartite":
        return pairs[:, (pairs[0] < n // 2) & (pairs[1] >= n // 2)]
    if kind == "parts":
        part = generator.integers(0, rng.randint(2, 5), n)
        pairs = pairs[:, part[pairs[0]] == part[pairs[1]]]
    return pairs[:, generator.random(pairs.shape[1]) < rng.choice((0.5, 3 / n, 1 / n))]


def _weights(rng: Random, generator: np.random.Generator, m: int) -> np.ndarray:
    kind = rng.choice(("ones", "equal", "spread", "spread", "zeros"))
    if kind == "ones":
        return np.ones(m)
    if kind == "equal":
        return np.full(m, 10.0 ** rng.randint(-5, 5))
    weights: np.ndarray = 10.0 ** generator.uniform(*rng.choice(((-2, 2), (-5, 5), (-20, 20))), m)
    return weights * (generator.random(m) < 0.7) if kind == "zeros" else weights


def _listing(rng: Random, generator: np.random.Generator, m: int) -> np.ndarray:
    """The edge that each listed one is."""
    kind = rng.choice(("in order", "in order", "shuffled", "repeated"))
    if kind == "in order" or not m:
        return np.arange(m)
    return generator.permutation(m if kind == "shuffled" else np.append(np.arange(m), generator.integers(0, m, m)))


def _spread(generator: np.random.Generator, shape: tuple[int, int], orders: int) -> Tensor:
    values = generator.standard_normal(shape) * 10.0 ** generator.uniform(-orders, orders, shape)
    return torch.from_numpy(values)


def _form(rng: Random, values: Tensor) -> Tensor:
    """The same values in memory as another program leaves them."""
    kind = rng.choice(("contiguous", "contiguous", "strided", "transposed"))
    if kind == "strided":
        return torch.stack([values, values], -1)[..., 0]
    return values.mT.contiguous().mT if kind == "transposed" and values.dim() == 2 else values


Made = tuple[dict[str, Any], tuple[str, ...]] | None
"""What is replaced, and the arguments that are at fault; ``None`` if this graph cannot have that defect."""

Defect = Callable[[Random, GraphInput], Made]

INDEX = ("edge_index", "num_nodes")
BATCH = ("batch", "num_graphs", "num_nodes")
X = ("x", "node types", "node features")
EDGE_ATTR = ("edge_attr", "edge types", "edge features")


def _index(change: Callable[[Random, Tensor], Any], needs_edges: bool = False) -> Defect:
    def make(rng: Random, graph: GraphInput) -> Made:
        if needs_edges and not graph.edge_index.numel():
            return None
        return {"edge_index": change(rng, graph.edge_index)}, INDEX

    return make


def _entry(name: str, value: Any, blamed: tuple[str, ...]) -> Defect:
    """One entry of a tensor replaced."""

    def make(rng: Random, graph: GraphInput) -> Made:
        values = getattr(graph, name)
        if values is None or not values.numel():
            return None
        changed = values.clone().contiguous()
        new = value(graph) if callable(value) else value
        changed.view(-1)[rng.randrange(changed.numel())] = (
            min(new, torch.iinfo(changed.dtype).max) if (not changed.is_floating_point()) else new
        )
        return {name: changed}, blamed

    return make


def _whole(name: str, change: Callable[[Tensor], Any], blamed: tuple[str, ...]) -> Defect:
    """Replace a tensor by a function of it."""

    def make(rng: Random, graph: GraphInput) -> Made:
        values = getattr(graph, name)
        return None if values is None or not values.numel() else ({name: change(values)}, blamed)

    return make


def _count(name: str, change: Callable[[Any], Any], blamed: tuple[str, ...]) -> Defect:
    return lambda rng, graph: ({name: change(getattr(graph, name))}, blamed)


def _disagreement(rng: Random, graph: GraphInput) -> Made:
    """Two weights for one edge."""
    if graph.edge_weight is None or not graph.edge_index.numel():
        return None
    index = torch.cat([graph.edge_index, graph.edge_index[:, :1].flip(0)], 1)
    if index[0, 0] == index[1, 0]:
        return None
    rows = {
        name: torch.cat([getattr(graph, name), getattr(graph, name)[:1]]) for name in ("edge_types", "edge_features")
    }
    weight = torch.cat([graph.edge_weight, 2 * graph.edge_weight[:1] + 1])
    return {"edge_index": index, "edge_weight": weight, **rows}, ("edge_weight",)


def _between_graphs(rng: Random, graph: GraphInput) -> Made:
    """An edge from one graph to another."""
    if graph.batch is None or not len(graph.batch) or graph.batch[0] == graph.batch[-1] or not graph.edge_index.numel():
        return None
    index = graph.edge_index.clone()
    index[:, 0] = torch.tensor([0, graph.num_nodes - 1])
    return {"edge_index": index}, ("edge_index", "batch", "edge")


DEFECTS: dict[str, Defect] = {
    "float edge_index": _index(lambda rng, i: i.to(rng.choice((torch.float32, torch.float64)))),
    "bool edge_index": _index(lambda rng, i: i > 0),
    "complex edge_index": _index(lambda rng, i: i.to(torch.complex64)),
    "small integer edge_index": _index(lambda rng, i: i.to(rng.choice((torch.int16, torch.int8, torch.uint8)))),
    "transposed edge_index": _index(
        lambda rng, i: torch.cat([i, i, i[:, :1]], 1).T if i.numel() else i.new_zeros(0, 2)
    ),
    "three rows of edge_index": _index(lambda rng, i: torch.cat([i, i[:1]])),
    "flat edge_index": _index(lambda rng, i: i.reshape(-1)),
    "cubic edge_index": _index(lambda rng, i: i.unsqueeze(0)),
    "scalar edge_index": _index(lambda rng, i: i.new_zeros(())),
    "no tensor as edge_index": _index(lambda rng, i: rng.choice((None, i.tolist(), "edges", 3, i.numpy()))),
    "sparse edge_index": _index(lambda rng, i: i.to_sparse()),
    "negative edge_index": _entry("edge_index", -1, INDEX),
    "edge_index out of range": _entry("edge_index", lambda graph: graph.num_nodes, INDEX),
    "huge edge_index": _entry("edge_index", 2**62, INDEX),
    "edge between graphs": _between_graphs,
    "negative num_nodes": _count("num_nodes", lambda n: -n - 1, INDEX + BATCH),
    "too small num_nodes": lambda rng, g: (
        ({"num_nodes": g.num_nodes // 2}, (*INDEX, *BATCH, *X))
        if g.num_nodes and g.edge_index.numel() and int(g.edge_index.max()) >= g.num_nodes // 2
        else None
    ),
    "no integer as num_nodes": lambda rng, g: (
        {"num_nodes": rng.choice((g.num_nodes + 0.5, str(g.num_nodes), [g.num_nodes]))},
        (*INDEX, *BATCH),
    ),
    "absurd num_nodes": lambda rng, g: ({"num_nodes": rng.choice((10**12, 2**62, 2**63, 2**70))}, (*INDEX, *BATCH, *X)),
    "unsorted batch": lambda rng, g: (
        ({"batch": g.batch.flip(0)}, (*BATCH, "edge"))
        if g.batch is not None and len(g.batch) and g.batch[0] != g.batch[-1]
        else None
    ),
    "negative batch": _entry("batch", -1, (*BATCH, "edge")),
    "float batch": _whole("batch", lambda b: b.double(), BATCH),
    "bool batch": _whole("batch", lambda b: b > 0, BATCH),
    "too short batch": _whole("batch", lambda b: b[1:], (*BATCH, *X, "edge_index")),
    "square batch": _whole("batch", lambda b: b.unsqueeze(1), BATCH),
    "negative num_graphs": _count("num_graphs", lambda n: -n, BATCH),
    "too small num_graphs": lambda rng, g: (
        ({"num_graphs": int(g.batch[-1])}, BATCH) if g.batch is not None and len(g.batch) and g.batch[-1] > 0 else None
    ),
    "no integer as num_graphs": _count("num_graphs", lambda n: n + 0.5, BATCH),
    "absurd num_graphs": lambda rng, g: ({"num_graphs": rng.choice((10**12, 2**62, 2**70))}, BATCH),
    "NaN edge_weight": _entry("edge_weight", float("nan"), ("edge_weight",)),
    "infinite edge_weight": _entry("edge_weight", float("inf"), ("edge_weight",)),
    "negative edge_weight": _entry("edge_weight", -1.0, ("edge_weight",)),
    "integer edge_weight": _whole("edge_weight", lambda w: w.long(), ("edge_weight",)),
    "complex edge_weight": _whole("edge_weight", lambda w: w.to(torch.complex64), ("edge_weight",)),
    "bool edge_weight": _whole("edge_weight", lambda w: w > 0, ("edge_weight",)),
    "too short edge_weight": _whole("edge_weight", lambda w: w[1:], ("edge_weight",)),
    "square edge_weight": _whole("edge_weight", lambda w: w.unsqueeze(1), ("edge_weight",)),
    "no tensor as edge_weight": _whole("edge_weight", lambda w: w.tolist(), ("edge_weight",)),
    "weights that disagree": _disagreement,
}
"""Defects of a graph by name: each function returns what is replaced in it and the arguments at fault."""

for _name, _words, _types, _largest in (
    ("node", X, "node_types", NODE_TYPES),
    ("edge", EDGE_ATTR, "edge_types", EDGE_TYPES),
):
    DEFECTS |= {
        f"negative {_name} types": _entry(_types, -1, _words),
        f"{_name} types out of range": _entry(_types, _largest, _words),
        f"huge {_name} types": _entry(_types, 2**62, _words),
        f"float {_name} types": _whole(_types, lambda x: x.double(), _words),
        f"bool {_name} types": _whole(_types, lambda x: x > 0, _words),
        f"too few {_name} types": _whole(_types, lambda x: x[1:], (*_words, "num_nodes")),
        f"no tensor as {_name} types": _whole(_types, lambda x: x.tolist(), _words),
        f"NaN {_name} features": _entry(f"{_name}_features", float("nan"), _words),
        f"infinite {_name} features": _entry(f"{_name}_features", float("-inf"), _words),
        f"complex {_name} features": _whole(f"{_name}_features", lambda x: x.to(torch.complex64), _words),
        f"integer {_name} features": _whole(f"{_name}_features", lambda x: x.clamp(-9, 9).long(), _words),
        f"too few {_name} features": _whole(f"{_name}_features", lambda x: x[1:], (*_words, "num_nodes")),
        f"too narrow {_name} features": _whole(f"{_name}_features", lambda x: x[:, 1:], _words),
        f"flat {_name} features": _whole(f"{_name}_features", lambda x: x[:, 0], _words),
    }
