"""Single graphs with labelled nodes, from NumPy archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, to_undirected

MAX_ENTRIES = 2**32
"""Entries of ``x``, which is written out, at most: 16 GiB."""

_ARRAYS = ("edge_index", "x_indptr", "x_indices", "x_shape", "y")


def load_node_graph(path: str | Path, *, undirected: bool = True) -> Data:
    """Reads one graph, such as Amazon Photo or Coauthor CS; nothing is unpickled.

    Args:
        path: an ``.npz`` archive with ``edge_index`` ``[2, num_edges]``, class ``y`` ``[num_nodes]``, and the features
            as a sparse CSR matrix: ``x_indptr``, ``x_indices``, ``x_shape``, and ``x_data`` unless all values are one.
        undirected: whether to list every edge in both directions. Duplicate edges are dropped either way.

    Returns:
        ``x`` float32 ``[num_nodes, num_features]``, ``edge_index`` int64, sorted by row, then column, ``y`` int64.
        :func:`tg_lpe.data.random_node_masks` draws a split.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no archive, lacks an array, one holds no whole numbers, or they do not fit each other.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, AttributeError, MemoryError) as error:
        raise ValueError(f"{path} is not an .npz archive of plain arrays: {error}") from error
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {', '.join(sorted(arrays))}")
    edge_index, indptr, indices, shape, y = (_whole_numbers(path, name, arrays[name]) for name in _ARRAYS)
    if shape.shape != (2,):
        raise ValueError(f"{path}: x_shape must be num_nodes and num_features, got {shape.tolist()}")
    num_nodes, num_features = shape.tolist()
    if indptr.shape != (num_nodes + 1,) or y.shape != (num_nodes,) or int(indptr[-1]) != indices.numel():
        raise ValueError(
            f"{path}: {num_nodes} rows of x need x_indptr [{num_nodes + 1}] that ends in the length of x_indices, and "
            f"y [{num_nodes}]; got {tuple(indptr.shape)}, {indices.numel()} indices and {tuple(y.shape)}"
        )
    if int(indptr[0]) != 0 or bool((indptr.diff() < 0).any()):
        raise ValueError(f"{path}: x_indptr must begin with 0 and not decrease, got {_brief(indptr)}")
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or not _within(edge_index, num_nodes):
        raise ValueError(f"{path}: edge_index must be [2, num_edges] with entries in 0..{num_nodes - 1}")
    if not _within(indices, num_features):
        raise ValueError(f"{path}: x_indices must lie in 0..{num_features - 1}")
    if not 0 <= num_nodes * num_features <= MAX_ENTRIES:
        raise ValueError(f"{path}: x must have at most {MAX_ENTRIES:,} entries, got {num_nodes} x {num_features}")
    data = arrays.get("x_data", np.ones(len(indices), np.float32))
    if data.shape != (len(indices),) or data.dtype.kind not in "biuf":
        raise ValueError(f"{path}: x_data must be {len(indices)} numbers, got {data.dtype} {data.shape}")
    x, values = torch.zeros(num_nodes, num_features), torch.from_numpy(data.astype(np.float32))
    x[torch.repeat_interleave(torch.arange(num_nodes), indptr.diff()), indices] = values
    make = to_undirected if undirected else coalesce
    return Data(x=x, edge_index=make(edge_index, num_nodes=num_nodes), y=y)


def _whole_numbers(path: Path, name: str, array: np.ndarray) -> torch.Tensor:
    """An array as int64; what that would change is refused."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path}: {name} must hold whole numbers, got {array.dtype}")
    with np.errstate(invalid="ignore"):
        whole = torch.from_numpy(array.astype(np.int64))
    wrong = whole.numpy() != array
    if wrong.any():
        raise ValueError(f"{path}: {name} must hold whole numbers, got {array[wrong][:3].tolist()} of {array.dtype}")
    return whole


def _brief(values: torch.Tensor) -> str:
    return str(values[:5].tolist()) + (" ..." if len(values) > 5 else "")


def _within(index: torch.Tensor, size: int) -> bool:
    return index.numel() == 0 or (int(index.min()) >= 0 and int(index.max()) < size)
