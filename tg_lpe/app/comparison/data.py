"""Convert the data of a comparison to splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_geometric.data import Batch, Data

from tg_lpe.data import GraphSplits, random_split
from tg_lpe.data.splits import Level, node_splits
from tg_lpe.data.storage import check_sequence


def splits_of(
    data: Any, target: str | Sequence[str] | None = None, level: Level | None = None, seed: int = 0
) -> GraphSplits:
    """Convert graphs with labels to training, validation and test set.

    Args:
        data: one of

            - splits;
            - a PyG dataset or a sequence of ``Data``, split at random 80/10/10;
            - one graph with labels of its nodes, split by its masks or at random 60/20/20;
            - the path of a file or folder of molecules, or of an ``.npz`` file with one graph, see
              ``tg-lpe train --help``.

        target: label columns of a table of molecules.
        level: whether rows of ``y`` belong to graphs or nodes, if their shape is ambiguous.
        seed: seed of the random split, or number of the split if a graph has several published ones.

    Raises:
        TypeError: if ``data`` is of another kind.
        ValueError: if the data are malformed, or an option would have no effect.
    """
    is_table = isinstance(data, str | Path) and Path(data).suffix.lower() != ".npz"
    if target is not None and not is_table:
        raise ValueError(f"target chooses columns of a table of molecules; graphs have labels y, got target={target!r}")
    if is_table and str(data).endswith((".pt", ".pth")):
        raise ValueError(f"{data} must be a file of molecules or .npz: pass the graphs that torch.load reads from it")
    if is_table:
        from tg_lpe.app.molecules import load_molecules

        targets = [target] if isinstance(target, str) else target
        splits: GraphSplits = load_molecules(data, targets=targets, seed=seed, progress=False)
    elif isinstance(data, str | Path):
        from tg_lpe.app.datasets.nodes import load_node_graph

        splits = node_splits(load_node_graph(data), seed)
    elif isinstance(data, GraphSplits):
        splits = data
    elif isinstance(data, Batch):
        raise TypeError("data must be a dataset or a sequence of Data, got a Batch: pass batch.to_data_list()")
    elif isinstance(data, Data):
        splits = node_splits(data, seed)
    else:
        check_sequence(data, "data must be splits, a path,")
        if len(data) == 1 and level != "graph":
            splits = node_splits(data[0], seed)
        else:
            splits = GraphSplits.of(*random_split(data, seed), level=level)
            splits = replace(splits, split={"kind": "random", "seed": seed})
    if level not in (None, splits.target.level):
        raise ValueError(f"level={level!r} does not fit labels of {splits.target.level}s; leave it out")
    return splits
