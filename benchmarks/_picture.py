"""Draw the picture of the README: structure and position on a molecule and on networks, as `tg-lpe show` draws them.

python benchmarks/_picture.py
"""

from __future__ import annotations

import io
from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch_geometric.datasets import KarateClub
from torch_geometric.utils import from_networkx

from tg_lpe import plot
from tg_lpe.checkpoints.files import replacing
from tg_lpe.encoders import load_encoder

PATH = Path(__file__).parent / "results" / "picture.png"
PARACETAMOL = "CC(=O)Nc1ccc(O)cc1"


def drawing(picture: plot.Picture, top: float, bottom: float) -> np.ndarray:
    """Return the pixels between two relative heights of the picture, without white margins."""
    pixels = imread(io.BytesIO(picture.png))[..., :3]
    pixels = pixels[int(top * len(pixels)) : int(bottom * len(pixels))]
    rows, columns = (np.flatnonzero((pixels < 0.98).any((axis, 2))) for axis in (1, 0))
    return pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def main() -> None:
    structure, position = (load_encoder(name).without_edges() for name in ("gram-k16", "positions-k16"))
    club, blocks = KarateClub()[0], from_networkx(nx.random_partition_graph([20] * 2, 0.3, 0.02, seed=3))
    pictures = {
        "structure: paracetamol": plot.molecule(PARACETAMOL, structure, channels=[2]),
        "structure: Zachary's karate club": plot.graph(club, structure, channels=[2]),
        "position: Zachary's karate club": plot.graph(club, position, channels=[0]),
        "position: two communities": plot.graph(blocks, position, channels=[0]),
    }
    figure = Figure(figsize=(13, 2.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(pictures))
    for axes, (title, picture) in zip(panels, pictures.items(), strict=True):
        axes.imshow(drawing(picture, *((0.12, 0.8) if "paracetamol" in title else (0.1, 0.85))))
        axes.set_title(title)
    for axes in panels:
        axes.axis("off")
    with replacing(PATH) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    print(PATH)


if __name__ == "__main__":
    main()
