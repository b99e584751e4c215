"""Make random graphs, load graphs with labelled nodes, renumber nodes; see also :mod:`tg_lpe.datasets.molecules`."""

from tg_lpe.datasets.block_models import cluster_graphs, load_block_model, pattern_graphs
from tg_lpe.datasets.nodes import load_node_graph
from tg_lpe.datasets.relabel import relabel_nodes
from tg_lpe.datasets.synthetic import random_incidences, random_weighted_graph

__all__ = [
    "cluster_graphs",
    "load_block_model",
    "load_node_graph",
    "pattern_graphs",
    "random_incidences",
    "random_weighted_graph",
    "relabel_nodes",
]
