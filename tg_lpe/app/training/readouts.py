"""Closed-form read-outs of an encoder, with channels ordered by the variance they explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.whitened import Moments, moments_of

CONSTANT = 1e-9
"""Largest standard deviation of a value that counts as constant; values are at most one."""


@torch.no_grad()
def principal_readouts(encoder: Encoder, dataset: Sequence[Data]) -> Encoder:
    """Set the read-outs of nodes and edges to principal components of the values that they read.

    The values are first scaled to variance one over the dataset. The first ``m`` channels explain as much of their
    variance as any ``m`` linear functions can, so each prefix of the encoding is a good encoding of that width. All
    channels have variance one over the dataset, and node channels have mean zero. If the values span fewer dimensions
    than there are channels, the last channels are zero. ``tg-lpe train`` and :func:`tg_lpe.app.comparison.compare`
    start new encoders so, over the training part; training from random read-outs ends worse.

    Args:
        encoder: a :class:`~tg_lpe.LinearTransformer` with ``probes="identity"``, or a :class:`~tg_lpe.GramTransformer`
            with ``out_channels``.
        dataset: a PyG dataset or a sequence of ``Data``; edge weights are conductances.

    Returns:
        The encoder, changed in place.

    Raises:
        TypeError: if ``encoder`` is another one.
        ValueError: if a feature that the encoder reads is missing.
    """
    if not encoder.mixes_polynomials:
        kinds = "a LinearTransformer with probes='identity' or a GramTransformer with out_channels"
        raise TypeError(f"encoder must be {kinds}, got {encoder}")
    children, state = dict(encoder.named_children()), encoder.state_dict()
    maps = {"node": cast("nn.Linear", children["readout"])}
    width, device = maps["node"].in_features, maps["node"].weight.device
    if "edge_readout" in children:
        maps["edge"] = cast("nn.Linear", children["edge_readout"])
        state["edge_readout.weight"] = torch.eye(width)
    exact = encoder.made_anew(out_channels=width, edge_out_channels=width * (len(maps) - 1)).double().to(device)
    exact.load_state_dict({**state, "readout.weight": torch.eye(width), "readout.bias": torch.zeros(width)})
    _, moments = moments_of(exact, dataset, device)
    for level, part in maps.items():
        axes = principal_axes(moments[level], part.out_features).to(device)
        part.weight.copy_(axes)
        if part.bias is not None:
            part.bias.copy_(-axes @ moments[level].mean.to(device))
    return encoder


def principal_axes(moments: Moments, k: int) -> Tensor:
    """Return the linear map ``[k, width]`` from values to the first ``k`` principal components of the scaled values.

    The components have variance one, or are zero beyond the rank. In each, the value with the largest coefficient has a
    positive one.
    """
    std = (moments.scatter.diagonal() / max(moments.rows, 1)).sqrt()
    scale = torch.where(std > CONSTANT, 1 / std, 0.0)
    axes = moments._replace(scatter=scale.unsqueeze(1) * moments.scatter * scale).whitening()
    return nn.functional.pad(axes[:, :k].mT * scale, (0, 0, 0, max(0, k - len(std))))
