"""A PyTorch Geometric transform of any encoder."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch_geometric.data.datapipes import functional_transform

from tg_lpe.checkpoints.checkpoint import described_arguments, module_digest, module_dtype
from tg_lpe.encoders.base import Encoder, check_encoder, frozen_copy, warn_if_untrained
from tg_lpe.encoders.registry import encoder_hint, load_encoder, without_edges
from tg_lpe.graph.graph import Graph
from tg_lpe.transforms.attributes import check_names
from tg_lpe.transforms.base import Attribute, GraphTransform

T = TypeVar("T", bound="AddPositionalEncoding")


@functional_transform("add_positional_encoding")
class AddPositionalEncoding(GraphTransform):
    """Add the positional encoding of any encoder to a graph (functional name: ``add_positional_encoding``).

    The transform works on ``Data`` and ``Batch``, on their device, without gradient. A graph has the same encoding
    alone and in any batch. It reads ``edge_index``, ``num_nodes``, edge weights if there are any, and ``x`` or
    ``edge_attr`` if the encoder reads them. :meth:`~tg_lpe.transforms.base.GraphTransform.encode_dataset` encodes whole
    datasets in large batches.

    Directions are dropped unless the encoder is ``directed``, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        encoder: the encoder. The transform uses a frozen copy, so later changes of ``encoder`` have no effect.
        attr_name: attribute to write, ``[num_nodes, out_channels]``; an earlier encoding of this name is overwritten.
            ``None`` appends the columns to ``x``. Nothing is written at nodes if the encoder only encodes edges.
        edge_attr_name: attribute to write for edges, ``[num_edges, edge_out_channels]``, one row for each column of
            ``edge_index``; ``None`` to compute no edge encoding. PyG's ``subgraph`` takes it for an attribute of nodes
            unless its name contains ``edge``, if a graph has as many nodes as edges.
        edge_weight: name of the attribute with edge weights, ``None`` to ignore weights. It is not read if the encoder
            does not read edge weights.
        reduce, hetero: how to merge weights of edges that are listed several times, and how to treat ``HeteroData``,
            see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Raises:
        TypeError: if ``encoder`` is not an :class:`~tg_lpe.Encoder`, or does not declare its widths and ``reads``.
        ValueError: if ``edge_attr_name`` is set and the encoder has no edge channels, or is ``None`` and the encoder
            only encodes edges; if both names are equal, or PyG would read a name as node numbers, such as
            one with ``index``; or if ``reduce`` is set and the encoder does not read edge weights.

    Warns:
        UserWarning: if the encoder has weights that were never trained.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe import AddPositionalEncoding
        >>> from tg_lpe.encoders import RandomWalk
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
        >>> AddPositionalEncoding(RandomWalk(steps=4), attr_name="walks")(ring).walks.shape
        torch.Size([6, 4])
    """

    _described: ClassVar[tuple[str, ...]] = ("attr_name", "edge_weight", "edge_attr_name", "reduce", "hetero")
    """The arguments in ``repr``, besides the encoder."""

    def __init__(
        self,
        encoder: Encoder,
        attr_name: str | None = "pe",
        edge_attr_name: str | None = None,
        edge_weight: str | None = "edge_weight",
        *,
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        if not isinstance(encoder, Encoder):
            got = f"the class {encoder.__name__}" if isinstance(encoder, type) else type(encoder).__name__
            hint = encoder_hint(encoder) or f"; {type(self).__name__}.from_pretrained takes a name or a folder"
            raise TypeError(f"encoder must be a tg_lpe.Encoder, got {got}{hint}")
        check_encoder(encoder)
        warn_if_untrained(encoder)
        check_names(attr_name=attr_name, edge_attr_name=edge_attr_name)
        if edge_attr_name is None and not encoder.out_channels:
            raise ValueError(f"{type(encoder).__name__} only encodes edges, so it needs edge_attr_name, got None")
        if edge_attr_name is None:
            encoder = without_edges(encoder)
        elif not encoder.edge_out_channels:
            raise ValueError(
                f"edge_attr_name={edge_attr_name!r} needs an encoder with edge channels, such as a GramTransformer has "
                f"unless edge_out_channels=0, got a {type(encoder).__name__} of edge_out_channels=0"
            )
        if reduce != "error" and "edge_weight" not in encoder.reads:
            raise ValueError(
                f"reduce={reduce!r} merges edge weights, which this {type(encoder).__name__} does not read: it reads "
                f"{sorted(encoder.reads)}"
            )
        super().__init__(edge_weight if "edge_weight" in encoder.reads else None, reduce, hetero)
        self.attr_name = attr_name
        self.edge_attr_name = edge_attr_name
        self.out_channels = encoder.out_channels
        frozen = frozen_copy(encoder)
        self._on_device = {torch.device("cpu"): frozen}
        self.features = tuple(name for name in ("x", "edge_attr") if name in encoder.reads)
        # A text that changes with the encoder's output: its arguments, or a digest of arguments and weights.
        if frozen.state_dict():
            described = module_digest(frozen)
        else:
            arguments = {name: value for name, value in described_arguments(frozen).items() if name != "class"}
            if (dtype := module_dtype(frozen)) not in (None, torch.float32):
                arguments["dtype"] = dtype
            described = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        self._encoder = f"{type(encoder).__name__}({described})"

    @classmethod
    def from_pretrained(cls: type[T], name_or_dir: str | Path, **kwargs: Any) -> T:
        """Return the transform of a shipped, saved or published encoder.

        Args:
            name_or_dir: see :meth:`Encoder.from_pretrained <tg_lpe.Encoder.from_pretrained>`.
            kwargs: the constructor's other arguments.
        """
        return cls(encoder=load_encoder(name_or_dir), **kwargs)

    def encoder_on(self, device: torch.device) -> Encoder:
        """Return the frozen encoder on a device."""
        encoder = self._on_device.get(device)
        if encoder is None:
            encoder = copy.deepcopy(self._on_device[torch.device("cpu")]).to(device)
            self._on_device[device] = encoder
        return encoder

    def compute(self, graph: Graph, features: Mapping[str, Tensor]) -> list[Attribute]:
        """Encode the nodes, and the edges if ``edge_attr_name`` is set."""
        encoder = self.encoder_on(graph.device)
        node, edge, _ = encoder(features.get("x"), graph, features.get("edge_attr"))
        computed = []
        if self.out_channels:
            node = node if node.size(1) == self.out_channels else node[:, : self.out_channels]
            computed.append(Attribute(self.attr_name, "node", node))
        if self.edge_attr_name is not None and edge is not None:
            computed.append(Attribute(self.edge_attr_name, "edge", edge))
        return computed

    def __repr__(self) -> str:
        """Return a text that changes if the output changes: PyG compares it to detect a stale cache."""
        arguments = ", ".join(f"{name}={vars(self)[name]!r}" for name in self._described)
        return f"{type(self).__name__}({arguments}, encoder={self._encoder})"
