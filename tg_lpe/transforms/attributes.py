"""Write the attributes that a transform computes, and check their names."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from tg_lpe.data.storage import RESERVED

TAKEN = ("", "adj_t", "face", "num_nodes", "ptr")
"""Names with another meaning in PyTorch Geometric, and the empty name."""

FEATURES = ("x", "y", "z", "pos", "edge_attr", "edge_weight", "train_mask", "val_mask", "test_mask")
"""Names of features, labels, weights and masks of the user's graphs."""


def warn_of_loss(store: Any, name: str | None) -> None:
    """Warn if writing an attribute replaces features, labels, weights or masks; ``None`` appends to ``x``."""
    if name in FEATURES and store.get(name) is not None:
        warnings.warn(
            f"{name!r} of the graph is replaced by the encoding; choose another name for the encoding to keep both",
            stacklevel=2,
        )


def check_names(**names: str | None) -> None:
    """Check that attribute names, by argument, differ and have no other meaning in PyTorch Geometric.

    Raises:
        TypeError: if a name is neither a string nor ``None``, which stands for no attribute.
        ValueError: if a name is empty, has another meaning in PyTorch Geometric, or occurs twice.
    """
    for argument, name in names.items():
        if not isinstance(name, str | None):
            raise TypeError(f"{argument} must be a string or None, got {name!r}")
        if name is not None and (name in TAKEN or any(word in name for word in RESERVED)):
            raise ValueError(f"{argument} must be none of {TAKEN} and have none of {RESERVED} in it, got {name!r}")
    given = [name for name in names.values() if name is not None]
    if len(set(given)) < len(given):
        raise ValueError(f"{' and '.join(names)} must differ, got {given[0]!r} for both")


def record_slices(batch: Batch, kind: Any, name: str, level: str) -> None:
    """Record the first row of each graph, so that PyTorch Geometric can split a batch into graphs again.

    Args:
        batch: the batch; dictionaries that it shares with copies are replaced, not changed.
        kind: node or edge type of the attribute in ``HeteroData``; ``None`` for an attribute of the batch.
        name: the attribute.
        level: ``"node"``, ``"edge"`` or ``"graph"``.
    """
    slices, offsets = getattr(batch, "_slice_dict", None), getattr(batch, "_inc_dict", None)
    if slices is None or offsets is None:
        return  # a batch that was not collated from a list cannot be split anyway
    store, known = (batch, slices) if kind is None else (batch[kind], slices.get(kind, {}))
    start = {
        "node": store.get("ptr"),
        "edge": known.get("edge_index"),
        "graph": torch.arange(batch.num_graphs + 1),
    }.get(level)
    if start is None:
        return
    offset = torch.zeros(batch.num_graphs, dtype=torch.int64)
    for attribute, records, value in (("_slice_dict", slices, start), ("_inc_dict", offsets, offset)):
        update = {name: value} if kind is None else {kind: {**records.get(kind, {}), name: value}}
        setattr(batch, attribute, {**records, **update})


def write(data: Any, kind: Any, name: str | None, level: str, values: Tensor) -> None:
    """Write rows of an attribute to a graph or batch, or to a node or edge type of it; arguments as above."""
    store, key = data if kind is None else data[kind], "x" if name is None else name
    warn_of_loss(store, name)
    setattr(store, key, with_features(store.get("x"), name, values) if level == "node" else values)
    if isinstance(data, Batch):
        record_slices(data, kind, key, level)


def with_features(x: Tensor | None, name: str | None, encoding: Tensor) -> Tensor:
    """Return an encoding of the nodes, ``[num_nodes, k]``, appended to the features ``x`` if ``name`` is ``None``.

    Raises:
        ValueError: if ``x`` is not a dense vector or matrix with a row for each node.
    """
    if name is not None or x is None:
        return encoding
    is_dense = isinstance(x, Tensor) and x.layout == torch.strided
    if not is_dense or x.dim() not in (1, 2) or x.size(0) != encoding.size(0):
        form = f"{x.layout} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"attr_name=None appends the encoding to x, which must be dense [{encoding.size(0)}] or "
            f"[{encoding.size(0)}, num_features], got {form}; attr_name='pe' writes it to data.pe"
        )
    x = x.unsqueeze(-1) if x.dim() == 1 else x
    dtype = torch.promote_types(x.dtype, encoding.dtype)
    return torch.cat([x.to(dtype), encoding.to(dtype)], dim=-1)
