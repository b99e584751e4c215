"""Message passing with a gate on every edge."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_shares
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import Resettable
from tg_lpe.nn.norms import NORMS


class GatedGCN(Resettable):
    r"""Message passing with a gate for each channel of every edge, and with edge features.

    For the edge from ``j`` to ``i``,

    .. math::
        m_{ij} = D h_i + E h_j + C e_{ij}, \quad
        h'_i = h_i + \mathrm{relu}\Bigl(\mathrm{norm}\Bigl(A h_i +
        \frac{\sum_j \sigma(m_{ij}) \odot B h_j}{\sum_j \sigma(m_{ij}) + 10^{-6}}\Bigr)\Bigr), \quad
        e'_{ij} = e_{ij} + \mathrm{relu}(\mathrm{norm}(m_{ij})) .

    `Residual Gated Graph ConvNets <https://arxiv.org/abs/1711.07553>`_ in the form of `Benchmarking Graph Neural
    Networks <https://arxiv.org/abs/2003.00982>`_ that GraphGPS uses.

    With ``pe_gate``, :math:`\sigma(m_{ij})` is multiplied by :math:`\sigma(\mathrm{MLP}(|p_i - p_j|^2))`, where ``p``
    is the model's embedding of the positional encoding, as GraphGPS adopts it from `Equivariant and Stable Positional
    Encoding for More Powerful Graph Neural Networks <https://arxiv.org/abs/2203.00199>`_. If the embedding is the
    encoding itself, the gates are independent of signs and bases; if it is a linear map, as in published models, they
    are not.

    Args:
        hidden_channels: width of node and edge features.
        update_edges: whether edge features are updated; otherwise they are returned unchanged.
        dropout: share of both updates that is dropped in training.
        norm: name of a normalisation in :data:`~tg_lpe.nn.norms.NORMS`.
        pe_gate: whether gates read distances of positional encodings.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        hidden_channels: int,
        update_edges: bool = True,
        dropout: float = 0.0,
        norm: str = "bounded",
        pe_gate: bool = False,
    ) -> None:
        super().__init__()
        check_shares(dropout=dropout)
        self.own = nn.Linear(hidden_channels, hidden_channels)  # A, B, C, D, E
        self.value = nn.Linear(hidden_channels, hidden_channels)
        self.edge = nn.Linear(hidden_channels, hidden_channels)
        self.target = nn.Linear(hidden_channels, hidden_channels)
        self.source = nn.Linear(hidden_channels, hidden_channels)
        self.node_norm = NORMS[norm](hidden_channels)
        self.edge_norm = NORMS[norm](hidden_channels) if update_edges else None
        self.pe_gate = (
            nn.Sequential(nn.Linear(1, hidden_channels), nn.ReLU(), nn.Linear(hidden_channels, 1), nn.Sigmoid())
            if pe_gate
            else None
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, e: Tensor, graph: Graph, pe_distances: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return updated node features ``[num_nodes, hidden_channels]`` and edge features.

        Args:
            h: node features ``[num_nodes, hidden_channels]``.
            e: edge features ``[num_edges, hidden_channels]``.
            graph: the graph.
            pe_distances: squared distances of positional encodings, ``[num_edges, 1]``, with ``pe_gate``.
        """
        source, target = graph.source, graph.target
        gate = target.gather(self.target(h)) + source.gather(self.source(h)) + self.edge(e)
        share = torch.sigmoid(gate)
        if self.pe_gate is not None:
            share = share * self.pe_gate(pe_distances)
        message = target.sum(share * source.gather(self.value(h))) / (target.sum(share) + 1e-6)
        update = self.node_norm(self.own(h) + message, graph.graphs).relu()
        h = h + self.dropout(update)
        if self.edge_norm is not None:
            e = e + self.dropout(self.edge_norm(gate, graph.edge_graphs).relu())
        return h, e
