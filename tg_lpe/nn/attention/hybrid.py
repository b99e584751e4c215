"""Message passing plus a global attention that is chosen by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_flags, check_options, check_shares
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import feed_forward
from tg_lpe.nn.attention.edge import make_local
from tg_lpe.nn.attention.gatedgcn import GatedGCN
from tg_lpe.nn.attention.global_attention import GLOBAL_ATTENTIONS
from tg_lpe.nn.attention.local import Local
from tg_lpe.nn.attention.registry import AttentionLayer, SharedState, check_arguments, register_attention
from tg_lpe.nn.norms import NORMS


class ResidualLocal(nn.Module):
    """A local part of :func:`~tg_lpe.nn.attention.edge.make_local` with a residual."""

    def __init__(self, hidden_channels: int, local: Local, options: Mapping[str, Any] | None, dropout: float) -> None:
        super().__init__()
        self.gine: Any = make_local(hidden_channels, local, options)  # by default; checkpoints have the name
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, e: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """Apply the layer, see :meth:`GatedGCN.forward`; edge features are returned unchanged."""
        return h + self.dropout(self.gine(h, e, graph)), e


@register_attention("hybrid")
class HybridLayer(AttentionLayer):
    r"""Message passing plus a global attention, then a feed-forward net.

    .. math::
        y = \mathrm{norm}(\mathrm{local}(x, e)) + \mathrm{norm}(x + \mathrm{global}(x)), \qquad
        x' = \mathrm{norm}(y + \mathrm{FF}(y)) .

    Algorithm 2 of Primphormer, which is the layer of `Recipe for a General, Powerful, Scalable Graph Transformer
    <https://arxiv.org/abs/2205.12454>`_. The local part includes a residual.

    Args:
        hidden_channels: width of node and edge features; the feed-forward net is twice as wide.
        heads: number of heads of the global part; divides ``hidden_channels``.
        global_attention: ``"primal"``, ``"softmax"``, ``"performer"``, ``"sgformer"``, ``"none"``, or a registered
            name, see :func:`~tg_lpe.nn.attention.register_global_attention`.
        global_options: further arguments of its constructor, such as ``{"rank": 30}``.
        local: ``"gatedgcn"``, see :class:`GatedGCN`; ``"gine"``, a net of ``h_i + sum_j relu(h_j + e_ij)``; ``"none"``;
            or any convolution, see :func:`~tg_lpe.nn.attention.local.make_convolution`. Only ``"gatedgcn"`` updates
            edge features.
        local_options: further arguments of the convolution's constructor.
        pe_gate: whether the gates of ``"gatedgcn"`` read distances of positional encodings, see :class:`GatedGCN`.
        update_edges: whether edge features are updated; ``False`` for the last layer, whose edge features are not read.
        dropout: share of the outputs of message passing, of the attention and of the feed-forward net, and of its
            hidden units, that is dropped in training.
        norm: name of a normalisation in :data:`~tg_lpe.nn.norms.NORMS`.

    Raises:
        ValueError: if a name is unknown, both parts are ``"none"``, or an argument is out of range.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        global_attention: str = "primal",
        global_options: Mapping[str, Any] | None = None,
        local: Local = "gatedgcn",
        local_options: Mapping[str, Any] | None = None,
        pe_gate: bool = False,
        update_edges: bool = True,
        dropout: float = 0.0,
        norm: str = "bounded",
    ) -> None:
        super().__init__()
        check_options("global_options", global_options)
        check_flags(pe_gate=pe_gate, update_edges=update_edges)
        check_shares(dropout=dropout)
        check_choice("global_attention", global_attention, ["none", *GLOBAL_ATTENTIONS])
        if local == "none" and global_attention == "none":
            raise ValueError("local='none' and global_attention='none' leave nothing of the layer")
        if pe_gate and local != "gatedgcn":
            raise ValueError(f"local={local!r} has no gates, so pe_gate must be False")
        if local_options and local in ("gatedgcn", "none"):
            raise ValueError(f"local={local!r} takes no local_options, got {dict(local_options)}")
        self.local: nn.Module | None = None
        if local == "gatedgcn":
            self.local = GatedGCN(hidden_channels, update_edges, dropout, norm, pe_gate)
        elif local != "none":
            self.local = ResidualLocal(hidden_channels, local, local_options, dropout)
        self.reads_pe = pe_gate
        self.local_norm = None if self.local is None else NORMS[norm](hidden_channels)
        self.attention: AttentionLayer | None = None
        if global_attention != "none":
            part = GLOBAL_ATTENTIONS[global_attention]
            check_arguments("global_attention", global_attention, part, global_options or {}, {})
            self.attention = part(hidden_channels, heads, **(global_options or {}))
        elif global_options:
            raise ValueError(f"global_attention='none' takes no global_options, got {dict(global_options)}")
        self.attention_norm = None if self.attention is None else NORMS[norm](hidden_channels)
        self.feed_forward = nn.Sequential(*feed_forward(hidden_channels, dropout), nn.Dropout(dropout))
        self.norm = NORMS[norm](hidden_channels)
        self.dropout = nn.Dropout(dropout)

    def shared(self) -> SharedState:
        """Return the module that the global parts of a model share."""
        return (self.attention and self.attention.shared()) or NothingShared()

    def forward(
        self, h: Tensor, e: Tensor, graph: Graph, state: Any, pe_distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Any]:
        """Apply the layer, see :func:`~tg_lpe.nn.attention.register_attention`; the state is the global part's."""
        graphs, parts = graph.graphs, []
        if self.attention is not None and self.attention_norm is not None:
            update, state = self.attention(h, graph, state)
            parts.append(self.attention_norm(h + self.dropout(update), graphs))
        if self.local is not None and self.local_norm is not None:
            gates = {"pe_distances": pe_distances} if self.reads_pe else {}
            local, e = self.local(h, e, graph, **gates)
            parts.append(self.local_norm(local, graphs))
        y = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return self.norm(y + self.feed_forward(y), graphs), e, state


class NothingShared(SharedState):
    """Share nothing: the state of the layers is ``None``."""

    def forward(self, graph: Graph) -> None:
        """Return ``None``."""
