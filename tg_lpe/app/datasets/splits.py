"""Convert data to splits: graphs from Python, or the folder of a data set of PyTorch Geometric or OGB as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.utils import index_to_mask

from tg_lpe.arguments import ArgumentError
from tg_lpe.data import GraphDataset, GraphSplits, TargetSpec, random_split
from tg_lpe.data.splits import DIGESTED, PARTS, node_splits
from tg_lpe.data.storage import check_sequence, with_attribute

PYG_QM9_UNITS = {
    **{"mu": "Debye", "alpha": "Bohr^3", "homo": "eV", "lumo": "eV", "gap": "eV", "r2": "Bohr^2", "zpve": "eV"},
    **{"u0": "eV", "u298": "eV", "h298": "eV", "g298": "eV", "cv": "cal/(mol K)"},
    **{"u0_atom": "eV", "u298_atom": "eV", "h298_atom": "eV", "g298_atom": "eV", "A": "GHz", "B": "GHz", "C": "GHz"},
}
"""The columns of PyG's ``QM9`` with their units."""


def splits_of(data: Any, seed: int = 0) -> GraphSplits:
    """Convert graphs with labels to training, validation and test set.

    Args:
        data: one of

            - splits;
            - a PyG dataset or a sequence of ``Data``, split at random 80/10/10;
            - one graph with labels of its nodes, split by its masks or at random 60/20/20.
        seed: draws the split, or picks one of several masks.

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
            return replace(GraphSplits.of(*random_split(data, seed)), split={"kind": "random", "seed": seed})
        data = data[0]
    return node_splits(data, seed)


def graph_files(folder: str | Path) -> list[Path]:
    """List the files of graphs in the folder of a data set, or of one part of it such as ``subset``.

    Returns:
        ``train.pt``, ``val.pt`` and ``test.pt``, or one file; nothing without ``processed`` or beside tables of rows.

    Raises:
        ValueError: if the folder holds several data sets, or one without processed graphs.
    """
    root = Path(folder)
    if any(root.glob("train.*")) or any(root.glob("properties.*")):
        return []
    found = [path for name in ("processed", "*/processed") for path in sorted(root.glob(name))]
    if len(found) > 1:
        raise ValueError(f"{folder} holds several data sets: name one, {' or '.join(str(p.parent) for p in found)}")
    if not found and not [*root.glob("raw"), *root.glob("*/raw")]:
        return []
    listed = [path for path in (found or [root])[0].glob("*.pt") if path.stem not in ("pre_transform", "pre_filter")]
    files = {path.stem.removesuffix("_data"): path for path in listed}
    parts = [files[part] for part in PARTS if part in files]
    if len(parts) == len(PARTS) or len(files) == 1:
        return parts or [*files.values()]
    made = f"make the data set once in Python, as in torch_geometric.datasets.ZINC({str(folder)!r}, subset=True)"
    raise ValueError(f"{folder} needs processed/train.pt, val.pt, test.pt or one file, got {sorted(files)}: {made}")


def read_graphs(file: Path) -> GraphDataset:
    """Read graphs that PyG's :meth:`InMemoryDataset.save` or OGB wrote, without unpickling other classes.

    Raises:
        ValueError: if the file is damaged or holds something else.
    """
    try:
        with torch.serialization.safe_globals([DataEdgeAttr, DataTensorAttr, GlobalStorage]):  # OGB writes a Data
            data, slices, *_ = torch.load(file, weights_only=True)
        data = Data.from_dict(data) if isinstance(data, dict) else data
        if "x" in data:  # other attributes would be copied into each batch
            names = (*DIGESTED, *(f"{part}_mask" for part in PARTS))
            data = Data(**{name: data[name] for name in names if name in data})
        slices = slices and {name: each for name, each in slices.items() if name in data}
        for name in sorted({*data.keys()} - {"num_nodes"}):
            size = data[name].dim() and data[name].size(data.__cat_dim__(name, data[name]))
            steps = slices[name].diff(prepend=torch.tensor([0]), append=torch.tensor([size])) if slices else size
            if slices and (len(steps) != len(slices["edge_index"]) + 1 or (steps < 0).any()):
                raise ValueError(f"the slices of {name} do not fit")
        return GraphDataset(data, slices)
    except Exception as error:  # torch raises many types
        refused = re.search(r"GLOBAL (\S+)", str(error))
        first = re.sub("Weights only load failed.*", "it is damaged", str(error).partition("\n")[0])
        reason = f"it holds {refused[1]}" if refused else first
        raise ValueError(f"{file} has no graphs to read, make it again with PyG 2.7 or newer: {reason}") from error


def load_folder(folder: str | Path, seed: int = 0, targets: Sequence[str] = ()) -> GraphSplits:
    """Load a data set of PyTorch Geometric or OGB from the root folder in which it was made.

    It may be ``ZINC``, ``QM9``, ``MoleculeNet``, ``LRGBDataset``, OGB's ``PygGraphPropPredDataset``, or another one in
    memory. Its published split is kept; without one, it is split as by :func:`splits_of`. Raw files are not read.

    Args:
        folder: see :func:`graph_files`.
        seed: draws the split.
        targets: columns of ``y`` to predict, by default all: those of :data:`PYG_QM9_UNITS` for ``QM9``, and otherwise
            ``y`` for one column, or ``y0``, ``y1`` and so on.

    Raises:
        ValueError: if there are no graphs or they cannot be read, or a target is unknown or named twice.
    """
    files = graph_files(folder)
    if not files:
        raise ValueError(f"{folder} has no folder processed, as the data sets of PyG and OGB have")
    graphs = [read_graphs(file) for file in files]
    listed = sorted(files[0].parent.parent.glob("split/*/train.csv.gz"))  # by OGB
    if listed:
        names = ("train.csv.gz", "valid.csv.gz", "test.csv.gz")
        rows = [torch.from_numpy(np.loadtxt(listed[0].with_name(name), np.int64, ndmin=1)) for name in names]
        if len(graphs[0]) > 1:
            graphs = [graphs[0][numbers] for numbers in rows]
        else:  # of nodes
            graph = graphs[0][0]
            for part, numbers in zip(PARTS, rows, strict=True):
                graph[f"{part}_mask"] = index_to_mask(numbers, graph.num_nodes)
            graphs = [GraphDataset(graph, None)]
    splits = splits_of(graphs[0], seed) if len(graphs) == 1 else GraphSplits.of(*graphs)
    columns, level = splits.target.columns, splits.target.level
    units = PYG_QM9_UNITS if files[0].name == "data_v3.pt" and len(columns) == len(PYG_QM9_UNITS) else {}
    columns = tuple(units) or columns
    targets = tuple(targets) or columns
    if len(set(targets) & set(columns)) < len(targets):
        raise ArgumentError("{targets} must be some of the columns {}", ", ".join(columns), targets=list(targets))
    places = [columns.index(name) for name in targets]
    parts = {part: (vars(splits)[part], splits.labels(part)[:, places].squeeze(1)) for part in PARTS}
    return replace(
        splits,
        **{part: with_attribute(dataset, "y", level, labels) for part, (dataset, labels) in parts.items()},
        target=TargetSpec(targets, level, units=tuple(units[name] for name in targets if units)),
        split=splits.split or {"kind": "published"},
    )
