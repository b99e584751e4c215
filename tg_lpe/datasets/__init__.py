"""Random graphs, and what any dataset can be put through; :mod:`tg_lpe.datasets.molecules` has molecules."""

from tg_lpe.datasets.relabel import relabel_nodes
from tg_lpe.datasets.synthetic import random_incidences, random_weighted_graph

__all__ = ["random_incidences", "random_weighted_graph", "relabel_nodes"]
