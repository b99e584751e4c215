"""Load single graphs with labelled nodes from NumPy archives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, to_undirected

from tg_lpe.arguments import outside_nodes

_ARRAYS = ("edge_index", "y")
_SPARSE = ("x_indptr", "x_indices", "x_shape")


def load_node_graph(path: str | Path, *, undirected: bool = True) -> Data:
    """Load one graph, such as Amazon Photo or Coauthor CS, without unpickling.

    Args:
        path: an ``.npz`` archive with ``edge_index`` ``[2, num_edges]`` and class ``y`` ``[num_nodes]``. Optional
            features are ``x`` ``[num_nodes, num_features]``, or a sparse CSR matrix: ``x_indptr``, ``x_indices``,
            ``x_shape``, and ``x_data`` unless all values are one. Optional published splits are boolean ``train_mask``,
            ``val_mask`` and ``test_mask``, ``[num_splits, num_nodes]`` or ``[num_nodes]``.
        undirected: whether to list every edge in both directions. Duplicate edges are always dropped.

    Returns:
        ``edge_index`` int64, sorted by row, then column; ``y`` int64; ``x`` float32 ``[num_nodes, num_features]``, if
        there are features; and the masks as in PyG: ``[num_nodes]`` for one split, ``[num_nodes, num_splits]`` for
        several. :func:`tg_lpe.data.random_node_masks` draws a split.

    Raises:
        FileNotFoundError, ValueError: if there is no such archive, it lacks an array, an array of integers holds other
            values, or shapes do not fit.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, AttributeError, MemoryError) as error:
        raise ValueError(f"{path} is not an .npz archive of plain arrays: {error}") from error
    edge_index, y = _whole_numbers(path, arrays, _ARRAYS)
    if ignored := sorted(name for name in arrays if name.startswith("edge_") and name not in _ARRAYS):
        warnings.warn(f"{path}: {', '.join(ignored)} is not read; in Python a Data can hold it", stacklevel=2)
    x = _features(path, arrays)
    num_nodes = y.numel() if x is None else len(x)
    if y.shape != (num_nodes,):
        raise ValueError(f"{path}: {num_nodes} nodes need y [{num_nodes}]; got {tuple(y.shape)}")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        fit = "; write edge_index.T" if edge_index.shape[1:] == (2,) else ""
        raise ValueError(f"{path}: edge_index must be [2, num_edges], got {list(edge_index.shape)}{fit}")
    if bool(((edge_index < 0) | (edge_index >= num_nodes)).any()):
        raise ValueError(f"{path}: {outside_nodes(num_nodes, int(edge_index.min()), int(edge_index.max()))}")
    data = Data(x=x, edge_index=(to_undirected if undirected else coalesce)(edge_index, num_nodes=num_nodes), y=y)
    if x is None:
        data.num_nodes = num_nodes
    for name in sorted(arrays.keys() & {"train_mask", "val_mask", "test_mask"}):  # GraphSplits.of_masks checks them
        mask = torch.from_numpy(arrays[name])
        data[name] = mask.T.squeeze(1) if mask.dim() == 2 else mask
    return data


def _features(path: Path, arrays: dict[str, np.ndarray]) -> torch.Tensor | None:
    """Return the features of the nodes, dense; ``None`` if there are none."""
    if any(name in arrays for name in _SPARSE):
        if "x" in arrays:
            raise ValueError(f"{path}: features must be either x or {', '.join(_SPARSE)}, got both")
        indptr, indices, shape = (tensor.numpy() for tensor in _whole_numbers(path, arrays, _SPARSE))
        if shape.astype(float).prod() > 2**32:  # 16 GiB
            raise ValueError(f"{path}: x must have at most {2**32:,} entries, got x_shape {shape.tolist()}")
        values = arrays.get("x_data", np.ones(len(indices)))
        try:
            matrix = csr_matrix((values.astype(np.float32), indices, indptr), shape.tolist())
            matrix.check_format()
            return torch.from_numpy(matrix.toarray())
        except (ValueError, TypeError, MemoryError) as error:
            raise ValueError(f"{path}: x_data and {', '.join(_SPARSE)} must be a CSR matrix: {error}") from error
    if "x" not in arrays:
        return None
    x = arrays["x"]
    if x.dtype.kind not in "biuf" or x.ndim != 2:
        raise ValueError(f"{path}: x must be numbers [num_nodes, num_features], got {x.dtype} {x.shape}")
    return torch.from_numpy(x.astype(np.float32))


def _whole_numbers(path: Path, arrays: dict[str, np.ndarray], names: Sequence[str]) -> list[torch.Tensor]:
    """Convert the named arrays to int64; refuse values that this would change, and arrays that are missing."""
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {', '.join(sorted(arrays))}")
    tensors = []
    for name in names:
        array = arrays[name]
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{path}: {name} must hold whole numbers, got {array.dtype}")
        with np.errstate(invalid="ignore"):
            whole = array.astype(np.int64)
        if (wrong := whole != array).any():
            values = f"{array[wrong][:3].tolist()} of {array.dtype}"
            raise ValueError(f"{path}: {name} must hold whole numbers, got {values}")
        tensors.append(torch.from_numpy(whole))
    return tensors
