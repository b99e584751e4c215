"""Linear transformer of eq. (16): attention without softmax on a graph's incidence matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_counts, check_flags, check_seed
from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, Encoding, Inputs
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph, inverse_sqrt
from tg_lpe.nn._util import without_autocast
from tg_lpe.nn.probes import make_probes
from tg_lpe.ops.layers import LayerStack, layers

NORM_FLOOR = 1e-12
"""Columns shorter than this are not normalised, so a zero column stays zero."""

DENSE_BUDGET = 2**28
"""Most entries of a batch's dense incidence matrices with ``update_incidence=True`` (1 GiB)."""


@register
class LinearTransformer(Encoder):
    r"""Encode nodes by a linear transformer on the incidence matrix ``B`` and node vectors ``Phi``.

    One layer is eq. (16) of `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, section
    14.2:

    .. math::
        S &= D^{-1/2} B B^\top D^{-1/2}, \qquad P = \Phi W^{Q\top} W^K \Phi^\top \\
        B^\top &\leftarrow (1 + \alpha^R) B^\top + \alpha^V B^\top (\beta_1 \alpha^Q \alpha^K S + \beta_2 P) \\
        \Phi^\top &\leftarrow (I + W^R) \Phi^\top + W^V \Phi^\top (\beta_3 \alpha^Q \alpha^K S + \beta_4 P) \\
        B &\leftarrow B / \|B\|_F, \qquad \phi_i \leftarrow \phi_i / \|\phi_i\|_2

    The five modifications that lead from eq. (7) to eq. (16) are arguments: ``degree_scaling`` (1),
    ``independent_scaling`` (2), ``diagonal`` (3), ``num_loops`` (4, one loop shares nothing), ``normalize`` (5).

    With ``update_incidence=False``, ``alpha^V`` is zero, as in every construction of the paper that fits eq. (7). Then
    ``B`` only changes by a scalar, and a layer takes ``O(num_edges k + num_nodes k^2)`` time and memory, also on a
    graph of millions of nodes. With ``update_incidence=True``, ``B`` is dense, ``[num_graphs, max_nodes, max_edges]``,
    so graphs must be small.

    Args:
        k: number of columns of ``Phi``.
        out_channels: width of the encoding, computed by a linear map ``M`` without bias; ``k`` if absent.
        num_blocks: number of blocks, each with its own parameters.
        num_loops: layers of a block, which share its parameters.
        probes: source of ``Phi_0``: ``"random"``, ``"features"`` or ``"learned"``, see :mod:`tg_lpe.nn.probes`.
        max_nodes: number of nodes of the largest graph, for learned probes.
        num_node_types: number of node types, for feature probes of integer features.
        in_channels: width of the node features, for feature probes of real features.
        seed: seed of random probes.
        update_incidence: whether ``B`` is updated too.
        degree_scaling: whether ``S`` is scaled by ``D^-1/2`` (``D``: row sums of ``|B|``) on both sides.
        independent_scaling: whether each layer has its own factors ``beta``; otherwise they are one.
        diagonal: whether ``W^Q, W^K, W^V`` are diagonal and ``W^R`` a multiple of the identity; otherwise they are
            full.
        normalize: whether ``B`` and the columns of ``Phi`` are scaled to norm one, per graph, after each layer.

    Raises:
        ValueError: if an argument is out of range or does not fit ``probes``.

    Example:
        >>> import torch
        >>> from tg_lpe import GraphTransformer
        >>> from tg_lpe.encoders import LinearTransformer
        >>> x = torch.tensor([0, 1, 1, 0, 2, 2])  # six nodes of three types
        >>> edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> encoder = LinearTransformer(k=8, probes="features", num_node_types=3)
        >>> model = GraphTransformer(num_node_types=3, encoder=encoder, hidden_channels=16)
        >>> model(x, edge_index).shape
        torch.Size([1, 1])
    """

    def __init__(
        self,
        k: int = 8,
        out_channels: int | None = None,
        num_blocks: int = 3,
        num_loops: int = 3,
        probes: str = "random",
        *,
        max_nodes: int | None = None,
        num_node_types: int | Sequence[int] | None = None,
        in_channels: int | None = None,
        seed: int = 0,
        update_incidence: bool = False,
        degree_scaling: bool = True,
        independent_scaling: bool = True,
        diagonal: bool = True,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        out_channels = k if out_channels is None else out_channels
        check_counts(k=k, num_blocks=num_blocks, num_loops=num_loops, out_channels=out_channels)
        check_seed(seed)
        check_flags(
            update_incidence=update_incidence,
            degree_scaling=degree_scaling,
            independent_scaling=independent_scaling,
            diagonal=diagonal,
            normalize=normalize,
        )
        self.k = k
        self.out_channels = out_channels
        self.num_loops = num_loops
        self.update_incidence = update_incidence
        self.degree_scaling, self.independent_scaling = degree_scaling, independent_scaling
        self.diagonal, self.normalize = diagonal, normalize
        self.reads = frozenset({"edge_weight", "x"} if probes == "features" else {"edge_weight"})
        self.probes = make_probes(
            probes, k, max_nodes=max_nodes, num_node_types=num_node_types, in_channels=in_channels, seed=seed
        )
        # With B fixed, alpha^V, beta_1 and beta_2 do not occur, and the normalisation cancels alpha^R.
        scales_incidence = update_incidence or not normalize
        # The last layer's B is not read, so a last block of one layer has no parameters for its update.
        updates = [num_loops > 1 or i + 1 < num_blocks for i in range(num_blocks)]
        self.blocks = nn.ModuleList(
            _Parameters(
                k, diagonal, independent_scaling, update_incidence and used, scales_incidence and used, normalize
            )
            for used in updates
        )
        self.readout = nn.Linear(k, self.out_channels, bias=False)

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes of the data that the probes need."""
        sizes = {"features": ("num_node_types", "in_channels"), "learned": ("max_nodes",)}
        needed = sizes.get(arguments.get("probes", "random"), ())
        return {name: size for name, size in super().data_arguments(spec, arguments).items() if name in needed}

    @without_autocast
    def encode(self, graph: Graph, inputs: Inputs, *, probes: Tensor | None = None) -> Encoding:
        """Encode the nodes, see :meth:`Encoder.encode`; ``edge_attr`` and ``precomputed`` are not read.

        Args:
            graph, inputs: the graph, node features for feature probes, and the generator of random probes.
            probes: ``Phi_0``, ``[num_nodes, k]``, instead of the module's probes.

        Raises:
            ValueError: if features are missing, probes have a wrong shape or dtype, or the batch is too large for
                ``update_incidence``.
        """
        phi = self.probes(graph, inputs.x, inputs.generator) if probes is None else probes
        if phi.shape != (graph.num_nodes, self.k):
            raise ValueError(f"probes must be [{graph.num_nodes}, {self.k}], got {list(phi.shape)}")
        if probes is not None and phi.dtype != self.readout.weight.dtype:
            raise ValueError(f"probes must be {self.readout.weight.dtype}, as the weights are, got {phi.dtype}")
        return Encoding(self.readout(self._run(graph, phi)))

    def _run(self, graph: Graph, phi: Tensor) -> Tensor:
        """Compute ``Phi`` of the last layer."""
        if graph.num_nodes == 0:
            return phi
        if self.update_incidence:
            return self._run_updated(graph, phi)
        stack = self._weights()
        # B_l = c_l B. With normalisation, c_l = 1 / |B|_F from the second layer on; otherwise c_l is the product of all
        # 1 + alpha^R so far. S is quadratic in B; the scaling by D_l^-1/2 removes one power of |c_l|.
        power = 1 if self.degree_scaling else 2
        if self.normalize:
            factor = graph.frobenius_norm(phi.detach()).double().pow(-power)
        else:
            factor = torch.ones(graph.num_graphs, dtype=torch.float64, device=phi.device)
            c = torch.cat([phi.new_ones(1), self._incidence_residual()[:-1].cumprod(0)])
            stack = stack._replace(similarity=stack.similarity * c.abs().pow(power).view(-1, 1, 1))
        laplacian = graph.scaled_laplacian(phi, self.degree_scaling)
        return layers(phi, laplacian, stack, factor, NORM_FLOOR if self.normalize else None)

    def _run_updated(self, graph: Graph, phi: Tensor) -> Tensor:
        """Compute ``Phi`` of the last layer with dense ``B``; ``z`` is ``Phi^T``, ``[num_graphs, k, max_nodes]``."""
        stack, residuals = self._weights(), self._incidence_residual()
        w_q, w_k, alpha_q, alpha_k = map(self._stacked, ("w_q", "w_k", "alpha_q", "alpha_k"))
        alpha_v, beta_1, beta_2 = self._stacked("alpha_v", 0.0), self._stacked("beta_1"), self._stacked("beta_2")
        graph_scales = self._looped(alpha_v * beta_1 * alpha_q * alpha_k)
        right = torch.diag_embed(w_q * w_k) if self.diagonal else w_q.mT @ w_k
        query_keys = self._looped((alpha_v * beta_2).view(-1, 1, 1) * right)
        b, place = _dense_incidence(graph, phi), (graph.batch, graph.local_index)
        z = phi.new_zeros(graph.num_graphs, graph.max_nodes, self.k).index_put(place, phi).mT
        for number, (residual, similarity, left, right) in enumerate(zip(*stack[:4], strict=True)):
            scaled = b * inverse_sqrt(b.abs().sum(-1, keepdim=True)) if self.degree_scaling else b
            gram = z @ z.mT
            mix = residual + (left * gram if self.diagonal else left @ gram @ right)
            new_z = mix @ z + similarity @ ((z @ scaled) @ scaled.mT)
            if number + 1 < len(graph_scales):  # the last layer's B is not read
                through_phi = (query_keys[number] @ z).mT @ (z @ b)
                similar = graph_scales[number] * (scaled @ (scaled.mT @ b))
                b = residuals[number] * b + similar + through_phi
            z = new_z
            if self.normalize:
                norm = torch.linalg.matrix_norm(b, keepdim=True)
                b = b / torch.where(norm == 0, 1.0, norm)
                # Short columns are divided by one: division by the floor would overflow their derivative.
                z = z / torch.threshold(torch.linalg.vector_norm(z, dim=2, keepdim=True), NORM_FLOOR, 1.0)
        return z.mT[place]

    def _weights(self) -> LayerStack:
        """Return the products of all layers' weights that update ``Phi``."""
        w_q, w_k, w_v, w_r = map(self._stacked, ("w_q", "w_k", "w_v", "w_r"))
        scale, left = self._stacked("alpha_q") * self._stacked("alpha_k"), w_v
        if self.independent_scaling:
            scale = scale * self._stacked("beta_3")
            left = left * self._stacked("beta_4").view(-1, *[1] * (w_v.dim() - 1))
        identity = torch.eye(self.k, dtype=w_v.dtype, device=w_v.device)
        if self.diagonal:
            similarity, residual = torch.diag_embed(scale.unsqueeze(1) * w_v), (1 + w_r).view(-1, 1, 1) * identity
            left = right = left.unsqueeze(2) * (w_q * w_k).unsqueeze(1)  # such layers do not read the right weights
        else:
            similarity, residual, right = scale.view(-1, 1, 1) * w_v, identity + w_r, w_q.mT @ w_k
        residual, similarity, left, right = map(self._looped, (residual, similarity, left, right))
        return LayerStack(residual, similarity, left, right, self.diagonal)

    def _incidence_residual(self) -> Tensor:
        """Return ``1 + alpha^R`` of all layers, ``[num_layers]``."""
        return self._looped(1 + self._stacked("alpha_r", 0.0))

    def _stacked(self, name: str, absent: float = 1.0) -> Tensor:
        """Return a parameter of all blocks, ``[num_blocks, ...]``; some blocks lack those of the update of ``B``."""
        values = [cast("Tensor | None", getattr(block, name)) for block in self.blocks]
        like = self.readout.weight
        return torch.stack([like.new_full((), absent) if value is None else value for value in values])

    def _looped(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self.num_loops, 0)


class _Parameters(nn.Module):
    """Parameters of a block of eq. (16)."""

    def __init__(
        self,
        k: int,
        diagonal: bool,
        independent: bool,
        update_incidence: bool,
        scales_incidence: bool,
        normalize: bool,
    ) -> None:
        super().__init__()
        self.diagonal, self.update_incidence, self.normalize = diagonal, update_incidence, normalize

        def scalar(used: bool) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(())) if used else None

        self.alpha_q, self.alpha_k = (nn.Parameter(torch.empty(())) for _ in range(2))
        self.alpha_v = scalar(update_incidence)
        self.alpha_r = scalar(scales_incidence)
        self.beta_1, self.beta_2 = (scalar(independent and update_incidence) for _ in range(2))
        self.beta_3, self.beta_4 = (scalar(independent) for _ in range(2))
        shape = (k,) if diagonal else (k, k)
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.empty(shape)) for _ in range(3))
        self.w_r = nn.Parameter(torch.empty(() if diagonal else shape))
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        """Draw the weights.

        A layer starts near ``Phi <- (1.5 I - S) Phi``, a low-pass filter and the first step of the subspace iteration
        of Corollary 7; the ``P`` term adds a little orthogonalisation.
        """
        start = {"alpha_q": 1.0, "alpha_k": 1.0, "alpha_v": 0.0, "alpha_r": 0.0}
        start |= {"beta_1": 0.1, "beta_2": 0.1, "beta_3": 1.0, "beta_4": 0.1}
        for name, value in start.items():
            parameter = getattr(self, name)
            if parameter is not None:
                parameter.fill_(value)
        identity = torch.ones(()) if self.diagonal else torch.eye(self.w_q.size(0))
        for weight, value in ((self.w_q, 1.0), (self.w_k, 1.0), (self.w_v, -1.0)):
            weight.copy_(value * identity).add_(0.1 * torch.randn_like(weight))
        self.w_r.copy_(0.5 * identity)
        if not self.normalize:
            # The P term is cubic in Phi: without normalised columns it vanishes or explodes.
            self.w_q.zero_()


def _dense_incidence(graph: Graph, like: Tensor) -> Tensor:
    """Return the dense ``B`` of each graph, ``[num_graphs, max_nodes, max_edges]``; padding is zero."""
    shape = graph.num_graphs, graph.max_nodes, int(graph.edge_counts.max())
    if (total := math.prod(shape)) > DENSE_BUDGET:
        raise ValueError(
            f"update_incidence=True needs dense incidence matrices of {total:,} entries for this batch "
            f"({total * like.element_size() / 2**30:.1f} GiB, and several times that with gradients); the limit is "
            f"{DENSE_BUDGET:,}. Use smaller batches, or update_incidence=False, whose cost is linear in the edges."
        )
    if graph.ground is not None:
        raise ValueError("update_incidence=True does not support ground conductances, but the graph has some")
    number, local, root = graph.batch[graph.tail], graph.local_index, graph.root_conductance(like)
    column = torch.arange(graph.num_edges, device=graph.device) - graph.edge_ptr[number]
    matrix = like.new_zeros(shape).index_put((number, local[graph.tail], column), -root)
    return matrix.index_put((number, local[graph.head], column), root)
