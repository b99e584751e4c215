"""Pictures of encodings: molecules with coloured atoms and bonds, and any graph."""

from tg_lpe.plot.graphs import graph, stress_layout
from tg_lpe.plot.molecules import molecule
from tg_lpe.plot.picture import Picture

__all__ = ["Picture", "graph", "molecule", "stress_layout"]
