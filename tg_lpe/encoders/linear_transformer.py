"""The linear transformer of eq. (16): attention without softmax that sees a graph through its incidence matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, Encoding
from tg_lpe.encoders.registry import register
from tg_lpe.graph.incidence import Incidence, inverse_sqrt
from tg_lpe.graph.padding import Block, GraphBlocks
from tg_lpe.nn.probes import RandomProbes, make_probes
from tg_lpe.ops import fused, native

NORM_FLOOR = 1e-12
"""Columns shorter than this are left short instead of being blown up: a zero column stays zero."""

TRAINED_NODES = 4096
"""Nodes of a graph up to which its gradient is computed by compiled layers, by one thread."""

DENSE_BUDGET = 2**28
"""Entries of the written-out incidence matrices above which ``update_incidence=True`` refuses a batch (1 GiB)."""


@register
class LinearTransformer(Encoder):
    r"""Linear transformer on the incidence matrix ``B`` and node vectors ``Phi``, eq. (16) of the paper.

    One layer:

    .. math::
        S &= D^{-1/2} B B^\top D^{-1/2}, \qquad P = \Phi W^{Q\top} W^K \Phi^\top \\
        B^\top &\leftarrow (1 + \alpha^R) B^\top + \alpha^V B^\top (\beta_1 \alpha^Q \alpha^K S + \beta_2 P) \\
        \Phi^\top &\leftarrow (I + W^R) \Phi^\top + W^V \Phi^\top (\beta_3 \alpha^Q \alpha^K S + \beta_4 P) \\
        B &\leftarrow B / \|B\|_F, \qquad \phi_i \leftarrow \phi_i / \|\phi_i\|_2

    The five modifications that lead from eq. (7) to eq. (16) are arguments of their own: ``degree_scaling`` (1),
    ``independent_scaling`` (2), ``diagonal`` (3), ``num_loops`` (4, one loop shares nothing), ``normalize`` (5).

    With ``update_incidence=False`` ``alpha^V`` is zero, the case of every construction in the paper that fits eq. (7):
    ``B`` changes by a scalar only and a layer costs ``O(num_edges k + num_nodes k^2)`` time and memory, for a batch of
    molecules as for one graph of millions of nodes. With ``update_incidence=True`` ``B`` fills in and is written out as
    ``[num_graphs, max_nodes, max_edges]``: for small graphs only.

    `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, section 14.2.

    Args:
        k: number of columns of ``Phi``.
        out_channels: width of the encoding, through a linear read-out ``M`` without bias; ``k`` if absent.
        num_blocks: blocks, each with parameters of its own.
        num_loops: layers per block, which share its parameters.
        probes: where ``Phi_0`` comes from: ``"random"``, ``"features"`` or ``"learned"``, see :mod:`tg_lpe.nn.probes`.
        max_nodes: for learned probes, the largest graph.
        num_node_types: for feature probes on integer node types, their number.
        in_channels: for feature probes on real node features, their width.
        seed: of random probes.
        update_incidence: whether ``B`` is updated too.
        degree_scaling: whether ``S`` is scaled by ``D^-1/2`` (``D``: row sums of ``|B|``) on both sides.
        independent_scaling: whether each layer has its own factors ``beta``; one otherwise.
        diagonal: whether ``W^Q, W^K, W^V`` are diagonal and ``W^R`` a multiple of the identity; full otherwise.
        normalize: whether ``B`` and the columns of ``Phi`` are scaled to norm one, per graph, after each layer.

    Raises:
        ValueError: if an argument is out of range or does not go with ``probes``.
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
        num_node_types: int | None = None,
        in_channels: int | None = None,
        seed: int = 0,
        update_incidence: bool = False,
        degree_scaling: bool = True,
        independent_scaling: bool = True,
        diagonal: bool = True,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("k", k), ("num_blocks", num_blocks), ("num_loops", num_loops)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if out_channels is not None and out_channels < 1:
            raise ValueError(f"out_channels must be at least 1, got {out_channels!r}")
        self.k = k
        self.out_channels = k if out_channels is None else out_channels
        self.num_loops = num_loops
        self.update_incidence = update_incidence
        self.degree_scaling = degree_scaling
        self.normalize = normalize
        self.probe_kind = probes
        self.reads = frozenset({"edge_weight", "x"} if probes == "features" else {"edge_weight"})
        self.probes = make_probes(
            probes, k, max_nodes=max_nodes, num_node_types=num_node_types, in_channels=in_channels, seed=seed
        )
        # A scalar that nothing reads is not made: with B fixed, alpha^V, beta_1 and beta_2 have no part, and alpha^R
        # is undone by the normalisation.
        scales_incidence = update_incidence or not normalize
        # Nobody reads the last layer's B, so a last block of one layer needs none of the parameters of its update.
        updates = [num_loops > 1 or i + 1 < num_blocks for i in range(num_blocks)]
        self.blocks = nn.ModuleList(
            _Parameters(
                k, diagonal, independent_scaling, update_incidence and used, scales_incidence and used, normalize
            )
            for used in updates
        )
        self.readout = nn.Linear(k, self.out_channels, bias=False)
        self._frozen: list[_Layer] | None = None
        self._frozen_stack: native.LayerStack | None = None

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes that the chosen probes need."""
        needed = {"features": ("num_node_types", "in_channels"), "learned": ("max_nodes",)}
        wanted = needed.get(arguments.get("probes", "random"), ())
        return {name: size for name, size in super().data_arguments(spec, arguments).items() if name in wanted}

    def freeze(self) -> LinearTransformer:
        """Put the module into eval mode, without gradients, for good: its products of parameters are formed once.

        From here on changes of the parameters are not seen. A third of the time of encoding a single molecule is saved.
        """
        self.eval().requires_grad_(False)
        self._frozen = self._frozen_stack = None
        with torch.no_grad():
            self._frozen, self._frozen_stack = self._layers(), self._stack()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> LinearTransformer:
        """What moves or casts the parameters does so to the products of a frozen module too: they are formed anew."""
        super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        return self if self._frozen is None else self.freeze()

    def encode(
        self,
        graph: Incidence,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
        probes: Tensor | None = None,
    ) -> Encoding:
        """Encode the nodes of a graph, or of each graph of a batch by itself.

        Args:
            graph: the graph or batch.
            x: node features, for feature probes.
            edge_attr: not read.
            generator: for random probes, draws them anew; without it the module's seed gives the same always.
            precomputed: not read.
            probes: ``Phi_0`` itself, ``[num_nodes, k]``, in place of the module's probes.

        Returns:
            Encoding of the nodes, ``[num_nodes, out_channels]``.

        Raises:
            ValueError: on missing features or probes of another shape; if ``update_incidence`` is set and the batch is
                large.
        """
        if torch.is_autocast_enabled(graph.device.type):
            # Nine layers of products and normalisations: 8 bits of mantissa would not survive them, and save nothing.
            with torch.autocast(graph.device.type, enabled=False):
                return self.encode(graph, x, generator=generator, probes=probes)
        phi = self.probes(graph, x, generator) if probes is None else probes
        if phi.shape != (graph.num_nodes, self.k):
            raise ValueError(f"probes must be [{graph.num_nodes}, {self.k}], got {list(phi.shape)}")
        return Encoding(self._run(graph, phi))

    def _run(self, graph: Incidence, phi: Tensor) -> Tensor:
        """All layers and the read-out, by the fastest way there is."""
        if graph.num_nodes == 0:
            return phi.new_zeros(0, self.out_channels)
        if self.update_incidence:
            return self._run_updated(graph, phi)
        if self._compiled_runs(graph, phi):
            return self._run_compiled(graph, phi)
        return self._train_compiled(graph, phi) if self._compiled_trains(graph, phi) else self._run_fixed(graph, phi)

    def _layers(self) -> list[_Layer]:
        """Parameters of each layer, products formed once per call."""
        if self._frozen is not None:
            return self._frozen
        return [layer for layer in self._products().unbind() for _ in range(self.num_loops)]

    def _products(self) -> _Layer:
        """Parameters of all blocks, stacked, and their products: a few calls for all."""
        return _products(cast(list[_Parameters], list(self.blocks)))

    def _stack(self) -> native.LayerStack:
        """The layers' weights as the compiled part reads them."""
        if self._frozen_stack is not None:
            return self._frozen_stack
        blocks = self._products()
        diagonal = blocks.mix is not None
        residual, similarity, left, right = (
            values.repeat_interleave(self.num_loops, dim=0)
            for values in (
                blocks.residual,
                torch.diag_embed(blocks.similarity.squeeze(-1)) if diagonal else blocks.similarity,
                cast(Tensor, blocks.mix) if diagonal else blocks.value,
                blocks.query_key,
            )
        )
        if not self.normalize:
            factors = blocks.incidence_residual.repeat_interleave(self.num_loops)[:-1]
            c = torch.cat([factors.new_ones(1), factors.cumprod(0)]).abs().pow(1 if self.degree_scaling else 2)
            similarity = similarity * c.view(-1, 1, 1)
        return native.LayerStack(residual, similarity, left, right, diagonal)

    def _backend(self, graph: Incidence, phi: Tensor) -> _Backend | None:
        """Compiled layers that take such values and graphs, if there are any."""
        if self.k > native.LAYER_WIDTHS[-1] or phi.dtype != self.readout.weight.dtype:
            return None
        if fused.takes(phi) and graph.max_nodes <= fused.MAX_NODES:
            return _FUSED
        return _NATIVE if native.takes(phi) else None

    def _compiled_trains(self, graph: Incidence, phi: Tensor) -> bool:
        """Whether compiled layers know their gradient: by ``Phi_0`` and diagonal weights, of small graphs."""
        backend = self._backend(graph, phi)
        given = (graph.conductance, graph.ground)
        return (
            backend is not None
            and self.k <= backend.trained_columns
            and self.normalize
            and self._stack_is_diagonal
            and graph.max_nodes <= backend.trained_nodes
            and not any(x is not None and x.requires_grad for x in given)
        )

    @property
    def _stack_is_diagonal(self) -> bool:
        return cast(_Parameters, self.blocks[0]).diagonal

    def _compiled_runs(self, graph: Incidence, phi: Tensor) -> bool:
        """Whether compiled layers can stand for :meth:`_run_fixed`: for few columns, without gradient."""
        if self._backend(graph, phi) is None:
            return False
        if not torch.is_grad_enabled():
            return True
        inputs = (phi, graph.conductance, graph.ground, *self.parameters())
        return not any(x is not None and x.requires_grad for x in inputs)

    def _run_compiled(self, graph: Incidence, phi: Tensor) -> Tensor:
        backend = cast(_Backend, self._backend(graph, phi))
        operator, later = backend.operator(graph, phi, self.degree_scaling), self._later(graph, phi)
        floor = NORM_FLOOR if self.normalize else None
        return backend.layers(phi, operator, graph.ptr, self._stack(), self.readout.weight, later, floor)

    def _later(self, graph: Incidence, phi: Tensor) -> Tensor:
        """Factor of each graph on ``S`` from the second layer on, float64 ``[num_graphs]``; see :meth:`_run_fixed`."""
        if not self.normalize:
            return torch.ones(graph.num_graphs, dtype=torch.float64, device=phi.device)
        return graph.frobenius_norm(phi.detach()).double().pow(-1 if self.degree_scaling else -2)

    def _train_compiled(self, graph: Incidence, phi: Tensor) -> Tensor:
        backend = cast(_Backend, self._backend(graph, phi))
        operator, later = backend.operator(graph, phi, self.degree_scaling), self._later(graph, phi)
        stack = self._stack()
        weights = stack.residual, stack.similarity, stack.left, stack.right
        out = _CompiledLayers.apply(phi, *weights, backend, operator, graph.ptr, later)  # type: ignore[no-untyped-call]
        return self.readout(out)

    def _run_fixed(self, graph: Incidence, phi: Tensor) -> Tensor:
        layers = self._layers()
        node_scale = inverse_sqrt(graph.degree(phi)) if self.degree_scaling else phi.new_ones(graph.num_nodes)
        layout = GraphBlocks(graph)
        norm = graph.frobenius_norm(phi) if self.normalize else None
        parts = []
        operators = layout.laplacian_operators(node_scale)
        for block, apply, z in zip(layout.blocks, operators, layout.lay_out(phi), strict=True):
            # B_l = c_l B with c_l = 1 / |B|_F from the second layer on, or else the product of all 1 + alpha^R so far.
            # S is quadratic in B, but the scaling by D_l^-1/2 takes one power of |c_l| away.
            power = 1 if self.degree_scaling else 2
            later = apply if norm is None else apply.scaled(_per_block(norm, block).pow(-power))
            c = phi.new_ones(())
            for layer in layers:
                z = layer.update_phi(z, apply(z), None if self.normalize else c.abs().pow(power))
                apply = later
                if self.normalize:
                    z = _normalize_columns(z)
                else:
                    c = c * layer.incidence_residual
            parts.append(torch.bmm(self.readout.weight.expand(z.size(0), -1, -1), z))
        return layout.collect(parts, self.out_channels)

    def _run_updated(self, graph: Incidence, phi: Tensor) -> Tensor:
        layers = self._layers()
        layout = GraphBlocks(graph)
        parts = []
        incidences = _dense_incidences(graph, layout, phi)
        for b, z in zip(incidences, layout.lay_out(phi), strict=True):
            for index, layer in enumerate(layers):
                scaled = b * inverse_sqrt(b.abs().sum(-1, keepdim=True)) if self.degree_scaling else b
                new_z = layer.update_phi(z, (z @ scaled) @ scaled.mT)
                if index + 1 < len(layers):  # the last layer's B is read by nobody
                    b = layer.update_incidence(b, scaled, z)
                    if self.normalize:
                        b = b / _frobenius(b)
                z = _normalize_columns(new_z) if self.normalize else new_z
            parts.append(torch.bmm(self.readout.weight.expand(z.size(0), -1, -1), z))
        return layout.collect(parts, self.out_channels)

    def extra_repr(self) -> str:
        """What decides the output beside the weights."""
        flags = ("update_incidence", "degree_scaling", "normalize")
        seed = f", seed={self.probes.seed}" if isinstance(self.probes, RandomProbes) else ""
        return (
            f"k={self.k}, out_channels={self.out_channels}, num_blocks={len(self.blocks)}, num_loops={self.num_loops}, "
            f"probes={self.probe_kind!r}{seed}, " + ", ".join(f"{name}={getattr(self, name)}" for name in flags)
        )


class _Backend(NamedTuple):
    """All layers at once, and their gradient, by functions that do not know autograd."""

    operator: Callable[[Incidence, Tensor, bool], Any]
    """What all others read of a graph."""
    layers: Callable[..., Tensor]
    forward: Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
    """Without read-out; and what its gradient reads of it."""
    backward: Callable[..., tuple[Tensor, ...]]
    trained_columns: int
    trained_nodes: int
    """Columns, and nodes of a graph, up to which the gradient is taken."""


def _native_forward(phi: Tensor, *arguments: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    kept = native.native_layers_forward(phi, *arguments)
    return kept.chain[-1, :, : phi.size(1)], kept


def _fused_forward(
    phi: Tensor, operator: fused.Columns, ptr: Tensor, weights: native.LayerStack, later: Tensor, norm_floor: float
) -> tuple[Tensor, tuple[Tensor, ...]]:
    return fused.fused_layers(phi, operator, ptr, weights, None, later, norm_floor), ()


def _fused_backward(
    phi: Tensor,
    operator: fused.Columns,
    ptr: Tensor,
    weights: native.LayerStack,
    later: Tensor,
    norm_floor: float,
    kept: Sequence[Tensor],
    grad_out: Tensor,
) -> tuple[Tensor, ...]:
    """Nothing was kept: the layers are computed anew."""
    return fused.fused_layers_backward(phi, operator, ptr, weights, later, norm_floor, grad_out)


_NATIVE = _Backend(
    Incidence.adjacency,
    native.native_layers,
    _native_forward,
    native.native_layers_backward,
    native.LAYER_WIDTHS[0],
    TRAINED_NODES,
)
_FUSED = _Backend(
    fused.columns, fused.fused_layers, _fused_forward, _fused_backward, fused.MAX_COLUMNS, fused.MAX_NODES
)


class _CompiledLayers(torch.autograd.Function):
    """``Phi_L`` of normalised layers with diagonal weights, and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        phi: Tensor,
        residual: Tensor,
        similarity: Tensor,
        left: Tensor,
        right: Tensor,
        backend: _Backend,
        operator: Any,
        ptr: Tensor,
        later: Tensor,
    ) -> Tensor:
        """Run the layers."""
        weights = native.LayerStack(residual, similarity, left, right, diagonal=True)
        out, kept = backend.forward(phi, operator, ptr, weights, later, NORM_FLOOR)
        ctx.save_for_backward(phi, residual, similarity, left, right, *kept)
        ctx.backend, ctx.graph = backend, (operator, ptr, later)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """By ``Phi_0`` and the weights; ``right`` is not read where they are diagonal."""
        phi, residual, similarity, left, right, *kept = ctx.saved_tensors
        weights = native.LayerStack(residual, similarity, left, right, diagonal=True)
        operator, ptr, later = ctx.graph
        grads = ctx.backend.backward(phi, operator, ptr, weights, later, NORM_FLOOR, kept, grad_out)
        return *grads, *[None] * 5


@dataclass(frozen=True)
class _Layer:
    """One layer's parameters, combined as the update of ``Phi^T``, ``[num_graphs, k, height]``, uses them."""

    similarity: Tensor
    """``beta_3 alpha^Q alpha^K W^V``: ``[k, 1]`` if diagonal, else ``[k, k]``."""
    residual: Tensor
    """``I + W^R``, ``[k, k]``."""
    value: Tensor
    """``beta_4 W^V``, ``[k, k]``; not read if diagonal."""
    query_key: Tensor
    """``W^Q^T W^K``, ``[k, k]``; not read if diagonal."""
    mix: Tensor | None
    """If diagonal, the entries by which ``Phi^T Phi`` is multiplied between ``beta_4 W^V`` and ``W^Q^T W^K``."""
    incidence_residual: Tensor
    """``1 + alpha^R``, ``[]``; one where there is none."""
    incidence: tuple[Tensor, Tensor] | None
    """``alpha^V beta_1 alpha^Q alpha^K`` ``[]`` and ``alpha^V beta_2 W^Q^T W^K`` ``[k, k]``."""

    def unbind(self) -> list[_Layer]:
        """The layers of a stack, each of whose tensors has a leading dimension over them."""
        count = self.residual.size(0)
        values = (self.similarity, self.residual, self.value, self.query_key, self.mix, self.incidence_residual)
        columns = [[None] * count if tensor is None else tensor.unbind() for tensor in values]
        pairs = (
            [None] * count if self.incidence is None else list(zip(*(t.unbind() for t in self.incidence), strict=True))
        )
        return [_Layer(*row) for row in zip(*columns, pairs, strict=True)]

    def update_phi(self, z: Tensor, similar: Tensor, scale: Tensor | None = None) -> Tensor:
        """``(I + W^R) Phi^T + W^V Phi^T (beta_3 alpha^Q alpha^K S + beta_4 P)``.

        By associativity ``Phi^T P = (Phi^T Phi) W^Q^T W^K Phi^T``: there is no ``[num_nodes, num_nodes]`` matrix.

        Args:
            z: ``Phi^T``, ``[num_graphs, k, height]``.
            similar: ``Phi^T S``, likewise; overwritten where no gradient is recorded.
            scale: factor on ``similar``, ``[]``.
        """
        gram = torch.bmm(z, z.mT)
        similarity = self.similarity if scale is None else self.similarity * scale
        if self.mix is None:
            return (self.residual + self.value @ gram @ self.query_key) @ z + similarity @ similar
        if torch.is_grad_enabled():
            return torch.baddbmm(similar * similarity, torch.addcmul(self.residual, gram, self.mix), z)
        # The same in place: on a single molecule, most of the time goes into allocating its few hundred bytes.
        mix = torch.addcmul(self.residual, gram, self.mix, out=gram)
        return similar.mul_(similarity).baddbmm_(mix, z)

    def update_incidence(self, b: Tensor, scaled: Tensor, z: Tensor) -> Tensor:
        """``(1 + alpha^R) B + alpha^V (beta_1 alpha^Q alpha^K S + beta_2 P)^T B``.

        Args:
            b: ``B``, ``[num_graphs, height, max_edges]``; the result likewise.
            scaled: ``D^-1/2 B``, likewise.
            z: ``Phi^T``, ``[num_graphs, k, height]``.
        """
        if self.incidence is None:
            return b * self.incidence_residual
        graph_scale, query_key = self.incidence
        through_phi = (query_key @ z).mT @ (z @ b)
        return b * self.incidence_residual + graph_scale * (scaled @ (scaled.mT @ b)) + through_phi


class _Parameters(nn.Module):
    """The free parameters of one block of eq. (16)."""

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
        self.diagonal, self.update_incidence = diagonal, update_incidence

        def scalar(value: float, used: bool) -> nn.Parameter | None:
            return nn.Parameter(torch.tensor(value)) if used else None

        # One layer then starts near Phi <- (1.5 I - S) Phi: a low-pass filter, the first step of the subspace
        # iteration of Corollary 7, with a little orthogonalisation from the Phi term.
        self.alpha_q, self.alpha_k = (nn.Parameter(torch.tensor(1.0)) for _ in range(2))
        self.alpha_v = scalar(0.0, update_incidence)
        self.alpha_r = scalar(0.0, scales_incidence)
        self.beta_1, self.beta_2 = (
            scalar(0.1, independent and update_incidence),
            scalar(0.1, independent and update_incidence),
        )
        self.beta_3, self.beta_4 = scalar(1.0, independent), scalar(0.1, independent)
        if diagonal:
            self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.full((k,), v)) for v in (1.0, 1.0, -1.0))
            self.w_r = nn.Parameter(torch.tensor(0.5))
        else:
            self.w_q, self.w_k, self.w_v = (nn.Parameter(v * torch.eye(k)) for v in (1.0, 1.0, -1.0))
            self.w_r = nn.Parameter(0.5 * torch.eye(k))
        with torch.no_grad():
            for weight in (self.w_q, self.w_k, self.w_v):
                weight.add_(0.1 * torch.randn_like(weight))
            if not normalize:
                # The Phi term is cubic in Phi: unless columns are kept short, it starts from nothing or explodes.
                self.w_q.zero_()


def _products(blocks: list[_Parameters]) -> _Layer:
    """Everything of some blocks that does not depend on the graph, stacked."""

    def stacked(name: str, absent: float = 1.0) -> Tensor:
        values = [cast(Tensor | None, getattr(block, name)) for block in blocks]
        none = blocks[0].alpha_q.new_full((), absent)
        if all(value is None for value in values):
            return none.expand(len(blocks))
        return torch.stack([none if value is None else value for value in values])

    def wide(scalar: Tensor, dims: int = 2) -> Tensor:
        return scalar.view(-1, *[1] * dims)

    w_q, w_k, w_v, w_r = (stacked(name) for name in ("w_q", "w_k", "w_v", "w_r"))
    graph_scale = stacked("alpha_q") * stacked("alpha_k")
    beta_3, beta_4 = stacked("beta_3"), stacked("beta_4")
    identity = torch.eye(w_v.size(-1), dtype=w_v.dtype, device=w_v.device)
    if blocks[0].diagonal:
        query_key = w_q * w_k
        similarity, mix = w_v.unsqueeze(-1), (wide(beta_4, 1) * w_v).unsqueeze(2) * query_key.unsqueeze(1)
        residual, value, query_key = wide(1 + w_r) * identity, identity.expand_as(mix), torch.diag_embed(query_key)
    else:
        query_key = w_q.mT @ w_k
        similarity, mix = w_v, None
        residual, value = identity + w_r, wide(beta_4) * w_v
    incidence = None
    if blocks[0].alpha_v is not None:
        alpha_v = stacked("alpha_v", 0.0)
        incidence = alpha_v * stacked("beta_1") * graph_scale, wide(alpha_v * stacked("beta_2")) * query_key
    return _Layer(
        similarity=wide(beta_3 * graph_scale) * similarity,
        residual=residual,
        value=value,
        query_key=query_key,
        mix=mix,
        incidence_residual=1 + stacked("alpha_r", 0.0),
        incidence=incidence,
    )


def _per_block(values: Tensor, block: Block) -> Tensor:
    """Values ``[num_graphs of the batch]`` as ``[num_graphs of the block, 1, 1]``."""
    return (values if values.numel() == 1 else values[block.graphs]).view(-1, 1, 1)


def _normalize_columns(z: Tensor) -> Tensor:
    """``Phi^T`` with each graph's columns of ``Phi`` at length one; zero stays zero. In place without gradient."""
    norm = torch.linalg.vector_norm(z, dim=2, keepdim=True)
    # Short columns are divided by one, not by the floor: its derivative would overflow within a few layers.
    if torch.is_grad_enabled():
        return z / torch.threshold(norm, NORM_FLOOR, 1.0)
    return z.div_(torch.threshold_(norm, NORM_FLOOR, 1.0))


def _frobenius(b: Tensor) -> Tensor:
    """Frobenius norm of each graph's ``B``, ``[num_graphs, 1, 1]``, one where ``B`` is zero."""
    norm = torch.linalg.matrix_norm(b, keepdim=True)
    return torch.where(norm == 0, 1.0, norm)


def _dense_incidences(graph: Incidence, layout: GraphBlocks, like: Tensor) -> list[Tensor]:
    """``B`` of each block written out, ``[num_graphs, height, max_edges]``, unused rows and columns zero."""
    edge_graph, edge_counts = graph.batch[graph.tail], graph.edge_counts
    shapes = [(b.num_graphs, b.height, int(edge_counts[b.graphs].max())) for b in layout.blocks]
    total = sum(g * h * m for g, h, m in shapes)
    if total > DENSE_BUDGET:
        raise ValueError(
            f"update_incidence=True writes out incidence matrices of {total:,} entries for this batch "
            f"({total * like.element_size() / 2**30:.1f} GiB, and several times that with gradients); the limit is "
            f"{DENSE_BUDGET:,}. Use smaller batches, or update_incidence=False, whose cost is linear in the edges."
        )
    if graph.ground is not None:
        raise ValueError("update_incidence=True knows no ground conductances, but the graph has some")
    # Edges are sorted by tail, so those of one graph are consecutive.
    local = torch.arange(graph.num_edges, device=graph.device) - (edge_counts.cumsum(0) - edge_counts)[edge_graph]
    slot = torch.zeros_like(edge_counts)
    block_of = torch.full_like(edge_counts, -1)
    for number, block in enumerate(layout.blocks):
        slot[block.graphs] = torch.arange(block.num_graphs, device=graph.device)
        block_of[block.graphs] = number
    root = graph.root_conductance(like)
    matrices = []
    for number, shape in enumerate(shapes):
        mine = block_of[edge_graph] == number
        where = slot[edge_graph[mine]], local[mine]
        tail, head = graph.local_index[graph.tail[mine]], graph.local_index[graph.head[mine]]
        matrix = like.new_zeros(shape)
        matrix = matrix.index_put((where[0], tail, where[1]), -root[mine])
        matrices.append(matrix.index_put((where[0], head, where[1]), root[mine]))
    return matrices
