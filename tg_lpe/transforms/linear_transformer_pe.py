"""The linear transformer's encoding as a PyTorch Geometric transform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch_geometric.data.datapipes import functional_transform

from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.encoders.base import Encoder, check_encoder
from tg_lpe.encoders.registry import load_encoder
from tg_lpe.transforms.positional_encoding import AddPositionalEncoding

DEFAULT_ENCODER = "gram-k16"
"""The shipped encoder that is used where none is named."""


@functional_transform("linear_transformer_pe")
class LinearTransformerPE(AddPositionalEncoding):
    r"""Adds the positional encoding of a linear transformer to a graph (functional name: ``linear_transformer_pe``).

    ``LinearTransformerPE`` runs a pretrained :class:`~tg_lpe.GramTransformer`; the class
    :class:`~tg_lpe.LinearTransformer` is another encoder. Both compute with layers of the paper's linear transformer.
    This is :class:`AddPositionalEncoding` with the encoder :data:`DEFAULT_ENCODER`, which ships with the package; its
    card in ``tg_lpe/zoo`` says what is computed. Channels are in the order of what they explain, so that the first
    ``k`` are an encoding of that width. It is defined on every graph: a single node, no edges, fewer nodes than ``k``,
    several components. `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_.

    Columns have variance one on molecules. They are larger on dense graphs, and by far where edge weights are far from
    one: divide weights by their mean, and normalise what goes into a model of your own.

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        k: number of columns to write for each node, the encoder's first; all of them, 16 of the shipped encoder, if
            absent.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` appends the columns to ``x``.
        encoder: the encoder to use in place of the shipped one.
        edge_weight: name of the attribute that holds conductances, ``None`` to ignore weights.
        edge_attr_name: attribute to write for edges, ``[num_edges, edge_out_channels]``; ``None`` for no edge encoding.
        reduce, hetero: as :class:`AddPositionalEncoding`.

    Raises:
        ValueError: if ``k`` is no integer, the encoder has fewer than ``k`` channels, or none for edges where they are
            to be encoded.
        TypeError: if ``encoder`` is no :class:`~tg_lpe.Encoder`.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe import LinearTransformerPE
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
        >>> LinearTransformerPE(k=8)(ring).linear_transformer_pe.shape
        torch.Size([6, 8])
    """

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
                largest = Checkpoint.open(DEFAULT_ENCODER).config["out_channels"]
                raise ValueError(
                    f"k must lie in 1..{encoder.out_channels}, the channels of the encoder, got {k!r}; the default, "
                    f"{DEFAULT_ENCODER}, has {largest}; pass encoder=..., one with larger out_channels, for more"
                )
        super().__init__(encoder, attr_name, edge_attr_name, edge_weight, reduce=reduce, hetero=hetero)
        self.k = self.out_channels = self.out_channels if k is None else k
        self.encoder_on(torch.device("cpu")).keep_channels(self.k)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name_or_dir: str | Path, k: int | None = None, **kwargs: Any
    ) -> LinearTransformerPE:
        """The transform of a shipped, saved or published encoder.

        Args:
            name_or_dir: as :meth:`Encoder.from_pretrained <tg_lpe.Encoder.from_pretrained>`.
            k: number of columns to write.
            kwargs: the constructor's other arguments.
        """
        return cls(k, encoder=load_encoder(name_or_dir), **kwargs)

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"(k={self.k}, ", 1)
