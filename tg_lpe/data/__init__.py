"""Read and write PyTorch Geometric's in-memory storage in bulk, describe and split datasets, make random graphs."""

from tg_lpe.data.spec import DataSpec, TargetSpec
from tg_lpe.data.splits import GraphSplits, random_folds, random_link_split, random_node_masks, random_split
from tg_lpe.data.storage import GraphDataset
from tg_lpe.data.synthetic import random_incidences

__all__ = [
    "DataSpec",
    "GraphDataset",
    "GraphSplits",
    "TargetSpec",
    "random_folds",
    "random_incidences",
    "random_link_split",
    "random_node_masks",
    "random_split",
]
