"""Load graphs, make block models; see also :mod:`tg_lpe.app.molecules`."""

from tg_lpe.app.datasets.block_models import cluster_graphs, load_block_model, pattern_graphs
from tg_lpe.app.datasets.nodes import load_node_graph
from tg_lpe.app.datasets.splits import PYG_QM9_UNITS, load_folder

__all__ = ["PYG_QM9_UNITS", "cluster_graphs", "load_block_model", "load_folder", "load_node_graph", "pattern_graphs"]
