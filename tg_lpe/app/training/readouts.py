"""Closed-form read-outs of an encoder, with channels ordered by the variance they explain."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset

from tg_lpe.arguments import check_type
from tg_lpe.encoders import GramTransformer
from tg_lpe.encoders.precompute import CHUNK, CHUNK_PAIRS, incidences

CONSTANT = 1e-9
"""Largest standard deviation of a value that counts as constant; values are at most one."""

ROUNDING = 1e-10
"""Largest share of the variance of a component that counts as rounding; float32 keeps three digits of others."""


@torch.no_grad()
def principal_readouts(
    encoder: GramTransformer, dataset: InMemoryDataset, out_channels: int, edge_out_channels: int = 0
) -> GramTransformer:
    """Make an encoder with the same filters whose channels are principal components of the layers' values.

    The values that the read-outs read are first scaled to variance one over the dataset. The first ``m`` channels
    explain as much of their variance as any ``m`` linear functions can, so each prefix of the encoding is a good
    encoding of that width. All channels have variance one over the dataset, and node channels have mean zero.

    Args:
        encoder: an encoder that reads no features; its read-outs are not used.
        dataset: the graphs; edge weights are conductances.
        out_channels: width of the node encoding.
        edge_out_channels: width of the edge encoding; 0 for none.

    Raises:
        TypeError: if ``encoder`` is no :class:`~tg_lpe.GramTransformer`.
        ValueError: if the encoder reads features, or its values span fewer dimensions than the channels asked for.
    """
    check_type("encoder", encoder, GramTransformer)
    if features := sorted(encoder.reads & {"x", "edge_attr"}):
        raise ValueError(f"the encoder must read only the graph, got one that reads {features}")
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
    """Return the linear map ``[k, width]`` from values to the first ``k`` principal components of the scaled values.

    The components have variance one. In each, the value with the largest coefficient has a positive one.
    """
    centred = values - values.mean(0)
    std = centred.square().mean(0).sqrt()
    scale = torch.where(std > CONSTANT, 1 / std, 0.0)
    variance, axes = torch.linalg.eigh((centred * scale).mT @ (centred * scale) / max(len(values), 1))
    rank = int((variance > ROUNDING * variance.sum()).sum())
    if not 1 <= k <= rank:
        raise ValueError(f"the encoder's values span {rank} dimensions over the dataset, got {k} channels")
    axes, variance = axes.flip(1)[:, :k], variance.flip(0)[:k]
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return (axes / variance.sqrt()).mT * scale
