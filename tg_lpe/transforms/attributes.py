"""Write the attributes that a transform computes, and check their names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from tg_lpe.data.storage import RESERVED, starts

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


def check_names(names: Mapping[str, str | None], required: Sequence[str] = (), *, of_edges: bool = False) -> None:
    """Check that attribute names differ and have no other meaning in PyTorch Geometric.

    Args:
        names: the names by argument; ``None`` for no attribute.
        required: arguments that must not be ``None``.
        of_edges: whether ``attr_name`` is an attribute of edges.

    Raises:
        TypeError: if a name is not a string.
        ValueError: if a name is empty, has another meaning in PyTorch Geometric, or occurs twice.

    Warns:
        UserWarning: if PyTorch Geometric may mistake a node attribute of this name for an edge attribute, or the
            reverse.
    """
    seen: dict[str, str] = {}
    for argument, name in names.items():
        if not isinstance(name, str) and (name is not None or argument in required):
            allowed = "a string" if argument in required else "a string or None"
            raise TypeError(f"{argument} must be {allowed}, got {name!r}")
        if name is None:
            continue
        if any(word in name for word in RESERVED):
            raise ValueError(
                f"{argument}={name!r} is a name that PyTorch Geometric reads as node numbers; choose one without "
                f"{', '.join(RESERVED)}"
            )
        if name in TAKEN:
            raise ValueError(f"{argument} must be a name that is none of {TAKEN}, got {name!r}")
        if _is_a_method(name):
            raise ValueError(f"{argument}={name!r} would hide {name} of torch_geometric.data.Data; choose another name")
        if argument == "edge_attr_name" and "edge" not in name:
            warnings.warn(
                f"edge_attr_name={name!r} has no 'edge' in it: if a graph has as many nodes as edges, PyTorch "
                f"Geometric's subgraph and others take it for an attribute of nodes; 'edge_{name}' is safe",
                stacklevel=3,
            )
        if argument == "attr_name" and "edge" in name and not of_edges:
            warnings.warn(
                f"attr_name={name!r} has 'edge' in it: if a graph has as many nodes as edges, PyTorch Geometric's "
                "subgraph and others take it for an attribute of edges; choose a name without 'edge'",
                stacklevel=3,
            )
        if name in seen:
            raise ValueError(f"{seen[name]} and {argument} must differ, got {name!r} for both")
        seen[name] = argument


def _is_a_method(name: str) -> bool:
    """Return whether ``Data`` has a method or a read-only property of this name."""
    attribute = getattr(Data, name, None)
    return attribute is not None and not (isinstance(attribute, property) and attribute.fset is not None)


def record_slices(batch: Batch, kind: Any, name: str, level: str) -> None:
    """Record the first row of each graph, so that PyTorch Geometric can split a batch into graphs again.

    Args:
        batch: the batch; dictionaries that it shares with copies are replaced, not changed.
        kind: node or edge type of the attribute in ``HeteroData``; ``None`` for an attribute of the batch.
        name: the attribute.
        level: ``"node"``, ``"edge"``, ``"graph"`` or ``"pair"``, for all pairs of nodes of a graph.
    """
    slices, offsets = getattr(batch, "_slice_dict", None), getattr(batch, "_inc_dict", None)
    if slices is None or offsets is None:
        return  # a batch that was not collated from a list cannot be split anyway
    store, known = (batch, slices) if kind is None else (batch[kind], slices.get(kind, {}))
    ptr = getattr(store, "ptr", None)
    start = {"node": ptr, "edge": known.get("edge_index"), "graph": torch.arange(batch.num_graphs + 1)}.get(level)
    offset = torch.zeros(batch.num_graphs, dtype=torch.int64)
    if level == "pair" and ptr is not None:
        start, offset = starts(ptr.diff().square()), ptr[:-1] if "index" in name else offset
    if start is None:
        return
    for attribute, records, value in (("_slice_dict", slices, start), ("_inc_dict", offsets, offset)):
        update = {name: value} if kind is None else {kind: {**records.get(kind, {}), name: value}}
        setattr(batch, attribute, {**records, **update})


def with_features(x: Tensor | None, name: str | None, encoding: Tensor) -> Tensor:
    """Return an encoding of the nodes, ``[num_nodes, k]``, appended to the features ``x`` if ``name`` is ``None``.

    Raises:
        ValueError: if ``x`` is not a dense vector or matrix with a row for each node, or has integers that the
            encoding's dtype cannot represent.
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
    floats = x.to(dtype)
    if not (x.is_floating_point() or x.is_complex()) and (changed := _differs(floats, x)).any():
        raise ValueError(
            f"attr_name=None appends the encoding to x as {dtype}, which changes x={x[changed][0].item()} of {x.dtype};"
            " attr_name='pe' writes it to data.pe"
        )
    return torch.cat([floats, encoding.to(dtype)], dim=-1)


def _differs(floats: Tensor, integers: Tensor) -> Tensor:
    """Return whether the conversion of each integer to a float changed its value."""
    floats, integers = floats.cpu(), integers.cpu()  # not every device has float64
    # On some processors, a float outside of the integer's range converts back to the integer: compare as floats too.
    return (floats.double() != integers.double()) | (floats.to(integers.dtype) != integers)
