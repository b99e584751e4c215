"""Attention of Primphormer, which does not compute the kernel matrix."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_counts, check_heads, check_positive
from tg_lpe.graph.graph import Graph
from tg_lpe.nn import parallel
from tg_lpe.nn.attention.global_attention import register_global_attention
from tg_lpe.nn.attention.registry import AttentionLayer, SharedState
from tg_lpe.ops.segment import RowGroups

FORMS = ("folded", "published")
POOLINGS = ("mean", "sum")
CHUNK = 2**12
"""Rows of a large graph that are summed in float64 at once."""


class PrimalState(NamedTuple):
    """State that primal attention passes from layer to layer."""

    projection: Tensor
    """``F``, the data-independent part of ``f_X`` that all layers share, ``[num_rows, rank]``."""
    node: Tensor
    """``b``, the virtual node of each graph, ``[num_graphs, rank]``; zero before the first layer."""
    penalty: Tensor
    """``eta`` times the sum of the previous layers' regularisers, a scalar; zero if it is not needed."""
    needs_penalty: bool = True
    """Whether :attr:`penalty` is needed."""


class SharedProjection(SharedState):
    """The data-independent part of ``f_X``, which all layers share.

    Args:
        num_rows: rows of ``F``, the paper's ``N_s``.
        rank: columns of ``F``, the paper's ``s``.
        has_penalty: whether the layers add a term to the loss.
    """

    def __init__(self, num_rows: int, rank: int, has_penalty: bool = False) -> None:
        super().__init__()
        self.has_penalty = has_penalty
        self.projection = nn.Parameter(torch.empty(num_rows, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw an orthogonal matrix; the paper does not specify the initialisation."""
        nn.init.orthogonal_(self.projection)

    def forward(self, graph: Graph) -> PrimalState:
        """Return the state before the first layer."""
        projection = self.projection
        node = projection.new_zeros(graph.num_graphs, projection.size(1))
        return PrimalState(projection, node, projection.new_zeros(()))


class FeatureMaps(nn.Module):
    r"""Compute unit-norm features of queries and keys, ``phi = q / sqrt(|q|^2 + 1e-12)`` for each head and node.

    The small term bounds the gradient at zero. Norms are computed in float32 at least.

    Args:
        hidden_channels: width of node features.
        heads: number of heads; divides ``hidden_channels``.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``.
    """

    def __init__(self, hidden_channels: int, heads: int) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        self.heads = heads
        self.query = nn.Linear(hidden_channels, hidden_channels, bias=False)
        self.key = nn.Linear(hidden_channels, hidden_channels, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """Return features of queries and keys, ``[num_nodes, heads, 2, hidden_channels // heads]``."""
        # Query and key of a head are adjacent, so that later products for each head need no copy.
        rows = torch.stack([linear(h).unflatten(1, (self.heads, -1)) for linear in (self.query, self.key)], 2)
        dtype = self.query.weight.dtype
        precise = rows.to(torch.promote_types(rows.dtype, torch.float32))
        if precise.requires_grad:
            # The squared norm has a finite second derivative at zero, the norm does not.
            scale = ((precise * precise).sum(3, keepdim=True) + 1e-12).rsqrt()
            return (precise * scale).to(dtype)
        # In place, because allocating memory for all rows takes longer than the products.
        scale = (torch.linalg.vector_norm(precise, dim=3, keepdim=True).square() + 1e-12).rsqrt()
        return precise.mul_(scale).to(dtype)


@register_global_attention("primal")
class PrimalAttention(AttentionLayer):
    r"""Attention in its primal form: nodes exchange information through the virtual node of their graph.

    With feature maps :math:`\phi_q, \phi_k` (:class:`FeatureMaps`) of each head and
    :math:`f_g = F + 1 b_g^T` for the graph ``g``, ``[num_rows, rank]``,

    .. math::
        b_g \leftarrow b_g + \mathrm{vn}(\mathrm{mean}_{i \in g} h_i), \qquad
        e_i = f_g^T W_e \phi_q(h_i), \quad r_i = f_g^T W_r \phi_k(h_i), \qquad
        h'_i = \mathrm{cat}([e_i; r_i]) ,

    where ``F`` and ``b`` are part of the state, and ``b`` is passed to the next layer. This is Algorithm 1 of
    `Primphormer <https://proceedings.mlr.press/v267/he25t.html>`_, which follows `Primal-Attention
    <https://arxiv.org/abs/2305.19798>`_, without the printed biases in the maps of queries and keys.

    ``form="published"`` computes the projections of each graph and both scores, as in Algorithm 1. ``"folded"`` gives
    the same result without scores, projections of graphs and padding: :math:`f_g^T W_e \phi = F^T W_e \phi +
    (1^T W_e \phi) b_g`, and ``cat`` and the output map become one map of each head.

    The regulariser keeps the scores near a stationary point of

    .. math:: J = \tfrac12 \sum_i e_i^T \Lambda e_i + \tfrac12 \sum_j r_j^T \Lambda r_j - \mathrm{Tr}(W_e^T W_r) ,

    eq. (2.5). ``J = 0`` is necessary for a stationary point but not sufficient. The regulariser is ``J ** 2`` as in
    Algorithm 1, with the square of ``lambda_`` as Lambda and means over all nodes of the batch and over heads instead
    of sums: ``J = mean_{i,head}(|lambda e_i|^2 + |lambda r_i|^2) / 2 - mean_head Tr(W_e^T W_r)``.

    Args:
        hidden_channels: width of node features.
        heads: number of heads; divides ``hidden_channels``.
        rank: columns of ``F``, the paper's ``s``.
        num_rows: rows of ``F``, the paper's ``N_s``; ``rank`` if absent.
        form: ``"folded"`` or ``"published"``.
        pooling: ``"mean"`` over the nodes for the virtual node, or ``"sum"``, with which ``f_g`` grows with the graph
            and becomes ill-conditioned. It is computed in float64, so that it does not depend on the order of the
            nodes.
        eta: weight of the regulariser in the loss, eq. (3.1); 0 for none.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        rank: int = 30,
        num_rows: int | None = None,
        form: str = "folded",
        pooling: str = "mean",
        eta: float = 0.1,
    ) -> None:
        super().__init__()
        num_rows = rank if num_rows is None else num_rows
        check_counts(rank=rank, num_rows=num_rows)
        check_choice("form", form, FORMS)
        check_choice("pooling", pooling, POOLINGS)
        check_positive("eta", eta, or_zero=True)
        self.heads, self.form, self.pooling, self.eta = heads, form, pooling, eta
        self.features = FeatureMaps(hidden_channels, heads)
        width = hidden_channels // heads
        self.virtual = nn.Linear(hidden_channels, rank)
        self.weight_e = nn.Parameter(torch.empty(num_rows, heads, width))
        self.weight_r = nn.Parameter(torch.empty(num_rows, heads, width))
        self.lambda_ = nn.Parameter(torch.empty(heads, rank))
        self.out = nn.Linear(2 * rank, width)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.weight_e, self.weight_r):
            nn.init.orthogonal_(weight)  # as a matrix of num_rows rows and all heads' columns
        nn.init.uniform_(self.lambda_)

    def shared(self) -> SharedProjection:
        """Return the module that all layers of a model share."""
        return SharedProjection(self.weight_e.size(0), self.lambda_.size(1), self.eta > 0)

    def forward(self, h: Tensor, graph: Graph, state: PrimalState) -> tuple[Tensor, PrimalState]:
        """Attend to all nodes of a graph, see :func:`~tg_lpe.nn.attention.register_global_attention`."""
        node = state.node + self.virtual(pooled(h, graph.graphs, self.pooling))
        state = state._replace(node=node.to(state.node.dtype))
        features = self.features(h)
        compute = self._folded if self.form == "folded" else self._published
        out, objective = compute(features, graph, state)
        if objective is not None:
            state = state._replace(penalty=state.penalty + self.eta * objective)
        return out, state

    def _weights(self) -> Tensor:
        """Stack both weights, ``[num_rows, heads, 2, width]``."""
        return torch.stack([self.weight_e, self.weight_r], dim=2)

    def _folded(self, features: Tensor, graph: Graph, state: PrimalState) -> tuple[Tensor, Tensor | None]:
        """Return the output ``[num_nodes, hidden_channels]`` and the regulariser."""
        weights, width = self._weights(), features.size(3)
        f = torch.cat([state.projection, state.node]).to(weights.dtype)
        # The last row is zero: its image is the bias, and the images of the others without it are linear.
        images = self.out(torch.block_diag(f, f, f.new_zeros(1, 0)))
        bias = images[-1]
        linear, through = (images[:-1] - bias).view(2, -1, width).split([len(state.projection), len(state.node)], 1)
        maps = torch.einsum("nhtp,tnc->htpc", weights, linear)
        gates = weights.sum(0).unsqueeze(3)  # [heads, 2, width, 1]
        rows = features.flatten(2).transpose(0, 1)
        if graph.num_graphs == 1:  # the maps can include the virtual node
            out = rows @ (maps + gates * through).flatten(1, 2)
        else:
            gates = gates * torch.eye(2, dtype=maps.dtype, device=maps.device).unsqueeze(1)
            mapped, gate_e, gate_r = (rows @ torch.cat([maps, gates], dim=3).flatten(1, 2)).split([width, 1, 1], dim=2)
            through_e, through_r = (graph.graphs.gather(part) for part in through)
            out = mapped.addcmul(gate_e, through_e).addcmul(gate_r, through_r)
        out = out.transpose(0, 1).flatten(1)
        out += bias.repeat(self.heads)
        return out, self.objective(features, graph, state) if self.eta > 0 and state.needs_penalty else None

    def _published(self, features: Tensor, graph: Graph, state: PrimalState) -> tuple[Tensor, Tensor | None]:
        """Compute :meth:`_folded` by Algorithm 1."""
        weights = self._weights()
        f = state.projection + state.node.unsqueeze(1)  # [num_graphs, num_rows, rank]
        projections = torch.einsum("gns,nhtp->ghtps", f.to(weights.dtype), weights)
        scores = torch.einsum("gmhtp,ghtps->gmhts", graph.pad(features), projections)
        scores = graph.unpad(scores)
        out = self.out(scores.flatten(2)).flatten(1)
        if not (self.eta > 0 and state.needs_penalty):
            return out, None
        energy = (scores * self.lambda_.unsqueeze(1)).square().sum((2, 3)).sum() / _at_least_one(scores) / 2
        energy = parallel.mean(energy, scores.size(0))
        return out, (energy / self.heads - (self.weight_e * self.weight_r).sum() / self.heads) ** 2

    def objective(self, features: Tensor, graph: Graph, state: PrimalState) -> Tensor:
        """Compute the regulariser, a scalar, from the Gram matrices of features, without the factor ``eta``.

        Args:
            features: features of queries and keys, ``[num_nodes, heads, 2, width]``.
            graph: the graph.
            state: the state with this layer's virtual node.
        """
        with torch.autocast(features.device.type, enabled=False):
            terms, graphs = self.terms(features, state), graph.graphs
            features, lambda_ = terms.features, terms.lambda_.square()
            rows = features.permute(1, 2, 0, 3)
            gram = rows.mT @ rows  # [heads, 2, width, width]
            gates = terms.weights.sum(0)
            if graphs.num_groups == 1:
                moments = (gram @ gates.unsqueeze(3)).squeeze(3).unsqueeze(0)
            else:
                moments = graphs.sum(features * (features * gates).sum(3, keepdim=True))
            energies = (terms.quadratic(lambda_) * gram).sum() + terms.through_node(moments, lambda_).sum()
            energy = parallel.mean(energies / _at_least_one(features) / 2, features.size(0))
            return ((energy - terms.trace().sum()) / lambda_.size(0)) ** 2

    def terms(self, features: Tensor, state: PrimalState) -> ObjectiveTerms:
        """Return the tensors that the regulariser reads, in float32 at least."""
        dtype = torch.promote_types(features.dtype, torch.float32)
        return ObjectiveTerms(*(x.to(dtype) for x in (features, self._weights(), self.lambda_, *state[:2])))


class ObjectiveTerms(NamedTuple):
    """Tensors that the regulariser reads, in one dtype."""

    features: Tensor
    weights: Tensor
    lambda_: Tensor
    projection: Tensor
    node: Tensor

    def quadratic(self, lambda_: Tensor) -> Tensor:
        """Return ``M^T Lambda M`` with ``M = F^T W``, ``[heads, 2, width, width]``."""
        maps = torch.einsum("nhtp,ns->htps", self.weights, self.projection)
        return (maps * lambda_[:, None, None]) @ maps.mT

    def through_node(self, moments: Tensor, lambda_: Tensor) -> Tensor:
        """Return the part of the energies that depends on the virtual node, ``[num_graphs, heads, 2]``.

        ``moments`` are sums over a graph of ``(1^T W phi_i) phi_i``, ``[num_graphs, heads, 2, width]``.
        """
        gates = self.weights.sum(0)
        scaled = self.node.unsqueeze(1) * lambda_  # [num_graphs, heads, rank]
        cross = torch.einsum("ghs,ns,nhtp->ghtp", scaled, self.projection, self.weights)
        squared = (scaled * self.node.unsqueeze(1)).sum(2, keepdim=True)
        return 2 * (cross * moments).sum(3) + squared * (gates * moments).sum(3)

    def trace(self) -> Tensor:
        """Return ``Tr(W_e^T W_r)``, ``[heads]``."""
        weight_e, weight_r = self.weights.unbind(2)  # the backward pass of prod would synchronise with the device
        return (weight_e * weight_r).sum((0, 2))


def _at_least_one(rows: Tensor) -> int:
    return max(rows.size(0), 1)


def pooled(h: Tensor, graphs: RowGroups, pooling: str) -> Tensor:
    """Compute the mean or sum over the nodes of each graph in float64, ``[num_graphs, channels]``."""
    if graphs.num_groups == 1:  # in chunks, to avoid a copy of all rows in float64
        sums = torch.stack([part.sum(0, dtype=torch.float64) for part in h.split(CHUNK)]).sum(0, keepdim=True)
    else:
        sums = graphs.sum(h.to(torch.float64))
    if pooling == "mean":
        sums = sums / graphs.ptr.diff().clamp(min=1).unsqueeze(1)
    return sums.to(h.dtype)
