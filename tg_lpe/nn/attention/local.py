"""Local part of an attention layer: message passing by any convolution of PyTorch Geometric."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch_geometric.nn as pyg
from torch import Tensor, nn

from tg_lpe.arguments import check_options
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import reset_all

Local = str | type[nn.Module] | nn.Module
"""Name of a convolution in :mod:`torch_geometric.nn`, a class, or a module that is copied for each layer."""


def make_convolution(channels: int, local: Local, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Create a convolution whose input and output have the same width.

    Args:
        channels: width of node and edge features.
        local: a module, a class, or the name of a class in :mod:`torch_geometric.nn`. A class receives the arguments
            ``in_channels``, ``out_channels``, ``channels``, ``edge_dim`` and ``nn`` if its constructor has them. A
            module is copied, and its weights are drawn again.
        options: further arguments of a class.

    Raises:
        ValueError: if the name is unknown, or the class does not accept the arguments.
        TypeError: if ``local`` is none of these, or ``options`` are passed with a module.
    """
    check_options("local_options", options)
    options = options or {}
    if isinstance(local, nn.Module):
        if options:
            raise TypeError(f"local_options need the name or class of a convolution, got {dict(options)} for {local}")
        conv = copy.deepcopy(local)
        reset_all(conv)
        return conv
    cls = getattr(pyg, local, None) if isinstance(local, str) else local
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        if isinstance(local, str):
            raise ValueError(
                f"local must be a choice of the layer or a convolution, such as 'GATv2Conv', got {local!r}"
            )
        raise TypeError(f"local must be a name, a class or a module, got {local!r}")
    parameters = inspect.signature(cls).parameters
    sizes: dict[str, Any] = dict.fromkeys(("in_channels", "out_channels", "channels"), channels)
    if "nn" in parameters:
        sizes["nn"] = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))
    else:
        sizes["edge_dim"] = channels
    try:
        return cls(**{**{name: value for name, value in sizes.items() if name in parameters}, **options})
    except TypeError as error:
        raise ValueError(f"local={cls.__name__} needs other local_options: {error}") from error


def convolve(conv: nn.Module, h: Tensor, e: Tensor, graph: Graph) -> Tensor:
    """Apply a convolution to node features, ``[num_nodes, channels]``.

    Args:
        conv: called with ``(h, edge_index)``, and with ``edge_attr`` if its ``forward`` has that argument.
        h, e: features of nodes and edges.
        graph: the graph.

    Raises:
        ValueError: if an explainer masks edges, or the result does not have the shape of ``h``.
    """
    if any(
        isinstance(part, pyg.MessagePassing) and (part.explain or part._message_forward_hooks)
        for part in conv.modules()
    ):
        raise ValueError(
            f"edges of local={type(conv).__name__} cannot be masked or read by an explainer: the rest of the model "
            "reads edges too; set edge_mask_type=None"
        )
    edges = {"edge_attr": e.to(h.dtype)} if "edge_attr" in inspect.signature(conv.forward).parameters else {}
    out: Tensor = conv(h, graph.edges_by_target, **edges)
    if not isinstance(out, Tensor) or out.shape != h.shape:
        got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"local={type(conv).__name__} must return the shape of the node features, {list(h.shape)}, got {got}; "
            "local_options are arguments of its constructor, such as concat=False"
        )
    return out


class Convolution(nn.Module):
    """A convolution as the local part of an attention layer, see :func:`make_convolution`."""

    def __init__(self, hidden_channels: int, local: Local, options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.conv = make_convolution(hidden_channels, local, options)

    def forward(self, h: Tensor, e: Tensor, graph: Graph) -> Tensor:
        """Apply the convolution, see :func:`convolve`."""
        return convolve(self.conv, h, e, graph)
