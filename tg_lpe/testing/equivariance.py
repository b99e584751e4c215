"""Assertions that an encoding does not depend on how a graph is listed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tg_lpe.encoders.base import Encoder, Encoding

TRIALS = 3
"""Number of random permutations of a check."""


def assert_permutation_equivariant(
    encode: Encoder | Callable[..., Encoding | Tensor],
    edge_index: Tensor,
    num_nodes: int,
    *,
    x: Tensor | None = None,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
    flip_edges: bool = True,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Assert that the encoding of a graph does not depend on the order and direction of edges and on node labels.

    The edges are reordered, then flipped with probability one half, then the nodes are relabelled. After each change,
    every node (and every edge if edges are encoded) must have the same encoding as before. For example,
    :class:`~tg_lpe.GramTransformer` passes, and so does :class:`~tg_lpe.LinearTransformer` with ``probes="features"``.
    With random probes, a linear transformer is equivariant if the probes move with the nodes::

        model = LinearTransformer(k=8)
        assert_permutation_equivariant(
            lambda edge_index, num_nodes, x: model.encode(Graph(edge_index, num_nodes), Inputs(), probes=x),
            edge_index, num_nodes, x=torch.randn(num_nodes, 8),
        )

    Args:
        encode: an encoder; or a function that is called as ``encode(edge_index, num_nodes, x=x, edge_attr=edge_attr,
            edge_weight=edge_weight)``, without keywords that are ``None``, and returns an :class:`~tg_lpe.Encoding` or
            only the encoding of the nodes, ``[num_nodes, ...]``.
        edge_index: int64 ``[2, num_directed_edges]``.
        num_nodes: number of nodes.
        x: node features ``[num_nodes, ...]``, which move with the nodes.
        edge_attr: edge features ``[num_directed_edges, ...]``, which move with the edges.
        edge_weight: edge weights ``[num_directed_edges]``, which move with the edges.
        flip_edges: whether edges are undirected, so that flips must not change the encoding.
        rtol, atol: tolerance, as in :func:`torch.isclose`.

    Raises:
        AssertionError: if a change altered the encoding; the message names the change, the deviation and the node or
            edge.
        ValueError: if there are fewer than two nodes.
    """
    if num_nodes < 2:
        raise ValueError(f"a permutation needs two nodes, got num_nodes={num_nodes}")
    generator, device = torch.Generator().manual_seed(0), edge_index.device

    def run(index: Tensor, x: Tensor | None, attr: Tensor | None, weight: Tensor | None) -> Encoding:
        if isinstance(encode, Encoder):
            out: Encoding | Tensor = encode(x, index, attr, edge_weight=weight, num_nodes=num_nodes)
        else:
            features = {"x": x, "edge_attr": attr, "edge_weight": weight}
            out = encode(index, num_nodes, **{name: value for name, value in features.items() if value is not None})
        node, edge = (out, None) if isinstance(out, Tensor) else out[:2]
        edge = None if edge is None else _rows(edge, "edge", edge_index.size(1))
        return Encoding(_rows(node, "node", num_nodes), edge)

    def compare(change: str, got: Encoding, node: Tensor, edge: Tensor | None) -> None:
        _compare(change, "node", got.node, node, rtol, atol)
        if (got.edge is None) != (edge is None):
            raise AssertionError(f"not equivariant: {change} changed whether edges are encoded")
        if got.edge is not None and edge is not None:
            _compare(change, "edge", got.edge, edge, rtol, atol)

    node, edge, _ = run(edge_index, x, edge_attr, edge_weight)
    compare("calling the encoder again", run(edge_index, x, edge_attr, edge_weight), node, edge)
    for _ in range(TRIALS):
        order = torch.randperm(edge_index.size(1), generator=generator).to(device)
        index, attr, weight, moved_edge = (
            edge_index[:, order],
            *(None if rows is None else rows[order] for rows in (edge_attr, edge_weight, edge)),
        )
        compare("reordering edges", run(index, x, attr, weight), node, moved_edge)
        if flip_edges:
            flip = torch.rand(edge_index.size(1), generator=generator).to(device) < 0.5
            index = torch.where(flip, index.flip(0), index)
            compare("flipping edges", run(index, x, attr, weight), node, moved_edge)
        label = _other_labels(num_nodes, generator).to(device)
        moved = None if x is None else torch.empty_like(x).index_copy(0, label, x)
        relabelled = run(label[index], moved, attr, weight)
        compare("relabelling nodes", relabelled._replace(node=relabelled.node[label]), node, moved_edge)


def _rows(encoding: Tensor, level: str, number: int) -> Tensor:
    """Reshape an encoding to a matrix with one row for each node or edge."""
    if encoding.dim() == 0 or encoding.size(0) != number:
        raise AssertionError(f"an encoding has one row for each of {number} {level}s, got shape {list(encoding.shape)}")
    return encoding.detach().reshape(number, encoding.numel() // max(number, 1))


def _compare(change: str, level: str, got: Tensor, expected: Tensor, rtol: float, atol: float) -> None:
    """Raise if a change altered the rows of nodes or edges."""
    if got.shape != expected.shape:
        shapes = f"from {list(expected.shape)} to {list(got.shape)}"
        raise AssertionError(f"not equivariant: {change} changed the shape of the {level} encoding {shapes}")
    close = torch.isclose(got, expected, rtol=rtol, atol=atol).all(1)
    if not bool(close.all()):
        deviation = (got - expected).abs().amax(1)
        row = int((~close).nonzero()[0, 0]) if deviation.isnan().any() else int(deviation.argmax())
        raise AssertionError(
            f"not equivariant: {change} changed the encoding of {int((~close).sum())} of {close.numel()} {level}s, "
            f"for example of {level} {row} by {deviation[row].item():.3g}, with values up to "
            f"{expected[row].abs().max().item():.3g} (rtol={rtol}, atol={atol})"
        )


def assert_edge_permutation_equivariant(
    run: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    b: Tensor,
    phi: Tensor,
    *,
    rtol: float = 1e-9,
    atol: float = 1e-12,
) -> None:
    """Assert Lemma 10: reordering the edges permutes the columns of ``B`` and leaves ``Phi`` unchanged.

    For every permutation matrix ``U``, with signs that flip edges, ``TF^B(B U, Phi) = TF^B(B, Phi) U`` and
    ``TF^Phi(B U, Phi) = TF^Phi(B, Phi)``: eq. (15) of `Graph Transformers Dream of Electric Flow
    <https://arxiv.org/abs/2410.16699>`_. Every :class:`~tg_lpe.theory.EfficientTransformer` passes with any weights.
    Eq. (3) only passes with special weights::

        assert_edge_permutation_equivariant(transformer.run, b, phi)

    Args:
        run: called as ``run(b, phi)``; returns ``B_L`` and ``Phi_L`` of the same shapes.
        b: incidence matrices ``[..., n, num_edges]``.
        phi: ``Phi_0``, ``[..., n, width]``.
        rtol, atol: tolerance relative to the largest entry, for float64.

    Raises:
        AssertionError: if ``B`` or ``Phi`` changed; the message has the deviation.
        ValueError: if there are fewer than two edges.
    """
    if b.size(-1) < 2:
        raise ValueError(f"a permutation needs two edges, got {b.size(-1)}")
    generator = torch.Generator().manual_seed(0)
    expected_b, expected_phi = (out.detach() for out in run(b, phi))
    if expected_b.shape != b.shape or expected_phi.shape != phi.shape:
        shapes = f"{list(expected_b.shape)} and {list(expected_phi.shape)}"
        raise AssertionError(f"run(b, phi) must return {list(b.shape)} and {list(phi.shape)}, got {shapes}")
    for _ in range(TRIALS):
        order = _other_labels(b.size(-1), generator).to(b.device)
        sign = torch.where(torch.rand(b.size(-1), generator=generator) < 0.5, -1.0, 1.0).to(b)
        got_b, got_phi = (out.detach() for out in run(b[..., order] * sign, phi))
        for name, got, expected in (("B", got_b, expected_b[..., order] * sign), ("Phi", got_phi, expected_phi)):
            deviation, size = float((got - expected).abs().max()), float(expected.abs().max())
            if not deviation <= atol + rtol * size:
                raise AssertionError(
                    f"Lemma 10 does not hold: reordering and flipping edges changed {name} by "
                    f"{deviation:.3g}, with values up to {size:.3g} (rtol={rtol}, atol={atol})"
                )


def _other_labels(num_nodes: int, generator: torch.Generator) -> Tensor:
    """Draw a permutation that is not the identity."""
    label = torch.randperm(num_nodes, generator=generator)
    return label.roll(1) if bool((label == torch.arange(num_nodes)).all()) else label
