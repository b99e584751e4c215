"""Draw PATTERN and CLUSTER: node classification on stochastic block models.

`Benchmarking Graph Neural Networks <https://arxiv.org/abs/2003.00982>`_, section 4.3. The graphs are not the published
ones, but drawn from the published sizes and probabilities by a seed. They are not stored: reading would take as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.arguments import check_choice, check_count, check_seed
from tg_lpe.data import GraphSplits

MIN_BLOCK, MAX_BLOCK = 5, 34
"""Smallest and largest number of nodes of a block, and of a pattern; drawn uniformly."""

NUM_PATTERNS = 100
NUM_SIGNALS = 3
"""Random features of the nodes of PATTERN are integers below this."""

PATTERN_BLOCKS, PATTERN_INSIDE, PATTERN_BETWEEN, PATTERN_EDGE = 5, 0.5, 0.35, 0.5
CLUSTER_BLOCKS, CLUSTER_INSIDE, CLUSTER_BETWEEN = 6, 0.55, 0.25


def pattern_graphs(num_graphs: int, seed: int) -> list[Data]:
    """Draw graphs with a hidden pattern; the class of a node is whether it belongs to the pattern.

    Five blocks of 5 to 34 nodes have an edge between two nodes with probability 0.5 within a block, and 0.35 between
    blocks. One of 100 patterns of 5 to 34 nodes, with edges of probability 0.5 inside, is joined to them by edges of
    probability 0.5. Nodes are numbered at random.

    Args:
        num_graphs: number of graphs. A longer list begins with the same graphs. Cut one list into splits, so that they
            share patterns.
        seed: decides patterns and graphs; the global generator is not used.

    Returns:
        Graphs with ``x`` int64 ``[num_nodes]`` in 0..2, drawn once for each pattern and anew for all other nodes;
        ``edge_index`` int64 ``[2, num_directed_edges]``, sorted; and ``y`` int64 ``[num_nodes]``, 1 in the pattern.

    Raises:
        ValueError: if ``num_graphs`` or ``seed`` is no integer of at least 0.
    """
    generator = _generator(num_graphs, seed)
    patterns = []
    for size in _sizes(NUM_PATTERNS, generator).tolist():
        edges = _draw_edges(torch.full((size, size), PATTERN_EDGE), generator)
        patterns.append((edges, torch.randint(NUM_SIGNALS, (size,), generator=generator)))

    def draw() -> Data:
        block = _blocks(PATTERN_BLOCKS, generator)
        host = _draw_edges(_probabilities(block, PATTERN_INSIDE, PATTERN_BETWEEN), generator)
        inner, signal = patterns[int(torch.randint(NUM_PATTERNS, (), generator=generator))]
        n, size = len(block), len(signal)
        joints = torch.rand(n, size, generator=generator) < PATTERN_EDGE
        adjacency = torch.zeros(n + size, n + size, dtype=torch.bool)
        adjacency[:n, :n], adjacency[n:, n:] = host, inner
        adjacency[:n, n:], adjacency[n:, :n] = joints, joints.T
        x = torch.cat([torch.randint(NUM_SIGNALS, (n,), generator=generator), signal])
        return _shuffled(adjacency, x, (torch.arange(n + size) >= n).long(), generator)

    return [draw() for _ in range(num_graphs)]


def cluster_graphs(num_graphs: int, seed: int) -> list[Data]:
    """Draw graphs of six blocks; the class of a node is its block, and one node of each block is labelled.

    Six blocks of 5 to 34 nodes have an edge between two nodes with probability 0.55 within a block, and 0.25 between
    blocks. Nodes are numbered at random.

    Args:
        num_graphs: number of graphs. A longer list begins with the same graphs.
        seed: decides the graphs; the global generator is not used.

    Returns:
        Graphs with ``x`` int64 ``[num_nodes]``, 1 to 6 at one node of each block and 0 elsewhere, ``edge_index`` int64
        ``[2, num_directed_edges]``, sorted, and ``y`` int64 ``[num_nodes]`` in 0..5.

    Raises:
        ValueError: if ``num_graphs`` or ``seed`` is no integer of at least 0.
    """
    generator = _generator(num_graphs, seed)

    def draw() -> Data:
        block = _blocks(CLUSTER_BLOCKS, generator)
        adjacency = _draw_edges(_probabilities(block, CLUSTER_INSIDE, CLUSTER_BETWEEN), generator)
        first = torch.searchsorted(block, torch.arange(CLUSTER_BLOCKS))  # nodes of a block are alike before shuffling
        x = torch.zeros_like(block).index_put_((first,), torch.arange(1, CLUSTER_BLOCKS + 1))
        return _shuffled(adjacency, x, block, generator)

    return [draw() for _ in range(num_graphs)]


BLOCK_MODELS: dict[str, Callable[[int, int], list[Data]]] = {"pattern": pattern_graphs, "cluster": cluster_graphs}
"""Generators ``(num_graphs, seed)`` by the name of the data set."""

BLOCK_MODEL_SIZES = {"pattern": (10_000, 2_000, 2_000), "cluster": (10_000, 1_000, 1_000)}
"""Published numbers of graphs for training, validation and test."""


def load_block_model(name: str, seed: int, num_train: int | None = None) -> GraphSplits:
    """Draw PATTERN or CLUSTER as training, validation and test set, cut from one list in this order.

    Args:
        name: ``"pattern"`` or ``"cluster"``.
        seed: decides all graphs.
        num_train: number of graphs for training, the published number if absent. The other two sets are in proportion,
            rounded down, with at least one graph each.

    Returns:
        The splits, with the class of each node as label.

    Raises:
        ValueError: on another name, or if ``num_train`` is no integer of at least 1, or ``seed`` none of at least 0.
    """
    check_choice("name", name, tuple(BLOCK_MODELS))
    train, val, test = BLOCK_MODEL_SIZES[name]
    if num_train is not None:
        check_count("num_train", num_train)
        train, val, test = num_train, *(max(1, num_train * size // train) for size in (val, test))
    graphs = BLOCK_MODELS[name](train + val + test, seed)
    splits = GraphSplits.of(graphs[:train], graphs[train : train + val], graphs[-test:], level="node")
    return replace(splits, split={"kind": "generated", "seed": seed})


def _generator(num_graphs: int, seed: int) -> torch.Generator:
    check_count("num_graphs", num_graphs, least=0)
    check_seed(seed)
    return torch.Generator().manual_seed(seed)


def _sizes(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(MIN_BLOCK, MAX_BLOCK + 1, (count,), generator=generator)


def _blocks(count: int, generator: torch.Generator) -> Tensor:
    """Draw block sizes; return the block of each node, ascending."""
    return torch.repeat_interleave(torch.arange(count), _sizes(count, generator))


def _probabilities(block: Tensor, inside: float, between: float) -> Tensor:
    """Return the probability of an edge between each two nodes, ``[num_nodes, num_nodes]``."""
    return torch.where(block.unsqueeze(1) == block, inside, between)


def _draw_edges(probability: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a symmetric adjacency matrix without self-loops, bool ``[num_nodes, num_nodes]``."""
    upper = (torch.rand(probability.shape, generator=generator) < probability).triu(1)
    return upper | upper.T


def _shuffled(adjacency: Tensor, x: Tensor, y: Tensor, generator: torch.Generator) -> Data:
    """Make the graph with its nodes in random order."""
    order = torch.randperm(len(x), generator=generator)
    edge_index = adjacency[order][:, order].nonzero().T.contiguous()
    return Data(x=x[order], edge_index=edge_index, y=y[order])
