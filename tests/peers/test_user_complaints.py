"""Complaints about PyTorch Geometric's positional encodings, one test each, with the numbers of its issues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import LargestTensor, heat_pe, resistive_pe
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.utils import from_networkx

from tg_lpe import AddPositionalEncoding, LinearTransformerPE
from tg_lpe.data.synthetic import random_regular_edges
from tg_lpe.encoders import RandomWalk
from tg_lpe.transforms import AddLaplacianEigenvectors

NODE_TRANSFORMS = [
    lambda **options: LinearTransformerPE(attr_name="pe", **options),
    lambda **options: LinearTransformerPE.from_pretrained("positions-k16", attr_name="pe", **options),
    lambda **options: AddPositionalEncoding(RandomWalk(steps=8), **options),
    lambda **options: AddLaplacianEigenvectors(8, attr_name="pe", **options),
    lambda **options: heat_pe(**options),
    lambda **options: resistive_pe(8, **options),
]


def graph(source: nx.Graph) -> Data:
    data = from_networkx(nx.convert_node_labels_to_integers(source))
    return Data(edge_index=data.edge_index, num_nodes=source.number_of_nodes())


def adjacency(data: Data) -> np.ndarray:
    matrix = np.zeros((data.num_nodes, data.num_nodes))
    np.add.at(matrix, tuple(data.edge_index.numpy()), 1.0)
    return matrix


@pytest.mark.parametrize("make", NODE_TRANSFORMS)
def test_7499_nothing_is_drawn_from_the_global_generators(make) -> None:
    data = graph(nx.random_regular_graph(3, 300, seed=0))  # large enough for estimates and iterations
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
        found.append(make()(data).pe)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert str(np.random.get_state()) == before[1]  # noqa: NPY002
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "source",
    [nx.star_graph(200), nx.complete_graph(100), nx.path_graph(300), nx.grid_2d_graph(20, 20), nx.empty_graph(50)],
    ids=["star", "complete", "path", "grid", "no edges"],
)
def test_8530_repeated_and_close_eigenvalues_converge(source: nx.Graph) -> None:
    data = graph(source)
    options = {"normalization": None, "attr_name": "pe", "eigenvalue_attr_name": "eigenvalues"}
    out = AddLaplacianEigenvectors(6, **options)(data)
    matrix, pe, values = adjacency(data), out.pe.double().numpy(), out.eigenvalues[0].double().numpy()
    matrix = np.diag(matrix.sum(1)) - matrix
    null = nx.number_connected_components(source)
    expected = np.linalg.eigvalsh(matrix)[null : null + 6]
    np.testing.assert_allclose(values[: len(expected)], expected, rtol=1e-4, atol=1e-6 * matrix.max())
    assert np.isnan(values[len(expected) :]).all()
    found = pe[:, : len(expected)]
    assert np.abs(matrix @ found - found * values[: len(expected)]).max(initial=0) <= 1e-6 * matrix.max()
    assert np.abs(found.T @ found - np.eye(len(expected))).max(initial=0) < 1e-4


def test_10825_edges_that_are_listed_several_times_are_counted() -> None:
    one_way = torch.tensor([[0, 0, 0, 1, 2, 2], [1, 1, 2, 2, 3, 3]])
    data = Data(edge_index=torch.cat([one_way, one_way.flip(0)], 1), num_nodes=4)
    pe = AddPositionalEncoding(RandomWalk(steps=6), reduce="add")(data).pe
    walk = adjacency(data) / adjacency(data).sum(1, keepdims=True)
    expected = [np.diag(np.linalg.matrix_power(walk, step)) for step in range(1, 7)]
    np.testing.assert_allclose(pe.numpy().T, expected, rtol=1e-4, atol=1e-6)


class OnDisk(InMemoryDataset):
    """Three paths, processed into a folder."""

    def __init__(self, root: Path, pre_transform: Any) -> None:
        super().__init__(str(root), pre_transform=pre_transform)
        self.load(self.processed_paths[0])

    @property
    def processed_file_names(self) -> str:
        return "data.pt"

    def process(self) -> None:
        self.save([self.pre_transform(graph(nx.path_graph(n))) for n in (2, 5, 3)], self.processed_paths[0])


def test_computed_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GraphGPS, issues 7 and 32: positional encodings are computed again at every run."""
    transform = heat_pe()
    first = [data.pe for data in OnDisk(tmp_path, transform)]
    monkeypatch.setattr(AddPositionalEncoding, "compute", lambda *_: pytest.fail("computed again"))
    for again, expected in zip(OnDisk(tmp_path, heat_pe()), first, strict=True):
        assert torch.equal(again.pe, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearTransformerPE(attr_name="pe"),
        lambda: LinearTransformerPE.from_pretrained("positions-k16", 4, attr_name="pe"),
        lambda: AddLaplacianEigenvectors(4, attr_name="pe"),
        lambda: resistive_pe(4),
    ],
)
def test_dgl_5854_no_dense_matrix_of_a_large_graph(make) -> None:
    size = 10_000
    edge_index = random_regular_edges(size, 4, torch.Generator().manual_seed(0))
    transform = make()
    with LargestTensor() as seen:
        pe = transform(Data(edge_index=edge_index, num_nodes=size)).pe
    assert pe.shape[0] == size and pe.isfinite().all() and size < seen.largest <= size * 1000
