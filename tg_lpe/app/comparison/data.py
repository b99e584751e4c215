"""Convert the data of a comparison to splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch_geometric.data import Batch, Data

from tg_lpe.data import GraphSplits, random_split
from tg_lpe.data.splits import node_splits
from tg_lpe.data.storage import check_sequence


def splits_of(data: Any) -> GraphSplits:
    """Convert graphs with labels to training, validation and test set, at random with seed 0.

    Args:
        data: one of

            - splits;
            - a PyG dataset or a sequence of ``Data``, split at random 80/10/10;
            - one graph with labels of its nodes, split by its masks or at random 60/20/20.

    Raises:
        TypeError: if ``data`` is of another kind.
        ValueError: if the data are malformed.
    """
    if isinstance(data, GraphSplits):
        return data
    if isinstance(data, Batch):
        raise TypeError("data must be a dataset or a sequence of Data, got a Batch: pass batch.to_data_list()")
    if not isinstance(data, Data):
        check_sequence(data, "data must be splits,")
        if len(data) != 1:
            return replace(GraphSplits.of(*random_split(data, 0)), split={"kind": "random", "seed": 0})
        data = data[0]
    return node_splits(data, 0)
