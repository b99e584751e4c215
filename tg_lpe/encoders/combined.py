"""Several encodings side by side."""

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
from tg_lpe.encoders.registry import ENCODERS, as_encoder, load_encoder, register
from tg_lpe.graph.graph import Graph


@register
class Combined(Encoder):
    """Several encoders, whose columns lie side by side at nodes, at edges and at pairs.

    Structure and position answer different questions, and `GraphGPS <https://arxiv.org/abs/2205.12454>`_ (section 3.1)
    reads both. Each encoder keeps its own ambiguity, such as the signs of eigenvectors, and is trained, fitted and
    precomputed as it is alone.

    Args:
        encoders: the encoders, at least one; each may be the class and arguments of one, ``{"class": "RandomWalk",
            "steps": 16}``, or the name or folder of a pretrained one, ``"gram-k16"``. If absent,
            :class:`~tg_lpe.encoders.RandomWalk` and :class:`~tg_lpe.encoders.LaplacianEigenvectors`.

    Raises:
        TypeError: if ``encoders`` is no list, or one of them is nothing of these.
        ValueError: if there is none, a class or checkpoint is unknown, or arguments are out of range.

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
        given = (load_encoder(each) if isinstance(each, str | Path) else as_encoder(each) for each in encoders)
        self.encoders = nn.ModuleList(each for each in given if each is not None)
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
        """Encode a graph, or each graph of a batch by itself, with each encoder in turn.

        Args:
            graph, x, edge_attr, generator, precomputed: as the encoders take them.

        Raises:
            ValueError: as the encoders.
        """
        return _joined(
            part.encode(graph, x, edge_attr, generator=generator, precomputed=given)
            for part, given in self._with_precomputed(precomputed)
        )

    def encode_with_pairs(
        self,
        graph: Graph,
        pairs: Tensor,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> tuple[Encoding, Tensor]:
        """Encode the graph, and pairs of nodes by those of the encoders that encode some.

        Args:
            graph, pairs, x, edge_attr, generator, precomputed: as the encoders take them.

        Raises:
            ValueError: if no encoder encodes pairs, or as the encoders.
        """
        if not self.pair_out_channels:
            return super().encode_with_pairs(graph, pairs)
        encodings, columns = [], []
        for part, given in self._with_precomputed(precomputed):
            if part.pair_out_channels:
                options: dict[str, Any] = {"generator": generator, "precomputed": given}
                encoding, values = part.encode_with_pairs(graph, pairs, x, edge_attr, **options)
                columns.append(values)
            else:
                encoding = part.encode(graph, x, edge_attr, generator=generator, precomputed=given)
            encodings.append(encoding)
        return _joined(encodings), torch.cat(columns, dim=1)

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return what the encoders precompute, each name with the encoder's number in it."""
        return {
            f"{level}_{number}_{rest}": values
            for number, part in enumerate(self._parts)
            for name, values in part.precompute(graph).items()
            for level, _, rest in [name.partition("_")]
        }

    def _with_precomputed(
        self, precomputed: Mapping[str, Tensor] | None
    ) -> list[tuple[Encoder, dict[str, Tensor] | None]]:
        """Each encoder, and what it precomputed."""
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
        """Whether each graph is encoded once, of all encoders."""
        return any(part.encodes_once for part in self._parts)

    @encodes_once.setter
    def encodes_once(self, value: bool) -> None:
        for part in self._parts:
            part.encodes_once = value

    @property
    def is_fitted(self) -> bool:
        """Whether no encoder waits for :meth:`fit`."""
        return all(part.is_fitted for part in self._parts)

    def fit(self, dataset: Sequence[Data], *, generator: torch.Generator | None = None) -> Combined:
        """Fit those encoders that take statistics from training graphs and have none yet.

        Args:
            dataset, generator: as the encoders take them.

        Returns:
            This encoder.
        """
        for part in self._parts:
            if not part.is_fitted:
                part.fit(dataset, generator=generator)
        return self

    def without_edges(self) -> Combined:
        """The encoders of nodes without their edge channels.

        Raises:
            ValueError: if all encode edges alone.
        """
        if not self.edge_out_channels:
            return self
        if not self.out_channels:
            raise ValueError(f"{type(self).__name__} encodes edges alone: without them nothing is left")
        slim = Combined([part.without_edges() for part in self._parts if part.out_channels])
        return slim.train(self.training)

    def freeze(self) -> Combined:
        """Freeze each encoder as it freezes alone."""
        super().freeze()
        for part in self._parts:
            part.freeze()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Combined:
        """Whether gradients of the encoders' parameters are recorded."""
        super().requires_grad_(requires_grad)
        for part in self._parts:
            part.requires_grad_(requires_grad)
        return self

    def learned(self) -> list[LearnedTable]:
        """Return the tables of the encoders, with the name of each."""
        return [
            table._replace(title=f"{type(part).__name__}: {table.title}")
            for part in self._parts
            for table in part.learned()
        ]

    def config_dict(self) -> dict[str, Any]:
        """The class, and the configurations of the encoders."""
        return {"class": type(self).__name__, "encoders": [part.config_dict() for part in self._parts]}

    @classmethod
    def reads_directions(cls, arguments: Mapping[str, Any]) -> bool:
        """Whether one of the encoders is ``directed``."""
        inside = arguments.get("encoders") or ()
        configs = [load_encoder(each).config_dict() if isinstance(each, str) else each for each in inside]
        known = [each for each in configs if isinstance(each, Mapping) and each.get("class") in ENCODERS]
        return any(ENCODERS[each["class"]].reads_directions(each) for each in known)

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Which sizes of the data the encoders take and were not given."""

        def filled(each: Any) -> Any:
            if not isinstance(each, Mapping) or each.get("class") not in ENCODERS:
                return each
            return {**each, **ENCODERS[each["class"]].data_arguments(spec, each)}

        inside = arguments.get("encoders")
        return {"encoders": [filled(each) for each in inside]} if inside else {}


def _joined(encodings: Iterable[Encoding]) -> Encoding:
    """The columns of several encodings side by side."""
    parts = list(encodings)
    edges = [part.edge for part in parts if part.edge is not None]
    return Encoding(torch.cat([part.node for part in parts], dim=1), torch.cat(edges, dim=1) if edges else None)
