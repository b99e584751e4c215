"""Draw structure and position as `tg_lpe.plot` does: the picture of the README, and those of docs/gallery.md.

    python benchmarks/_pictures.py [--networks]

With --networks, draw the networks of two tutorials instead, which needs pandapower.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import torch
from _figures import save
from _results import RESULTS
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.utils import from_networkx

from tg_lpe import Encoder, Graph, plot
from tg_lpe.checkpoints.files import replacing
from tg_lpe.encoders import ElectricFlow, load_encoder, without_edges

GALLERY = Path(__file__).parents[1] / "docs" / "_static" / "gallery"
MOLECULES = {
    "caffeine": "Cn1c(=O)c2c(ncn2C)n(C)c1=O",
    "ibuprofen": "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
}
GRAPHS = {
    "karate": KarateClub()[0],
    "communities": nx.random_partition_graph([14] * 4, 0.5, 0.02, seed=3),
    "grid": nx.grid_2d_graph(5, 9),
    "tree": nx.balanced_tree(2, 4),
    "lollipop": nx.lollipop_graph(6, 8),
    "petersen": nx.petersen_graph(),
    "ladder": nx.circular_ladder_graph(12),
    "apart": nx.disjoint_union(nx.cycle_graph(8), nx.balanced_tree(2, 2)),
}
COLOURS = LinearSegmentedColormap.from_list("tg_lpe", [plot.NEGATIVE, plot.MIDDLE, plot.POSITIVE])


def drawing(picture: plot.Picture, top: float, bottom: float) -> np.ndarray:
    """Return the pixels between two relative heights of the picture, without white margins."""
    pixels = imread(io.BytesIO(picture.png))[..., :3]
    pixels = pixels[int(top * len(pixels)) : int(bottom * len(pixels))]
    rows, columns = (np.flatnonzero((pixels < 0.98).any((axis, 2))) for axis in (1, 0))
    return pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def draw_picture(structure: Encoder, position: Encoder) -> None:
    """Draw the picture of the README: a molecule, a network, and a grid with currents."""
    club = KarateClub()[0]
    pictures = {
        "structure: paracetamol": plot.molecule("CC(=O)Nc1ccc(O)cc1", structure, channels=[2]),
        "structure: Zachary's karate club": plot.graph(club, structure, channels=[2]),
        "position: Zachary's karate club": plot.graph(club, position, channels=[0]),
    }
    figure = Figure(figsize=(13, 2.9), layout="constrained")
    *places, last = figure.subplots(1, len(pictures) + 1)
    for axes, (title, picture) in zip(places, pictures.items(), strict=True):
        axes.imshow(drawing(picture, *((0.0, 0.87) if "paracetamol" in title else (0.12, 1.0))))
        axes.set_title(title)
    draw_flow(last)
    for axes in (*places, last):
        axes.axis("off")
    save(figure, RESULTS / "picture.png")


def draw_flow(axes: Axes) -> None:
    """Draw the currents from one node of a grid with holes to another as widths, and potentials as colours."""
    grid = nx.grid_2d_graph(6, 8)
    grid.remove_nodes_from([(1, 2), (2, 2), (3, 5), (4, 5), (4, 1)])
    positions, edge_index = np.array(grid.nodes), from_networkx(grid).edge_index
    demand = torch.zeros(len(positions), 1)
    demand[0], demand[-1] = 1.0, -1.0
    flow = ElectricFlow()(demand, edge_index)
    widths = 0.4 + 9 * flow.edge[:, 0].abs().numpy()
    axes.add_collection(LineCollection(positions[edge_index.T.numpy()][..., ::-1], linewidths=widths, colors="0.7"))
    axes.scatter(*positions.T[::-1], c=flow.node[:, 0], cmap=COLOURS, s=45, edgecolors="0.3", linewidths=0.8, zorder=2)
    axes.set_title("electric flow: potentials and currents")
    axes.set_aspect("equal")


def draw_gallery(structure: Encoder, position: Encoder) -> None:
    """Draw each graph of the gallery with nodes coloured by three columns."""
    GALLERY.mkdir(exist_ok=True)
    shown = (
        ("structure, column 2", structure, 2),
        ("position, column 0", position, 0),
        ("position, column 1", position, 1),
    )
    for name, graph in {**MOLECULES, **GRAPHS}.items():
        figure = Figure(figsize=(9.6, 2.8), layout="constrained")
        for axes, (title, encoder, channel) in zip(figure.subplots(1, 3), shown, strict=True):
            if isinstance(graph, str):
                axes.imshow(drawing(plot.molecule(graph, encoder, channels=[channel]), 0.0, 0.87))
            else:
                draw(axes, from_networkx(graph) if isinstance(graph, nx.Graph) else graph, encoder, channel)
            axes.set_title(title)
            axes.axis("off")
        save_small(figure, name)


def save_small(figure: Figure, name: str) -> None:
    """Write a picture of the gallery with few colours: a third of the size."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100, bbox_inches="tight", pad_inches=0.05)
    with replacing(GALLERY / f"{name}.png") as temporary:
        Image.open(buffer).convert("RGB").quantize(96).save(temporary, format="png", optimize=True)


def draw_networks() -> None:
    """Draw the networks that the first blocks of two tutorials make: currents and bridges, and shares of currents."""
    for name, blocks, size in (("power_grid", 3, (9, 5)), ("roads", 2, (5, 4.2))):
        page, found = (GALLERY.parents[1] / "tutorials" / f"{name}.md").read_text("utf-8"), {}
        for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)[:blocks]:
            exec(block, found)
        if name == "roads":
            places, edge_index = found["data"].pos.numpy(), found["data"].edge_index
            color = {"array": found["share"], "cmap": "cividis", "linewidths": 1.6}
        else:
            places = np.array([json.loads(geo)["coordinates"] for geo in found["net"].bus.geo])
            edge_index, width = found["grid"].edge_index, found["flow"].edge[:, 0].abs()
            bridge = found["share"] > 1 - 1e-9
            color = {"colors": [plot.POSITIVE if is_bridge else plot.NEGATIVE for is_bridge in bridge]}
            color["linewidths"] = 0.5 + 8 * width / width.max()
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        lines = axes.add_collection(LineCollection(places[edge_index.T.numpy()], capstyle="round", **color))
        if name == "roads":
            figure.colorbar(lines, shrink=0.7)
        else:
            axes.scatter(*places.T, s=9, c="0.2", zorder=2)
        axes.autoscale()
        axes.set_aspect("equal")
        axes.axis("off")
        save_small(figure, name)


def draw(axes: Axes, graph: Data, encoder: Encoder, channel: int) -> None:
    """Draw a graph with nodes coloured by a column."""
    column = encoder(None, Graph.from_data(graph)).node[:, channel].detach()
    largest = float(column.abs().max())
    positions = plot.stress_layout(graph.edge_index, graph.num_nodes)
    axes.add_collection(LineCollection(positions[graph.edge_index.T].tolist(), colors="0.7", zorder=0))
    colors = {"c": column.tolist(), "cmap": COLOURS, "vmin": -largest, "vmax": largest}
    axes.scatter(*positions.T.tolist(), **colors, s=70, edgecolors="0.3", linewidths=0.8, clip_on=False)
    axes.set_aspect("equal")
    axes.margins(0.06)


def main() -> None:
    if "--networks" in sys.argv[1:]:
        return draw_networks()
    structure, position = (without_edges(load_encoder(name)) for name in ("gram-k16", "positions-k16"))
    draw_picture(structure, position)
    draw_gallery(structure, position)


if __name__ == "__main__":
    main()
