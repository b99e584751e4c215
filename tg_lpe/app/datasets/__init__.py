"""Load graphs with labelled nodes, make block models; see also :mod:`tg_lpe.app.molecules`."""

from tg_lpe.app.datasets.block_models import cluster_graphs, load_block_model, pattern_graphs
from tg_lpe.app.datasets.nodes import load_node_graph

__all__ = [
    "cluster_graphs",
    "load_block_model",
    "load_node_graph",
    "pattern_graphs",
]
