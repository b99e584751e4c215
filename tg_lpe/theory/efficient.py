"""Run the parameter-efficient linear transformer, eq. (7), whose weights do not grow with the graph.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, section 5. On dense ``B`` it is eq. (3)
with the block weights of Lemma 9. If layers only scale ``B``, as in all constructions, it runs on the edges of a graph
of any size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph
from tg_lpe.ops import cpu, layers
from tg_lpe.ops.layers import LayerStack
from tg_lpe.theory.full import FullTransformer, Scheduled, add_heads, normalize_phi, unit

LAYERS_AT_ONCE = 1024
"""Number of layers in a call of the compiled part, to bound the memory of their weights."""


class Weights(NamedTuple):
    """Hold the weights of one layer: scalars ``[]`` and matrices ``[width, width]``.

    Matrices ``[blocks, blocks]`` are blockwise: each entry is a multiple of an identity matrix.
    """

    alpha_v: Tensor
    alpha_q: Tensor
    alpha_k: Tensor
    alpha_r: Tensor
    w_v: Tensor
    w_q: Tensor
    w_k: Tensor
    w_r: Tensor


def mix_columns(phi: Tensor, weight: Tensor) -> Tensor:
    """Compute ``Phi W^T``.

    Args:
        phi: ``[..., n, width]``.
        weight: ``W``, ``[width, width]``, or blockwise.
    """
    blocks = weight.size(-1)
    if blocks == phi.size(-1):
        return phi @ weight.mT
    return (weight @ phi.unflatten(-1, (blocks, -1))).flatten(-2)


def update_phi(phi: Tensor, similar: Tensor | None, w: Weights, through_phi: bool = True) -> Tensor:
    """Compute the second line of eq. (7), transposed: ``Phi (I + W^R)^T + (alpha^Q alpha^K S + P^T) Phi W^V^T``.

    Since ``P^T Phi = Phi W^K^T W^Q (Phi^T Phi)``, no ``[n, n]`` matrix is needed.

    Args:
        phi: ``[..., n, width]``.
        similar: ``S Phi`` with ``S = B B^T``, ``[..., n, width]``; ``None`` if the layer does not use it.
        w: the layer's weights.
        through_phi: whether ``P`` is not zero.
    """
    out = phi + mix_columns(phi, w.w_r)
    if similar is not None:
        out = out + mix_columns(w.alpha_q * w.alpha_k * similar, w.w_v)
    if through_phi:
        out = out + mix_columns(mix_columns(phi, w.w_q.mT @ w.w_k) @ (phi.mT @ phi), w.w_v)
    return out


def efficient_layer(b: Tensor, phi: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    """Compute one layer of eq. (7) on dense ``B``, ``[..., n, num_edges]``, and ``Phi``, ``[..., n, width]``."""
    through_phi = mix_columns(phi, w.w_q.mT @ w.w_k) @ (phi.mT @ b)
    updated = (1 + w.alpha_r) * b + w.alpha_v * (w.alpha_q * w.alpha_k * (b @ (b.mT @ b)) + through_phi)
    return updated, update_phi(phi, b @ (b.mT @ phi), w)


class EfficientTransformer(Scheduled):
    """Run the linear transformer of eq. (7), with the normalisation of eq. (6) or section 3.5.

    The constructor sets all weights to zero, in float64, so that the layers are identities. The functions of this
    package return it with the weights of a lemma.

    Args:
        k: number of columns of the input ``Psi`` and of the output, the last ``k`` columns of ``Phi_L``.
        width: number of columns of ``Phi``: ``2 k`` for ``Phi_0 = [Psi, 0]``, ``k`` for ``Phi_0 = Psi``, or another
            multiple.
        num_weights: number of sets of weights; the number of layers without a ``schedule``.
        schedule, normalize_phi, normalize_incidence: as for :class:`FullTransformer`.
        blockwise: whether the matrices are ``[width / k, width / k]``, each entry a multiple of the ``k x k`` identity.
            This is enough for Lemmas 1 to 3, and its memory does not grow with ``k``.

    Attributes:
        alpha_v, alpha_q, alpha_k, alpha_r: weights ``[num_weights]``.
        w_v, w_q, w_k, w_r: weights ``[num_weights, width, width]``, or smaller if blockwise.
    """

    def __init__(
        self,
        k: int,
        width: int,
        num_weights: int,
        schedule: Sequence[int | Sequence[int]] | None = None,
        normalize_phi: str | None = None,
        normalize_incidence: bool = False,
        blockwise: bool = False,
    ) -> None:
        if k < 1 or width < k or width % k:
            raise ValueError(f"width must be a multiple of k and k at least 1, got k={k} and width={width}")
        size = width // k if blockwise else width
        super().__init__(size, num_weights, schedule, normalize_phi, normalize_incidence, blockwise)
        self.k, self.width = k, width
        self.alpha_v, self.alpha_q, self.alpha_k, self.alpha_r = (self._stack(num_weights) for _ in range(4))

    def weights(self, index: int) -> Weights:
        """Return the weights with number ``index``."""
        scalars = (self.alpha_v, self.alpha_q, self.alpha_k, self.alpha_r)
        return Weights(*(weight[index] for weight in (*scalars, self.w_v, self.w_q, self.w_k, self.w_r)))

    def forward(self, graph: Graph | Tensor, psi: Tensor) -> Tensor:
        """Run all layers.

        Args:
            graph: a graph, or dense ``B``, ``[..., n, num_edges]``. For a graph, a layer takes
                ``O(num_edges k + n k^2)`` time and ``O(num_edges k)`` memory. A batch is treated as one graph of
                several components.
            psi: the input ``[..., n, k]``: demands, or starting vectors.

        Returns:
            The last ``k`` columns of ``Phi_L``, ``[..., n, k]``.

        Raises:
            ValueError: if ``psi`` does not fit the graph, or if the weights make ``B`` dense (``alpha_v`` is not zero)
                and ``graph`` is not dense.
        """
        return self.read(self.run(graph, self.embed(psi))[1])

    def embed(self, psi: Tensor) -> Tensor:
        """Return ``Phi_0``, ``[..., n, width]``: the input, followed by zeros."""
        if psi.dim() < 2 or psi.size(-1) != self.k:
            raise ValueError(f"psi must be [..., n, {self.k}], got {list(psi.shape)}")
        return torch.cat([psi, psi.new_zeros(*psi.shape[:-1], self.width - self.k)], dim=-1)

    def read(self, phi: Tensor) -> Tensor:
        """Return the output in ``Phi_l``, ``[..., n, width]``: its last ``k`` columns."""
        return phi[..., -self.k :]

    def run(self, graph: Graph | Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``TF_L^B`` and ``TF_L^Phi`` of Lemma 10, the last item of :meth:`trace`; arguments as there."""
        if not isinstance(graph, Graph) or not self._compiled_runs(graph, phi):
            return deque(self.trace(graph, phi), maxlen=1)[0]
        graph_scale = (self.alpha_q * self.alpha_k).detach().view(-1, 1, 1)
        laplacian, order = graph.scaled_laplacian(phi), torch.tensor(self.heads, dtype=torch.int64).view(-1)
        w_v, w_q, w_k, w_r = (self._matrices(w).detach() for w in (self.w_v, self.w_q, self.w_k, self.w_r))
        query_key, identity = w_q.mT @ w_k, torch.eye(self.width).to(phi)
        similarity = graph_scale * w_v
        diagonal = all(bool((m * (1 - identity) == 0).all()) for m in (w_v, query_key))
        left = w_v.diagonal(dim1=1, dim2=2).unsqueeze(2) * query_key.diagonal(dim1=1, dim2=2).unsqueeze(1)
        laplacian = laplacian._replace(ptr=torch.tensor([0, graph.num_nodes]), max_nodes=graph.num_nodes)
        ones = torch.ones(1, dtype=torch.float64)
        for indices in order.split(LAYERS_AT_ONCE):
            stack = LayerStack(
                residual=(identity + w_r)[indices],
                similarity=similarity[indices],
                left=(left if diagonal else w_v)[indices],
                right=query_key[indices],
                diagonal=diagonal,
            )
            floor = None if self.normalize_phi is None else 0.0
            phi = layers.layers(phi, laplacian, stack, ones, floor)
        return phi.new_ones(()), phi

    def trace(self, graph: Graph | Tensor, phi: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over ``(B_l, Phi_l)`` for ``l = 0, 1, ... L``.

        Args:
            graph: as for :meth:`forward`.
            phi: ``Phi_0``, ``[..., n, width]``.

        Yields:
            ``B_l``, ``[..., n, num_edges]``, and ``Phi_l``, ``[..., n, width]``. For a graph that is not dense, the
            factor ``c_l`` of ``B_l = c_l B``, ``[]``, replaces ``B_l``.
        """
        num_nodes = graph.num_nodes if isinstance(graph, Graph) else graph.size(-2)
        if phi.dim() < 2 or phi.shape[-2:] != (num_nodes, self.width):
            raise ValueError(f"phi must be [..., {num_nodes}, {self.width}], got {list(phi.shape)}")
        return self._trace_sparse(graph, phi) if isinstance(graph, Graph) else self._trace_dense(graph, phi)

    def _compiled_runs(self, graph: Graph, phi: Tensor) -> bool:
        """Return whether compiled layers can replace :meth:`_trace_sparse`.

        They take few columns, leave ``B`` as it is, as all constructions do, and have no gradient.
        """
        return (
            phi.shape == (graph.num_nodes, self.width)
            and graph.num_nodes > 0
            and self.width <= layers.MAX_COLUMNS
            and cpu.supports(phi)
            and phi.dtype == self.w_v.dtype
            and all(len(heads) == 1 for heads in self.heads)
            and self.normalize_phi in (None, "columns")
            and not (self.normalize_incidence or self.alpha_v.any() or self.alpha_r.any())
            and not graph.needs_gradient(phi, *self.parameters())
        )

    def _trace_dense(self, b: Tensor, phi: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        yield b, phi
        for heads in self.heads:  # all terms of eq. (7), including those that are zero
            bs, phis = zip(*(efficient_layer(b, phi, self.weights(index)) for index in heads), strict=True)
            b, phi = add_heads(b, bs), normalize_phi(add_heads(phi, phis), self.normalize_phi)
            if self.normalize_incidence:
                b = unit(b, (-2, -1))
            yield b, phi

    def _trace_sparse(self, graph: Graph, phi: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        if any(bool(self.alpha_v[index]) for index in self.used):
            raise ValueError(
                "alpha_v is not zero, so the layers make B dense: pass a dense B "
                f"[{graph.num_nodes}, {graph.num_edges}] in place of the graph"
            )
        scale = phi.new_ones(())
        norm = torch.linalg.vector_norm(graph.laplacian_diagonal(phi).sqrt()) if self.normalize_incidence else None
        yield scale, phi
        # Most layers use only the graph or only Phi. (If both factors of a product are zero, so are their gradients.)
        at_graph = ((self.alpha_q != 0) | (self.alpha_k != 0)).tolist()
        at_phi = ((self.w_q != 0) | (self.w_k != 0)).flatten(1).any(1).tolist()
        for heads in self.heads:
            similar = scale.square() * graph.laplacian(phi) if any(at_graph[i] for i in heads) else None
            phis = [update_phi(phi, similar, self.weights(i), at_phi[i]) for i in heads]
            phi = normalize_phi(add_heads(phi, phis), self.normalize_phi)
            scale = (1 + sum(self.alpha_r[i] for i in heads)) * scale
            if norm is not None:
                scale = torch.where(norm * scale == 0, scale, scale.sign() / norm)
            yield scale, phi

    def full(self, num_edges: int) -> FullTransformer:
        """Return the same layers as weights of eq. (3), the blocks of Lemma 9, for graphs of ``num_edges`` edges.

        Returns:
            A transformer of ``Z = [B, Phi]^T``, ``[num_edges + width, n]``.
        """
        height = num_edges + self.width
        result = FullTransformer(
            height, len(self.w_v), self.schedule, num_edges, self.normalize_phi, self.normalize_incidence
        ).to(self.w_v)
        with torch.no_grad():
            for name in ("v", "q", "k", "r"):
                target = result.get_parameter(f"w_{name}")
                alpha = self.get_parameter(f"alpha_{name}")
                target[:, range(num_edges), range(num_edges)] = alpha.unsqueeze(1)
                target[:, num_edges:, num_edges:] = self._matrices(self.get_parameter(f"w_{name}"))
        return result

    def _matrices(self, weight: Tensor) -> Tensor:
        """Return a stack of weights as ``[num_weights, width, width]``."""
        return torch.kron(weight, torch.eye(self.k).to(weight)) if self.blockwise else weight
