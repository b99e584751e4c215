"""Read and write PyTorch Geometric's in-memory storage in bulk, describe a dataset's features, and split it."""

from tg_lpe.data.spec import DataSpec
from tg_lpe.data.splits import GraphSplits, TargetSpec, random_folds, random_link_split, random_node_masks, random_split
from tg_lpe.data.storage import GraphDataset

__all__ = [
    "DataSpec",
    "GraphDataset",
    "GraphSplits",
    "TargetSpec",
    "random_folds",
    "random_link_split",
    "random_node_masks",
    "random_split",
]
