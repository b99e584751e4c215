"""Draw the pictures of docs/gallery.md: structure and position on ten graphs, as `tg-lpe show` draws them.

python benchmarks/_gallery.py
"""

from __future__ import annotations

import io
from pathlib import Path

import networkx as nx
from _picture import drawing
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.utils import from_networkx

from tg_lpe import Encoder, Graph, plot
from tg_lpe.checkpoints.files import replacing
from tg_lpe.encoders import load_encoder

FOLDER = Path(__file__).parents[1] / "docs" / "_static" / "gallery"
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


def draw(axes: Axes, graph: Data, encoder: Encoder, channel: int) -> None:
    """Draw a graph with nodes coloured by a column."""
    column = encoder.encode(Graph.from_data(graph)).node[:, channel].detach()
    largest = float(column.abs().max())
    positions = plot.stress_layout(graph.edge_index, graph.num_nodes)
    axes.add_collection(LineCollection(positions[graph.edge_index.T].tolist(), colors="0.7", zorder=0))
    x, y = positions.T.tolist()
    axes.scatter(
        x,
        y,
        c=column.tolist(),
        cmap=COLOURS,
        vmin=-largest,
        vmax=largest,
        s=70,
        edgecolors="0.3",
        linewidths=0.8,
        clip_on=False,
    )
    axes.set_aspect("equal")
    axes.margins(0.06)


def main() -> None:
    structure, position = (load_encoder(name).without_edges() for name in ("gram-k16", "positions-k16"))
    shown = (
        ("structure, column 2", structure, 2),
        ("position, column 0", position, 0),
        ("position, column 1", position, 1),
    )
    FOLDER.mkdir(exist_ok=True)
    for name, graph in {**MOLECULES, **GRAPHS}.items():
        figure = Figure(figsize=(9.6, 2.8), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, (title, encoder, channel) in zip(figure.subplots(1, 3), shown, strict=True):
            if isinstance(graph, str):
                axes.imshow(drawing(plot.molecule(graph, encoder, channels=[channel]), 0.12, 0.85))
            else:
                draw(axes, from_networkx(graph) if isinstance(graph, nx.Graph) else graph, encoder, channel)
            axes.set_title(title)
            axes.axis("off")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100, bbox_inches="tight", pad_inches=0.05)
        with replacing(FOLDER / f"{name}.png") as temporary:  # few colours: a third of the size
            Image.open(buffer).convert("RGB").quantize(96).save(temporary, format="png", optimize=True)
    print(FOLDER)


if __name__ == "__main__":
    main()
