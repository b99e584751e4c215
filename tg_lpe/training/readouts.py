"""Read-outs of an encoder in closed form, whose channels are in the order of what they explain."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset

from tg_lpe.encoders import GramTransformer
from tg_lpe.encoders.precompute import CHUNK, CHUNK_PAIRS, incidences

CONSTANT = 1e-9
"""Standard deviation up to which a value, which is at most one, counts as constant."""

ROUNDING = 1e-10
"""Share of the variance up to which a component counts as rounding; with more, float32 keeps three digits of it."""


@torch.no_grad()
def principal_readouts(
    encoder: GramTransformer, dataset: InMemoryDataset, out_channels: int, edge_out_channels: int = 0
) -> GramTransformer:
    """Make an encoder with the same filters, whose channels are principal components of what the layers compute.

    Every value that is read of the layers is scaled to variance one over the dataset. No ``m`` linear functions of them
    explain more of their variance than the first ``m`` channels of the encoding do, so every prefix of it is an
    encoding of that width. Channels have variance one over the dataset, those of nodes have mean zero.

    Args:
        encoder: one that reads no features; its own read-outs play no part.
        dataset: the graphs; edge weights count as conductances.
        out_channels: width of the node encoding.
        edge_out_channels: width of the edge encoding; 0 for none.

    Raises:
        ValueError: if the encoder reads features, or its values vary in fewer directions over the dataset.
    """
    if features := sorted(encoder.reads & {"x", "edge_attr"}):
        raise ValueError(f"the encoder must read the graph alone, got one that reads {features}")
    exact = copy.deepcopy(encoder).double()
    values = [exact.gram(graph) for graph in incidences(dataset, CHUNK, CHUNK_PAIRS)]
    node, edge = (torch.cat(parts) for parts in zip(*values, strict=True))
    result = encoder.made_anew(out_channels=out_channels, edge_out_channels=edge_out_channels)
    result.to(encoder.unit)
    result.conductances.load_state_dict(encoder.conductances.state_dict())
    state = {"readout.weight": principal_axes(node, out_channels)}
    state["readout.bias"] = -state["readout.weight"] @ node.mean(0)
    if edge_out_channels:
        state["edge_readout.weight"] = principal_axes(edge, edge_out_channels)
    result.load_state_dict(state, strict=False)
    return result.eval()


def principal_axes(values: Tensor, k: int) -> Tensor:
    """Return linear maps ``[k, width]`` from values scaled to variance one to their first ``k`` principal components.

    These have variance one, too; the value that counts most in a component counts positively.
    """
    centred = values - values.mean(0)
    std = centred.square().mean(0).sqrt()
    scale = torch.where(std > CONSTANT, 1 / std, 0.0)
    variance, axes = torch.linalg.eigh((centred * scale).mT @ (centred * scale) / max(len(values), 1))
    rank = int((variance > ROUNDING * variance.sum()).sum())
    if not 1 <= k <= rank:
        raise ValueError(f"the values vary in {rank} directions over the dataset, got {k} channels")
    axes, variance = axes.flip(1)[:, :k], variance.flip(0)[:k]
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return (axes / variance.sqrt()).mT * scale
