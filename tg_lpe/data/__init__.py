"""PyTorch Geometric's in-memory storage, read and written in bulk; what a dataset's graphs look like; its splits."""

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
