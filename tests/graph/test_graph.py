"""The incidence operator against dense algebra that networkx builds from the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import Graph, batch_of, corner_cases, few, graphs, listings, normal, refusals, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.utils import coalesce, remove_self_loops

import tg_lpe
from tg_lpe.graph.incidence import inverse_sqrt

F64 = torch.float64
LIKE = torch.empty(0, dtype=F64)
weightings = st.sampled_from([None, (-1.0, 1.0), (-5.0, 5.0)])


def operator(graph: Graph, weighted: bool = True) -> tg_lpe.Graph:
    weight = graph.edge_weight() if weighted else None
    return tg_lpe.Graph(graph.edge_index(), graph.num_nodes, edge_weight=weight)


def check_against_dense(operator: tg_lpe.Graph, B: np.ndarray, L: np.ndarray, tolerance: float = 1e-12) -> None:
    n, m = B.shape
    dtype = torch.float64 if tolerance < 1e-8 else torch.float32
    like = torch.empty(0, dtype=dtype)
    assert (operator.num_nodes, operator.num_edges) == (n, m)
    x, y = normal(n, 3, seed=1, dtype=dtype), normal(m, 3, seed=2, dtype=dtype)
    assert relative_error(operator.dense(F64), B) < 1e-14
    assert relative_error(operator.differences(x), B.T @ x.double().numpy()) < tolerance
    # Sums of large terms may cancel, so the tolerance is against what was summed.
    scale = max(np.abs(B).sum(1).max(initial=0.0) * float(y.abs().max()) if m else 0.0, 1e-300)
    assert np.abs(operator.sums(y).double().numpy() - B @ y.double().numpy()).max(initial=0.0) < tolerance * scale
    assert relative_error(operator.laplacian(x), L @ x.double().numpy()) < tolerance
    assert relative_error(operator.degree(like), np.abs(B).sum(1)) < tolerance
    assert relative_error(operator.laplacian_diagonal(like), np.diag(L)) < tolerance
    norm = np.linalg.norm(B) if m and np.linalg.norm(B) else 1.0
    assert relative_error(operator.frobenius_norm(like), np.array([norm])) < tolerance
    assert all(f(v).dtype == dtype for f, v in ((operator.differences, x), (operator.sums, y), (operator.degree, x)))


@few
@given(st.data(), weightings)
def test_every_product_against_networkx(data, exponents) -> None:
    graph = data.draw(graphs(exponents=exponents))
    for tolerance in (1e-12, 2e-5):
        check_against_dense(operator(graph), graph.incidence(), graph.laplacian(), tolerance)
    if exponents is None:
        check_against_dense(operator(graph, weighted=False), graph.incidence(), graph.laplacian())


@pytest.mark.parametrize("graph", corner_cases())
def test_corner_cases_against_networkx(graph: Graph) -> None:
    check_against_dense(operator(graph), graph.incidence(), graph.laplacian())


@few
@given(st.data(), weightings)
def test_any_edge_list_of_a_graph_is_the_same_operator(data, exponents) -> None:
    graph = data.draw(graphs(exponents=exponents))
    index, weight = data.draw(listings(graph))
    listed = tg_lpe.Graph(index, graph.num_nodes, edge_weight=weight)
    assert torch.equal(torch.stack([listed.tail, listed.head]), graph.edge_index())
    torch.testing.assert_close(listed.conductance, graph.edge_weight(), rtol=1e-15, atol=0)
    unweighted = tg_lpe.Graph(index.int(), graph.num_nodes)
    assert torch.equal(torch.stack([unweighted.tail, unweighted.head]), graph.edge_index())
    assert unweighted.conductance is None


@few
@given(st.lists(graphs(max_nodes=7, exponents=(-2.0, 2.0)), max_size=5))
def test_a_batch_is_its_graphs_side_by_side(parts: list[Graph]) -> None:
    batched = batch_of(parts)
    whole = tg_lpe.Graph(**batched.arguments())
    sizes = [graph.num_nodes for graph in parts]
    assert whole.num_graphs == len(parts)
    assert whole.ptr.tolist() == [sum(sizes[:i]) for i in range(len(parts) + 1)]
    assert whole.local_index.tolist() == [i for size in sizes for i in range(size)]
    assert whole.edge_counts.tolist() == [len(graph.edges) for graph in parts]
    assert whole.max_nodes == max(sizes, default=0)
    x = normal(batched.num_nodes, 2)
    for got, part, rows in zip(batched.split(whole.laplacian(x)), parts, batched.split(x), strict=True):
        torch.testing.assert_close(got, operator(part).laplacian(rows), rtol=1e-12, atol=1e-12)
    norms = [float(operator(part).frobenius_norm(LIKE)[0]) for part in parts]
    np.testing.assert_allclose(whole.frobenius_norm(LIKE).numpy(), norms, rtol=1e-12)


def test_number_of_nodes_is_found() -> None:
    index = torch.tensor([[0, 1], [1, 4]])
    assert tg_lpe.Graph(index).num_nodes == 5
    assert tg_lpe.Graph(index, batch=torch.zeros(7, dtype=torch.int64)).num_nodes == 7
    assert tg_lpe.Graph(torch.zeros(2, 0, dtype=torch.int64)).num_nodes == 0


def test_a_weight_of_zero_is_an_absent_edge() -> None:
    index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    with_zero = tg_lpe.Graph(index, 4, edge_weight=torch.tensor([1.0, 0.0, 2.0], dtype=F64))
    without = tg_lpe.Graph(index[:, [0, 2]], 4, edge_weight=torch.tensor([1.0, 2.0], dtype=F64))
    x = normal(4, 2)
    assert torch.equal(with_zero.laplacian(x), without.laplacian(x))
    assert torch.equal(with_zero.degree(x), without.degree(x))


def test_nothing_the_caller_owns_is_modified_nor_kept() -> None:
    index, weight = torch.tensor([[2, 0, 1, 1], [0, 2, 1, 0]]), torch.tensor([3.0, 3.0, 7.0, 2.0])
    batch, x = torch.zeros(3, dtype=torch.int64), normal(3, 2, dtype=torch.float32)
    kept = [t.clone() for t in (index, weight, batch, x)]
    graph = tg_lpe.Graph(index, 3, edge_weight=weight, batch=batch)
    graph.laplacian(x), graph.degree(x), graph.frobenius_norm(x), graph.dense()
    assert all(torch.equal(now, before) for now, before in zip((index, weight, batch, x), kept, strict=True))
    index.zero_()
    assert (graph.tail.tolist(), graph.head.tolist()) == ([0, 0], [1, 2])


@pytest.mark.parametrize(
    "product",
    [
        lambda g, x, y: g.differences(x),
        lambda g, x, y: g.sums(y),
        lambda g, x, y: g.laplacian(x),
        lambda g, x, y: g.degree(x),
        lambda g, x, y: g.laplacian_diagonal(x),
        lambda g, x, y: g.frobenius_norm(x),
        lambda g, x, y: inverse_sqrt(g.degree(x)),
    ],
    ids=["differences", "sums", "laplacian", "degree", "diagonal", "norm", "inverse_sqrt"],
)
def test_gradients(product) -> None:
    # Edge (0, 1) is listed twice, (3, 3) is a loop, node 4 is alone.
    index = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 0, 3]])
    batch = torch.tensor([0, 0, 0, 1, 1])

    def of(weight, x, y):
        return product(tg_lpe.Graph(index, 5, edge_weight=weight[[0, 0, 1, 2, 3]], batch=batch), x, y)

    arguments = [torch.tensor([0.3, 2.0, 5.0, 1.0], dtype=F64), normal(5, 2), normal(3, 2)]
    assert torch.autograd.gradcheck(of, [a.requires_grad_() for a in arguments])


def test_gradient_is_finite_where_the_weight_is_zero() -> None:
    weight = torch.tensor([0.0, 2.0], requires_grad=True)
    graph = tg_lpe.Graph(torch.tensor([[0, 1], [1, 2]]), 4, edge_weight=weight)
    (graph.laplacian(torch.ones(4, 1)).sum() + inverse_sqrt(graph.degree(weight)).sum()).backward()
    assert weight.grad.isfinite().all() and weight.grad[0] == 0 and weight.grad[1] != 0


EDGE = torch.tensor([[0], [1]])


def weights(*values: float) -> torch.Tensor:
    return torch.tensor(values)


PARALLEL = {"edge_index": torch.tensor([[0, 1, 0], [1, 0, 1]]), "edge_weight": weights(1.0, 2.0, 6.0)}
NEGATIVE = {**PARALLEL, "edge_weight": weights(1.0, -2.0, 6.0)}
test_refused_with_the_offending_value = refusals(
    lambda edge_index=EDGE, num_nodes=None, **more: tg_lpe.Graph(edge_index, num_nodes, **more),
    ({"edge_weight": weights(-0.5)}, r"finite and not negative, got -0.5 for edge \(0, 1\)"),
    ({"edge_weight": weights(float("nan"))}, r"got nan for edge \(0, 1\)"),
    ({"edge_weight": weights(float("inf"))}, r"got inf for edge \(0, 1\)"),
    (
        {"edge_index": torch.tensor([[0, 2, 3], [1, 3, 2]]), "edge_weight": weights(1.0, 2.0, 2.5)},
        r"must agree .* got \[2.0, 2.5\] for edge \(2, 3\)",
    ),
    (PARALLEL, "reduce="),
    ({**PARALLEL, "reduce": "add"}, r"got sums \[7.0, 2.0, 7.0\] for edge \(0, 1\); list one direction alone"),
    *(({**NEGATIVE, "reduce": how}, r"not negative, got -2.0 for edge \(1, 0\)") for how in ("add", "mean")),
    ({"reduce": "max"}, "reduce must"),
    ({**PARALLEL, "edge_weight": torch.tensor([0.1, 0.1 * (1 + 1e-4), 0.1])}, r"for edge \(0, 1\)"),
)


def test_weights_equal_to_rounding_are_one_edge() -> None:
    both = torch.tensor([0.1, 0.1 * (1 + 1e-7)], dtype=torch.float32)
    assert tg_lpe.Graph(torch.tensor([[0, 1], [1, 0]]), edge_weight=both).num_edges == 1
    often = torch.tensor([[0], [1]]).expand(2, 4000)
    assert tg_lpe.Graph(often, edge_weight=torch.full((4000,), 0.7)).conductance.tolist() == [torch.tensor(0.7).item()]
    with pytest.raises(ValueError, match=r"0\.0, 1\.0\] and 3992 more for edge \(0, 1\)"):
        tg_lpe.Graph(often, edge_weight=torch.arange(4000) % 2.0)


def both_ways(index: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([index, index.flip(0)], 1), torch.cat([weight, weight])


@few
@given(st.data(), st.booleans(), st.booleans())
def test_parallel_edges_are_added_or_averaged(data, undirected: bool, weighted: bool) -> None:
    """As PyG coalesces each direction; both directions of an undirected multigraph are one conductor."""
    n = data.draw(st.integers(1, 5))
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).map(sorted)
    index = torch.tensor(data.draw(st.lists(ends, max_size=15)), dtype=torch.int64).view(-1, 2).T
    weight = normal(index.size(1), seed=n).abs() + 0.1 if weighted else torch.ones(index.size(1), dtype=F64)
    listed = both_ways(index, weight) if undirected else (index, weight)
    order = torch.tensor(data.draw(st.permutations(range(listed[0].size(1)))), dtype=torch.int64)
    listed = listed[0][:, order], listed[1][order]
    for reduce in ("add", "mean"):
        kept, expected = coalesce(*remove_self_loops(index, weight), num_nodes=n, reduce=reduce)
        graph = tg_lpe.Graph(listed[0], n, edge_weight=listed[1] if weighted else None, reduce=reduce)
        assert torch.equal(torch.stack([graph.tail, graph.head]), kept)
        if graph.conductance is None:
            assert not weighted and reduce == "mean"
        else:
            torch.testing.assert_close(graph.conductance.double(), expected, rtol=1e-12, atol=0)


def test_edge_keys_beyond_int32() -> None:
    n = 100_000  # n * n does not fit 32 bits
    index = torch.tensor([[n - 1, 0], [n - 2, n - 1]], dtype=torch.int32)
    graph = tg_lpe.Graph(index, n)
    assert (graph.tail.tolist(), graph.head.tolist()) == ([0, n - 2], [n - 1, n - 1])


@pytest.mark.parametrize("weight", [None, 1.0], ids=["unit", "weighted"])
def test_frobenius_norm_in_float16(weight: float | None) -> None:
    """The norm fits although its square does not."""
    first, num_edges = torch.arange(40_000), 40_001
    index = torch.cat([torch.stack([first, first + 1]), torch.tensor([[40_001], [40_002]])], 1)
    edge_weight = None if weight is None else torch.full((num_edges,), weight)
    graph = tg_lpe.Graph(index, batch=torch.tensor([0] * 40_001 + [1] * 2), edge_weight=edge_weight)
    norm = graph.frobenius_norm(torch.empty(0, dtype=torch.float16))
    assert norm.tolist() == pytest.approx([80_000**0.5, 2**0.5], rel=1e-3)


@few
@given(st.data(), st.booleans())
def test_other_conductances_on_the_same_structure(data: st.DataObject, asked_before: bool) -> None:
    graph = data.draw(graphs(exponents=(-2.0, 2.0)))
    bare, x = operator(graph, weighted=False), normal(graph.num_nodes, 2)
    if asked_before:  # what was computed of the structure is shared, what depends on conductances is not
        _ = bare.laplacian(x), bare.degree(x), bare.frobenius_norm(x), bare.edge_counts, bare.undirected_index
    for new, fresh in (
        (bare.with_conductances(graph.edge_weight()), operator(graph)),
        (operator(graph).with_conductances(None), operator(graph, weighted=False)),
    ):
        assert repr(new) == repr(fresh)
        for product in ("laplacian", "degree", "laplacian_diagonal", "frobenius_norm", "differences"):
            assert torch.equal(getattr(new, product)(x), getattr(fresh, product)(x)), product
    assert bare.conductance is None, "the first is left alone"


def test_other_conductances_are_per_undirected_edge_and_share_the_structure() -> None:
    both = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = tg_lpe.Graph(both, 3)
    known = graph.undirected_index
    assert graph.with_conductances(weights(1.0, 2.0)).undirected_index is known
    with pytest.raises(ValueError, match="conductance must"):
        graph.with_conductances(torch.ones(4))


# From directed to undirected edges and back.


@few
@given(st.data())
def test_undirected_index_and_merging(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    index, _ = data.draw(listings(graph))
    column_of = {edge: column for column, edge in enumerate(graph.edges)}
    expected = [column_of.get((min(u, v), max(u, v)), -1) for u, v in index.T.tolist()]
    for listed in (index, index.int()):
        incidence = tg_lpe.Graph(listed, graph.num_nodes)
        assert incidence.num_directed_edges == len(expected)
        assert incidence.undirected_index.tolist() == expected
        values = normal(len(expected), 2)
        merged = incidence.merge_directed(values)
        columns = range(len(graph.edges))
        rows = [[values[i].numpy() for i, c in enumerate(expected) if c == column] for column in columns]
        assert merged.shape == (len(graph.edges), 2)
        assert relative_error(merged, np.array([np.mean(row, axis=0) for row in rows]).reshape(-1, 2)) < 1e-14
        assert relative_error(incidence.merge_directed(values[:, 0]), merged[:, 0]) < 1e-14
        spread = incidence.spread_to_directed(merged)
        assert [row.tolist() for row in spread] == [merged[c].tolist() if c >= 0 else [0.0, 0.0] for c in expected]
        assert relative_error(incidence.merge_directed(spread), merged) < 1e-14


def test_gradients_of_merging_and_spreading() -> None:
    graph = tg_lpe.Graph(torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 0, 3]]), 4)
    assert torch.autograd.gradcheck(graph.merge_directed, normal(5, 2).requires_grad_())
    assert torch.autograd.gradcheck(graph.spread_to_directed, normal(3, 2).requires_grad_())
    values = normal(3, 1).requires_grad_()
    graph.spread_to_directed(values).sum().backward()
    assert values.grad.flatten().tolist() == [2.0, 1.0, 1.0], "nothing comes back from a self-loop"


def test_sums_of_weights_in_half_precision() -> None:
    """The sum of both directions is beyond float16, their mean is not; a true overflow is refused."""
    both = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    for dtype in (torch.float16, torch.bfloat16):
        weight = torch.full((4,), 4e4, dtype=dtype)
        assert torch.equal(tg_lpe.Graph(both, edge_weight=weight).conductance, weight[:2])
        assert torch.equal(tg_lpe.Graph(both).merge_directed(weight.unsqueeze(1)), weight[:2].unsqueeze(1))
    parallel, weight = torch.tensor([[0, 0, 0], [1, 1, 1]]), torch.full((3,), 3e4, dtype=torch.float16)
    with pytest.raises(ValueError, match="edge_weight"):
        tg_lpe.Graph(parallel, edge_weight=weight, reduce="add")
    with pytest.raises(ValueError, match="conductance must"):
        tg_lpe.Graph(both).with_conductances(torch.tensor([1, 2]))


@pytest.mark.parametrize("size", [(), (2,), (2, 3)], ids=str)
def test_products_of_values_of_any_shape(size: tuple[int, ...]) -> None:
    weight = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64)
    graph = tg_lpe.Graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), edge_weight=weight)
    x = torch.rand(4, *size, dtype=torch.float64)
    for product in (graph.differences, graph.laplacian):
        out = product(x)
        torch.testing.assert_close(out.reshape(len(out), -1), product(x.reshape(4, -1)))
        assert out.shape[1:] == x.shape[1:]
    assert graph.sums(graph.differences(x)).shape == x.shape


def test_views_that_inference_mode_read_first_serve_gradients() -> None:
    """As of a graph that a model encodes before it is trained."""
    batch = torch.tensor([0, 0, 0, 1, 1])
    graph = tg_lpe.Graph(torch.tensor([[0, 1, 3], [1, 2, 4]]), 5, batch=batch)
    x = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)

    def read() -> torch.Tensor:
        pairs = graph.pair_rows.gather(x) * graph.pair_columns.gather(x)
        distances = (graph.source.gather(x) - graph.target.gather(x)).square()
        return graph.laplacian(x).sum() + graph.pad(x).square().sum() + pairs.sum() + distances.sum()

    with torch.inference_mode():
        expected = read()
    got = read()
    assert torch.equal(got, expected)
    got.backward()
    assert x.grad is not None and bool(x.grad.any())
