"""Linear transformer of eq. (16): attention without softmax on a graph's incidence matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_counts, check_flags, check_seed
from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, Encoding, Inputs
from tg_lpe.encoders.gram_transformer import GramTransformer
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph, inverse_sqrt
from tg_lpe.nn._util import without_autocast
from tg_lpe.nn.probes import PROBES, make_probes
from tg_lpe.ops.layers import LayerStack, layers

NORM_FLOOR = 1e-12
"""Columns shorter than this are not normalised, so a zero column stays zero."""

DENSE_BUDGET = 2**28
"""Most entries of a batch's dense incidence matrices with ``update_incidence=True`` (1 GiB)."""

SCALARS = {"alpha_q": 1.0, "alpha_k": 1.0, "alpha_v": 0.0, "alpha_r": 0.0}
SCALARS |= {"beta_1": 0.1, "beta_2": 0.1, "beta_3": 1.0, "beta_4": 0.1}
"""Scalars of a block and their initial values."""

OF_UPDATES = ("alpha_v", "alpha_r", "beta_1", "beta_2")
"""Scalars of the update of ``B``."""


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

    **Identity.** ``probes="identity"`` starts each column ``j`` from the whole identity, so it becomes a matrix, a
    polynomial ``p_j(S)`` of degree ``num_blocks * num_loops``. The encoding is its diagonal at nodes and its entries at
    edges, mapped by ``M``. It is equivariant, has no signs, and tells the structure around a node. Column ``j`` has the
    conductances of filter ``j mod num_filters``, learned as in :class:`~tg_lpe.GramTransformer`, which reads the powers
    of ``I - S`` of every layer by the same kernels. ``D`` is the diagonal of ``S`` before scaling, ``beta_4 = 0``, and
    ``normalize`` divides a layer by its largest absolute value on the spectrum [0, 2], which is the same on all graphs.
    Edge weights are divided by the mean of the positive ones, so their scale does not matter. Training learns
    conductances and ``M``, which combines the columns to any polynomials that they span. The weights of the layers are
    drawn once, and are buffers: a small step of them changes all columns, and trainings that took such steps diverged.

    Args:
        k: number of columns of ``Phi``.
        out_channels: width of the encoding, computed by a linear map ``M``; ``k`` if absent.
        num_blocks: number of blocks, each with its own parameters.
        num_loops: layers of a block, which share its parameters.
        probes: source of ``Phi_0``: ``"random"``, ``"features"`` or ``"learned"``, see :mod:`tg_lpe.nn.probes`, or
            ``"identity"``.
        max_nodes: number of nodes of the largest graph, for learned probes.
        num_node_types, in_channels: number of node types or width of the node features, for feature probes and for
            ground conductances.
        edge_out_channels: width of the edge encoding of ``"identity"``; 0 for none.
        num_filters, num_edge_types, edge_dim: number of sets of conductances of ``"identity"``, and the edge features
            that they depend on.
        seed: seed of random probes, and of estimates on large graphs.
        update_incidence: whether ``B`` is updated too.
        degree_scaling: whether ``S`` is scaled by ``D^-1/2`` (``D``: row sums of ``|B|``) on both sides.
        independent_scaling: whether each layer has its own factors ``beta``; otherwise they are one.
        diagonal: whether ``W^Q, W^K, W^V`` are diagonal and ``W^R`` a multiple of the identity; otherwise they are
            full. They are always diagonal with ``"identity"``.
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

    alpha_q: Tensor
    alpha_k: Tensor
    alpha_r: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_r: Tensor
    frozen_map: Tensor | None
    frozen_bias: Tensor | None

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
        edge_out_channels: int = 0,
        num_filters: int = 4,
        num_edge_types: int | Sequence[int] | None = None,
        edge_dim: int | None = None,
        seed: int = 0,
        update_incidence: bool = False,
        degree_scaling: bool = True,
        independent_scaling: bool = True,
        diagonal: bool = True,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        out_channels = k if out_channels is None else out_channels
        check_counts(
            k=k, num_blocks=num_blocks, num_loops=num_loops, out_channels=out_channels, num_filters=num_filters
        )
        check_seed(seed)
        check_flags(
            update_incidence=update_incidence,
            degree_scaling=degree_scaling,
            independent_scaling=independent_scaling,
            diagonal=diagonal,
            normalize=normalize,
        )
        check_choice("probes", probes, (*PROBES, "identity"))
        self.k, self.num_loops = k, num_loops
        self.out_channels, self.edge_out_channels = out_channels, edge_out_channels
        self.update_incidence = update_incidence
        self.degree_scaling, self.independent_scaling = degree_scaling, independent_scaling
        self.diagonal, self.normalize = diagonal, normalize
        self.probes: nn.Module | None = None
        self.polynomials: GramTransformer | None = None
        node_sizes: dict[str, Any] = {"num_node_types": num_node_types, "in_channels": in_channels}
        edge_sizes: dict[str, Any] = {"num_edge_types": num_edge_types, "edge_dim": edge_dim}
        if probes == "identity":
            needed = {"update_incidence": False, "degree_scaling": True, "diagonal": True, "max_nodes": None}
            if (given := (update_incidence, degree_scaling, diagonal, max_nodes)) != tuple(needed.values()):
                raise ValueError(f"probes='identity' needs {needed}, got {given}")
            self.polynomials = GramTransformer(
                None,
                None if edge_out_channels else 0,
                num_filters,
                num_blocks * num_loops,
                seed=seed,
                **node_sizes,
                **edge_sizes,
            )
            self.reads, self.mixes_polynomials = self.polynomials.reads, True
        else:
            of_identity = {"edge_out_channels": edge_out_channels, "num_filters": num_filters, **edge_sizes}
            defaults = {"edge_out_channels": 0, "num_filters": 4}
            if unread := {name: value for name, value in of_identity.items() if value != defaults.get(name)}:
                raise ValueError(f"only probes='identity' reads {unread}, got probes={probes!r}")
            self.reads = frozenset({"edge_weight", "x"} if probes == "features" else {"edge_weight"})
            self.probes = make_probes(probes, k, max_nodes=max_nodes, **node_sizes, seed=seed)
        self._draw(num_blocks)
        self.readout = nn.Linear(k, self.out_channels, bias=probes == "identity")
        self.edge_readout = nn.Linear(k, edge_out_channels, bias=False) if edge_out_channels else None
        self.register_buffer("frozen_map", None, persistent=False)
        self.register_buffer("frozen_bias", None, persistent=False)

    def _draw(self, num_blocks: int) -> None:
        """Draw the weights of the layers: buffers with ``probes="identity"``, otherwise parameters.

        A layer starts near ``Phi <- (1.5 I - S) Phi``, a low-pass filter and the first step of the subspace iteration
        of Corollary 7; the ``P`` term adds a little orthogonalisation. From the identity, columns differ more.
        """
        absent = set() if self.independent_scaling else {"beta_1", "beta_2", "beta_3", "beta_4"}
        absent |= set() if self.update_incidence else {"alpha_v", "beta_1", "beta_2"}
        if not self.update_incidence and (self.normalize or self.polynomials):  # the normalisation cancels alpha^R
            absent.add("alpha_r")
        absent |= {"w_q", "w_k", "beta_4"} if self.polynomials else set()
        residual, spread = (0.0, 0.5) if self.polynomials else (0.5, 0.1)
        identity = torch.ones(self.k) if self.diagonal else torch.eye(self.k)
        starts = {name: torch.tensor(value) for name, value in SCALARS.items()}
        starts |= {"w_q": identity, "w_k": identity, "w_v": -identity}
        starts["w_r"] = torch.tensor(residual) if self.diagonal else residual * identity
        for name, start in starts.items():
            # The last layer's B is not read, so a last block of one layer has no parameters for its update.
            count = num_blocks - 1 if name in OF_UPDATES and self.num_loops == 1 else num_blocks
            weight = None
            if name not in absent:
                weight = start.repeat(count, *[1] * start.dim())
                if name in ("w_q", "w_k", "w_v"):
                    weight += spread * torch.randn_like(weight)
                weight = weight if self.polynomials else nn.Parameter(weight)
            register: Callable[[str, Any], None] = self.register_buffer if self.polynomials else self.register_parameter
            register(name, weight)
        if not self.normalize and not self.polynomials:
            # The P term is cubic in Phi: without normalised columns it vanishes or explodes.
            nn.init.zeros_(self.w_q)

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes of the data that the probes need."""
        sizes = {"features": ("num_node_types", "in_channels"), "learned": ("max_nodes",)}
        sizes["identity"] = (*sizes["features"], "num_edge_types", "edge_dim")
        needed = sizes.get(arguments.get("probes", "random"), ())
        return {name: size for name, size in super().data_arguments(spec, arguments).items() if name in needed}

    @without_autocast
    def encode(self, graph: Graph, inputs: Inputs, *, probes: Tensor | None = None) -> Encoding:
        """Encode the nodes and edges, see :meth:`Encoder.encode`; ``precomputed`` is not read.

        Args:
            graph, inputs: the graph, the features of probes or conductances, and the generator of random probes.
            probes: ``Phi_0``, ``[num_nodes, k]``, instead of the module's probes.

        Raises:
            ValueError: if features are missing, probes have a wrong shape or dtype, or the batch is too large for
                ``update_incidence``.
        """
        if self.polynomials is None or probes is not None:
            return Encoding(self.readout(self._columns(graph, inputs, probes)))
        # The diagonal and the edges of p_j(S) are linear maps of those of the powers of P = I - S.
        if graph.conductance is not None:
            graph = of_mean_weight_one(graph)
        node, edge = self.polynomials.gram(graph, inputs.x, inputs.edge_attr, generator=inputs.generator)
        if self.readout.weight.requires_grad:  # in float64: small values may be differences of large ones
            constant, powers = self.coefficients()
            node = self.readout((node.double() @ powers.mT + constant).to(node))
            edge = edge if self.edge_readout is None else self.edge_readout((edge.double() @ powers.mT).to(edge))
        else:  # M and the coefficients are one map
            total, bias = self.frozen_map, self.frozen_bias
            if total is None:
                constant, powers = self.coefficients()
                weight = torch.cat([part.weight for part in (self.readout, self.edge_readout) if part is not None])
                total = (weight.double() @ powers).to(weight)
                bias = (self.readout.weight.double() @ constant + self.readout.bias).to(weight)
                if self.encodes_once:  # the weights do not change
                    self.frozen_map, self.frozen_bias = total, bias
            node = nn.functional.linear(node, total[: self.out_channels], bias)
            edge = edge @ total[self.out_channels :].mT
        return Encoding(node, None if self.edge_readout is None else graph.spread_to_directed(edge))

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return the coefficients of ``p_j`` in powers of ``P = I - S``, float64, with ``probes="identity"``.

        Returns:
            Those of power zero, ``[k]``; and of the others, ``[k, num_filters * num_layers]``, zero at the filters of
            other columns.
        """
        residual, similarity = 1 + self.w_r.double().unsqueeze(1), self._similarity().double()
        if self.normalize:
            norm = torch.maximum(residual.abs(), (residual + 2 * similarity).abs()).clamp(min=NORM_FLOOR)
            residual, similarity = residual / norm, similarity / norm
        # The values of p_j at roots of unity are products over layers; their Fourier transform gives the coefficients.
        size = 1 + self.num_loops * len(similarity)
        angle = torch.arange(size, dtype=torch.float64, device=similarity.device) * (2 * math.pi / size)
        root = torch.polar(torch.ones_like(angle), angle)
        factors = (residual + similarity).unsqueeze(2) - similarity.unsqueeze(2) * root
        value = torch.fft.fft(factors.pow(self.num_loops).prod(0)).real / size
        num_filters = cast("GramTransformer", self.polynomials).num_filters
        column = torch.arange(self.k, device=value.device)
        powers = value.new_zeros(self.k, num_filters, value.size(1) - 1)
        return value[:, 0], powers.index_put((column, column % num_filters), value[:, 1:]).flatten(1)

    def _similarity(self) -> Tensor:
        """Return ``alpha^Q alpha^K beta_3 W^V`` of each block, ``[num_blocks, k]`` or ``[num_blocks, k, k]``."""
        return self._scale("alpha_q", "alpha_k", "beta_3").view(-1, *[1] * (self.w_v.dim() - 1)) * self.w_v

    def _scale(self, *names: str) -> Tensor:
        """Return the product of scalars of each block that has all of them; absent ones are one."""
        held = {**self._parameters, **self._buffers}
        values = [weight for name in names if (weight := held[name]) is not None]
        return math.prod([value[: min(len(each) for each in values)] for value in values], start=self.w_v.new_ones(()))

    def _columns(self, graph: Graph, inputs: Inputs, probes: Tensor | None) -> Tensor:
        """Compute ``Phi`` of the last layer."""
        phi = cast("nn.Module", self.probes)(graph, inputs.x, inputs.generator) if probes is None else probes
        if phi.shape != (graph.num_nodes, self.k):
            raise ValueError(f"probes must be [{graph.num_nodes}, {self.k}], got {list(phi.shape)}")
        if probes is not None and phi.dtype != self.readout.weight.dtype:
            raise ValueError(f"probes must be {self.readout.weight.dtype}, as the weights are, got {phi.dtype}")
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
            later = self._looped(1 + self.alpha_r)[: len(stack.residual) - 1]
            c = torch.cat([phi.new_ones(1), later.cumprod(0)])
            stack = stack._replace(similarity=stack.similarity * c.abs().pow(power).view(-1, 1, 1))
        laplacian = graph.scaled_laplacian(phi, self.degree_scaling)
        return layers(phi, laplacian, stack, factor, NORM_FLOOR if self.normalize else None)

    def _run_updated(self, graph: Graph, phi: Tensor) -> Tensor:
        """Compute ``Phi`` of the last layer with dense ``B``; ``z`` is ``Phi^T``, ``[num_graphs, k, max_nodes]``."""
        stack, residuals = self._weights(), self._looped(1 + self.alpha_r)
        graph_scales = self._looped(self._scale("alpha_v", "beta_1", "alpha_q", "alpha_k"))
        right = torch.diag_embed(self.w_q * self.w_k) if self.diagonal else self.w_q.mT @ self.w_k
        scale = self._scale("alpha_v", "beta_2").view(-1, 1, 1)
        query_keys = self._looped(scale * right[: len(scale)])
        shape = graph.num_graphs, graph.max_nodes, int(graph.edge_counts.max())
        if (total := math.prod(shape)) > DENSE_BUDGET:
            raise ValueError(
                f"update_incidence=True needs dense incidence matrices of {total:,} entries for this batch "
                f"({total * phi.element_size() / 2**30:.1f} GiB, and several times that with gradients); the limit is "
                f"{DENSE_BUDGET:,}. Use smaller batches, or update_incidence=False, whose cost is linear in the edges."
            )
        owner, local, root = graph.batch[graph.tail], graph.local_index, graph.root_conductance(phi)
        column = torch.arange(graph.num_edges, device=graph.device) - graph.edge_ptr[owner]
        b = phi.new_zeros(shape).index_put((owner, local[graph.tail], column), -root)
        b, place = b.index_put((owner, local[graph.head], column), root), (graph.batch, local)
        z = phi.new_zeros(graph.num_graphs, graph.max_nodes, self.k).index_put(place, phi).mT
        for number, (residual, similarity, left, right) in enumerate(zip(*stack[:4], strict=True)):
            scaled = b * inverse_sqrt(b.abs().sum(-1, keepdim=True)) if self.degree_scaling else b
            gram = z @ z.mT
            mix = residual + (left * gram if self.diagonal else left @ gram @ right)
            new_z = mix @ z + similarity @ ((z @ scaled) @ scaled.mT)
            if number + 1 < len(stack.residual):  # the last layer's B is not read
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
        w_q, w_k, similarity = self.w_q, self.w_k, self._similarity()
        left = self._scale("beta_4").view(-1, *[1] * (self.w_v.dim() - 1)) * self.w_v
        identity = torch.eye(self.k, dtype=left.dtype, device=left.device)
        if self.diagonal:
            similarity, residual = torch.diag_embed(similarity), (1 + self.w_r).view(-1, 1, 1) * identity
            left = right = left.unsqueeze(2) * (w_q * w_k).unsqueeze(1)  # such layers do not read the right weights
        else:
            residual, right = identity + self.w_r, w_q.mT @ w_k
        residual, similarity, left, right = map(self._looped, (residual, similarity, left, right))
        return LayerStack(residual, similarity, left, right, self.diagonal)

    def _looped(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self.num_loops, 0)


def of_mean_weight_one(graph: Graph) -> Graph:
    """Divide edge weights by the mean of the positive ones in their graph.

    Args:
        graph: a graph or batch with edge weights.
    """
    w, number = graph.conductance, graph.batch[graph.tail]
    assert w is not None
    zeros = w.new_zeros(graph.num_graphs, dtype=torch.float64)
    total, count = zeros.index_add(0, number, w.double()), zeros.index_add(0, number, (w > 0).double())
    mean = torch.where(total > 0, total / count.clamp(min=1), 1.0)
    return graph.with_conductances((w / mean[number]).to(w.dtype))
