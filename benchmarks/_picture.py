"""Draw the picture of the README: an encoding of a molecule and of a social network, as `tg-lpe show` draws them.

python benchmarks/_picture.py
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch_geometric.datasets import KarateClub

from tg_lpe import plot
from tg_lpe.checkpoints.files import replacing
from tg_lpe.encoders import load_encoder

PATH = Path(__file__).parent / "results" / "picture.png"
PARACETAMOL = "CC(=O)Nc1ccc(O)cc1"
COLUMNS = (2, 4)


def drawing(picture: plot.Picture, top: float, bottom: float) -> np.ndarray:
    """Return the pixels between two heights, given as shares of the picture, without the white around them."""
    pixels = imread(io.BytesIO(picture.png))[..., :3]
    pixels = pixels[int(top * len(pixels)) : int(bottom * len(pixels))]
    rows, columns = (np.flatnonzero((pixels < 0.98).any((axis, 2))) for axis in (1, 0))
    return pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def main() -> None:
    encoder = load_encoder("gram-k16")
    figure = Figure(figsize=(13, 2.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 4)
    for place, column in enumerate(COLUMNS):
        molecule = plot.molecule(PARACETAMOL, encoder, channels=[column])
        network = plot.graph(KarateClub()[0], encoder, channels=[column])
        panels[place].imshow(drawing(molecule, 0.12, 0.8))
        panels[place].set_title(f"paracetamol, column {column}")
        panels[place + 2].imshow(drawing(network, 0.1, 0.72))
        panels[place + 2].set_title(f"Zachary's karate club, column {column}")
    for axes in panels:
        axes.axis("off")
    with replacing(PATH) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    print(PATH)


if __name__ == "__main__":
    main()
