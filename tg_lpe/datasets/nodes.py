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
        ValueError: if it is no archive, lacks an array, or the arrays do not fit each other.
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
    num_nodes, num_features = (int(size) for size in arrays["x_shape"])
    indptr, indices = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("x_indptr", "x_indices"))
    edge_index, y = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("edge_index", "y"))
    if indptr.shape != (num_nodes + 1,) or y.shape != (num_nodes,) or int(indptr[-1]) != indices.numel():
        raise ValueError(
            f"{path}: {num_nodes} rows of x need x_indptr [{num_nodes + 1}] that ends in the length of x_indices, and "
            f"y [{num_nodes}]; got {tuple(indptr.shape)}, {indices.numel()} indices and {tuple(y.shape)}"
        )
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or not _within(edge_index, num_nodes):
        raise ValueError(f"{path}: edge_index must be [2, num_edges] with entries in 0..{num_nodes - 1}")
    if not _within(indices, num_features):
        raise ValueError(f"{path}: x_indices must lie in 0..{num_features - 1}")
    if not 0 <= num_nodes * num_features <= MAX_ENTRIES:
        raise ValueError(f"{path}: x must have at most {MAX_ENTRIES:,} entries, got {num_nodes} x {num_features}")
    x = torch.zeros(num_nodes, num_features)
    values = torch.from_numpy(arrays["x_data"].astype(np.float32)) if "x_data" in arrays else torch.ones(len(indices))
    x[torch.repeat_interleave(torch.arange(num_nodes), indptr.diff()), indices] = values
    make = to_undirected if undirected else coalesce
    return Data(x=x, edge_index=make(edge_index, num_nodes=num_nodes), y=y)


def _within(index: torch.Tensor, size: int) -> bool:
    return index.numel() == 0 or (int(index.min()) >= 0 and int(index.max()) < size)
