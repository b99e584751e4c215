"""Split PyG data into training, validation and test set, with the description of features and labels."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import coalesce, contains_self_loops, is_undirected

from tg_lpe.arguments import (
    WITHOUT_EDGE_INDEX,
    as_plain,
    check_choice,
    check_count,
    check_seed,
    check_strings,
    check_type,
    outside_nodes,
)
from tg_lpe.data.seeding import seeded
from tg_lpe.data.spec import LEVELS, DataSpec, Level, TargetSpec
from tg_lpe.data.storage import GraphDataset, check_sequence, node_slices, whole, with_attribute

PARTS = ("train", "val", "test")
FROM_HETERO = ", which to_homogeneous() makes of HeteroData"
DIGESTED = ("edge_index", "x", "edge_attr", "edge_weight", "y", "graph_attr", "graph_weight")


@dataclass(frozen=True, kw_only=True)
class GraphSplits:
    """Hold the three splits of a dataset. Make them with :meth:`of` or :meth:`of_masks`.

    Attributes:
        train, val, test: the graphs, collated and whole (nothing selected, no transform). ``y`` is floating point, NaN
            for a missing label, with one row per graph or node: ``[num_rows]`` for one column, else
            ``[num_rows, num_columns]``.
        spec: sizes of the features.
        target: description of the labels.
        split: how the data was divided, such as ``{"kind": "random", "seed": 0}``; ``None`` if not known.
        smiles: SMILES of each graph of each part, if the graphs are molecules with known SMILES.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe.data import GraphSplits
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> graphs = [Data(x=torch.rand(3, 2), edge_index=edge_index, y=torch.rand(1)) for _ in range(10)]
        >>> splits = GraphSplits.of(graphs[:6], graphs[6:8], graphs[8:], level="graph")
        >>> len(splits.train), splits.spec.in_channels
        (6, 2)
    """

    train: InMemoryDataset
    val: InMemoryDataset
    test: InMemoryDataset
    spec: DataSpec
    target: TargetSpec
    split: Mapping[str, Any] | None = None
    smiles: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        train: Any,
        val: Any,
        test: Any,
        *,
        level: Level | None = None,
        columns: Sequence[str] | None = None,
        spec: DataSpec | None = None,
    ) -> GraphSplits:
        """Make splits from three datasets.

        Args:
            train, val, test: PyG datasets without ``transform``, or sequences of ``Data``. Labels are ``y``, per
                graph ``[1]``, ``[num_columns]`` or ``[1, num_columns]``, per node ``[num_nodes]`` or
                ``[num_nodes, num_columns]``. Optionally, ``graph_attr`` ``[1, graph_dim]`` holds real features of the
                whole graph, and ``graph_weight`` ``[1]`` is the weight of its labels in the training loss.
            level: whether a row of ``y`` belongs to a graph or a node; inferred from its shape if absent.
            columns: names of the columns of ``y``.
            spec: sizes of the features, if other data will have categories that do not occur here;
                :meth:`DataSpec.of` of the three datasets if absent.

        Raises:
            TypeError: if a dataset holds anything but ``Data``, labels are not numbers, ``columns`` is no sequence of
                strings, or ``spec`` no ``DataSpec``.
            ValueError: if a split is empty or has a ``transform``, only some splits have labels, their shapes do not
                fit or leave the level unclear, nodes have masks, or features are ambiguous (see :class:`DataSpec`).
        """
        if level is not None:
            check_choice("level", level, LEVELS)
        parts = {part: _whole(part, dataset) for part, dataset in zip(PARTS, (train, val, test), strict=True)}
        labelled = [part for part, dataset in parts.items() if dataset._data.get("y") is not None]
        if labelled and (others := [part for part in PARTS if part not in labelled]):
            which = f"{', '.join(labelled)} has them, {', '.join(others)} does not"
            raise ValueError(f"labels y must be in all splits or in none; {which}")
        spec = DataSpec.of(*parts.values()) if spec is None else spec
        check_type("spec", spec, DataSpec)
        if not labelled:
            if columns:
                raise ValueError(f"columns={tuple(columns)} are named, but the graphs have no labels y")
            return cls(**parts, spec=spec, target=TargetSpec(columns=(), level=level or "graph"))
        agreed_level = _common_level(parts, level)
        parts = {part: _with_labels(dataset, agreed_level) for part, dataset in parts.items()}
        widths = {part: dataset._data.y.unsqueeze(-1).size(1) for part, dataset in parts.items()}
        width = widths["train"]
        if len(set(widths.values())) > 1:
            raise ValueError(f"y must have equally many columns in every split, got {widths}")
        if columns is None:
            columns = ("y",) if width == 1 else tuple(f"y{number}" for number in range(width))
        check_strings("columns", columns)
        if len(columns) != width:
            raise ValueError(f"columns must name the {width} columns of y, got {columns!r}")
        return cls(**parts, spec=spec, target=TargetSpec(tuple(columns), agreed_level))

    @classmethod
    def of_masks(cls, data: Data, *, columns: Sequence[str] | None = None, spec: DataSpec | None = None) -> GraphSplits:
        """Split the nodes of one graph by masks.

        Every split is the whole graph, without the labels of the nodes outside its mask. Features and edges are shared,
        not copied.

        Args:
            data: a graph with ``y``, one row per node, and boolean ``train_mask``, ``val_mask`` and ``test_mask``,
                each ``[num_nodes]``; :func:`random_node_masks` draws them.
            columns: names of the columns of ``y``.
            spec: as for :meth:`of`.

        Raises:
            TypeError: if ``data`` is not a ``Data``.
            ValueError: if a mask or the labels are missing or of another shape, a mask is empty, or two overlap.
        """
        check_type("data", data, Data, FROM_HETERO)
        num_nodes = data.num_nodes or 0
        y = data.get("y")
        if not isinstance(y, Tensor) or y.dim() not in (1, 2) or y.size(0) != num_nodes:
            shape = tuple(y.shape) if isinstance(y, Tensor) else y
            raise ValueError(f"y must be [{num_nodes}] or [{num_nodes}, num_columns], a row for each node, got {shape}")
        masks = {part: _mask(data, f"{part}_mask", num_nodes) for part in PARTS}
        if bool((torch.stack(list(masks.values())).sum(0) > 1).any()):
            raise ValueError("train_mask, val_mask and test_mask must not share nodes")
        y = _floating(y)
        parts = {}
        for part, mask in masks.items():
            graph = copy.copy(data)
            for other in PARTS:
                del graph[f"{other}_mask"]
            graph.y = y.masked_fill(~mask if y.dim() == 1 else ~mask.unsqueeze(1), torch.nan)
            parts[part] = GraphDataset(graph, None)
        return cls.of(**parts, level="node", columns=columns, spec=spec)

    def labels(self, part: str) -> Tensor:
        """Return all labels of ``"train"``, ``"val"`` or ``"test"``, ``[num_rows, num_columns]``."""
        dataset: InMemoryDataset = vars(self)[part]
        if not self.target.columns:
            return torch.empty(len(dataset), 0)
        y: Tensor = dataset._data.y
        return y.reshape(-1, len(self.target.columns))

    def describe(self) -> dict[str, Any]:
        """Return sizes, features, labels and :meth:`digest` as a JSON-able dictionary, for a run's folder."""
        counts = {f"num_{part}": len(vars(self)[part]) for part in PARTS}
        if self.target.level == "node":
            counts |= {f"num_labelled_{part}": int((~self.labels(part).isnan()).any(1).sum()) for part in PARTS}
        split = None if self.split is None else dict(self.split)
        described = {"spec": self.spec.to_dict(), "target": self.target.to_dict(), "split": split}
        return {**counts, **described, "digest": self.digest()}

    def digest(self) -> str:
        """Return the SHA-256 of all edges, weights, features and labels, in order, hexadecimal."""
        state = hashlib.sha256()
        for part in PARTS:
            dataset: InMemoryDataset = vars(self)[part]
            state.update(f"{part} {len(dataset)};".encode())
            _update(state, "nodes", node_slices(dataset))
            for name in DIGESTED:
                value = dataset._data.get(name)
                if isinstance(value, Tensor):
                    _update(state, name, value)
                    if dataset.slices is not None:
                        _update(state, f"{name} slices", dataset.slices[name])
        return state.hexdigest()


def random_split(
    dataset: Any, seed: int, val: float = 0.1, test: float = 0.1
) -> tuple[Sequence[Data], Sequence[Data], Sequence[Data]]:
    """Divide a dataset at random into training, validation and test set, each in the dataset's order.

    Args:
        dataset: a PyG dataset or a sequence of ``Data``.
        seed: decides the draw; the global generator is not used.
        val, test: shares of these splits, rounded down, at least one graph each.

    Returns:
        Selections of a PyG dataset, or lists, for :meth:`GraphSplits.of`.

    Raises:
        TypeError: if ``dataset`` is one graph or no sequence.
        ValueError: if a share is not between 0 and 1, or the shares leave nothing for training.
    """
    return _selected(dataset, split_indices(_size(dataset), seed, val, test))


def _size(dataset: Any) -> int:
    """Return the number of graphs."""
    if isinstance(dataset, Data | HeteroData):
        raise TypeError(
            f"dataset must be a dataset or a sequence of Data, got one {type(dataset).__name__}; use random_node_masks "
            "for the nodes of one graph, and batch.to_data_list() for the graphs of a Batch"
        )
    check_sequence(dataset, "dataset must be")
    return len(dataset)


def _selected(dataset: Any, parts: Sequence[list[int]]) -> tuple[Sequence[Data], Sequence[Data], Sequence[Data]]:
    """Select three parts of a dataset."""
    if isinstance(dataset, InMemoryDataset):
        return cast(Any, tuple(dataset[part] for part in parts))
    return cast(Any, tuple([dataset[index] for index in part] for part in parts))


def random_folds(
    dataset: Any, seed: int, folds: int = 5, val: float = 0.1
) -> list[tuple[Sequence[Data], Sequence[Data], Sequence[Data]]]:
    """Divide a dataset at random for a cross-validation: each graph is in the test set of one fold.

    Args:
        dataset: a PyG dataset or a sequence of ``Data``.
        seed: decides the draw; the global generator is not used.
        folds: number of folds, at least 2.
        val: share of the validation set, which is drawn from the graphs outside the test set.

    Returns:
        Training, validation and test set of each fold, as from :func:`random_split`.

    Raises:
        TypeError: if ``dataset`` is one graph or no sequence.
        ValueError: if there are fewer than two folds, ``val`` is out of range, or a fold leaves nothing for training.
    """
    check_count("folds", folds, least=2)
    return [_selected(dataset, fold_indices(_size(dataset), seed, (fold, folds), val)) for fold in range(folds)]


def fold_indices(num_rows: int, seed: int, fold: tuple[int, int], val: float = 0.1) -> tuple[list[int], ...]:
    """Return the rows of the three parts of a fold, ascending; ``fold`` is as for :func:`check_fold`."""
    number, folds = fold
    _check_shares(seed, val, 1 / folds)
    bounds = [place * num_rows // folds for place in (number, number + 1)]
    num_test, num_val = bounds[1] - bounds[0], max(1, int(num_rows * val + 1e-6))
    if not num_test or num_rows <= num_val + num_test:
        raise ValueError(f"{num_rows} rows are too few for {folds} folds, with {num_val} for val")
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed)).roll(-bounds[0]).tolist()
    parts = (order[num_test + num_val :], order[num_test : num_test + num_val], order[:num_test])
    return tuple(sorted(part) for part in parts)


def check_fold(fold: tuple[int, int]) -> None:
    """Raise ``ValueError`` unless ``fold`` is the number of a fold, from 0, and the number of folds."""
    if not isinstance(fold, tuple | list) or len(fold) != 2:
        raise ValueError(f"fold must be a number from 0 and the number of folds, such as (0, 5), got {fold!r}")
    number, folds = fold
    check_count("folds", folds, least=2)
    if number not in range(folds):
        raise ValueError(f"fold must be a number from 0 to {folds - 1} and the number of folds, got {fold}")


def split_indices(num_rows: int, seed: int, val: float = 0.1, test: float = 0.1) -> tuple[list[int], ...]:
    """Return the rows of the three splits of :func:`random_split`, ascending."""
    _check_shares(seed, val, test)
    # A share such as 0.1 is not exact in binary: without the small term, a tenth of 30 might round down to 2.
    num_val, num_test = (max(1, int(num_rows * share + 1e-6)) for share in (val, test))
    if num_rows <= num_val + num_test:
        raise ValueError(f"{num_rows} rows are too few: {num_val} for val and {num_test} for test leave none for train")
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed)).tolist()
    bounds = (order[num_val + num_test :], order[:num_val], order[num_val : num_val + num_test])
    return tuple(sorted(part) for part in bounds)


def _check_shares(seed: int, val: float, test: float) -> None:
    check_seed(seed)
    are_numbers = isinstance(val, Real) and isinstance(test, Real)
    if not are_numbers or not (0 < val < 1 and 0 < test < 1 and val + test < 1):
        raise ValueError(f"val and test must be positive shares that add up to less than one, got {val!r} and {test!r}")


def random_node_masks(data: Data, seed: int, val: float = 0.2, test: float = 0.2) -> Data:
    """Copy a graph and add a random ``train_mask``, ``val_mask`` and ``test_mask``, 60/20/20 by default.

    Args:
        data: the graph; not changed.
        seed: decides the draw; the global generator is not used.
        val, test: shares of the nodes. PyG's ``RandomNodeSplit`` takes numbers of nodes of each class.

    Raises:
        TypeError: if ``data`` is no ``Data``.
        ValueError: if a share is not between 0 and 1, or nothing is left for training.
    """
    check_type("data", data, Data, FROM_HETERO)
    result = copy.copy(data)
    num_nodes = data.num_nodes or 0
    for part, rows in zip(PARTS, split_indices(num_nodes, seed, val, test), strict=True):
        mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[rows] = True
        result[f"{part}_mask"] = mask
    return result


def node_splits(data: Data, seed: int) -> GraphSplits:
    """Split the nodes of one graph by its masks, or at random 60/20/20 if it has none.

    Args:
        data: the graph. If it has several published splits, masks ``[num_nodes, num_splits]``, the seed picks one; a
            mask ``[num_nodes]``, such as the test mask of WikiCS, belongs to all of them.
        seed: decides the draw, or the split.

    Raises:
        ValueError: as in :meth:`GraphSplits.of_masks`, or if a split is drawn and ``seed`` is no integer of at least 0.
    """
    masks = data.get("train_mask")
    if all(data.get(f"{part}_mask") is None for part in PARTS):
        splits = GraphSplits.of_masks(random_node_masks(data, seed))
        return replace(splits, split={"kind": "random", "seed": seed})
    number, data = 0, copy.copy(data)
    if isinstance(masks, Tensor) and masks.dim() == 2 and masks.size(1) > 0:
        number = seed % masks.size(1)
        for name in (f"{part}_mask" for part in PARTS):
            if isinstance(mask := data.get(name), Tensor) and mask.dim() == 2:
                data[name] = mask[:, number]
    return replace(GraphSplits.of_masks(data), split={"kind": "published", "number": number})


def random_link_split(data: Data, seed: int, val: float = 0.05, test: float = 0.1) -> tuple[Data, Data, Data]:
    """Hide edges of a graph for validation and test, by PyG's ``RandomLinkSplit`` with a seed.

    The three graphs contain the edges that may be known: the training edges for training and validation, and also the
    validation edges for test. Encode the graphs after the split: an encoding of the whole graph reveals hidden edges.

    Args:
        data: an undirected graph with each edge listed once in each direction, with equal attributes, no self-loops.
        seed: decides the draw; the global generators are left as they were.
        val, test: shares of the edges to hide, rounded down.

    Returns:
        Graphs with pairs of nodes ``edge_label_index`` ``[2, num_pairs]`` and ``edge_label``, 1 for a hidden edge and 0
        for equally many pairs without an edge, if there are so many. The training graph has only its edges, label 1:
        draw new pairs of label 0 in each step, from all pairs. Excluding hidden edges from the draw would reveal them.

    Raises:
        TypeError: if ``data`` is not a ``Data``, or its ``edge_index`` no tensor.
        ValueError: if a share is not between 0 and 1, nothing is left for training, or edges are missing or not so.
    """
    check_type("data", data, Data, FROM_HETERO)
    _check_shares(seed, val, test)
    edge_index = as_plain(data.edge_index)  # PyG's is_undirected fails on some EdgeIndex
    if edge_index is None:
        raise ValueError(f"data needs edge_index, got data with {data.keys()}; {WITHOUT_EDGE_INDEX}")
    check_type("edge_index", edge_index, Tensor)
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"edge_index must be int64 or int32 [2, m], got {edge_index.dtype} {[*edge_index.shape]}")
    low, high = (int(edge_index.min()), int(edge_index.max())) if edge_index.numel() else (0, -1)
    if low < 0 or high >= (data.num_nodes or 0):
        raise ValueError(outside_nodes(data.num_nodes or 0, low, high))
    order = [(one.long() * (high + 1) + other).argsort() for one, other in (edge_index, edge_index.flip(0))]
    faults = {
        "edges in one direction only": not is_undirected(edge_index, num_nodes=data.num_nodes),
        "edges listed twice": coalesce(edge_index, num_nodes=data.num_nodes).size(1) < edge_index.size(1),
        "self-loops": contains_self_loops(edge_index),
        "an edge_label": "edge_label" in data,
    }
    for name in sorted({*data.edge_attrs()} - {"edge_index"}):  # PyG copies those of one direction to the other
        faults[f"unequal {name}"] = not torch.allclose(data[name][order[0]], data[name][order[1]], equal_nan=True)
    if got := ", ".join(fault for fault, is_present in faults.items() if is_present):
        hint = "apply PyG's RemoveSelfLoops and ToUndirected, and delete edge_label and unequal attributes"
        raise ValueError(f"edge_index must list each edge once in each direction, got {got}; {hint}")
    split = RandomLinkSplit(val, test, is_undirected=True, add_negative_train_samples=False)
    python_state = random.getstate()
    with seeded(seed, edge_index.device):
        random.seed(seed)  # PyG draws pairs without an edge from here
        try:
            return cast(tuple[Data, Data, Data], split(data))
        finally:
            random.setstate(python_state)


def _mask(data: Data, name: str, num_nodes: int) -> Tensor:
    """Return a mask of nodes; raise ``ValueError`` if it is missing, has another form or selects no node."""
    mask = data.get(name)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (num_nodes,):
        form = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
        raise ValueError(f"{name} must be bool [{num_nodes}], got {form}; random_node_masks(data, seed) draws masks")
    if not bool(mask.any()):
        raise ValueError(f"{name} selects no node")
    return mask


def _update(state: hashlib._Hash, name: str, value: Tensor) -> None:
    """Add a named tensor to a digest: its dtype, shape and bytes."""
    state.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
    value = value.detach().cpu().contiguous()
    if value.numel():
        state.update(value.view(-1).view(torch.uint8).numpy().data)


def _whole(part: str, dataset: Any) -> InMemoryDataset:
    if hasattr(dataset, "__len__") and len(dataset) == 0:
        raise ValueError(f"the {part} split has no graphs")
    try:
        return whole(dataset)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{part}: {error}") from error


def _common_level(parts: dict[str, InMemoryDataset], level: Level | None) -> Level:
    """Return the only level, or the given one, that the shapes of ``y`` allow in every split."""
    wanted = LEVELS if level is None else (level,)
    allowed = set(wanted)
    for part, dataset in parts.items():
        y, rows = _labels_and_rows(dataset)
        per_graph = bool((rows == (1 if y.dim() > 1 else rows[0])).all())
        per_node = torch.equal(rows, node_slices(dataset).diff())
        allowed &= {level for level, fits in (("graph", per_graph), ("node", per_node)) if fits}
        shape = tuple(torch.as_tensor(dataset._data.y).shape)
        if not allowed:
            sizes = f"{len(dataset)} graphs with {int(node_slices(dataset)[-1])} nodes"
            allowed_rows = " or one per ".join(wanted)
            raise ValueError(f"{part}: y must have one row per {allowed_rows}, got shape {shape} for {sizes}")
    if len(allowed) > 1:
        hint = "GraphSplits.of(..., level='graph') or level='node' says which"
        raise ValueError(f"y of shape {shape} may belong to graphs or to nodes: {hint}")
    return cast(Level, allowed.pop())


def _labels_and_rows(dataset: InMemoryDataset) -> tuple[Tensor, Tensor]:
    """Return ``y`` of all graphs, and the number of its rows in each graph."""
    y = dataset._data.y
    if not isinstance(y, (Tensor, int, float)):
        one = y[0] if isinstance(y, list) and y else y  # PyG lists what it cannot stack
        raise TypeError(f"labels y must be tensors or numbers, got {one!r:.80}")
    y = torch.as_tensor(y)
    if y.dim() > 2:
        raise ValueError(
            f"y must be [num_rows] or [num_rows, num_columns], got shape {tuple(y.shape)}; flatten(1) makes it so"
        )
    y = y.reshape(1) if y.dim() == 0 else y
    return y, torch.tensor([y.size(0)]) if dataset.slices is None else dataset.slices["y"].diff()


def _with_labels(dataset: InMemoryDataset, level: Level) -> InMemoryDataset:
    """Copy a dataset with ``y`` in the shape and dtype of :class:`GraphSplits`."""
    y, rows = _labels_and_rows(dataset)
    if level == "node" and any(f"{part}_mask" in dataset._data for part in PARTS) and not bool(y.isnan().any()):
        raise ValueError("only GraphSplits.of_masks reads train_mask and others: set y to NaN outside, and delete them")
    y = _floating(y.reshape(len(dataset) if level == "graph" else int(rows.sum()), -1))
    return with_attribute(dataset, "y", level, y.squeeze(1) if y.size(1) == 1 else y)


def _floating(y: Tensor) -> Tensor:
    """Convert labels to a floating point dtype that holds them exactly."""
    if y.is_complex():
        raise TypeError(f"labels y must be real numbers, got {y.dtype}; torch.view_as_real makes two columns")
    if y.is_floating_point():
        return y
    return y.double() if y.numel() and int(y.long().abs().max()) > 2**24 else y.float()
