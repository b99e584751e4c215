"""Any graph, drawn once for each channel of an encoding."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.encoders.base import Encoder
from tg_lpe.plot.picture import MIDDLE, NEGATIVE, POSITIVE, Channel, Picture, channels_of, check_encoder_to_draw, colour

MAX_NODES = 1000
"""Largest graph that is laid out: every pair of nodes is looked at in each step."""

STEPS = 150


def graph(
    data: Data,
    encoder: Encoder,
    *,
    channels: Sequence[int] | None = None,
    columns: int = 3,
    positions: Tensor | None = None,
) -> Picture:
    """Draw a graph once for each channel: nodes, and edges where the encoder encodes them, have its colours.

    Colours are those of :func:`~tg_lpe.plot.molecule`.

    Args:
        data: the graph, with the features that the encoder reads.
        encoder: any encoder.
        channels: numbers of channels, from 0; the first six if absent.
        columns: drawings in a row.
        positions: where the nodes are drawn, ``[num_nodes, 2]``; :func:`stress_layout` if absent.

    Raises:
        TypeError: if ``data`` is no ``Data``, or ``encoder`` no encoder.
        ValueError: if the graph has no nodes or, without ``positions``, more than 1,000, the encoder has no such
            channel, or a feature that it reads is missing.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    if not isinstance(data, Data) or data.edge_index is None:
        raise TypeError(f"a graph must be Data with edge_index, got {data!r}")
    check_encoder_to_draw(encoder)
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    num_nodes = data.num_nodes or 0
    if not num_nodes:
        raise ValueError("the graph has no nodes to draw")
    if positions is None:
        positions = stress_layout(data.edge_index, num_nodes)
    elif positions.shape != (num_nodes, 2):
        raise ValueError(f"positions must have shape {(num_nodes, 2)}, got {tuple(positions.shape)}")
    features = data.get("x"), data.get("edge_attr"), data.get("edge_weight")
    shown = channels_of(encoder, data.edge_index, num_nodes, *features, channels)
    figure = _figure(data.edge_index.cpu(), positions.double().cpu(), shown, columns)

    def saved(kind: str) -> bytes:
        import matplotlib

        out = io.BytesIO()
        # Without the date and random names the same graph gives the same file.
        with matplotlib.rc_context({"svg.hashsalt": "tg_lpe"}):
            figure.savefig(out, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
        return out.getvalue()

    return Picture(saved("svg").decode(), tuple(channel.number for channel in shown), lambda: saved("png"))


def stress_layout(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Positions in the plane whose distances follow the distances in the graph.

    Stress majorisation, `Graph Drawing by Stress Majorization <https://doi.org/10.1007/978-3-540-31843-9_25>`_, eq.
    (4), with weights ``d^-2``, from a start on a circle: nothing is drawn at random. Components lie beside each other.

    Args:
        edge_index: int64 ``[2, num_edges]``.
        num_nodes: number of nodes, at most 1,000.

    Returns:
        float64 ``[num_nodes, 2]``, around zero, widest along the first axis; neighbours are about 1 apart.

    Raises:
        ValueError: if there are more nodes.
    """
    if num_nodes > MAX_NODES:
        raise ValueError(f"graphs of up to {MAX_NODES} nodes are laid out, got {num_nodes}: give positions=")
    rows, cols = edge_index.cpu().numpy()
    adjacency = coo_matrix((np.ones(len(rows)), (rows, cols)), shape=(num_nodes, num_nodes))
    distance = shortest_path(adjacency.tocsr(), directed=False, unweighted=True)
    is_disconnected = np.isinf(distance)
    largest = distance[~is_disconnected].max() if num_nodes else 0.0
    distance[is_disconnected] = largest + 2.0
    weight = np.where(distance > 0, 1 / np.maximum(distance, 1.0) ** 2, 0.0)
    laplacian = np.diag(weight.sum(1)) - weight
    inverse = np.linalg.pinv(laplacian)
    angle = 2 * np.pi * np.arange(num_nodes) / max(num_nodes, 1)
    at = (largest + 1) / 2 * np.stack([np.cos(angle), np.sin(1.1 * angle)], 1)
    for _ in range(STEPS if num_nodes > 1 else 0):
        length = np.linalg.norm(at[:, None] - at[None], axis=2)
        ratio = np.where(length > 1e-9, weight * distance / np.maximum(length, 1e-9), 0.0)
        at = inverse @ ((np.diag(ratio.sum(1)) - ratio) @ at)
    at -= at.mean(0)
    return torch.from_numpy(at @ np.linalg.svd(at, full_matrices=False)[2].T if num_nodes > 1 else at)


def _figure(edge_index: Tensor, positions: Tensor, shown: list[Channel], columns: int) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.cm import ScalarMappable
        from matplotlib.collections import LineCollection
        from matplotlib.colors import LinearSegmentedColormap, Normalize
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModuleNotFoundError(
            "drawing a graph needs matplotlib: pip install 'tg-lpe[plot]'", name="matplotlib"
        ) from error
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    bars = max(len(channel.limits) for channel in shown)
    spans = positions.amax(0) - positions.amin(0)
    drawing = 3.4 * min(1.0, max(0.2, float(spans[1] / spans[0].clamp(min=1e-9))))
    figure = Figure(figsize=(3.6 * columns, (drawing + 0.4 + 0.55 * bars) * rows), layout="constrained")
    FigureCanvasAgg(figure)
    colours = LinearSegmentedColormap.from_list("tg_lpe", [NEGATIVE, MIDDLE, POSITIVE])
    size = min(120.0, 12000.0 / max(positions.size(0), 1))
    lines: Any = positions[edge_index.t()].numpy()
    x, y = positions.t().numpy()
    for place, channel in enumerate(shown):
        axes = figure.add_subplot(rows, columns, place + 1)
        edge_colours: Any = "0.7"
        if channel.edge is not None:
            edge_colours = [colour(value, channel.limits["edges"]) for value in channel.edge.tolist()]
            # An outline, so that an edge near zero is seen on white.
            axes.add_collection(LineCollection(lines, colors="0.6", linewidths=5.0, zorder=0))
        axes.add_collection(
            LineCollection(lines, colors=edge_colours, linewidths=4.0 if channel.edge is not None else 1.0, zorder=1)
        )
        node_colours: Any = "0.3"
        if channel.node is not None:
            node_colours = [colour(value, channel.limits["nodes"]) for value in channel.node.tolist()]
        axes.scatter(x, y, c=node_colours, s=size, edgecolors="0.3", linewidths=0.8, zorder=2, clip_on=False)
        axes.set(title=f"channel {channel.number}", aspect="equal")
        axes.margins(0.08)
        axes.axis("off")
        for what, largest in reversed(channel.limits.items()):  # the first lies lowest
            scale = ScalarMappable(Normalize(-largest, largest), colours)
            bar = figure.colorbar(scale, ax=axes, location="bottom", shrink=0.7, aspect=22)
            bar.ax.set_ylabel(what, rotation=0, ha="right", va="center")
            bar.set_ticks([-largest, 0, largest], labels=[f"{-largest:.2g}", "0", f"{largest:.2g}"])
    return figure
