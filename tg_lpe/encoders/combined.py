"""Concatenation of several encodings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.encoders.base import LEVELS, Encoder, Encoding, Inputs
from tg_lpe.encoders.laplacian import LaplacianEigenvectors
from tg_lpe.encoders.random_walk import RandomWalk
from tg_lpe.encoders.registry import as_encoder, load_encoder, register
from tg_lpe.graph.graph import Graph


@register
class Combined(Encoder):
    """Concatenate the columns of several encoders at nodes, edges and pairs.

    For example, combine a structural and a positional encoding, as in `GraphGPS <https://arxiv.org/abs/2205.12454>`_,
    section 3.1. Each encoder is trained, fitted and precomputed as if it were alone, and keeps its own ambiguity, such
    as the signs of eigenvectors.

    Args:
        encoders: one or more encoders. Each is an encoder; or its class and arguments, such as ``{"class":
            "RandomWalk", "steps": 16}``; or the name or folder of a pretrained one, such as ``"gram-k16"``. By default,
            :class:`~tg_lpe.encoders.RandomWalk` and :class:`~tg_lpe.encoders.LaplacianEigenvectors`.

    Raises:
        TypeError: if ``encoders`` is not a list, or an element has another type.
        ValueError: if the list is empty or holds ``None``, a class or checkpoint is unknown, or an argument is out of
            range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import Combined, LaplacianEigenvectors, RandomWalk
        >>> encoder = Combined([RandomWalk(steps=4), LaplacianEigenvectors(k=2)])
        >>> encoder(None, torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4).node.shape
        torch.Size([4, 6])
    """

    _modules_in_config = ("encoders",)

    def __init__(self, encoders: Sequence[Encoder | Mapping[str, Any] | str] | None = None) -> None:
        super().__init__()
        encoders = [RandomWalk(), LaplacianEigenvectors()] if encoders is None else encoders
        if isinstance(encoders, str | Mapping) or not isinstance(encoders, Sequence):
            raise TypeError(f"encoders must be a list of encoders, got {encoders!r}; write [{encoders!r}] for one")
        if not encoders or None in encoders:
            raise ValueError(f"encoders must hold one or more encoders and no None, got {encoders!r}")
        parts = [load_encoder(each) if isinstance(each, str | Path) else as_encoder(each) for each in encoders]
        self.encoders = nn.ModuleList(parts)  # type: ignore[arg-type]
        self.out_channels = sum(part.out_channels for part in self._parts)
        self.edge_out_channels = sum(part.edge_out_channels for part in self._parts)
        self.pair_out_channels = sum(part.pair_out_channels for part in self._parts)
        self.reads = frozenset().union(*(part.reads for part in self._parts))
        self.directed = any(part.directed for part in self._parts)

    @property
    def _parts(self) -> list[Encoder]:
        return list(self.encoders)  # type: ignore[arg-type]

    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Encode nodes, edges and pairs with each encoder, see :meth:`Encoder.encode`."""
        encodings = []
        for number, part in enumerate(self._parts):
            precomputed, own = inputs.precomputed, f"_{number}_"
            if precomputed is not None:
                named = {name.partition(own): values for name, values in precomputed.items()}
                precomputed = {f"{at}_{name}": values for (at, _, name), values in named.items() if at in LEVELS}
            pairs = inputs.pairs if part.pair_out_channels else None
            options: Any = {"pairs": pairs, "generator": inputs.generator, "precomputed": precomputed}
            encodings.append(part(inputs.x, graph, inputs.edge_attr, **options))
        levels = ([values for values in level if values is not None] for level in zip(*encodings, strict=True))
        return Encoding(*(torch.cat(values, dim=1) if values else None for values in levels))  # type: ignore[arg-type]

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return the precomputed tensors of all encoders; each name contains the encoder's number."""
        return {
            name.replace("_", f"_{number}_", 1): values
            for number, part in enumerate(self._parts)
            for name, values in part.precompute(graph).items()
        }

    def reset_parameters(self) -> None:
        """Reset each encoder, see :meth:`Encoder.reset_parameters`."""
        for part in self._parts:
            part.reset_parameters()
