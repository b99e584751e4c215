"""Run the full linear transformer on a dense ``Z``: eqs. (2), (3), (6), and normalisations of sections 3.5 and 4.1.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_. ``Z`` has one column per node; its
first rows are the transposed incidence matrix ``B^T``, the others ``Phi^T``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice
from tg_lpe.checkpoints.checkpoint import CheckpointMixin

NORMALIZATIONS = (None, "frobenius", "columns")
"""Normalisations of ``Phi`` at the end of a layer: none (eq. 3), Frobenius norm one (section 3.5), or columns of length
one (eq. 6)."""


def apply_weights(weight: Tensor, z: Tensor, blockwise: bool = False) -> Tensor:
    """Compute ``W Z`` as one matrix product.

    Args:
        weight: ``[h, h]``, or ``[models, h, h]`` for several models.
        z: ``[..., h, n]``, or ``[models, ..., h, n]``; ``[..., h n, n]`` if ``blockwise``.
        blockwise: whether each entry of ``W`` is a multiple of the ``n x n`` identity.

    Returns:
        A tensor of the shape of ``z``.
    """
    if blockwise:
        n = z.size(-1)
        return (weight @ z.reshape(*z.shape[:-2], -1, n * n)).view(z.shape)
    columns = z.mT  # rows are nodes, contiguous in memory for any leading axes
    if weight.dim() == 2:
        return (columns @ weight.mT).mT
    flat = columns.reshape(weight.size(0), -1, weight.size(2))
    return torch.bmm(flat, weight.mT).view(*columns.shape[:-1], weight.size(1)).mT


def attention(z: Tensor, w_v: Tensor, w_q: Tensor, w_k: Tensor, blockwise: bool = False) -> Tensor:
    """Compute linear attention ``W^V Z Z^T W^Q^T W^K Z``, eq. (2): softmax attention without the softmax.

    Args:
        z: ``[..., h, n]``.
        w_v, w_q, w_k: ``[h, h]``, or ``[models, h, h]`` for ``z`` of ``[models, ..., h, n]``.
        blockwise: as for :func:`apply_weights`.

    Returns:
        ``[..., h, n]``.
    """
    similarity = z.mT @ apply_weights(w_q.mT @ w_k, z, blockwise)
    return apply_weights(w_v, z, blockwise) @ similarity


def full_layer(z: Tensor, w_v: Tensor, w_q: Tensor, w_k: Tensor, w_r: Tensor, blockwise: bool = False) -> Tensor:
    """Compute one layer ``Z + Attn(Z) + W^R Z``, eq. (3); arguments as for :func:`attention`."""
    return z + attention(z, w_v, w_q, w_k, blockwise) + apply_weights(w_r, z, blockwise)


def unit(x: Tensor, dim: int | tuple[int, int]) -> Tensor:
    """Divide ``x`` by its Euclidean norm over ``dim``; zero stays zero."""
    norm = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return x / torch.where(norm == 0, 1.0, norm)


def normalize_phi(phi: Tensor, how: str | None) -> Tensor:
    """Normalise ``Phi``, ``[..., n, width]``, by one of :data:`NORMALIZATIONS`."""
    if how is None:
        return phi
    return unit(phi, -2 if how == "columns" else (-2, -1))


def add_heads(before: Tensor, after: Sequence[Tensor]) -> Tensor:
    """Add up what each of several heads adds to ``before``, given the result of a layer with each head alone."""
    return after[0] + sum(own - before for own in after[1:])


def normalize_rows(z: Tensor, num_edges: int, how: str | None, incidence: bool) -> Tensor:
    """Normalise ``Z`` at the end of a layer.

    Args:
        z: ``[..., h, n]``.
        num_edges: number of the ``h`` rows that are ``B^T``.
        how: normalisation of ``Phi``, one of :data:`NORMALIZATIONS`.
        incidence: whether to scale ``B`` to Frobenius norm one.
    """
    if how is None and not incidence:
        return z
    # Z is the transpose of a tensor whose rows are nodes, so splitting it makes no copy.
    b, phi = z.mT.split((num_edges, z.size(-2) - num_edges), dim=-1)
    return torch.cat([unit(b, (-2, -1)) if incidence else b, normalize_phi(phi, how)], dim=-1).mT


class Scheduled(CheckpointMixin, nn.Module):
    """Run layers that index a stack of weights ``w_v``, ``w_q``, ``w_k``, ``w_r``, so that equal layers share theirs.

    Args:
        size: number of rows and columns of each weight.
        num_weights, schedule, normalize_phi, normalize_incidence, blockwise: as for :class:`FullTransformer`.
    """

    def __init__(
        self,
        size: int,
        num_weights: int,
        schedule: Sequence[int | Sequence[int]] | None,
        normalize_phi: str | None,
        normalize_incidence: bool,
        blockwise: bool,
    ) -> None:
        super().__init__()
        self.schedule = list(range(num_weights)) if schedule is None else list(schedule)
        self.heads = [list(layer) if isinstance(layer, Sequence) else [layer] for layer in self.schedule]
        self.used = sorted({index for heads in self.heads for index in heads})
        if not (all(self.heads) and set(self.used) <= set(range(num_weights))):
            raise ValueError(f"each layer of schedule must name weights 0..{num_weights - 1}, got {self.used}")
        check_choice("normalize_phi", normalize_phi, NORMALIZATIONS)
        self.normalize_phi, self.normalize_incidence, self.blockwise = normalize_phi, normalize_incidence, blockwise
        self.w_v, self.w_q, self.w_k, self.w_r = (self._stack(num_weights, size, size) for _ in range(4))

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.schedule)

    def _stack(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(*shape, dtype=torch.float64))

    def extra_repr(self) -> str:
        """Show the constructor's arguments, with the number of layers for the schedule."""
        shown = {"num_layers": self.num_layers, **self._arguments}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items() if name != "schedule")


class FullTransformer(Scheduled):
    """Run the linear transformer of eqs. (2)-(3), with the normalisation of eq. (6) or section 3.5.

    The constructor sets all weights to zero, in float64, so that the layers are identities. The functions of this
    package return it with the weights of a lemma.

    Args:
        height: ``h``, number of rows of ``Z``.
        num_weights: number of sets of weights; the number of layers without a ``schedule``.
        schedule: index of the weights of each layer, or list of the indices of its heads, whose updates add up.
        num_edges: number of the rows that are ``B^T``; the others are ``Phi^T``. Only normalisations use it.
        normalize_phi: ``None``; ``"frobenius"``, section 3.5: ``Phi`` has Frobenius norm one after each layer; or
            ``"columns"``, eq. (6): each column of ``Phi`` has length one. Zero stays zero.
        normalize_incidence: whether ``B`` has Frobenius norm one after each layer, as in sections 3.5 and 4.1.
        blockwise: whether each entry of a weight is a multiple of the ``n x n`` identity. Then ``Z`` has ``h n`` rows,
            and the weights do not depend on the graph's size. Not with normalisations.

    Attributes:
        w_v, w_q, w_k, w_r: weights ``[num_weights, h, h]``.
    """

    def __init__(
        self,
        height: int,
        num_weights: int,
        schedule: Sequence[int | Sequence[int]] | None = None,
        num_edges: int = 0,
        normalize_phi: str | None = None,
        normalize_incidence: bool = False,
        blockwise: bool = False,
    ) -> None:
        super().__init__(height, num_weights, schedule, normalize_phi, normalize_incidence, blockwise)
        if blockwise and (normalize_phi is not None or normalize_incidence):
            raise ValueError("blockwise=True needs normalize_phi=None and normalize_incidence=False")
        self.height, self.num_edges = height, num_edges

    def forward(self, z: Tensor) -> Tensor:
        """Run all layers.

        Args:
            z: ``Z_0``, ``[..., h, n]`` (``[..., h n, n]`` if blockwise), for any number of graphs of equal size.

        Returns:
            ``Z_L``, in the shape of ``Z_0``.
        """
        return deque(self.trace(z), maxlen=1)[0]

    def trace(self, z: Tensor) -> Iterator[Tensor]:
        """Iterate over ``Z_0``, ``Z_1``, ... ``Z_L``, each ``[..., h, n]``; arguments as for :meth:`forward`."""
        if z.dim() < 2 or z.size(-2) != self.height * (z.size(-1) if self.blockwise else 1):
            raise ValueError(f"z must be [..., {self.height}{' n' * self.blockwise}, n], got {list(z.shape)}")
        yield z
        for heads in self.heads:
            weights = ((self.w_v[i], self.w_q[i], self.w_k[i], self.w_r[i]) for i in heads)
            z = add_heads(z, [full_layer(z, *w, self.blockwise) for w in weights])
            z = normalize_rows(z, self.num_edges, self.normalize_phi, self.normalize_incidence)
            yield z
