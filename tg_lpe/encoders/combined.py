"""Concatenation of several encodings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, Encoding, LearnedTable
from tg_lpe.encoders.laplacian import LaplacianEigenvectors
from tg_lpe.encoders.random_walk import RandomWalk
from tg_lpe.encoders.registry import as_encoder, completed, load_encoder, reads_directions, register
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
        ValueError: if the list is empty, a class or checkpoint is unknown, or an argument is out of range.

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
        if not encoders:
            raise ValueError("encoders must hold at least one encoder, got an empty list")
        if None in encoders:
            raise TypeError(f"encoders must hold no None, got {encoders!r}")
        parts = (load_encoder(each) if isinstance(each, str | Path) else as_encoder(each) for each in encoders)
        self.encoders = nn.ModuleList(part for part in parts if part is not None)
        self.out_channels = sum(each.out_channels for each in self._parts)
        self.edge_out_channels = sum(each.edge_out_channels for each in self._parts)
        self.pair_out_channels = sum(each.pair_out_channels for each in self._parts)
        self.reads = frozenset().union(*(each.reads for each in self._parts))
        self.directed = any(each.directed for each in self._parts)

    @property
    def _parts(self) -> list[Encoder]:
        return list(self.encoders)  # type: ignore[arg-type]

    def encode(
        self,
        graph: Graph,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding:
        """Encode nodes and edges with each encoder, see :meth:`Encoder.encode`."""
        return _concatenate(
            part(x, graph, edge_attr, generator=generator, precomputed=tensors)
            for part, tensors in self._with_precomputed(precomputed)
        )

    def _encode_with_pairs(
        self, graph: Graph, pairs: Tensor, x: Tensor | None, edge_attr: Tensor | None, **options: Any
    ) -> tuple[Encoding, Tensor]:
        encodings, columns = [], []
        for part, tensors in self._with_precomputed(options.pop("precomputed")):
            if part.pair_out_channels:
                encoding, values = part(x, graph, edge_attr, pairs=pairs, precomputed=tensors, **options)
                columns.append(values)
            else:
                encoding = part(x, graph, edge_attr, precomputed=tensors, **options)
            encodings.append(encoding)
        return _concatenate(encodings), torch.cat(columns, dim=1)

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return the precomputed tensors of all encoders; each name contains the encoder's number."""
        return {
            f"{level}_{number}_{rest}": values
            for number, part in enumerate(self._parts)
            for name, values in part.precompute(graph).items()
            for level, _, rest in [name.partition("_")]
        }

    def _with_precomputed(
        self, precomputed: Mapping[str, Tensor] | None
    ) -> list[tuple[Encoder, dict[str, Tensor] | None]]:
        """Return each encoder with its precomputed tensors."""
        if precomputed is None:
            return [(part, None) for part in self._parts]
        if not isinstance(precomputed, Mapping):
            raise TypeError(f"precomputed must be a mapping of names to tensors, got {type(precomputed).__name__}")
        shares: list[dict[str, Tensor]] = [{} for _ in self._parts]
        for name, values in precomputed.items():
            level, number, rest = [*name.split("_", 2), "", ""][:3]
            if not number.isdigit() or int(number) >= len(shares):
                raise ValueError(f"precomputed holds {name!r}, which no encoder of this {type(self).__name__} made")
            shares[int(number)][f"{level}_{rest}"] = values
        return list(zip(self._parts, shares, strict=True))

    @property
    def encodes_once(self) -> bool:  # type: ignore[override]
        """Whether one of the encoders encodes each graph once."""
        return any(part.encodes_once for part in self._parts)

    @encodes_once.setter
    def encodes_once(self, value: bool) -> None:
        for part in self._parts:
            part.encodes_once = value

    @property
    def is_fitted(self) -> bool:
        """Whether all encoders are ready to encode."""
        return all(part.is_fitted for part in self._parts)

    def fit(self, dataset: Sequence[Data], *, generator: torch.Generator | None = None) -> Combined:
        """Fit the encoders that need statistics of training graphs and have none yet, see :meth:`Encoder.fit`."""
        for part in self._parts:
            if not part.is_fitted:
                part.fit(dataset, generator=generator)
        return self

    def without_edges(self) -> Combined:
        """Return an encoder with the same weights that only encodes nodes.

        Raises:
            ValueError: if all encoders only encode edges.
        """
        if not self.edge_out_channels:
            return self
        if not self.out_channels:
            raise ValueError(f"{type(self).__name__} only encodes edges, so without_edges leaves nothing")
        slim = Combined([part.without_edges() for part in self._parts if part.out_channels])
        slim.training, slim._is_frozen = self.training, self._is_frozen
        return slim

    def freeze(self) -> Combined:
        """Freeze each encoder, see :meth:`Encoder.freeze`."""
        super().freeze()
        for part in self._parts:
            part.freeze()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Combined:
        """Record gradients of the encoders' parameters or not."""
        super().requires_grad_(requires_grad)
        for part in self._parts:
            part.requires_grad_(requires_grad)
        return self

    def reset_parameters(self) -> None:
        """Reset each encoder, see :meth:`Encoder.reset_parameters`."""
        for part in self._parts:
            part.reset_parameters()

    def learned(self) -> list[LearnedTable]:
        """Return the tables of all encoders, with the encoder's class in each title."""
        return [
            table._replace(title=f"{type(part).__name__}: {table.title}")
            for part in self._parts
            for table in part.learned()
        ]

    def config_dict(self) -> dict[str, Any]:
        """Return the class name and the configurations of the encoders."""
        return {"class": type(self).__name__, "encoders": [part.config_dict() for part in self._parts]}

    @classmethod
    def reads_directions(cls, arguments: Mapping[str, Any]) -> bool:
        """Return whether one of the encoders is ``directed``."""
        return any(reads_directions(each) for each in arguments.get("encoders") or ())

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the encoders' configurations with the arguments that follow from the data."""
        encoders = arguments.get("encoders")
        return {"encoders": [completed(each, spec) for each in encoders]} if encoders else {}


def _concatenate(encodings: Iterable[Encoding]) -> Encoding:
    """Concatenate the columns of several encodings."""
    parts = list(encodings)
    edges = [part.edge for part in parts if part.edge is not None]
    return Encoding(torch.cat([part.node for part in parts], dim=1), torch.cat(edges, dim=1) if edges else None)
