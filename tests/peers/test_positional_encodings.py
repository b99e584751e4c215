"""What the test suites of PyG, Graphium and GraphGPS, and the documentation of DGL, say of encodings, asserted of ours.

Where ours promise something else, the test says what, and why.
"""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import AddPositionalEncoding
from tg_lpe.encoders import EffectiveResistance, HeatKernel, RandomWalk
from tg_lpe.transforms import AddLaplacianEigenvectors

TRIANGLE_AND_PATH = torch.tensor([[0, 1, 0, 4, 1, 4, 2, 3, 3, 5], [1, 0, 4, 0, 4, 1, 3, 2, 5, 3]])
TWO_TRIANGLES = torch.cat([TRIANGLE_AND_PATH, torch.tensor([[2, 5], [5, 2]])], 1)


def data_of(source: nx.Graph) -> Data:
    one_way = torch.tensor(list(nx.convert_node_labels_to_integers(source).edges), dtype=torch.int64).view(-1, 2).T
    return Data(edge_index=torch.cat([one_way, one_way.flip(0)], 1), num_nodes=len(source))


def walks(data: Data, steps: int) -> Tensor:
    return AddPositionalEncoding(RandomWalk(steps=steps))(data).pe


def eigenvectors(data: Data, k: int, **options: Any) -> tuple[Tensor, Tensor]:
    options = {"normalization": None, "attr_name": "pe", "eigenvalue_attr_name": "eigenvalues", **options}
    out = AddLaplacianEigenvectors(k, **options)(data)
    return out.pe, out.eigenvalues[0]


# ------------------------------------------------------------------------------------------------ PyTorch Geometric


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (lambda name: AddLaplacianEigenvectors(3, attr_name=name), 3),
        (lambda name: AddPositionalEncoding(RandomWalk(steps=3), name), 3),
        (lambda name: AddPositionalEncoding(HeatKernel(times=(0.5, 2.0)), name), 2),
    ],
)
def test_pyg_attribute_names(make: Any, width: int) -> None:
    """``None`` appends to ``x``, ``"x"`` replaces it, any other name is a new attribute; the input stays as it was."""
    data = Data(x=torch.randn(6, 4), edge_index=TRIANGLE_AND_PATH)
    assert make("pe")(data).pe.shape == (6, width)
    assert make(None)(data).x.shape == (6, 4 + width) and torch.equal(make(None)(data).x[:, :4], data.x)
    assert make("x")(data).x.shape == (6, width)
    assert data.x.shape == (6, 4) and set(data.keys()) == {"x", "edge_index"}


def test_pyg_return_probabilities_of_a_triangle_and_a_path() -> None:
    found = walks(Data(edge_index=TRIANGLE_AND_PATH, num_nodes=6), 3)
    triangle, end, middle = [0.0, 0.5, 0.25], [0.0, 0.5, 0.0], [0.0, 1.0, 0.0]
    torch.testing.assert_close(found, torch.tensor([triangle, triangle, end, middle, triangle, end]))


def test_pyg_nodes_without_edges() -> None:
    """PyG keeps walkers on self-loops. We drop them, as Laplacians do, so no walk leaves such a node."""
    loops = Data(edge_index=torch.tensor([[0, 1, 2], [0, 1, 2]]), num_nodes=4)
    assert torch.equal(walks(loops, 3), torch.zeros(4, 3))
    assert torch.equal(walks(Data(edge_index=loops.edge_index[:, :0], num_nodes=1), 3), torch.zeros(1, 3))


@pytest.mark.parametrize("is_listed_twice", [True, False])
def test_pyg_the_first_eigenvector_tells_clusters_apart(is_listed_twice: bool) -> None:
    """Of two triangles PyG's is constant on each, with ``is_undirected`` or not. That is a null vector.

    Ours begin after the null vector of each component, so the triangles are joined by an edge here, and columns of two
    separate ones have mean zero on each. Whether both directions of an edge are listed makes no difference.
    """
    bridge = torch.tensor([[4, 2], [2, 4]])
    joined, separate = torch.cat([TWO_TRIANGLES, bridge], 1), TWO_TRIANGLES
    if not is_listed_twice:
        joined, separate = (edges[:, edges[0] < edges[1]] for edges in (joined, separate))
    column = eigenvectors(Data(edge_index=joined, num_nodes=6), 1)[0][:, 0]
    assert column[[0, 1, 4]].sign().unique().numel() == column[[2, 3, 5]].sign().unique().numel() == 1
    assert column[0] * column[3] < 0
    columns, values = eigenvectors(Data(edge_index=separate, num_nodes=6), 4)
    assert columns[[0, 1, 4]].sum(0).abs().max() < 1e-6 and columns[[2, 3, 5]].sum(0).abs().max() < 1e-6
    torch.testing.assert_close(values, torch.full((4,), 3.0))


# -------------------------------------------------------------------------------------------------------------- DGL


def test_dgl_a_walk_that_may_stay() -> None:
    """For edges 0 to 1, and 1 to 1 and 0, DGL has 0, 1/2 and 1/2, 3/4. Without self-loops, the walk alternates."""
    data = Data(edge_index=torch.tensor([[0, 1, 1], [1, 1, 0]]), num_nodes=2)
    assert walks(data, 2).tolist() == [[0.0, 1.0], [0.0, 1.0]]


# --------------------------------------------------------------------------------------------------------- Graphium


def test_graphium_eigenvalues_of_cliques() -> None:
    """Eigenvalues of a clique of 6 are twice those of two cliques of 3, component by component."""
    two, one = data_of(nx.disjoint_union(nx.complete_graph(3), nx.complete_graph(3))), data_of(nx.complete_graph(6))
    (columns, small), (others, large) = eigenvectors(two, 3), eigenvectors(one, 3)
    torch.testing.assert_close(2 * small, large)
    assert columns.shape == others.shape == (6, 3)


def test_graphium_walks_on_a_barbell_are_probabilities() -> None:
    found = walks(data_of(nx.barbell_graph(4, 0)), 7)
    assert found.shape == (8, 7) and (found >= 0).all() and (found <= 1).all()
    matrix = nx.to_numpy_array(nx.barbell_graph(4, 0))
    power = torch.linalg.matrix_power(torch.tensor(matrix / matrix.sum(1, keepdims=True)), 6)
    torch.testing.assert_close(power.sum(1), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(found[:, 5].double(), power.diagonal(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (nx.cycle_graph(6), 5 / 6),
        (nx.path_graph(5), 1.0),
        (nx.complete_graph(4), 1 / 2),
        (nx.barbell_graph(4, 0), None),
    ],
    ids=["6-ring", "5-path", "4-clique", "4-barbell"],
)
def test_graphium_resistances_are_symmetric(source: nx.Graph, expected: float | None) -> None:
    """Commute distances over twice the edges: at an edge of a cycle 1 - 1/n, of a tree 1, of a clique 2/n."""
    data = data_of(source)
    found = AddPositionalEncoding(EffectiveResistance(), None, "resistance")(data).resistance[:, 0]
    one_way = data.num_edges // 2
    assert torch.equal(found[:one_way], found[one_way:])
    if expected is not None:
        torch.testing.assert_close(found, torch.full_like(found, expected))
    torch.testing.assert_close(found[:one_way].sum(), torch.tensor(len(source) - 1.0))  # Foster's theorem


# --------------------------------------------------------------------------------------------------------- GraphGPS


@pytest.mark.parametrize("size", range(4, 10))
def test_gps_eigenvectors_of_paths(size: int) -> None:
    """Unit columns, orthogonal, that are cosines, with eigenvalues ``2 - 2 cos(pi t / n)``."""
    columns, values = eigenvectors(data_of(nx.path_graph(size)), size - 1)
    torch.testing.assert_close(columns.T @ columns, torch.eye(size - 1), rtol=0, atol=1e-5)
    order = torch.arange(1, size)
    torch.testing.assert_close(values, 2 - 2 * (torch.pi * order / size).cos(), rtol=1e-4, atol=1e-5)
    cosines = (torch.pi * order * (torch.arange(size).unsqueeze(1) + 0.5) / size).cos()
    cosines = cosines / cosines.norm(dim=0)
    torch.testing.assert_close((columns * cosines).sum(0).abs(), torch.ones(size - 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [5, 10, 15, 20])
def test_gps_heat_kernels_of_paths(size: int) -> None:
    """Positive, and falling to what is left of a unit of heat that has spread over the whole path, ``1 / n``.

    GraphGPS leaves the constant mode out of its kernels, so that theirs sum to zero; ours are whole, and sum to one.
    """
    times = (1.0, 2.0, 3.0, 5.0, 1000.0)
    found = AddPositionalEncoding(HeatKernel(times=times))(data_of(nx.path_graph(size))).pe
    assert found.shape == (size, len(times)) and (found > 0).all() and (found.diff(dim=1) < 0).all()
    torch.testing.assert_close(found[:, -1], torch.full((size,), 1 / size), rtol=1e-2, atol=0)
    laplacian = torch.tensor(nx.laplacian_matrix(nx.path_graph(size)).toarray(), dtype=torch.float64)
    for column, time in zip(found.T, times, strict=True):
        torch.testing.assert_close(column.double(), (-time * laplacian).matrix_exp().diagonal(), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="times"):  # where GraphGPS returns an empty list
        HeatKernel(times=())


@pytest.mark.parametrize("size", [10, 15, 20, 23])
def test_gps_walks_on_paths(size: int) -> None:
    """Never back after an odd number of steps, always possibly after an even one; less likely the longer."""
    found = walks(data_of(nx.path_graph(size)), 24)
    assert not found[:, ::2].any() and (found[:, 1::2] > 0).all()
    assert (found[:, [3, 5, 11, 23]].diff(dim=1) < 0).all()
