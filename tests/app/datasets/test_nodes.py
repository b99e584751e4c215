"""Graphs with labelled nodes, read from NumPy archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from tg_lpe.app.datasets import load_node_graph
from tg_lpe.data.splits import node_splits

X = scipy.sparse.csr_matrix(np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=np.float32))
ARRAYS = {
    "edge_index": np.array([[0, 1, 1, 3], [1, 2, 2, 4]], dtype=np.int32),
    "x_indptr": X.indptr,
    "x_indices": X.indices,
    "x_shape": np.array(X.shape),
    "y": np.array([0, 2, 1, 1, 0], dtype=np.int16),
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "graph.npz"
    np.savez(path, **ARRAYS)
    return path


def test_features_edges_and_classes(archive: Path) -> None:
    data = load_node_graph(archive)
    assert np.array_equal(data.x.numpy(), X.toarray()) and data.x.dtype == torch.float32
    assert data.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]
    assert data.y.tolist() == [0, 2, 1, 1, 0] and data.y.dtype == torch.int64
    assert load_node_graph(archive, undirected=False).edge_index.tolist() == [[0, 1, 3], [1, 2, 4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "lacks y; it has edge_index"),
        ({"y": np.zeros(4)}, r"y \[5\]; got"),
        ({"edge_index": np.array([[0], [6]])}, r"edge_index must lie in 0..4 .*got 0..6"),
        ({"edge_index": ARRAYS["edge_index"].T}, r"write edge_index.T$"),
        ({"edge_index": ARRAYS["edge_index"] + 1}, r"pass edge_index - 1$"),
        ({"x_indices": X.indices + 1}, "CSR matrix"),
        ({"y": np.array([{"a": 1}] * 5, dtype=object)}, "plain arrays"),
        ({"y": np.array([0, np.nan, 1, 1, 0])}, "y must"),
        ({"y": np.array(["a"] * 5)}, "y must"),
        ({"x_indptr": X.indptr + (np.arange(6) == 0)}, "CSR matrix"),
        ({"x_shape": np.array([5])}, "CSR matrix"),
        ({"x_data": np.ones(3)}, "CSR matrix"),
        ({"x_data": np.array(["a"] * 7)}, "CSR matrix"),
    ],
)
def test_archives_that_do_not_fit(tmp_path: Path, changes: dict[str, np.ndarray | None], message: str) -> None:
    arrays = {name: value for name, value in {**ARRAYS, **changes}.items() if value is not None}
    np.savez(tmp_path / "graph.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_node_graph(tmp_path / "graph.npz")


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.npz"):
        load_node_graph(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"not an \.npz archive"):
        load_node_graph(tmp_path / "text.npz")
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"not an \.npz archive"):
        load_node_graph(tmp_path / "array.npy")


def plain(**more: np.ndarray) -> dict[str, np.ndarray]:
    """Return the graph without features, with further arrays of an archive."""
    return {"edge_index": ARRAYS["edge_index"], "y": ARRAYS["y"], **more}


def masks(*shape: int) -> dict[str, np.ndarray]:
    """Masks of the three parts: nodes 0 and 1, 2 and 3, and 4, in each split of a shape."""
    parts = {"train_mask": [1, 1, 0, 0, 0], "val_mask": [0, 0, 1, 1, 0], "test_mask": [0, 0, 0, 0, 1]}
    return {name: np.broadcast_to(np.array(mask, dtype=bool), (*shape, 5)) for name, mask in parts.items()}


def test_features_written_out_or_absent(tmp_path: Path) -> None:
    np.savez(tmp_path / "dense.npz", **plain(x=X.toarray().astype(np.float64)))
    dense = load_node_graph(tmp_path / "dense.npz")
    assert np.array_equal(dense.x.numpy(), X.toarray()) and dense.x.dtype == torch.float32
    np.savez(tmp_path / "without.npz", **plain())
    without = load_node_graph(tmp_path / "without.npz")
    assert without.x is None and without.num_nodes == 5 and torch.equal(without.edge_index, dense.edge_index)


def test_edge_weights_are_named_as_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", **ARRAYS, edge_weight=np.ones(4))
    with pytest.warns(UserWarning, match="edge_weight"):
        load_node_graph(tmp_path / "graph.npz")


def test_published_splits(tmp_path: Path) -> None:
    for shape, expected in (((), [5]), ((1,), [5]), ((3,), [5, 3])):
        np.savez(tmp_path / "graph.npz", **plain(**masks(*shape)))
        data = load_node_graph(tmp_path / "graph.npz")
        assert list(data.val_mask.shape) == expected
        assert data.val_mask.reshape(5, -1)[:, -1].tolist() == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"x": np.ones(5)}, r"x must be numbers \[num_nodes"),
        ({"x": np.ones((4, 2))}, r"4 nodes need y \[4\]"),
        ({"x": X.toarray(), "x_indptr": X.indptr}, "features must be either x or .* got both"),
        ({"x_indptr": X.indptr}, "lacks x_indices, x_shape"),
        ({"train_mask": masks()["train_mask"]}, "val_mask must be bool"),
        ({"test_mask": masks()["test_mask"]}, "train_mask must be bool"),
        (masks() | {"test_mask": np.ones(5)}, "test_mask must be bool"),
        (masks(2) | {"val_mask": masks(2)["val_mask"][:, :4]}, "val_mask must be bool"),
    ],
)
def test_features_and_masks_that_do_not_fit(tmp_path: Path, more: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "graph.npz", **plain(**more))
    with pytest.raises(ValueError, match=message):
        node_splits(load_node_graph(tmp_path / "graph.npz"), seed=0)
