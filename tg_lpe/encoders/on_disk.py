"""Gram read-outs of a graph whose edges do not fit into memory."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from tg_lpe.encoders.gram_transformer import GramTransformer
from tg_lpe.graph.graph import inverse_sqrt
from tg_lpe.graph.on_disk import BLOCK_ENTRIES, GraphOnDisk
from tg_lpe.ops.polynomials import BASES
from tg_lpe.ops.random import counter_signs


@torch.no_grad()
def encode_on_disk(
    encoder: GramTransformer, graph: GraphOnDisk, *, columns: int = 16, block_entries: int = BLOCK_ENTRIES
) -> Tensor:
    """Encode the nodes of a graph on disk, estimated from random probes.

    The result is that of the encoder with ``probes="rademacher"`` in memory, up to rounding. The layers process
    ``columns`` probes at a time; each pass reads the edges once, sequentially. In float32, memory holds
    ``9 * columns + 4 * out_channels + 20`` bytes a node.

    Args:
        encoder: an encoder that reads no features; its edge channels are not computed.
        graph: the graph.
        columns: probes that pass through the layers together. Fewer need less memory and more passes over the edges:
            ``num_filters * ((num_layers + 1) // 2) * num_probes / columns``.
        block_entries: entries of the adjacency matrix that are multiplied at once.

    Returns:
        ``[num_nodes, out_channels]``.

    Raises:
        ValueError: if the encoder is not a :class:`GramTransformer` without features and ``direction``, or ``columns``
            is less than 1.
    """
    if not isinstance(encoder, GramTransformer) or encoder.directed or not encoder.reads <= {"edge_weight"}:
        raise ValueError(f"a graph on disk needs a GramTransformer without features and direction, got {encoder}")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    like, n, layers, probes = encoder.unit, graph.num_nodes, encoder.num_layers, encoder.num_probes
    gamma = BASES[encoder.basis][1]
    weight = torch.eye(encoder.out_channels).to(like) if encoder.readout is None else encoder.readout.weight
    out = like.new_zeros(n, encoder.out_channels)
    if encoder.readout is not None:
        out += encoder.readout.bias
    degree, ground = graph.ptr.diff().to(like.dtype), encoder.conductances.of_types("x")
    readouts = weight.unflatten(1, (encoder.num_filters, layers)).unbind(1)
    if gamma:  # T_2s = 2 T_s T_s - I
        out -= sum(readout[:, 1::2].sum(1) for readout in readouts)
    share = (2 if gamma else 1) / probes
    for group in torch.arange(probes).split(columns):
        signs = torch.empty(n, len(group), dtype=torch.int8)
        for start in range(0, n, 2**20):  # in parts: a sign takes eight bytes while it is drawn
            stop = min(start + 2**20, n)
            signs[start:stop] = counter_signs(encoder.seed, stop - start, group, like, first_row=start)
        for number, readout in enumerate(readouts):
            diagonal = degree if ground is None else degree + ground[0, number]
            _add_probes(out, share * readout, graph, diagonal, signs, encoder, block_entries)
    return out


def _add_probes(
    out: Tensor,
    readout: Tensor,
    graph: GraphOnDisk,
    diagonal: Tensor,
    signs: Tensor,
    encoder: GramTransformer,
    block_entries: int,
) -> None:
    """Add the contribution of some probes to the read-out of one filter, in place.

    With ``S = diag(s)``, ``s = diagonal^-1/2`` and ``P = S A S``, memory holds ``S Phi_t`` instead of ``Phi_t``, so
    that each product has unit weights: ``S Phi_t = alpha S^2 A (S Phi_{t-1}) - gamma S Phi_{t-2}``.
    """
    alpha, gamma = BASES[encoder.basis]
    scale = inverse_sqrt(diagonal)
    phi = signs * scale.unsqueeze(1)
    previous = torch.empty_like(phi)
    ones = out.new_ones(0)
    for step in range(1, (encoder.num_layers + 1) // 2 + 1):
        for block in graph.blocks(block_entries):
            rows, size = slice(block.start, block.stop), (block.stop - block.start, graph.num_nodes)
            if len(ones) < len(block.col):
                ones = out.new_ones(len(block.col))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
                entries = block.crow, block.col, ones[: len(block.col)]
                part = torch.sparse_csr_tensor(*entries, size, check_invariants=False) @ phi
            part *= scale[rows, None].square()
            if gamma and step > 1:
                part = part.mul_(alpha).sub_(previous[rows], alpha=gamma)
            for layer, other in ((2 * step - 1, phi[rows]), (2 * step, part)):
                if 2 <= layer <= encoder.num_layers:
                    inner = torch.linalg.vecdot(part, other).div_(scale[rows].square())
                    out[rows].addr_(inner, readout[:, layer - 1])
            previous[rows] = part
        phi, previous = previous, phi
