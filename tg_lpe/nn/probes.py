"""Probes: start vectors ``Phi_0`` of the linear transformer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice
from tg_lpe.graph.graph import Graph
from tg_lpe.nn import parallel
from tg_lpe.nn.features import Feature
from tg_lpe.ops.checks import ValueChecks
from tg_lpe.ops.random import counter_normal

PROBES = ("features", "random", "learned")


class FeatureProbes(nn.Module):
    """Compute ``Phi_0`` from node features; equivariant under relabelling of the nodes.

    Args:
        k: number of probe vectors.
        num_node_types: number of categories of integer features ``[num_nodes]`` or ``[num_nodes, 1]``, which are
            embedded; or of each column of ``[num_nodes, num_columns]``, whose embeddings are added.
        in_channels: width of real features ``[num_nodes, in_channels]``, which a linear map reads.

    Raises:
        ValueError: unless exactly one of ``num_node_types`` and ``in_channels`` is given.
    """

    def __init__(
        self, k: int, num_node_types: int | Sequence[int] | None = None, in_channels: int | None = None
    ) -> None:
        super().__init__()
        if (num_node_types is None) == (in_channels is None):
            raise ValueError(
                f"probes='features' needs one of num_node_types and in_channels, got {num_node_types} and {in_channels}"
            )
        self.num_node_types = num_node_types
        self.feature = Feature("node", num_node_types, in_channels)
        self.embedding = nn.Embedding(self.feature.width, k) if in_channels is None else None
        self.linear = nn.Linear(in_channels, k) if in_channels is not None else None

    def forward(self, graph: Graph, x: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return ``Phi_0``, ``[num_nodes, k]``; ``generator`` is not read.

        Raises:
            ValueError: if ``x`` is missing, malformed or out of range.
        """
        if not isinstance(x, Tensor) or x.dim() == 0 or x.size(0) != graph.num_nodes:
            got = list(x.shape) if isinstance(x, Tensor) else None if x is None else type(x).__name__
            raise ValueError(f"probes='features' needs node features of {graph.num_nodes} rows, got {got}")
        checks = ValueChecks()
        self.feature.check(x, graph.num_nodes, checks)
        checks.run()
        if self.linear is not None:
            return self.linear(x.to(self.linear.weight.dtype))
        return self.feature.product(x, self.embedding.weight, by_product=False)  # type: ignore[union-attr]


class RandomProbes(nn.Module):
    """Draw ``Phi_0`` with independent standard normal entries.

    An entry only depends on the seed, the node's index within its graph and the column, so a graph has the same probes
    alone, in any batch and on any device. The encoding is equivariant in distribution.

    Args:
        k: number of probe vectors.
        seed: seed of calls without a generator.
    """

    unit: Tensor

    def __init__(self, k: int, seed: int = 0) -> None:
        super().__init__()
        self.k = k
        self.seed = seed
        self.register_buffer("unit", torch.ones(()), persistent=False)  # has the module's device and dtype

    def forward(self, graph: Graph, x: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return ``Phi_0``, ``[num_nodes, k]``.

        Args:
            graph: the batch.
            x: not read.
            generator: draws the seed of this call; without it, the call uses the module's seed.
        """
        largest = graph.num_nodes if graph.num_graphs == 1 else graph.max_nodes
        like = self.unit
        if like.device != graph.device:  # left on "meta" by load_state_dict(assign=True), since it is not persistent
            like = like.new_empty((), device=graph.device)
        rows = counter_normal(self.seed if generator is None else draw_seed(generator), largest, self.k, like)
        return rows if graph.num_graphs == 1 else rows[graph.local_index]


class LearnedProbes(nn.Module):
    """Learn one row of ``Phi_0`` per node index, as in the published experiment (section 14.3 of the paper).

    The encoding depends on the order of the nodes. Use it only to reproduce the paper.

    Args:
        k: number of probe vectors.
        max_nodes: largest number of nodes of a graph.
    """

    def __init__(self, k: int, max_nodes: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(max_nodes, k))

    def forward(self, graph: Graph, x: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return ``Phi_0``, ``[num_nodes, k]``; ``x`` and ``generator`` are not read."""
        largest = graph.max_nodes
        if largest > self.rows.size(0):
            raise ValueError(
                f"probes='learned' have max_nodes={self.rows.size(0)} rows, got a graph of {largest} nodes; "
                "probes='random' or 'features' serve graphs of any size"
            )
        return self.rows[graph.local_index]


def make_probes(
    kind: str,
    k: int,
    *,
    max_nodes: int | None = None,
    num_node_types: int | Sequence[int] | None = None,
    in_channels: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Create probes by name.

    Args:
        kind: one of :data:`PROBES`.
        k: number of probe vectors.
        max_nodes: required by ``"learned"``.
        num_node_types, in_channels: exactly one is required by ``"features"``.
        seed: seed of ``"random"``.

    Raises:
        ValueError: if ``kind`` is unknown, a required argument is missing, or an argument is not read by ``kind``.
    """
    check_choice("probes", kind, PROBES)
    if kind != "features" and (num_node_types is not None or in_channels is not None):
        raise ValueError(f"num_node_types and in_channels belong to probes='features', got probes={kind!r}")
    if kind != "learned" and max_nodes is not None:
        raise ValueError(f"max_nodes belongs to probes='learned', got probes={kind!r}")
    if kind == "features":
        return FeatureProbes(k, num_node_types, in_channels)
    if kind == "random":
        return RandomProbes(k, seed)
    if max_nodes is None or max_nodes < 1:
        raise ValueError(f"probes='learned' need max_nodes of at least 1, got {max_nodes}")
    return LearnedProbes(k, max_nodes)


def draw_seed(generator: torch.Generator) -> int:
    """Draw a seed from a generator."""
    return int(torch.randint(0, 2**62, (), generator=generator, device=generator.device))


def draw_signs(num_graphs: int, num_columns: int, generator: torch.Generator) -> Tensor:
    """Draw signs for each graph, ``[num_graphs, num_columns]``, independent of how processes divide the batch."""
    first, total = parallel.rows_before(num_graphs)
    bits = torch.randint(0, 2, (total, num_columns), generator=generator, device=generator.device)
    return 2 * bits[first : first + num_graphs] - 1


def with_random_signs(vectors: Tensor, graph: Graph, generator: torch.Generator | None) -> Tensor:
    """Multiply vectors ``[num_nodes, m]`` by a random sign for each graph and column, if there is a generator."""
    if generator is None:
        return vectors
    return vectors * draw_signs(graph.num_graphs, vectors.size(1), generator).to(vectors)[graph.batch]
