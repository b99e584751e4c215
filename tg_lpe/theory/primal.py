"""Compute variants of the attention of `Primphormer <https://proceedings.mlr.press/v267/he25t.html>`_, to audit it.

``import tg_lpe.theory`` registers ``global_attention="audited_primal"``, ``"dual"`` and ``"ksvd"`` for hybrid layers.
On ZINC-12k, their errors differ from that of the published attention by about the spread over seeds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_count, check_flags, check_positive
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention.global_attention import register_global_attention
from tg_lpe.nn.attention.primal import (
    POOLINGS,
    FeatureMaps,
    PrimalAttention,
    PrimalState,
    SharedProjection,
    pooled,
)
from tg_lpe.nn.attention.registry import AttentionLayer

OBJECTIVES = ("printed", "per_graph", "stationarity")


@register_global_attention("audited_primal")
class AuditedPrimalAttention(PrimalAttention):
    """Apply primal attention with another regulariser, averaged over graphs and heads.

    - ``"printed"``: the square of eq. (2.5) with ``lambda_`` for Lambda.
    - ``"per_graph"``: the square of eq. (2.5) with ``softplus(lambda_)``, as a mean over the nodes of a graph.
    - ``"stationarity"``: the relative residual of the equations of stationary points,
      ``(|W_e - f L sum_j r_j phi_k(j)^T / N|^2 + |W_r - f L sum_i e_i phi_q(i)^T / N|^2) / (|W_e|^2 + |W_r|^2)`` with
      ``L = softplus(lambda_)``; zero only at stationary points.

    Args:
        hidden_channels, heads, rank, num_rows, pooling, eta: as for :class:`~tg_lpe.nn.attention.PrimalAttention`.
        kind: one of the names above.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        rank: int = 30,
        num_rows: int | None = None,
        pooling: str = "mean",
        eta: float = 0.1,
        kind: str = "stationarity",
    ) -> None:
        super().__init__(hidden_channels, heads, rank, num_rows, pooling=pooling, eta=eta)
        check_choice("kind", kind, OBJECTIVES)
        self.kind = kind

    def objective(self, features: Tensor, graph: Graph, state: PrimalState) -> Tensor:
        """Return the objective, see :meth:`tg_lpe.nn.attention.PrimalAttention.objective`."""
        with torch.autocast(features.device.type, enabled=False):
            terms, printed = self.terms(features, state), self.kind == "printed"
            lambda_ = terms.lambda_ if printed else nn.functional.softplus(terms.lambda_)
            gram = _grams(terms.features, graph, mean=not printed)
            if self.kind == "stationarity":  # the relative residual of eq. (2.7)
                f = terms.projection + terms.node.unsqueeze(1)
                sums = torch.einsum("gns,nhtp,ghtpq->ghtsq", f, terms.weights.flip(2), gram.flip(2))
                gradient = torch.einsum("gns,hs,ghtsq->ghtnq", f, lambda_, sums)
                residual = terms.weights.permute(1, 2, 0, 3) - gradient
                squares = terms.weights.square().sum((0, 2, 3))
                relative = residual.square().sum((2, 3, 4)) / torch.where(squares > 0, squares, 1.0)
                return _mean_over_graphs(relative, graph)
            # Eq. (2.5), as printed or as a mean over nodes.
            quadratic = (terms.quadratic(lambda_) * gram).sum((3, 4))
            moments = (gram @ terms.weights.sum(0).unsqueeze(3)).squeeze(4)
            objectives = (quadratic + terms.through_node(moments, lambda_)).sum(2) / 2 - terms.trace()
            return _mean_over_graphs(objectives.square(), graph)


def _mean_over_graphs(values: Tensor, graph: Graph) -> Tensor:
    """Average values ``[num_graphs, heads]`` over heads and graphs with at least one node."""
    has_nodes = graph.graphs.ptr.diff() > 0
    return (values.mean(1) * has_nodes).sum() / has_nodes.sum().clamp(min=1)


def _grams(features: Tensor, graph: Graph, mean: bool) -> Tensor:
    """Compute ``sum_i phi_i phi_i^T``, or its mean, for each graph, ``[num_graphs, heads, 2, width, width]``."""
    padded = graph.pad(features).permute(0, 2, 3, 1, 4)
    grams = padded.mT @ padded
    return grams / _sizes(graph, grams).view(-1, 1, 1, 1, 1) if mean else grams


def _sizes(graph: Graph, like: Tensor) -> Tensor:
    """Count the nodes of each graph, at least one, ``[num_graphs]``."""
    return graph.graphs.ptr.diff().clamp(min=1).to(like.dtype)


@register_global_attention("dual")
class DualAttention(AttentionLayer):
    r"""Attend to all nodes with the kernel of primal attention and values of nodes, at linear cost.

    .. math::
        e_i = \sum_j c_{ij} \kappa_{ij} v_j, \quad r_j = \sum_i c_{ij} \kappa_{ij} v_i, \qquad
        \kappa_{ij} = \phi_q(h_i)^T \phi_k(h_j), \qquad h'_i = \mathrm{cat}([e_i; r_i]) .

    This is eq. (2.8) of Primphormer with learned values ``v = V h``. The primal weights are sums over nodes,
    ``sum_j phi_k(h_j) v_j^T``, so the kernel is never computed. ``c_ij`` is one over the number of nodes
    (``pooling="mean"``) or one (``"sum"``). With ``edges``, an edge from ``j`` to ``i`` adds one to ``c_ij``: the
    elementwise product ``K * (1 / N + A)`` or ``K * (1 + A)`` attends to all nodes and to neighbours.

    Only inner products of features enter, so an orthogonal map of all features of a head changes nothing.

    Args:
        hidden_channels: width of node features.
        heads: number of heads; divides ``hidden_channels``.
        edges: whether edges add to the kernel.
        pooling: ``"mean"`` or ``"sum"``.
    """

    def __init__(self, hidden_channels: int, heads: int, edges: bool = False, pooling: str = "mean") -> None:
        super().__init__()
        check_flags(edges=edges)
        check_choice("pooling", pooling, POOLINGS)
        self.features = FeatureMaps(hidden_channels, heads)
        self.heads, self.edges, self.pooling = heads, edges, pooling
        self.value = nn.Linear(hidden_channels, hidden_channels)
        self.out = nn.Linear(2 * (hidden_channels // heads), hidden_channels // heads)

    def forward(self, h: Tensor, graph: Graph, state: None) -> tuple[Tensor, None]:
        """Attend to all nodes of a graph, see :func:`~tg_lpe.nn.attention.register_global_attention`."""
        features = self.features(h)
        values = self.value(h).unflatten(1, (self.heads, -1)).to(features.dtype)
        return self.out(self.scores(features, values, graph).flatten(2)).flatten(1), None

    def scores(self, features: Tensor, values: Tensor, graph: Graph) -> Tensor:
        """Compute ``e`` and ``r``, ``[num_nodes, heads, 2, width]``.

        Args:
            features: features of queries and keys, ``[num_nodes, heads, 2, any]``.
            values: ``[num_nodes, heads, width]``.
            graph: the graph.
        """
        padded = graph.pad(features).permute(0, 2, 3, 1, 4)  # [num_graphs, heads, 2, max_nodes, any]
        sums = padded.mT.flip(2) @ graph.pad(values).transpose(1, 2).unsqueeze(2)
        if self.pooling == "mean":
            sums = sums / _sizes(graph, sums).view(-1, 1, 1, 1, 1)
        scores = graph.unpad((padded @ sums).permute(0, 3, 1, 2, 4))
        return scores + self._over_edges(features, values, graph) if self.edges else scores

    def _over_edges(self, features: Tensor, values: Tensor, graph: Graph) -> Tensor:
        source, target = graph.source, graph.target
        query, key = target.gather(features[:, :, 0]), source.gather(features[:, :, 1])
        kernel = (query * key).sum(2, keepdim=True)
        e = target.sum(kernel * source.gather(values))
        return torch.stack([e, source.sum(kernel * target.gather(values))], dim=2)


@register_global_attention("ksvd")
class KernelSVDAttention(AttentionLayer):
    r"""Solve the equations of primal attention for every graph, exactly up to a ridge, with matrices of head width.

    For any kernel :math:`K = \Phi_q \Phi_k^T` and :math:`F_X = f_g^T f_g`, with the Gram matrices
    :math:`C = \Phi^T \Phi` and :math:`S = (C_k^{1/2} C_q C_k^{1/2})^{1/2}`,

    .. math::
        E = K H_r F_X = \Phi_q C_k^{1/2} F_X^{1/2}, \qquad R = K^T H_e F_X = \Phi_k C_q C_k^{1/2} S^{-1} F_X^{1/2}

    solve eq. (2.6) of Primphormer, :math:`K H_r F_X = H_e \Sigma` and :math:`K^T H_e F_X = H_r \Sigma`, with
    :math:`\Sigma = \Lambda^{-1} = F_X^{1/2} S F_X^{1/2}`, which is positive definite and not diagonal. The eigenvalues
    of ``S`` are the singular values of ``K``; no sign or basis of singular vectors enters. Gram matrices are means over
    the nodes of a graph. ``f_g = F + 1 b_g^T`` as in :class:`~tg_lpe.nn.attention.PrimalAttention`, with as many
    columns as a head has channels.

    Args:
        hidden_channels: width of node features.
        heads: number of heads; divides ``hidden_channels``.
        num_rows: number of rows of ``F``; the width of a head if absent.
        ridge: added to the diagonal of ``F_X`` and of the Gram matrices, whose traces are one. With 16 random features,
            1e-3 leaves a relative residual of eq. (2.6) of about 8 % for graphs of 10 nodes, 3.3 % for 20, 2 % for 50
            and 1.7 % for 200; 1e-6 leaves 0.25 % for 10 nodes, and less than 0.01 % from 20 on.
    """

    def __init__(self, hidden_channels: int, heads: int, num_rows: int | None = None, ridge: float = 1e-3) -> None:
        super().__init__()
        check_positive("ridge", ridge)
        self.features, self.ridge = FeatureMaps(hidden_channels, heads), ridge
        width = hidden_channels // heads
        self.num_rows = width if num_rows is None else num_rows
        check_count("num_rows", self.num_rows)
        self.virtual = nn.Linear(hidden_channels, width)
        self.out = nn.Linear(2 * width, width)

    def shared(self) -> SharedProjection:
        """Return the module that the layers of a model share."""
        return SharedProjection(self.num_rows, self.virtual.out_features)

    def forward(self, h: Tensor, graph: Graph, state: PrimalState) -> tuple[Tensor, PrimalState]:
        """Attend to all nodes of a graph, see :func:`~tg_lpe.nn.attention.register_global_attention`."""
        node = state.node + self.virtual(pooled(h, graph.graphs, "mean")).to(state.node.dtype)
        features = self.features(h)
        with torch.autocast(h.device.type, enabled=False):
            f = (state.projection + node.unsqueeze(1)).to(torch.float64)
            grams = _grams(features.to(torch.promote_types(features.dtype, torch.float32)), graph, mean=True)
            maps = ksvd_maps(grams.to(torch.float64), (f.mT @ f).unsqueeze(1), self.ridge).to(features.dtype)
        padded = graph.pad(features).permute(0, 2, 3, 1, 4)
        scores = graph.unpad((padded @ maps).permute(0, 3, 1, 2, 4))
        return self.out(scores.flatten(2)).flatten(1), state._replace(node=node)


def ksvd_maps(grams: Tensor, auto_correlation: Tensor, ridge: float = 0.0) -> Tensor:
    """Compute the maps from features to exact scores, see :class:`KernelSVDAttention`.

    Args:
        grams: ``C_q`` and ``C_k``, ``[..., 2, width, width]``.
        auto_correlation: ``F_X``, ``[..., width, width]``.
        ridge: added to the diagonals of both.

    Returns:
        ``C_k^{1/2} F_X^{1/2}`` and ``C_q C_k^{1/2} S^{-1} F_X^{1/2}``, ``[..., 2, width, width]``.
    """
    diagonal = ridge * torch.eye(grams.size(-1)).to(grams)
    gram_q, gram_k = (grams + diagonal).unbind(-3)
    root = matrix_sqrt(gram_k)
    singular = matrix_sqrt(root @ gram_q @ root)
    scale = matrix_sqrt(auto_correlation + diagonal)
    other = torch.linalg.solve(singular, root @ gram_q).mT  # C_q C_k^(1/2) S^-1
    return torch.stack([root @ scale, other @ scale], dim=-3)


def matrix_sqrt(x: Tensor) -> Tensor:
    """Compute the symmetric square root of positive definite matrices ``[..., width, width]``.

    Two steps of Newton's method at the root change it by rounding only. They give it its first and second derivatives
    without derivatives of eigenvectors, which divide by gaps between eigenvalues.
    """
    values, vectors = torch.linalg.eigh(x.detach())
    roots = values.clamp(min=0).sqrt()
    sums = roots.unsqueeze(-1) + roots.unsqueeze(-2)
    sums = torch.maximum(sums, torch.finfo(x.dtype).eps ** 0.5 * roots.amax(-1, keepdim=True).unsqueeze(-1))
    root = (vectors * roots.unsqueeze(-2)) @ vectors.mT
    for _ in range(2):  # R + G with R G + G R = X - R^2
        root = root + vectors @ ((vectors.mT @ (x - root @ root) @ vectors) / sums) @ vectors.mT
    return root
