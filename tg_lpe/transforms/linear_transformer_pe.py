"""The pretrained encoding of a linear transformer as a PyTorch Geometric transform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_geometric.data.datapipes import functional_transform

from tg_lpe.arguments import number_hint
from tg_lpe.encoders.base import Encoder, check_encoder
from tg_lpe.encoders.positions import first_columns
from tg_lpe.encoders.registry import load_encoder
from tg_lpe.transforms.positional_encoding import AddPositionalEncoding

DEFAULT_ENCODER = "universal-k32"
"""Name of the default encoder, which is part of the package."""


@functional_transform("linear_transformer_pe")
class LinearTransformerPE(AddPositionalEncoding):
    r"""Add a pretrained positional encoding to a graph (functional name: ``linear_transformer_pe``).

    It is :class:`AddPositionalEncoding` with the pretrained encoder ``universal-k32``. Its first 16 columns tell the
    structure around each node, computed by a :class:`~tg_lpe.LinearTransformer` as in `Graph Transformers Dream of
    Electric Flow <https://arxiv.org/abs/2410.16699>`_, eq. (16). They are sorted by the variance that they explain, so
    the first ``k`` are an encoding of width ``k``. The last 16 tell the place of each node,
    :class:`~tg_lpe.encoders.Positions`, defined up to sign; they are zero in graphs of fewer than 512 nodes. For one
    large graph, take all 32.

    The encoding is defined on every graph, including graphs without edges, with fewer nodes than ``k``, or with several
    components. The scale of edge weights does not matter. Columns of structure have variance one over the graphs that
    they were made from, molecules above all, and columns of place have mean square one.

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        k: number of columns to write for each node, the encoder's first ones; by default all, 32 of the default
            encoder.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` appends the columns to ``x``.
        encoder: an encoder to use instead of the default one.
        edge_weight: name of the attribute with edge weights, ``None`` to ignore weights.
        edge_attr_name: attribute to write for edges, ``[num_edges, edge_out_channels]``; ``None`` for no edge encoding.
        reduce, hetero: see :class:`AddPositionalEncoding`.

    Raises:
        ValueError: if ``k`` is not an integer from 1 to the encoder's ``out_channels``, or ``edge_attr_name`` is
            set and the encoder has no edge channels.
        TypeError: if ``encoder`` is not an :class:`~tg_lpe.Encoder`.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe import LinearTransformerPE
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
        >>> LinearTransformerPE(k=8)(ring).linear_transformer_pe.shape
        torch.Size([6, 8])
    """

    _described = ("k", *AddPositionalEncoding._described)

    def __init__(
        self,
        k: int | None = None,
        attr_name: str | None = "linear_transformer_pe",
        encoder: Encoder | None = None,
        edge_weight: str | None = "edge_weight",
        edge_attr_name: str | None = None,
        *,
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        encoder = load_encoder(DEFAULT_ENCODER) if encoder is None else encoder
        if k is not None and isinstance(encoder, Encoder):
            check_encoder(encoder)
            if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= encoder.out_channels:
                hint = f"; from_pretrained({k!r}) takes a name" if isinstance(k, str) else number_hint(k)
                raise ValueError(f"k must lie in 1..{encoder.out_channels}, the encoder's channels, got {k!r}{hint}")
        super().__init__(encoder, attr_name, edge_attr_name, edge_weight, reduce=reduce, hetero=hetero)
        self.k = self.out_channels = self.out_channels if k is None else k
        for device, frozen in self._on_device.items():
            self._on_device[device] = first_columns(frozen, self.k)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name_or_dir: str | Path, k: int | None = None, **kwargs: Any
    ) -> LinearTransformerPE:
        """Return the transform of a shipped, saved or published encoder, with its first ``k`` columns."""
        return cls(k, encoder=load_encoder(name_or_dir), **kwargs)
