"""Checks to run on one's own encoders."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def assert_permutation_equivariant(
    encode: Callable[..., Tensor],
    edge_index: Tensor,
    num_nodes: int,
    *,
    x: Tensor | None = None,
    edge_weight: Tensor | None = None,
    flip_edges: bool = True,
    generator: torch.Generator | None = None,
    trials: int = 3,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Assert that an encoding follows its nodes: the way a graph is written down changes nothing.

    The edges are reordered, then each is flipped or not by the toss of a coin, then the nodes are relabelled, and each
    time the encoding of a node is compared with the one it had before. A :class:`~tg_lpe.LinearTransformer` with
    ``probes="features"`` passes as it is; with random probes it is equivariant if they move along::

        model = LinearTransformer(k=8)
        assert_permutation_equivariant(
            lambda edge_index, num_nodes, x: model.encode(Incidence(edge_index, num_nodes), probes=x),
            edge_index, num_nodes, x=torch.randn(num_nodes, 8),
        )

    Args:
        encode: called as ``encode(edge_index, num_nodes, x=x, edge_weight=edge_weight)``, without those of the two that
            are ``None``; returns ``[num_nodes, ...]``.
        edge_index: int64 ``[2, num_edges]``.
        num_nodes: number of nodes.
        x: node features ``[num_nodes, ...]``, moved along with the nodes.
        edge_weight: edge values ``[num_edges, ...]``, moved along with the edges.
        flip_edges: whether edges are undirected, so that flipping one may change nothing.
        generator: draws the permutations; seed 0 if absent.
        trials: how often everything is repeated with other permutations.
        rtol, atol: tolerance, as in :func:`torch.isclose`.

    Raises:
        AssertionError: with the first change that altered the encoding, by how much, and at which node.
        ValueError: if there are fewer than two nodes, or no trial: nothing would be tested.
    """
    if num_nodes < 2 or trials < 1:
        raise ValueError(f"a permutation needs two nodes and a trial, got num_nodes={num_nodes} and trials={trials}")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    device = edge_index.device

    def run(index: Tensor, features: Tensor | None, weight: Tensor | None) -> Tensor:
        given = {"x": features, "edge_weight": weight}
        out = encode(index, num_nodes, **{name: value for name, value in given.items() if value is not None})
        if out.dim() == 0 or out.size(0) != num_nodes:
            raise AssertionError(f"an encoding has one row for each of {num_nodes} nodes, got shape {list(out.shape)}")
        return out.detach().reshape(num_nodes, -1)

    def compare(change: str, got: Tensor, expected: Tensor) -> None:
        close = torch.isclose(got, expected, rtol=rtol, atol=atol).all(1)
        if not bool(close.all()):
            deviation = (got - expected).abs().amax(1)
            node = int((~close).nonzero()[0, 0]) if deviation.isnan().any() else int(deviation.argmax())
            raise AssertionError(
                f"not equivariant: {change} changed the encoding of {int((~close).sum())} of {num_nodes} nodes, "
                f"that of node {node} by {deviation[node].item():.3g} where its size is "
                f"{expected[node].abs().max().item():.3g} (rtol={rtol}, atol={atol})"
            )

    expected = run(edge_index, x, edge_weight)
    compare("calling the encoder again", run(edge_index, x, edge_weight), expected)
    for _ in range(trials):
        order = torch.randperm(edge_index.size(1), generator=generator).to(device)
        index, weight = edge_index[:, order], None if edge_weight is None else edge_weight[order]
        compare("reordering edges", run(index, x, weight), expected)
        if flip_edges:
            flip = torch.rand(edge_index.size(1), generator=generator).to(device) < 0.5
            index = torch.where(flip, index.flip(0), index)
            compare("flipping edges", run(index, x, weight), expected)
        label = _other_labels(num_nodes, generator).to(device)
        moved = None if x is None else torch.empty_like(x).index_copy(0, label, x)
        compare("relabelling nodes", run(label[index], moved, weight)[label], expected)


def assert_edge_permutation_equivariant(
    run: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    b: Tensor,
    phi: Tensor,
    *,
    flip_edges: bool = True,
    generator: torch.Generator | None = None,
    trials: int = 3,
    rtol: float = 1e-9,
    atol: float = 1e-12,
) -> None:
    """Assert Lemma 10: the columns of ``B`` move along when edges are reordered, and ``Phi`` does not notice.

    ``TF^B(B U, Phi) = TF^B(B, Phi) U`` and ``TF^Phi(B U, Phi) = TF^Phi(B, Phi)`` for every permutation matrix ``U``,
    and for those with signs, which turn edges around. `Graph Transformers Dream of Electric Flow
    <https://arxiv.org/abs/2410.16699>`_, eq. (15). Every :class:`~tg_lpe.constructions.EfficientTransformer` passes,
    whatever its weights; eq. (3) does for special weights only::

        assert_edge_permutation_equivariant(transformer.run, b, phi)

    Args:
        run: called as ``run(b, phi)``; returns ``B_L`` and ``Phi_L`` of the shapes it was given.
        b: incidence matrices ``[..., n, num_edges]``.
        phi: ``Phi_0``, ``[..., n, width]``.
        flip_edges: whether edges are turned around too.
        generator: draws the permutations; seed 0 if absent.
        trials: how often it is repeated with another permutation.
        rtol, atol: tolerance over the largest entry, for float64.

    Raises:
        AssertionError: with what changed and by how much.
        ValueError: if there are fewer than two edges, or no trial: nothing would be tested.
    """
    if b.size(-1) < 2 or trials < 1:
        raise ValueError(f"a permutation needs two edges and a trial, got {b.size(-1)} edges and trials={trials}")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    expected_b, expected_phi = (out.detach() for out in run(b, phi))
    if expected_b.shape != b.shape or expected_phi.shape != phi.shape:
        shapes = f"{list(expected_b.shape)} and {list(expected_phi.shape)}"
        raise AssertionError(f"run(b, phi) must return {list(b.shape)} and {list(phi.shape)}, got {shapes}")
    for _ in range(trials):
        order = _other_labels(b.size(-1), generator).to(b.device)
        sign = torch.ones(b.size(-1))
        if flip_edges:
            sign[torch.rand(b.size(-1), generator=generator) < 0.5] = -1.0
        sign = sign.to(b)
        got_b, got_phi = (out.detach() for out in run(b[..., order] * sign, phi))
        for name, got, expected in (("B", got_b, expected_b[..., order] * sign), ("Phi", got_phi, expected_phi)):
            deviation, size = float((got - expected).abs().max()), float(expected.abs().max())
            if not deviation <= atol + rtol * size:
                raise AssertionError(
                    f"not as Lemma 10 says: reordering{' and flipping' * flip_edges} edges changed {name} by "
                    f"{deviation:.3g} where its size is {size:.3g} (rtol={rtol}, atol={atol})"
                )


def _other_labels(num_nodes: int, generator: torch.Generator) -> Tensor:
    """A permutation that is not the identity."""
    label = torch.randperm(num_nodes, generator=generator)
    return label.roll(1) if bool((label == torch.arange(num_nodes)).all()) else label
