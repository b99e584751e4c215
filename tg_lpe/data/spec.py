"""What the graphs of a dataset look like: the sizes that constructors need."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DataSpec:
    """Sizes of a dataset's features.

    Attributes:
        num_node_types: number of categories of integer node features; ``None`` if there are none.
        in_channels: width of real node features, likewise.
        num_edge_types: number of categories of integer edge features, likewise.
        edge_dim: width of real edge features, likewise.
        max_nodes: nodes of the largest graph, likewise if unknown.
    """

    num_node_types: int | None = None
    in_channels: int | None = None
    num_edge_types: int | None = None
    edge_dim: int | None = None
    max_nodes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dictionary."""
        return asdict(self)
