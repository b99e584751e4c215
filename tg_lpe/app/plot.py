"""Draw molecules and graphs, one drawing for each channel of an encoding.

Colours range from blue (negative) over light grey (zero) to orange (positive). Each drawing has its own scale; the
largest absolute value is written beside it.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.arguments import check_count, check_type
from tg_lpe.checkpoints.files import replacing
from tg_lpe.encoders.base import Encoder
from tg_lpe.graph.graph import Graph

if TYPE_CHECKING:
    from tg_lpe.app.molecules import AtomVocabulary

__all__ = ["Picture", "graph", "molecule", "stress_layout"]

# Distinguishable with any colour vision; black text is legible on all of them.
NEGATIVE, MIDDLE, POSITIVE = (0.27, 0.55, 0.83), (0.93, 0.93, 0.93), (0.93, 0.50, 0.22)
DEFAULT_CHANNELS = 6
MAX_NODES = 1000
"""Largest graph for :func:`stress_layout`, whose steps take time for every pair of nodes."""

WIDTH, HEIGHT, LEGEND = 300, 270, 14
"""Size in pixels of a molecule with its legend, and of the legend's letters."""


@dataclass(frozen=True)
class Picture:
    """A picture, displayed by notebooks.

    Attributes:
        svg: the picture as SVG.
        png: the picture as PNG.
        channels: numbers of the channels that it shows.
    """

    svg: str = field(repr=False)
    png: bytes = field(repr=False)
    channels: tuple[int, ...]

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file atomically.

        Args:
            path: a path that ends in ``.svg`` or ``.png``.

        Returns:
            The path.

        Raises:
            ValueError: if the path has another ending.
        """
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise ValueError(f"a picture's name must end in .svg or .png, got {path}")
        with replacing(path.resolve()) as temporary:
            temporary.write_bytes(self.png if path.suffix == ".png" else self.svg.encode())
        return path

    def _repr_png_(self) -> bytes:
        return self.png


def molecule(
    smiles: str,
    encoder: Encoder,
    *,
    vocabulary: AtomVocabulary | None = None,
    canonical: bool = True,
    channels: Sequence[int] | None = None,
    columns: int = 3,
) -> Picture:
    """Draw a molecule once for each channel; atoms, and bonds if edges are encoded, are coloured by their values.

    Args:
        smiles: the molecule.
        encoder: any encoder, such as ``load_encoder("gram-k8")`` or the ``encoder`` of a model.
        vocabulary: numbers of atom types, such as ``zoo.load(...).reader.vocabulary``; required if the encoder reads
            atom types.
        canonical: whether rings are kekulised as in canonical SMILES instead of in the order of ``smiles``.
        channels: numbers of channels, from 0; by default, the first six.
        columns: drawings in a row.

    Raises:
        TypeError: if ``encoder`` is not an encoder, or ``smiles`` not a string.
        ValueError: if the SMILES is invalid, a channel does not exist, or the encoder reads atom types and
            ``vocabulary`` is missing.
        ModuleNotFoundError: if RDKit is not installed.
    """
    from tg_lpe.app.molecules import AtomVocabulary, _molecule, smiles_to_data

    _check(encoder, columns)
    if not isinstance(smiles, str):
        raise TypeError(f"smiles must be one string, got {type(smiles).__name__}")
    if vocabulary is None:
        if "x" in encoder.reads:
            raise ValueError(
                f"this {type(encoder).__name__} reads atom types, so vocabulary must be given: the numbers of the types"
            )
        try:
            types, _ = _molecule.graph(_molecule.parse(smiles), canonical)
        except ValueError as error:
            raise ValueError(f"unusable SMILES {smiles!r}: {error}") from error
        vocabulary = AtomVocabulary.from_counts(Counter(types))
    data = smiles_to_data(smiles, vocabulary, canonical)
    shown = _channels(encoder, data, channels)
    from rdkit.Chem.Draw import rdMolDraw2D

    drawers = ((rdMolDraw2D.MolDraw2DSVG, 1), (rdMolDraw2D.MolDraw2DCairo, 2))
    drawn = _molecule.parse(smiles), data.edge_index, shown, columns
    svg, png = (_draw_molecule(drawer, scale, *drawn) for drawer, scale in drawers)
    return Picture(svg, png, tuple(channel.number for channel in shown))


def graph(
    data: Data,
    encoder: Encoder,
    *,
    channels: Sequence[int] | None = None,
    columns: int = 3,
    positions: Tensor | None = None,
) -> Picture:
    """Draw a graph once for each channel; nodes, and edges if they are encoded, are coloured by their values.

    Args:
        data: the graph, with the features that the encoder reads.
        encoder: any encoder.
        channels: numbers of channels, from 0; by default, the first six.
        columns: drawings in a row.
        positions: positions of the nodes, ``[num_nodes, 2]``; by default, :func:`stress_layout`.

    Raises:
        TypeError: if ``data``, ``encoder``, ``channels`` or ``positions`` has another type.
        ValueError: if the graph has no nodes or (without ``positions``) more than 1,000, a channel does not exist, or a
            required feature is missing.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    check_type("data", data, Data, ", which to_homogeneous() makes of HeteroData")
    _check(encoder, columns)
    shown = _channels(encoder, data, channels)
    if not data.num_nodes:
        raise ValueError("the graph has no nodes to draw")
    if positions is None:
        positions = stress_layout(data.edge_index, data.num_nodes)
    check_type("positions", positions, Tensor)
    if positions.shape != (data.num_nodes, 2):
        raise ValueError(f"positions must have shape {(data.num_nodes, 2)}, got {tuple(positions.shape)}")
    svg, png = _draw_graph(data.edge_index.cpu(), positions.double().cpu(), shown, columns)
    return Picture(svg.decode(), png, tuple(channel.number for channel in shown))


def stress_layout(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Compute positions in the plane whose distances approximate shortest-path distances.

    It is stress majorisation, `Graph Drawing by Stress Majorization <https://doi.org/10.1007/978-3-540-31843-9_25>`_,
    eq. (4), with weights ``d^-2``. It starts from a circle, so the result is deterministic. Components are drawn next
    to each other.

    Args:
        edge_index: int64 ``[2, num_edges]``.
        num_nodes: number of nodes, at most 1,000.

    Returns:
        float64 ``[num_nodes, 2]``, centred, widest along the first axis; neighbours have a distance of about 1.

    Raises:
        ValueError: if there are more than 1,000 nodes.
    """
    if num_nodes > MAX_NODES:
        raise ValueError(f"a layout is computed for up to {MAX_NODES} nodes, got {num_nodes}: pass positions=")
    if num_nodes < 2:
        return torch.zeros(num_nodes, 2, dtype=torch.float64)
    ends = tuple(edge_index.cpu().numpy())
    adjacency = coo_matrix((np.ones(len(ends[0])), ends), shape=(num_nodes, num_nodes))
    distance = shortest_path(adjacency.tocsr(), directed=False, unweighted=True)
    largest = distance[np.isfinite(distance)].max()
    distance[np.isinf(distance)] = largest + 2.0
    weight = np.where(distance > 0, 1 / np.maximum(distance, 1.0) ** 2, 0.0)
    inverse = np.linalg.pinv(np.diag(weight.sum(1)) - weight)
    angle = 2 * np.pi * np.arange(num_nodes) / num_nodes
    positions = (largest + 1) / 2 * np.stack([np.cos(angle), np.sin(1.1 * angle)], 1)
    for _ in range(150):
        length = np.linalg.norm(positions[:, None] - positions[None], axis=2)
        ratio = np.where(length > 1e-9, weight * distance / np.maximum(length, 1e-9), 0.0)
        positions = inverse @ ((np.diag(ratio.sum(1)) - ratio) @ positions)
    positions -= positions.mean(0)
    return torch.from_numpy(positions @ np.linalg.svd(positions, full_matrices=False)[2].T)


@dataclass(frozen=True)
class _Channel:
    """Colours of ``"nodes"`` and of directed ``"edges"``, and the value at the end of each colour scale."""

    number: int
    colours: dict[str, list[tuple[float, ...]]]
    limits: dict[str, float]

    def legend(self, **names: str) -> str:
        """Return the number and, for each level by its name, the value of the deepest colour."""
        ends = [f"{names[level]} ±{largest:.2g}" for level, largest in self.limits.items()]
        return ", ".join([f"channel {self.number}", *ends])


def _check(encoder: object, columns: int) -> None:
    if not isinstance(encoder, Encoder):
        got = repr(encoder) if isinstance(encoder, str) else type(encoder).__name__
        raise TypeError(f"encoder must be an Encoder, such as load_encoder('gram-k8') or model.encoder, got {got}")
    check_count("columns", columns)


def _channels(encoder: Encoder, data: Data, chosen: Sequence[int] | None) -> list[_Channel]:
    """Encode a graph and colour its chosen channels, or the first six."""
    width = max(encoder.out_channels, encoder.edge_out_channels)
    check_type("channels", [] if chosen is None else chosen, Iterable)
    chosen = range(min(width, DEFAULT_CHANNELS)) if chosen is None else [*chosen]
    if not chosen or any(not isinstance(number, Integral) or not 0 <= number < width for number in chosen):
        raise ValueError(f"channels must be numbers in 0..{width - 1}, as the encoder has {width}, got {list(chosen)}")
    weight = "edge_weight" if "edge_weight" in encoder.reads else None
    with torch.no_grad():
        encoding = encoder(data.get("x"), Graph.from_data(data, edge_weight=weight), data.get("edge_attr"))
    shown = []
    for number in map(int, chosen):
        channel = _Channel(number, {}, {})
        for level, values in (("nodes", encoding.node), ("edges", encoding.edge)):
            if values is not None and number < values.size(1) and values.size(0):
                column = values[:, number].double().cpu()
                finite = column[column.isfinite()].abs()
                largest = float(finite.max()) if finite.numel() else 0.0
                channel.limits[level] = largest if largest > 0 else 1.0
                channel.colours[level] = [_colour(value / channel.limits[level]) for value in column.tolist()]
        shown.append(channel)
    return shown


def _colour(share: float) -> tuple[float, ...]:
    """Return the colour of a value, given as a share of the largest; zero and NaN are light grey."""
    share = max(-1.0, min(1.0, share)) if share == share else 0.0
    end = POSITIVE if share > 0 else NEGATIVE
    return tuple(m + abs(share) * (e - m) for m, e in zip(MIDDLE, end, strict=True))


def _draw_molecule(
    drawer_class: Any, scale: int, molecule: Any, edge_index: Tensor, shown: list[_Channel], columns: int
) -> Any:
    """Return the picture in the format of RDKit's drawer, ``scale`` times as large in pixels."""
    columns = min(columns, len(shown))
    size = (WIDTH * columns, HEIGHT * -(-len(shown) // columns), WIDTH, HEIGHT)
    drawer = drawer_class(*(scale * length for length in size))
    options = drawer.drawOptions()
    options.useBWAtomPalette()
    options.padding = 0.08
    options.includeMetadata = False
    options.legendFontSize = LEGEND * scale
    bonds = [molecule.GetBondBetweenAtoms(*ends).GetIdx() for ends in edge_index.t().tolist()]
    atom_colours = [dict(enumerate(channel.colours.get("nodes", []))) for channel in shown]
    bond_colours = [dict(zip(bonds, channel.colours.get("edges", []), strict=False)) for channel in shown]
    drawer.DrawMolecules(
        [molecule] * len(shown),
        highlightAtoms=[list(colours) for colours in atom_colours],
        highlightBonds=[list(colours) for colours in bond_colours],
        highlightAtomColors=atom_colours,
        highlightBondColors=bond_colours,
        highlightAtomRadii=[dict.fromkeys(colours, 0.38) for colours in atom_colours],
        legends=[channel.legend(nodes="atoms", edges="bonds") for channel in shown],
    )
    drawer.FinishDrawing()
    return drawer.GetDrawingText()


def _draw_graph(edge_index: Tensor, positions: Tensor, shown: list[_Channel], columns: int) -> tuple[bytes, bytes]:
    """Return the picture as SVG and PNG."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "drawing a graph needs matplotlib: pip install 'tg-lpe[plot]'"
        raise ModuleNotFoundError(message, name="matplotlib") from error
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    spans = positions.amax(0) - positions.amin(0)
    drawing = 3.4 * min(1.0, max(0.2, float(spans[1] / spans[0].clamp(min=1e-9))))
    figure = Figure(figsize=(3.6 * columns, (drawing + 0.8) * rows), layout="constrained")
    FigureCanvasAgg(figure)
    size = min(120.0, 12000.0 / positions.size(0))
    x, y = positions.t().numpy()
    lines: Any = positions[edge_index.t()].numpy()
    for place, channel in enumerate(shown):
        axes = figure.add_subplot(rows, columns, place + 1)
        nodes, edges = channel.colours.get("nodes", "0.3"), channel.colours.get("edges", "0.7")
        if "edges" in channel.colours:  # an outline, so that light edges are visible on white
            axes.add_collection(LineCollection(lines, colors="0.6", linewidths=5.0, zorder=0))
        width = 4.0 if "edges" in channel.colours else 1.0
        axes.add_collection(LineCollection(lines, colors=edges, linewidths=width, zorder=1))
        axes.scatter(x, y, c=nodes, s=size, edgecolors="0.3", linewidths=0.8, zorder=2, clip_on=False)
        axes.set_title(channel.legend(nodes="nodes", edges="edges"), fontsize=10)
        axes.set(aspect="equal", adjustable="datalim")
        axes.margins(0.08)
        axes.axis("off")
    formats: list[bytes] = []
    for kind in ("svg", "png"):
        out = io.BytesIO()
        # No date and no random names, so that equal graphs give equal files.
        with matplotlib.rc_context({"svg.hashsalt": "tg_lpe"}):
            figure.savefig(out, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
        formats.append(out.getvalue())
    return formats[0], formats[1]
